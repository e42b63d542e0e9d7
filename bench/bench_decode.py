"""SmolLM2-135M: one decode step on the mesh, beside one of transformers (eager) in the same process."""

import pytest
import torch

from wafer_triton.models import demo
from wafer_triton.models.checkpoint import resolve
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.torch_executor import TorchExecutor

STEPS = 24


@pytest.fixture(scope="module")
def judge():
    from transformers import AutoModelForCausalLM

    folder = resolve("smollm2-135m")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


@pytest.fixture(scope="module")
def prompt():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve("smollm2-135m"))(demo.PROMPTS[0])["input_ids"]


@pytest.mark.parametrize("exchange", ["explicit", "elided"])
@pytest.mark.parametrize(("side", "dtype"), [(24, "fp32"), (16, "fp16")])
def test_decode_step(benchmark, note, judge, prompt, side, dtype, exchange):
    model = WaferForCausalLM.from_pretrained(
        resolve("smollm2-135m"), mesh=side, dtype=dtype, max_length=64, executor=TorchExecutor(exchange=exchange)
    )
    made = demo.compare(model, judge, prompt, 4)
    assert made.tokens == made.expected

    model.reset()
    token = int(model.prefill(prompt).argmax())
    before = model.account().rounds
    model.step(token)
    facts = {"mesh": f"{side}x{side}", "dtype": dtype, "exchange": exchange}
    note(what="SmolLM2-135M decode step", rounds=model.account().rounds - before, **facts)
    benchmark.pedantic(model.step, args=(token,), rounds=STEPS, warmup_rounds=2)


def test_transformers_step(benchmark, note, judge, prompt):
    note(what="the same in transformers, eager", dtype="fp32")
    ids = torch.tensor([prompt])
    with torch.no_grad():
        state = judge(ids, use_cache=True)
        token = state.logits[:, -1:].argmax(-1)
        step = lambda: judge(token, past_key_values=state.past_key_values, use_cache=True)  # noqa: E731
        benchmark.pedantic(step, rounds=STEPS, warmup_rounds=2)
