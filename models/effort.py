"""About how long a placed model takes to emulate on this machine, known before its weights are read."""

from __future__ import annotations

import os

from wafer_triton.emulate.distributed import DistributedExecutor
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.models.config import param_shapes
from wafer_triton.models.place.regions import Placement
from wafer_triton.models.run.prefill import chunks
from wafer_triton.report import emulation_seconds

# Rounds of a layer by the side P of its mesh, as schedules of known models have them on meshes of 16 to 128 a side.
# Prefill aligns operands, then shifts them P times, for each of its products; decode's trees grow with the root of P.
PREFILL_ROUNDS = 28  # times P
STEP_ROUNDS, TREE_ROUNDS = 30, 10  # and times the root of P


def seconds(placement: Placement, executor: Executor, *, prompts: int, tokens: int, steps: int) -> float:
    """Seconds for `prompts` prompts of `tokens` tokens each, and `steps` decode steps; 0 for an executor on a GPU."""
    inside = executor.inside if isinstance(executor, DistributedExecutor) else executor
    interpreted = not isinstance(inside, TorchExecutor)
    if interpreted and os.environ.get("TRITON_INTERPRET") != "1":
        return 0.0
    shape, side = placement.decode.shape, placement.prefill.mesh.shape[0]
    weights = sum(rows * width for rows, width in (size for size in param_shapes(shape).values() if len(size) == 2))
    parts = len(chunks(side, tokens, placement.chunk(tokens)))
    prefill = emulation_seconds(
        PREFILL_ROUNDS * side * shape.num_hidden_layers * parts, placement.prefill.mesh.cores, weights * tokens,
        prompt=True, interpreted=interpreted,
    )  # fmt: skip
    step = emulation_seconds(
        (STEP_ROUNDS + TREE_ROUNDS * max(placement.decode.mesh.shape) ** 0.5) * shape.num_hidden_layers,
        placement.decode.mesh.cores, weights, interpreted=interpreted,
    )  # fmt: skip
    return prompts * prefill + steps * step
