"""A real checkpoint on the mesh says what transformers says, in fp32, for a prompt of every kind."""

import pytest
import torch

from wafer_triton.models import demo
from wafer_triton.models.checkpoint.fetch import resolve
from wafer_triton.models.decoder import WaferForCausalLM

PROMPTS = {
    "one": demo.PROMPTS[0],
    "two": demo.PROMPTS[1],
    "single-token": "Once",
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n",
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
    model = WaferForCausalLM.from_pretrained(folder, mesh=demo.MESH, dtype="fp32", max_length=80)
    yield model, judge, AutoTokenizer.from_pretrained(folder)
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_tokens_are_those_of_transformers(models, prompt):
    model, judge, tokenizer = models
    ids = tokenizer(prompt)["input_ids"]
    made = demo.compare(model, judge, ids, 32)
    assert made.tokens == made.expected
    assert made.difference < 1e-3
    assert made.passed
    assert len(made.tokens) == 32 or made.tokens[-1] in model.config.eos_token_ids
    if prompt == PROMPTS["one"]:
        assert tokenizer.decode(made.tokens).startswith(" Paris")
    if prompt == PROMPTS["longer-than-the-mesh"]:
        assert len(ids) > demo.MESH
