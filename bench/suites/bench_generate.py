"""A small model whole: a prompt, a decode step, and all of a first `generate`; beside transformers.

Weights are random, as values cost no time. A prompt and a step are timed once their launches are recorded: whole, and
the replay alone. Each timed step is the next of its sequence, so that the host's work for a new token is in it.
transformers is timed as it is called (eager), and as a CUDA graph, without its host. A first call is a process of its
own with empty caches of kernels and of trials, from the model's placement to the last token.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from statistics import median

import torch

from cases import EXCHANGES, UnavailableError
from timing import Runs, Timing, elapsed
from wafer_triton import ops
from wafer_triton.compare.timing import RunTimes
from wafer_triton.device.dtype import torch_dtype
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.shape.published import MODELS
from work import record

KINDS = {"prefill": "prefill of {} tokens", "step": "decode step", "first": "first generate of 8 tokens"}
TINY = {
    "model_type": "llama", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "vocab_size": 97,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip
GRAPH = "transformers, a CUDA graph"
SIZES = {"tiny": TINY, "SmolLM2": MODELS["smollm2-135m"]}


@dataclass(frozen=True)
class Run:
    """A timed part of a model of some sizes on side x side cores, after `tokens` of prompt."""

    kind: str
    sizes: str
    side: int
    tokens: int
    dtype: str
    rows: tuple[str, ...] = (*EXCHANGES, "transformers", GRAPH)

    def __str__(self) -> str:
        return f"{self.name} on {self.side} x {self.side} cores, {self.dtype}"

    @property
    def name(self) -> str:
        return f"{KINDS[self.kind].format(self.tokens)}, {self.sizes}'s sizes"

    @property
    def slug(self) -> str:
        return f"{self.kind}-{self.sizes}-{self.tokens}-on{self.side}-{self.dtype}"


STEPS = 40  # that are timed
SHAPES = [
    *(Run(kind, "tiny", 4, 8, "fp32") for kind in ("prefill", "step")),
    Run("first", "tiny", 2, 4, "fp32", rows=("explicit",)),
]

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
    """Return the seconds until a model is placed, and of its first `generate`, with empty caches."""
    options = json.dumps([SIZES[shape.sizes], shape.side, shape.tokens, shape.dtype, row, device])
    with tempfile.TemporaryDirectory() as empty:
        command = [sys.executable, "-P", "-c", _FIRST, options]
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "TRITON_CACHE_DIR": empty, "WAFER_TRITON_CACHE": empty},
        )  # fmt: skip
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def placed(shape: Run, row: str, device: str) -> WaferForCausalLM:
    return WaferForCausalLM.from_config(
        SIZES[shape.sizes], mesh=shape.side, dtype=shape.dtype, max_length=shape.tokens + 8 + STEPS,
        max_prompt=shape.tokens, executor=ops.executor(None, row, device),
    )  # fmt: skip


def in_transformers(shape: Run, row: str, device: str):
    """Return a function that does the same in transformers; for `GRAPH` one whose every call does the same step."""
    try:
        import transformers
    except ImportError:
        raise UnavailableError("transformers is not installed") from None
    sizes = {name: value for name, value in SIZES[shape.sizes].items() if name != "model_type"}
    config = transformers.LlamaConfig(**sizes, attn_implementation="sdpa" if row == GRAPH else "eager")
    model = transformers.LlamaForCausalLM(config).to(device, torch_dtype(shape.dtype)).eval()
    ids = torch.full((1, shape.tokens), 7, device=device)

    @torch.no_grad()
    def prompt():
        return model(ids, use_cache=True, logits_to_keep=1)

    if shape.kind == "prefill":
        return prompt
    cache, token = prompt().past_key_values, ids[:, :1]

    prompted = [(layer.keys, layer.values) for layer in cache.layers]

    @torch.no_grad()
    def step():
        model(token, past_key_values=cache, use_cache=True)

    @torch.no_grad()
    def first_step():
        fresh = transformers.DynamicCache()
        for number, keys_and_values in enumerate(prompted):
            fresh.update(*keys_and_values, number)
        model(token, past_key_values=fresh, use_cache=True)

    return first_step if row == GRAPH else step


def replay(model: WaferForCausalLM, kind: str):
    """Return the launches of a prompt or of a step without the host's part; None if they are not recorded as one."""
    return next(iter((model._prefill if kind == "prefill" else model.layers).steps.values()), None)


def time_run(shape: Run, row: str, device: str) -> Timing:
    """Time a part of a model, and return the record."""
    facts = {
        "what": shape.name, "mesh": f"{shape.side}x{shape.side}", "dtype": shape.dtype, "context": shape.tokens,
        "checked": "tests/models",
    }  # fmt: skip
    if shape.kind == "first":
        placing, seconds = first_call(shape, row, device)
        return record(shape, row, RunTimes(seconds, seconds, 1, "a process"), facts | {"placing_seconds": placing})
    if row not in EXCHANGES:
        run = in_transformers(shape, row, device)
    else:
        model, prompt = placed(shape, row, device), [7] * shape.tokens

        def prefill():
            model.reset()
            return model.prefill(prompt)

        assert bool(prefill().isfinite().all())
        run = prefill if shape.kind == "prefill" else lambda: model.step(7)
    for _ in range(3):  # compiled, then recorded
        run()
    times = yield Runs([run], graph=row == GRAPH, once=shape.kind == "step")
    if row in EXCHANGES and (recorded := replay(model, shape.kind)):
        facts["replay_seconds"] = median(elapsed(device, recorded) for _ in range(15))
    return record(shape, row, times, facts)


def test_group(records, shape):
    records(time_run, shape)
