"""Host time of a warm decode step, counted: the calls that `sys.setprofile` reports."""

import sys

import pytest

from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.models.decoder import WaferForCausalLM

SHAPE = {  # as many layers and heads as SmolLM2-135M has, and narrower tiles, which calls do not depend on
    "model_type": "llama", "hidden_size": 72, "intermediate_size": 96, "num_hidden_layers": 30, "vocab_size": 97,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}  # fmt: skip
BEFORE = {"explicit": 21_179, "elided": 22_342}  # at commit 80873d0, where each layer's append was planned in each step


@pytest.mark.slow
@pytest.mark.parametrize("exchange", BEFORE)
def test_a_warm_step_makes_at_most_half_of_the_calls_of_before(exchange):
    model = WaferForCausalLM.from_config(SHAPE, mesh=6, max_length=30, executor=TorchExecutor(exchange=exchange))
    model.prefill([1, 2, 3])
    for _ in range(2):
        model.step(7)
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    model.step(7)
    sys.setprofile(before)
    assert 0 < calls <= BEFORE[exchange] // 2
