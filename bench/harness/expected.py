"""Expected times of an H200, beside the measured ones: python bench/harness/expected.py.

The time of a case is the longest of the times of its bytes, its operations and its programs. To this come its launches
and the hops of its reduce trees, one after the other. Bytes are counted from the schedule that runs. The constants
were measured on the machine of bench/results/nvidia-h200-80873d0.json. So were the times beside the expected ones, by
the engine of that commit, which is not the engine whose times are expected here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # Python leaves it out under PYTHONSAFEPATH

from cases import Shape
from wafer_triton.device.mesh import Mesh
from wafer_triton.models.random import config_of
from wafer_triton.place.need import param_shapes
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.reduce import all_reduce
from wafer_triton.schedule.ring import ring_step
from work import exchanged_bytes, work

RESULTS = Path(__file__).parents[1] / "results" / "nvidia-h200-80873d0.json"
FAR, NEAR = 4.15e12, 7.85e12  # bytes a second read and written: in HBM, within the L2.
L2 = 62914560  # bytes.
MATRIX = 785e12  # operations a second of dense bf16.
HOP = 1.0e-6  # seconds of a hop of a reduce tree inside a launch: message, barrier, flag, poll.
LAUNCH = 2.0e-6  # seconds of a launch in a CUDA graph.
PROGRAM = 0.6e-9  # seconds of a nearly empty program, 435,600 of them in 263 us.
HOST = 75e-6  # seconds of the host for a launch outside a graph.
HELD = 132 * 8  # resident programs of compute-shift rounds: 8 a multiprocessor, at 64 registers.
MOST_PROGRAMS = 60_000  # of a launch; where a mesh has more cores, a program holds several
TREES = 10  # of a decode layer: two norms, qkv, scores, maxima, weighted values, weights, output, gate and up, down
LAUNCHES = {"explicit": 20, "elided": 16}  # of a decode layer, at most
HEAD = (
    "case", "exchange", "bytes (MB)", "bytes (us)", "operations (us)", "programs (us)", "launches", "hops",
    "expected (us)", "outside a graph (us)", "measured at 80873d0 (us)",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Work of a case: bytes that move, and whether they stay in the L2; programs are of a launch."""

    name: str
    exchange: str
    moved: int
    flops: int
    launches: int
    hops: int
    cores: int
    near: bool = False
    measured: float | None = None  # seconds

    @property
    def parts(self) -> tuple[float, float, float]:
        """Seconds of bytes, of operations and of programs."""
        programs = min(self.cores, MOST_PROGRAMS) * self.launches
        return self.moved / (NEAR if self.near else FAR), self.flops / MATRIX, programs * PROGRAM

    @property
    def seconds(self) -> float:
        """The expected time as a graph."""
        return max(self.parts) + self.launches * LAUNCH + self.hops * HOP

    @property
    def row(self) -> tuple[str, ...]:
        """A line of the table."""
        times = (f"{one * 1e6:,.0f}" for one in self.parts)
        plain = max(self.seconds, self.launches * HOST)
        measured = "-" if self.measured is None else f"{self.measured * 1e6:,.0f}"
        return (
            self.name, self.exchange, f"{self.moved / 1e6:,.0f}", *times, str(self.launches), f"{self.hops:,}",
            f"{self.seconds * 1e6:,.0f}", f"{plain * 1e6:,.0f}", measured,
        )  # fmt: skip


def measured(group: str, exchange: str) -> float | None:
    """Return the median seconds of a row at commit 80873d0; None where it was not measured, or failed."""
    rows = (row for row in json.loads(RESULTS.read_text())["benchmarks"] if row["group"] == group)
    return next((row["stats"]["median"] for row in rows if row["extra_info"]["exchange"] == exchange), None)


def other(name: str) -> float:
    """Return a number that was measured at commit 80873d0 beside the benchmark's rows."""
    return next(one["value"] for one in json.loads(RESULTS.read_text())["others"] if one["case"] == name)


def tree(side: int) -> int:
    """Return the rounds of an all-reduce over a mesh column, which are the hops that come one after the other."""
    b = Builder(Mesh(1, side), "sum")
    b.buffer("x", (1,), "fp32", "output")
    all_reduce(b, "x", "x")
    return len(b.build().rounds)


def cases() -> Iterator[Case]:
    """Yield the cases of the figures to reach."""
    for side, tile in ((16, 64), (32, 64), (64, 64), (32, 128)):
        shape = Shape("gemm", side, *([tile * side] * 3), "bf16")
        schedule = shape.recipe().schedule
        must, aligned = work(schedule, schedule), sum(bool(one.exchanges) for one in schedule.rounds) - side + 1
        what, near = f"MeshGEMM, {side} x {side} cores, tiles of {tile} x {tile}", must.footprint < L2
        waits = side if side * side <= HELD else 0  # rounds of a mesh that the GPU holds are one launch
        launches = aligned + (1 if waits else side)
        moved = must.exchanged + must.others
        seen = measured(str(shape), "explicit")
        yield Case(what, "explicit", moved, shape.flops, launches, waits, side * side, near, seen)
        still = work(schedule, None).others
        yield Case(what, "elided", still, shape.flops, 1, 0, side * side, measured=measured(str(shape), "elided"))
    for k, n, side in ((4096, 14336, 64), (16384, 16384, 64), (16384, 16384, 128)):
        shape = Shape("gemv", side, 1, k, n, "bf16")
        schedule = shape.recipe().schedule
        must, what = work(schedule, schedule), f"MeshGEMV, [1, {k}] x [{k}, {n}], {side} x {side} cores"
        for exchange, moved, hops in (
            ("explicit", must.exchanged + must.others, tree(side)),
            ("elided", work(schedule, None).others, 0),
        ):
            seen = measured(str(shape), exchange)
            yield Case(what, exchange, moved, shape.flops, 2, hops, side * side, measured=seen)
    config = replace(config_of("llama3-8b"), num_hidden_layers=1)
    numel = sum(a * b for name, (a, *rest) in param_shapes(config).items() if ".layers." in name for b in rest or [1])
    for side, held in ((64, 4096), (660, 2000)):
        what = f"Llama-3-8B decode layer, {held:,} tokens held, {side} x {side} cores"
        moved = 2 * (numel + 2 * held * config.num_key_value_heads * config.head_dim)
        for exchange in ("explicit", "elided"):
            hops = TREES * tree(side) if exchange == "explicit" else 0
            if side == 64:
                seen: float | None = other(f"{what}, {exchange}") * 1e-6
            else:
                seen = measured(f"decode layer, llama3-8b after {held} tokens on {side} x {side} cores, bf16", exchange)
            yield Case(what, exchange, moved, 2 * numel, LAUNCHES[exchange], hops, side * side, measured=seen)
    b = Builder(Mesh(660, 660), "8 ring shifts")
    hands = [b.buffer(name, (4, 4), "bf16", "state") for name in ("here", "there")]
    for step in range(8):
        b.round(ring_step(b, "x", hands[step % 2], hands[1 - step % 2]))
    name = "8 ring shifts on 660 x 660 cores, tiles of 4 x 4"
    seen = measured(f"{name}, bf16", "explicit")
    yield Case(name, "explicit", exchanged_bytes(b.build()), 0, 8, 0, 660**2, near=True, measured=seen)


def table() -> str:
    """Return all cases as a Markdown table."""
    every = [HEAD, (*["---"] * 2, *["---:"] * (len(HEAD) - 2)), *(case.row for case in cases())]
    return "\n".join(f"| {' | '.join(line)} |" for line in every)


if __name__ == "__main__":
    print(table())
