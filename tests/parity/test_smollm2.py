"""A real checkpoint on the mesh gives transformers' tokens, in fp32, for a prompt of every kind."""

import re
from math import prod
from pathlib import Path

import pytest
import torch

import ranked
from wafer_triton.models import demo
from wafer_triton.models.checkpoint.fetch import resolve
from wafer_triton.models.decoder import WaferForCausalLM

PROMPTS = {
    "one": demo.PROMPTS[0],
    "multi-byte": "Zürich, 東京 and 🦊: three",
    "longer-than-the-mesh": "A wafer-scale chip is one large mesh of small cores. " * 3 + "Each core has its own",
}


@pytest.fixture(scope="module")
def models():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = resolve("smollm2-135m")
    judge = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = WaferForCausalLM.from_pretrained(folder, mesh=demo.MESH, dtype="fp32", max_length=64)
    yield model, judge, AutoTokenizer.from_pretrained(folder)
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROMPTS)
def test_tokens_equal_transformers(models, kind):
    """Generate as README's demo for one prompt, longer than the mesh; differences of the others show in few tokens."""
    model, judge, tokenizer = models
    ids = tokenizer(PROMPTS[kind])["input_ids"]
    count = demo.NEW_TOKENS if kind == "one" else 5
    comparison = demo.compare(model, judge, ids, count)
    assert comparison.tokens == comparison.expected
    assert comparison.difference < 1e-3
    assert comparison.passed
    assert len(comparison.tokens) == count or comparison.tokens[-1] in model.config.eos_token_ids
    if kind == "one":
        assert tokenizer.decode(comparison.tokens).startswith(" Paris")
        account, readme = model.account(), Path(__file__).parents[2] / "README.md"
        shown = re.search(r"^```text\n(All .*?)```$", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[1]
        equal, _, counts, predicted = shown.splitlines()
        assert equal == f"All {len(comparison.tokens)} tokens equal transformers'."
        assert counts == f"{account.rounds:,} rounds, {account.hops:,} hops, {account.link_bytes:,} bytes over links."
        assert predicted == demo.predicted_line(model)
    if kind == "longer-than-the-mesh":
        assert len(ids) > demo.MESH


@pytest.mark.slow
def test_two_ranks_with_half_of_it_each_say_the_same(models):
    model, judge, tokenizer = models
    ids = tokenizer(PROMPTS["one"])["input_ids"]
    new = ranked.on_ranks(2, ranked.smollm2, str(model.folder), ids, 4)
    model.reset()
    tokens = list(model.generate(ids, 4))
    assert [said for said, _ in new] == [tokens] * 2
    expected = judge.generate(torch.tensor([ids]), max_new_tokens=4, do_sample=False)
    assert tokens == expected[0, len(ids) :].tolist()
    whole, shapes = ranked.resident_bytes(model), model.weights.shapes
    layer = 4 * sum(prod(shape) for name, shape in shapes.items() if ".layers.0." in name)
    assert max(held for _, held in new) < (whole + layer) / 2, "layers stay whole"
    assert sum(held for _, held in new) < 1.01 * whole
