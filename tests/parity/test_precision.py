"""Perplexity against transformers'."""

from math import exp, log

import pytest
import torch

from judge import random_model
from wafer_triton.errors import ShapeError
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.precision import perplexity, windows

pytestmark = pytest.mark.slow

TEXT = [(7 * n * n + n // 3) % 40 + 1 for n in range(60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("precision")
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    random_model("llama", **sizes, vocab_size=41, initializer_range=0.3).save_pretrained(path)
    return path


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
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    wanted = sum(
        float(model(torch.tensor([part]), labels=torch.tensor([part])).loss) * (len(part) - 1)
        for part in windows(TEXT, window)
    )
    judged = perplexity(WaferForCausalLM.from_pretrained(folder, mesh=3, max_length=64), TEXT, window)
    assert judged.tokens == 59 and judged.nats == pytest.approx(wanted, rel=1e-5)
    assert judged.perplexity == exp(judged.nats / 59) and log(judged.perplexity) == pytest.approx(wanted / 59, rel=1e-5)


def test_a_text_of_one_token_has_none_to_predict(folder):
    with pytest.raises(ShapeError, match="the text has no token to predict; give at least 2 tokens"):
        perplexity(WaferForCausalLM.from_pretrained(folder, mesh=3, max_length=64), [1], 16)
