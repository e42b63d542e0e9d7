"""A small model whole: a prompt, a decode step, and all of a first `generate`; beside transformers (eager).

Weights are random, as values cost no time. A prompt and a step are timed once their launches are recorded. A first call
is a process of its own with an empty cache of kernels, from the model's placement to the last token.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import pytest
import torch

from cases import EXCHANGES
from timing import CLOCK, measure
from wafer_triton import ops
from wafer_triton.device.dtype import torch_dtype
from wafer_triton.models.decoder import WaferForCausalLM

KINDS = {"prefill": "prefill of {} tokens", "step": "decode step", "first": "first generate of 8 tokens"}
TINY = {
    "model_type": "llama", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "vocab_size": 97,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip
SMOLLM2 = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}  # fmt: skip
SIZES = {"tiny": TINY, "SmolLM2": SMOLLM2}


@dataclass(frozen=True)
class Run:
    """A timed part of a model of some sizes on side x side cores, after `tokens` of prompt."""

    kind: str
    sizes: str
    side: int
    tokens: int
    dtype: str
    priority: int = 2
    rows: tuple[str, ...] = (*EXCHANGES, "transformers")

    def __str__(self) -> str:
        return f"{self.name} on {self.side} x {self.side} cores, {self.dtype}"

    @property
    def name(self) -> str:
        return f"{KINDS[self.kind].format(self.tokens)}, {self.sizes}'s sizes"

    @property
    def slug(self) -> str:
        return f"{self.kind}-{self.sizes}-{self.tokens}-on{self.side}-{self.dtype}"


SHAPES = {
    "cpu": [*(Run(kind, "tiny", 4, 8, "fp32") for kind in ("prefill", "step")), Run("first", "tiny", 2, 4, "fp32",
            rows=("explicit",))],
    "cuda": [
        Run("prefill", "SmolLM2", 24, 256, "bf16", priority=1), Run("step", "SmolLM2", 24, 256, "bf16", priority=1),
        Run("first", "SmolLM2", 24, 256, "bf16", rows=EXCHANGES),
    ],
}  # fmt: skip

_FIRST = """
import json, sys, time

begun = time.perf_counter()
from wafer_triton import ops
from wafer_triton.models.decoder import WaferForCausalLM

sizes, side, tokens, dtype, exchange, device = json.loads(sys.argv[1])

model = WaferForCausalLM.from_config(
    sizes, mesh=side, dtype=dtype, max_length=tokens + 8, max_prompt=tokens,
    executor=ops.executor(None, exchange, device),
)

placed = time.perf_counter()
assert len(list(model.generate([7] * tokens, 8))) == 8
print(json.dumps([placed - begun, time.perf_counter() - placed]))
"""


def first_call(shape: Run, row: str, device: str) -> list[float]:
    """Return the seconds until a model is placed, and of its first `generate`, with no kernel compiled before."""
    options = json.dumps([SIZES[shape.sizes], shape.side, shape.tokens, shape.dtype, row, device])
    with tempfile.TemporaryDirectory() as empty:
        command = [sys.executable, "-P", "-c", _FIRST, options]
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "TRITON_CACHE_DIR": empty}
        )
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def placed(shape: Run, row: str, device: str) -> WaferForCausalLM:
    return WaferForCausalLM.from_config(
        SIZES[shape.sizes], mesh=shape.side, dtype=shape.dtype, max_length=shape.tokens + 40, max_prompt=shape.tokens,
        executor=ops.executor(None, row, device),
    )  # fmt: skip


def in_transformers(shape: Run, device: str):
    """Return a function that does the same in transformers, eager."""
    transformers = pytest.importorskip("transformers")
    sizes = {name: value for name, value in SIZES[shape.sizes].items() if name != "model_type"}
    config = transformers.LlamaConfig(**sizes, attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config).to(device, torch_dtype(shape.dtype)).eval()
    ids = torch.full((1, shape.tokens), 7, device=device)

    @torch.no_grad()
    def prompt():
        return model(ids, use_cache=True, logits_to_keep=1)

    if shape.kind == "prefill":
        return prompt
    cache, token = prompt().past_key_values, ids[:, :1]

    @torch.no_grad()
    def step():
        model(token, past_key_values=cache, use_cache=True)
        cache.crop(-1)

    return step


def test_row(benchmark, note, device, shape, row):
    benchmark.group = str(shape)
    facts = {
        "what": shape.name, "mesh": f"{shape.side}x{shape.side}", "dtype": shape.dtype, "exchange": row,
        "context": shape.tokens, "checked": "tests/models",
    }  # fmt: skip
    note(**facts)
    if shape.kind == "first":

        def timed():
            at_first = first_call(shape, row, device)
            CLOCK.seconds += at_first[1]
            note(placing_seconds=at_first[0], timed="a process")

        benchmark.pedantic(timed, rounds=1, warmup_rounds=0)
        return
    if row == "transformers":
        run = in_transformers(shape, device)
        run()
    else:
        model, prompt = placed(shape, row, device), [7] * shape.tokens

        def prefill():
            model.reset()
            return model.prefill(prompt)

        assert bool(prefill().isfinite().all())
        if shape.kind == "prefill":
            prefill()
            run = prefill
        else:
            for _ in range(3):  # compiled, recorded, replayed
                model.step(7)

            def run():
                model.step(7)
                model.counts[0] -= 1  # the next step takes this one's place

    note(timed=measure(benchmark, device, [run], graph=False))
