import json
import re
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoTokenizer

import tiny
from wafer_triton.errors import ShapeError
from wafer_triton.models.checkpoint.text import file_ids, tokenizer_of

NAMED = ("PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizerFast", "LlamaTokenizer", "Qwen2Tokenizer")
TEXT = "A wafer, 9 héads\n"


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("name", [*NAMED, None])
def test_a_tokenizer_is_the_one_that_transformers_takes(tmp_path, name, kind):
    folder = tiny.checkpoint(tmp_path, {"model_type": kind})
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name} if name else {}))
    ours, theirs = tokenizer_of(folder), AutoTokenizer.from_pretrained(folder)
    assert type(ours) is type(theirs)
    assert ours(TEXT)["input_ids"] == theirs(TEXT)["input_ids"]


def test_a_tokenizer_with_a_name_takes_no_configuration_of_the_model(tmp_path, monkeypatch):
    def load(*_, **__):
        raise AssertionError("the model's configuration was loaded, which takes two seconds to import")

    monkeypatch.setattr(AutoConfig, "from_pretrained", load)
    assert tokenizer_of(tiny.checkpoint(tmp_path))(TEXT)["input_ids"]


@pytest.mark.parametrize(("text", "count"), [("A", "1 token"), ("", "0 tokens")])
def test_a_text_of_fewer_than_two_tokens_is_refused(tmp_path, text, count):
    folder = tiny.checkpoint(tmp_path)
    assert file_ids(folder, Path("two.txt"), "AB") == tokenizer_of(folder)("AB")["input_ids"]
    message = (
        f"short.txt: {count}; at least two are needed, as a token is judged by the tokens before it: give more text"
    )
    with pytest.raises(ShapeError, match=f"^{re.escape(message)}$"):
        file_ids(folder, Path("short.txt"), text)
