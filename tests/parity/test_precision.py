"""Perplexity against transformers'."""

from math import exp, log

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from wafer_triton.errors import ShapeError
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.precision import perplexity, windows

pytestmark = pytest.mark.slow

WORDS = [f"w{number}" for number in range(40)]
TEXT = " ".join(WORDS[(7 * n * n + n // 3) % 40] for n in range(60))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("precision")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=41, initializer_range=0.3, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(["<unk>", *WORDS])}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(path)
    (path / "text.txt").write_text(TEXT)
    return path


def ids() -> list[int]:
    return [WORDS.index(word) + 1 for word in TEXT.split()]


def wafer(folder, **options) -> WaferForCausalLM:
    return WaferForCausalLM.from_pretrained(folder, mesh=3, **({"max_length": 64} | options))


@pytest.mark.parametrize(("count", "length"), [(2, 2), (9, 4), (10, 4), (11, 4), (60, 64), (5, 2)])
def test_windows_judge_every_token_but_the_first_once(count, length):
    cut = windows(range(count), length)
    assert [token for part in cut for token in part[1:]] == list(range(1, count))
    assert all(2 <= len(part) <= length for part in cut)


def test_windows_of_one_judge_nothing():
    with pytest.raises(ShapeError, match="windows of 1 tokens have no token to predict; give at least 2"):
        windows([1, 2, 3], 1)


@pytest.mark.parametrize("window", [16, 64])
@torch.no_grad()
def test_perplexity_equals_transformers(folder, window):
    model = LlamaForCausalLM.from_pretrained(folder)
    wanted = sum(
        float(model(torch.tensor([part]), labels=torch.tensor([part])).loss) * (len(part) - 1)
        for part in windows(ids(), window)
    )
    judged = perplexity(wafer(folder), ids(), window)
    assert judged.tokens == 59 and judged.nats == pytest.approx(wanted, rel=1e-5)
    assert judged.perplexity == exp(judged.nats / 59) and log(judged.perplexity) == pytest.approx(wanted / 59, rel=1e-5)


def test_a_text_of_one_token_has_none_to_predict(folder):
    with pytest.raises(ShapeError, match="the text has no token to predict; give at least 2 tokens"):
        perplexity(wafer(folder), [1], 16)
