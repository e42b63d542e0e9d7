"""The rows of a GPU in the order of their value, and the small rows of a rehearsal; a worker times them.

A row is a way to compute a shape, see `cases`; the rows of a shape are a group, timed in turns. Figures that are asked
for most come first, because a run ends when its time is up: products, vectors, a decode layer, shifts, public calls, a
small model, its first calls, the tests. The other rows follow.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench_decode import SMALL, DecodeStep, time_step
from bench_exchange import Shift, time_shifts
from bench_generate import SHAPES, Run, time_run
from bench_hops import Chain, time_chain
from cases import CALLS, EXCHANGES, LAUNCH_PER_ROUND, ROWS, WSE2, Shape, squares, time_product
from timing import Timing
from wafer_triton.models.random import config_of

TESTS = Path(__file__).resolve().parents[2] / "tests" / "gpu"
WORKERS = 8  # of pytest-xdist, for the tests
FIRST = (*EXCHANGES, "blas")  # without "emulation", which takes long on large meshes
LLAMA = config_of("llama3-8b")
LAYER = replace(LLAMA, num_hidden_layers=1)
TIMED: dict[type, Callable[[Any, str, str], Timing]] = {
    Shape: time_product, DecodeStep: time_step, Shift: time_shifts, Chain: time_chain, Run: time_run,
}  # fmt: skip


@dataclass(frozen=True)
class Timed:
    """A row of the file: its name, the seconds that it may take, and the function that times it on a device."""

    name: str
    patience: float
    run: Callable[[str], Timing]


Groups = list[list[Timed]]


def timed(shapes: Iterable[Any], patience: float = 60.0) -> Groups:
    """Return the rows of each shape; planning and compiling are part of the time that a row may take."""
    return [
        [Timed(f"{shape.slug}-{row}", patience, partial(TIMED[type(shape)], shape, row)) for row in shape.rows]
        for shape in shapes
    ]


def products(dtype: str, pairs: Iterable[tuple[int, int]], rows: tuple[str, ...] = ROWS, **options: Any) -> list[Shape]:
    return squares("gemm", dtype, list(pairs), rows=rows, **options)


def vectors(pairs: Iterable[tuple[int, int, int]], m: int = 1, rows: tuple[str, ...] = FIRST) -> list[Shape]:
    """Return products [m, k] x [k, n] on side x side cores, for triples of side, k and n."""
    return [Shape("gemv", side, m, k, n, "bf16", rows=rows) for side, k, n in pairs]


def on_a_gpu() -> Groups:
    """Return all rows of a GPU, the most valuable first.

    Sides that divide no size evenly have a peer beside them whose sizes suit cuBLAS: 2,008 tokens with the new one, and
    2048 x 1536 x 2560.
    """
    goals, large = [(16, 64), (32, 64), (64, 64)], [(32, 128), (32, 256), (64, 128)]
    narrow, wide = (4096, 14336), (16384, 16384)
    return [
        *timed(products("bf16", goals, (*ROWS, LAUNCH_PER_ROUND))),
        *timed(products("bf16", large, FIRST)),
        *timed(vectors([(64, *narrow), (64, *wide), (128, *wide)])),
        *timed([DecodeStep(LAYER, 64, 4095, "bf16"), DecodeStep(LAYER, 660, 2007, "bf16", emulated=WSE2)], 90),
        *timed([Shift(660, 4, "bf16", ("explicit", "emulation", "copy"))]),
        *timed(products("bf16", goals[:1], tuple(CALLS))),
        *timed([Run(kind, "SmolLM2", 24, 256, "bf16") for kind in ("step", "prefill")], 90),
        *timed([Run("first", "SmolLM2", 24, 256, "bf16", EXCHANGES)], 90),
        [Timed("tests/gpu", 200, tests)],
        # the others
        *timed(products("bf16", goals[1:], tuple(CALLS))),
        *timed([DecodeStep(LLAMA, 64, 4095, "bf16")], 90),
        *timed(vectors([(128, *narrow)])),
        *timed([Shift(side, 64, "bf16") for side in (16, 32, 64, 128)]),
        *timed([Chain(hops) for hops in (1, 4, 8, 11)]),
        *timed(vectors([(64, *narrow), (64, *wide)], 16)),
        *timed(products("fp16", [(32, 64)])),
        *timed(products("fp32", [(32, 64)])),
        *timed(products("bf16", [(32, 16), (32, 32), (128, 16), (128, 32)])),
        *timed([Shape("gemm", 48, *sizes, "bf16") for sizes in ((2000, 1500, 2500), (2048, 1536, 2560))]),
        *timed(vectors([(16, *narrow), (32, *narrow), (256, *narrow)])),
        *timed([DecodeStep(LAYER, 128, 2007, "bf16")], 90),
        *timed(vectors([(64, *narrow), (64, *wide), (128, *wide)], rows=("emulation",))),
        *timed(products("bf16", large, ("emulation",))),
        *timed(products("bf16", [(660, 2), (720, 2)], EXCHANGES, emulated=WSE2), 90),
    ]


def rehearsed() -> Groups:
    """Return small rows of every kind, for the CPU."""
    return [
        *timed([Shape("gemm", 6, 100, 70, 50, "fp32", (*ROWS, *CALLS)), Shape("gemv", 8, 1, 256, 256, "fp32")]),
        *timed(
            [
                DecodeStep(SMALL, 4, 20, "fp32"),
                DecodeStep(replace(SMALL, num_hidden_layers=2), 4, 20, "fp32", EXCHANGES),
            ]
        ),
        *timed([Shift(8, 32, "fp32"), Chain(1), *SHAPES]),
    ]


def tests(device: str) -> Timing:
    """Run tests/gpu, which find the GPU themselves, and return pytest's last line; the row fails if a test does."""
    yield from ()  # there is nothing to time
    workers = ["-n", str(WORKERS), "--dist", "worksteal"] if find_spec("xdist") else []
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    variables["COLUMNS"] = "400"  # of a reason, which pytest cuts to the width of a terminal
    command = [sys.executable, "-P", "-m", "pytest", str(TESTS), "--import-mode=importlib", "-q", "-rfE", *workers]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = [line.strip("= ") for line in done.stdout.splitlines() if line.strip()]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    assert done.returncode == 0, "; ".join([*lines[-1:], *failed])
    return {"tests": lines[-1]}
