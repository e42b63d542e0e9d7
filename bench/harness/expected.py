"""What a model expects of an H200, as two tables: python bench/harness/expected.py. Nothing of it is measured.

A case takes the time of its bytes or of its operations, whichever is longer, and of what comes one after the other:
launches, and hand-overs from program to program. What the bytes are is counted from the schedule that runs.

The second table is of products with elided exchange, where programs multiply for lines of cores: how many programs
there are, and whether they have bytes enough on the way.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # Python leaves it out under PYTHONSAFEPATH

import numpy as np
import torch

from cases import Shape, work
from wafer_triton.emulate.lines import NARROW, narrowed
from wafer_triton.kernels._common import Operand
from wafer_triton.kernels.gemm import plan
from wafer_triton.kernels.lines import PRODUCTS
from wafer_triton.kernels.protocol import window
from wafer_triton.mesh import Mesh
from wafer_triton.place.need import param_shapes
from wafer_triton.models.random import config_of
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.reduce import all_reduce
from window import tables

BANDWIDTH = 4.8e12  # bytes per second; NVIDIA's datasheet of the H200 SXM
MATRIX = 990e12  # operations per second of dense bf16; the same
LAUNCH = 2.5e-6  # seconds between kernels of a CUDA graph; estimate
HANDOVER = 1.5e-6  # seconds until another program has seen a flag and read what it tells of; estimate
MULTIPROCESSORS = 132  # of an H200 SXM, as of an H100 SXM
PROGRAMS = 6  # a multiprocessor: 64 Ki registers over 128 threads of 80, see results/sm_90-triton-3.7.1.csv
TIGHT = 8  # over 128 threads of 64, where the whole mesh fits then
LATENCY = 0.7e-6  # seconds from a load to its value while the memory is busy; estimate
TREES = 10  # of a decode layer: two norms, qkv, scores, maxima, weighted values, weights, output, gate and up, down
LAUNCHES = {"explicit": 6, "elided": 8}  # of a decode layer
THREE = 3  # programs of lines a multiprocessor: 64 Ki registers over 128 threads of 144
SLICES = (
    "product", "weights (MB)", "at bandwidth (us)", "columns a slice", "programs", "waves", "in flight (kB)",
    "of what the bandwidth needs",
)  # fmt: skip
HEAD = ("case", "exchange", "bytes (MB)", "bytes (us)", "operations (us)", "launches", "hand-overs", "expected (us)")


def row(case: str, exchange: str, moved: int, flops: int, launches: int, handovers: int) -> tuple[str, ...]:
    """A line of the table."""
    bytes_, operations = moved / BANDWIDTH, flops / MATRIX
    seconds = max(bytes_, operations) + launches * LAUNCH + handovers * HANDOVER
    times = (f"{one * 1e6:,.0f}" for one in (bytes_, operations, seconds))
    first, second, whole = times
    return (case, exchange, f"{moved / 1e6:,.0f}", first, second, str(launches), f"{handovers:,}", whole)


def handovers(side: int) -> dict[str, int]:
    """Of an all-reduce over a line: how often a program waits for another, one after the other; by exchange."""
    b = Builder(Mesh(1, side), "sum")
    b.buffer("x", (1,), "fp32", "output")
    all_reduce(b, "x", "x")
    return {"explicit": len(b.build().rounds), "elided": 0}


def rounds_a_launch(side: int) -> int:
    """All of MeshGEMM's rounds where the GPU holds the mesh, else a window, less one program in eight."""
    held = MULTIPROCESSORS * (TIGHT if side * side <= MULTIPROCESSORS * TIGHT else PROGRAMS)
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
        must = work(schedule, schedule)
        moved = {"explicit": must.exchanged + must.others, "elided": work(schedule, None).others}
        what = f"MeshGEMV, [1, 16384] x [16384, 16384], {side} x {side} cores"
        for exchange, waits in handovers(side).items():
            yield row(what, exchange, moved[exchange], shape.flops, 1, waits)
    config = replace(config_of("llama3-8b"), num_hidden_layers=1)
    numel = sum(a * b for name, (a, *rest) in param_shapes(config).items() if ".layers." in name for b in rest or [1])
    cache = 2 * 4096 * config.num_key_value_heads * config.head_dim
    for layers in (1, 32):
        case = f"Llama-3-8B decode, {layers} layer{'s' * (layers > 1)}, 4,096 tokens held, 64 x 64 cores"
        held = 2 * (numel + cache) * layers
        for exchange, waits in handovers(64).items():
            yield row(case, exchange, held, 2 * numel * layers, LAUNCHES[exchange] * layers, TREES * waits * layers)


def slices(side: int) -> Iterator[tuple[str, ...]]:
    """Products of a decode layer whose programs multiply for all cores of a line, for a slice of their columns."""
    config = config_of("llama3-8b")
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = config.head_dim * (config.num_attention_heads + 2 * config.num_key_value_heads)
    shapes = {
        "qkv": (hidden, heads),
        "output": (hidden, hidden),
        "gate and up": (hidden, 2 * inner),
        "down": (inner, hidden),
    }
    for name, (k, n) in shapes.items():
        bf16 = Operand(torch.empty(0, dtype=torch.bfloat16), 0, 0)
        chosen = plan(bf16, bf16, m=1, k=k // side, n=n // side, at_once=True)
        cols = narrowed(chosen["BLOCK_N"], chosen["N"], side, NARROW)
        programs = side * -(-chosen["N"] // cols)
        waves = -(-programs // (MULTIPROCESSORS * THREE))
        flying = 2 * min(programs, MULTIPROCESSORS * THREE) * PRODUCTS
        needed = BANDWIDTH * LATENCY
        figures = 2 * k * n / 1e6, 2 * k * n / BANDWIDTH * 1e6, cols, programs, waves, flying / 1e3, flying / needed
        yield (name, *(f"{figure:,.0f}" for figure in figures[:-1]), f"{figures[-1]:.1f}")


def table() -> str:
    """All cases as a Markdown table."""
    return markdown(HEAD, 2, rows())


def slices_table() -> str:
    """Products by lines, as a Markdown table."""
    return markdown(SLICES, 1, slices(64))


def markdown(head: tuple[str, ...], words: int, cells: Iterator[tuple[str, ...]]) -> str:
    """A table whose first columns are words."""
    every = [head, (*["---"] * words, *["---:"] * (len(head) - words)), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in every)


if __name__ == "__main__":
    print(table(), slices_table(), sep="\n\n")
