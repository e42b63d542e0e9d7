import json

import pytest

import tiny
from wafer_triton.models.checkpoint.text import tokenizer_of

NAMED = ("PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizerFast", "LlamaTokenizer", "Qwen2Tokenizer")
TEXT = "A wafer, 9 héads\n"


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("name", [*NAMED, None])
def test_a_tokenizer_is_the_one_that_transformers_takes(tmp_path, name, kind):
    from transformers import AutoTokenizer

    folder = tiny.checkpoint(tmp_path, {"model_type": kind})
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name} if name else {}))
    ours, theirs = tokenizer_of(folder), AutoTokenizer.from_pretrained(folder)
    assert type(ours) is type(theirs)
    assert ours(TEXT)["input_ids"] == theirs(TEXT)["input_ids"]


def test_a_tokenizer_with_a_name_takes_no_configuration_of_the_model(tmp_path, monkeypatch):
    def load(*_, **__):
        raise AssertionError("the model's configuration was loaded, which takes two seconds to import")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", load)
    assert tokenizer_of(tiny.checkpoint(tmp_path))(TEXT)["input_ids"]
