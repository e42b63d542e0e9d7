"""What a model expects of an H200, as a table: python bench/harness/expected.py. Nothing of it is measured.

A case takes the time of its bytes or of its operations, whichever is longer, and of what comes one after the other:
launches, and hand-overs from program to program. What the bytes are is counted from the schedule that runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # Python leaves it out under PYTHONSAFEPATH

import numpy as np

from cases import Shape, work
from wafer_triton.kernels.protocol import window
from wafer_triton.models.config import param_shapes
from wafer_triton.models.random import config_of
from window import tables

BANDWIDTH = 4.8e12  # bytes per second; NVIDIA's datasheet of the H200 SXM
MATRIX = 990e12  # operations per second of dense bf16; the same
LAUNCH = 2.5e-6  # seconds between kernels of a CUDA graph; estimate
HANDOVER = 1.5e-6  # seconds until another program has seen a flag and begun to read; estimate
MULTIPROCESSORS = 132  # of an H200 SXM, as of an H100 SXM
PROGRAMS = 6  # a multiprocessor: 64 Ki registers over 128 threads of 80, see results/sm_90-triton-3.7.1.csv
HEAD = ("case", "exchange", "bytes (MB)", "bytes (us)", "operations (us)", "launches", "hand-overs", "expected (us)")


def row(case: str, exchange: str, moved: int, flops: int, launches: int, handovers: int) -> tuple[str, ...]:
    """A line of the table."""
    bytes_, operations = moved / BANDWIDTH, flops / MATRIX
    seconds = max(bytes_, operations) + launches * LAUNCH + handovers * HANDOVER
    times = (f"{one * 1e6:,.0f}" for one in (bytes_, operations, seconds))
    first, second, whole = times
    return (case, exchange, f"{moved / 1e6:,.0f}", first, second, str(launches), f"{handovers:,}", whole)


def rounds_a_launch(side: int) -> int:
    """All of MeshGEMM's rounds where the GPU holds the mesh, else a window, less one program in eight."""
    held = MULTIPROCESSORS * PROGRAMS
    return window(tables(side), np.arange(side * side), held if side * side <= held else held - held // 8, side)


def rows() -> Iterator[tuple[str, ...]]:
    """The cases of the figures to reach."""
    for side in (16, 32, 64):
        shape = Shape("gemm", side, *([64 * side] * 3), "bf16")
        schedule = shape.recipe().schedule
        must, moves = work(schedule, schedule), sum(bool(one.exchanges) for one in schedule.rounds)
        what = f"MeshGEMM, {side} x {side} cores, tiles of 64 x 64"
        launches = 1 + -(-side // rounds_a_launch(side))  # alignment, then rounds
        yield row(what, "explicit", must.exchanged + must.others, shape.flops, launches, moves)
        yield row(what, "elided", work(schedule, None).others, shape.flops, 1, 0)
    for side in (64, 128):
        shape = Shape("gemv", side, 1, 16384, 16384, "bf16")
        schedule = shape.recipe().schedule
        must, moves = work(schedule, schedule), sum(bool(one.exchanges) for one in schedule.rounds)
        what = f"MeshGEMV, [1, 16384] x [16384, 16384], {side} x {side} cores"
        yield row(what, "explicit", must.exchanged + must.others, shape.flops, 1, moves)
    config = replace(config_of("llama3-8b"), num_hidden_layers=1)
    numel = sum(a * b for name, (a, *rest) in param_shapes(config).items() if ".layers." in name for b in rest or [1])
    cache = 2 * 4096 * config.num_key_value_heads * config.head_dim
    # trees of a layer: two norms, qkv, scores, maxima, weighted values, output, gate and up, down; 8 stages and a send
    for layers in (1, 32):
        case = f"Llama-3-8B decode, {layers} layer{'s' * (layers > 1)}, 4,096 tokens held, 64 x 64 cores"
        moved = 2 * (numel + cache) * layers
        yield row(case, "either", moved, 2 * numel * layers, 6 * layers, 9 * 9 * layers)


def table() -> str:
    """All cases as a Markdown table."""
    lines = [HEAD, ("---", "---", *["---:"] * 6), *rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(table())
