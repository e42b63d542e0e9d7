"""A whole small decoder with Triton: on a GPU a prompt is one graph, and one graph is replayed for all decode steps."""

import pytest
import torch

from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.models.decoder import WaferForCausalLM

SHAPE = {
    "model_type": "llama", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
PROMPTS = [[3, 1, 4, 1, 5], [9, 2]]
OTHERS = [[2, 7, 1, 8, 2], [8, 1]]


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_steps_equal_the_torch_executor_s(exchange, device, size):
    """More steps than rows, so that appends with and without a shift, and at every slot, go through one record."""
    batch = len(PROMPTS)
    side, steps, layers = size((4, 13, 2), (2, 3, 1))
    shape = SHAPE | {"num_hidden_layers": layers}
    models = [
        WaferForCausalLM.from_config(shape, mesh=side, dtype="fp32", seed=1, max_length=20, batch=batch, executor=on)
        for on in (TorchExecutor(exchange=exchange), TritonExecutor(device=device, exchange=exchange))
    ]
    logits = []
    for model in models:
        found = []
        for prompts in size((PROMPTS, OTHERS), (PROMPTS,)):  # of the same lengths, whose prefill is recorded by then
            model.reset()
            found += [model.prefill(prompts[number], sequence=number) for number in range(batch)]
            for number in range(steps):
                found.append(model.advance([(7 * number + one) % 97 for one in range(batch)]))
        logits.append(torch.cat([one.reshape(-1, 97).cpu() for one in found]))
    assert (logits[0] - logits[1]).norm() <= 1e-5 * logits[0].norm()
    assert torch.equal(logits[0].argmax(-1), logits[1].argmax(-1))


@pytest.mark.gpu_alone
def test_a_gpu_is_taken_where_there_is_one():
    model = WaferForCausalLM.from_config(SHAPE, mesh=4, seed=1, max_length=20)
    assert model.executor.device == "cuda" and torch.cuda.get_device_name() in repr(model)
    tokens = list(model.generate(PROMPTS[0], 6, stop=()))
    here = WaferForCausalLM.from_config(SHAPE, mesh=4, seed=1, max_length=20, emulate_on="cpu")
    assert here.executor.device == "cpu" and list(here.generate(PROMPTS[0], 6, stop=())) == tokens
