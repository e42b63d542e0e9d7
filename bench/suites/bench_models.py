"""SmolLM2-135M whole on the CPU: decode, a 256-token prefill and peak memory, beside transformers (eager) in one run.

Both sides have the same weights, fp32, and the same threads, and compute a generation's logits of the last position.
They take turns step by step, so that other load on the machine falls on both. Every product runs on the mesh.
The bounds are for tiles that are read from where they lie (`elided`); tiles that really move (`explicit`) give the same
bits and are timed too, without bounds. fp32 tiles on 16 x 16 cores take more SRAM than a WSE-2 core has, so the cores
there have 96 KiB; 24 x 24 cores of a WSE-2 are timed as well, without bounds.
"""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import pytest
import torch

from wafer_triton.device import PRESETS, Device
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.models.checkpoint.fetch import resolve
from wafer_triton.models.decoder import WaferForCausalLM

NAME, PROMPT, STEPS = "smollm2-135m", 256, 24
WSE2 = PRESETS["wse2"]
BIG = replace(WSE2, name="WSE-2 with 96 KiB a core", sram_bytes=96 * 1024)
SPARE_BYTES = 300e6  # beside twice the weights


@dataclass(frozen=True)
class On:
    """A mesh, and how many times as long as transformers a step and a prefill may take there."""

    side: int
    device: Device
    exchange: str = "explicit"
    step: float | None = None
    prefill: float | None = None

    def __str__(self) -> str:
        return f"{self.side}x{self.side}-{self.device.sram_bytes // 1024}KiB-{self.exchange}"


PLACES = (On(16, BIG, "elided", step=2.0, prefill=4.0), On(16, BIG), On(24, WSE2, "elided"))


@pytest.fixture(params=(1, 2), ids="{}-threads".format)
def threads(request):
    """Set both sides' threads; two only pay on idle cores, as a step is thousands of short operations."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def judge():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(resolve(NAME), dtype=torch.float32, attn_implementation="eager")


@pytest.fixture(scope="module", params=PLACES, ids=str)
def placed(request):
    place = request.param
    model = WaferForCausalLM.from_pretrained(
        resolve(NAME), mesh=place.side, device=place.device, dtype="fp32", max_length=PROMPT + 2 * STEPS,
        max_prompt=PROMPT, executor=TorchExecutor(exchange=place.exchange),
    )  # fmt: skip
    return place, model


@pytest.fixture(scope="module")
def prompt():
    from transformers import AutoTokenizer

    text = "A wafer-scale chip is one large mesh of small cores, each with its own memory. " * 20
    return AutoTokenizer.from_pretrained(resolve(NAME))(text)["input_ids"][:PROMPT]


@torch.no_grad()
def compared(benchmark, note, what, place, threads, ours, theirs, rounds, bound):
    """Time `ours`, with `theirs` before each round; the bound on the ratio of medians is part of the test."""
    seconds = []

    def turn():
        begun = perf_counter()
        theirs()
        seconds.append(perf_counter() - begun)

    benchmark.pedantic(ours, setup=turn, rounds=rounds, warmup_rounds=1)
    other = median(seconds[1:])
    slower = benchmark.stats.stats.median / other
    note(
        what=f"SmolLM2-135M {what}, threads: {threads}", mesh=f"{place.side}x{place.side}", dtype="fp32",
        exchange=place.exchange,
        device=place.device.name, sram_bytes_per_core=place.device.sram_bytes, transformers_median_s=other,
        times_transformers=slower, at_most_times=bound,
    )  # fmt: skip
    assert bound is None or slower <= bound, f"{what}: {slower:.2f} times as long as transformers"


@torch.no_grad()
def test_decode(benchmark, note, placed, threads, judge, prompt):
    place, model = placed
    model.reset()
    said = judge(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
    assert_near(model.prefill(prompt), said.logits[0, -1])
    token = said.logits[:, -1:].argmax(-1)

    def theirs():
        return judge(token, past_key_values=said.past_key_values, use_cache=True).logits[0, -1]

    assert_near(model.step(int(token)), theirs())
    compared(benchmark, note, "decode step", place, threads, lambda: model.step(int(token)), theirs, STEPS, place.step)


@torch.no_grad()
def test_prefill(benchmark, note, placed, threads, judge, prompt):
    place, model = placed
    ids = torch.tensor([prompt])

    def ours():
        model.reset()
        return model.prefill(prompt)

    def theirs():
        return judge(ids, use_cache=True, logits_to_keep=1).logits[0, -1]

    assert_near(ours(), theirs())
    compared(benchmark, note, f"prefill of {PROMPT} tokens", place, threads, ours, theirs, 5, place.prefill)


_PEAK = """
import json, sys
from dataclasses import replace
from pathlib import Path

from wafer_triton.device import PRESETS
from wafer_triton.models.checkpoint.fetch import resolve
from wafer_triton.models.decoder import WaferForCausalLM

name, side, sram_bytes, dtype, prompt, steps = json.loads(sys.argv[1])

model = WaferForCausalLM.from_pretrained(
    resolve(name), mesh=side, device=replace(PRESETS["wse2"], sram_bytes=sram_bytes), dtype=dtype,
    max_length=prompt + steps, max_prompt=prompt,
)

assert len(list(model.generate([1] * prompt, steps))) > 0
weights = sum(weight.nbytes for weight in model.parameters())
# the peak memory of this process alone: ru_maxrss begins with the value of the process that started it

line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(json.dumps({"weight_bytes": weights, "peak_bytes": 1024 * int(line.split()[1])}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("place", "dtype"),
    [(On(16, BIG), "fp32"), (On(24, WSE2), "fp32"), (On(16, WSE2), "fp16"), (On(16, WSE2), "bf16")],
    ids=str,
)
def test_peak_memory(benchmark, note, place, dtype):
    """Loading, a 256-token prefill and some steps in a process of their own: at most twice the weights, and 300 MB."""
    options = json.dumps([NAME, place.side, place.device.sram_bytes, dtype, PROMPT, 8])
    command = [sys.executable, "-P", "-c", _PEAK, options]
    done = benchmark.pedantic(lambda: subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True), rounds=1)
    peak = json.loads(done.stdout)
    what = f"SmolLM2-135M: load, prefill of {PROMPT} and 8 steps"
    note(
        what=what, mesh=f"{place.side}x{place.side}", dtype=dtype, exchange="explicit", device=place.device.name, **peak
    )
    assert peak["peak_bytes"] <= 2 * peak["weight_bytes"] + SPARE_BYTES


def assert_near(got, wanted):
    assert (got - wanted).norm() <= 1e-4 * wanted.norm()
    assert int(got.argmax()) == int(wanted.argmax())
