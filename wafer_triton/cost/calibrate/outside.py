"""Prices of schedules that others wrote for a CS-2: collectives by their closed forms, and a simulated stencil.

The closed forms judge `constants.tuned`. They are those of Luczynski et al., "Near-Optimal Wafer-Scale Reduce"
(HPDC'24, arXiv 2404.15888), within 4 % of a CS-2 by its authors' measurements: T = max(C, E / N + L) + (2 T_R + 1) D
cycles, with one cycle a word and a hop and T_R = 2. Nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isclose, isqrt
from typing import Any

import numpy as np

from wafer_triton.algorithms.collectives import broadcast, multicast
from wafer_triton.algorithms.reduce import all_reduce, reduce
from wafer_triton.cost.price import price
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Slot

CORES, WORDS = (4, 16, 64, 256, 512), (1, 16, 256, 4096)
ROOMY = replace(device("wse2").unbounded(), routes=None)  # the forms know neither SRAM nor routes


@dataclass(frozen=True)
class Point:
    """A collective of `words` a core on some cores: cycles by its closed form, and by the price of its rounds."""

    collective: str
    cores: int
    words: int
    closed: float
    tuned: float
    written: float  # by the constants of a WSE-2

    @property
    def ratio(self) -> float:
        """Return the price over the closed form."""
        return self.tuned / self.closed

    @property
    def exact(self) -> bool:
        """Return whether both are the same, but for rounding of fractions."""
        return isclose(self.tuned, self.closed, rel_tol=1e-12)


def star(b: Builder) -> None:
    """Add a round in which every core of a mesh row sends its tile to the first, which adds them."""
    others, size = b.mesh.cols - 1, b.buffers["x"].numel
    inbox = b.buffer("inbox", (size,), "fp32", slots=others)
    moves = [b.exchange("x", "x", Slot(inbox, core - 1), [core], [0]) for core in range(1, others + 1)]
    first = Cores("x", np.array([0]))
    b.round(*moves, *(b.local("add", "x", ("x", Slot(inbox, slot)), first, size=size) for slot in range(others)))


def broadcast_in_two(b: Builder) -> None:
    """Add rounds in which a core sends its tile along its mesh row, and the row sends it along the mesh columns."""
    b.round(b.exchange("x", "x", "x", 0, np.arange(1, b.mesh.cols), [0]))
    b.round(*multicast(b, "x", "x", "y", 0))


def two_phase(p: int, w: int) -> float:
    """Return T of chains in groups of sqrt(P) cores, and of a chain over the groups: C = 2 B, D = 2 sqrt(P) - 2."""
    group = isqrt(p)
    return max(2 * w, 2 * w * (p - group) / (p - 1) + p - 1) + 5 * (2 * group - 2)


def shape(p: int) -> tuple[int, int]:
    """Return the rows and columns of the mesh of a broadcast in two dimensions."""
    return (rows := isqrt(p)), p // rows


# By collective: the closed form in words, of P cores and B words; the form; and the rounds.
FORMS: dict[str, tuple[str, Callable[[int, int], float], Callable[[Builder], Any]]] = {
    "broadcast": ("B + P + 4", lambda p, w: w + p + 4, lambda b: broadcast(b, "x", "x", 0)),
    "2-D broadcast": ("B + M + N - 2 + 5, P = M N", lambda p, w: w + sum(shape(p)) + 3, broadcast_in_two),
    "star": ("B (P - 1) + 5", lambda p, w: w * (p - 1) + 5, star),
    "chain": ("B + 6 (P - 1)", lambda p, w: w + 6 * (p - 1), lambda b: reduce(b, "x", "x", algorithm="pipeline")),
    "two-phase": (
        "max(2 B, 2 B (P - S) / (P - 1) + P - 1) + 5 (2 S - 2), S = sqrt(P)",
        two_phase,
        lambda b: reduce(b, "x", "x", algorithm="two-phase"),
    ),
    "ring": (
        "2 (P - 1) B / P + 4 P - 6 + 10 (P - 1)",
        lambda p, w: 2 * (p - 1) * w / p + 4 * p - 6 + 10 * (p - 1),
        lambda b: all_reduce(b, "x", "x", algorithm="ring"),
    ),
}


def counted(of: Sequence[Point]) -> str:
    """Return the sentence on all points."""
    exact = sum(point.exact for point in of)
    return f"Of {len(of)} closed forms of HPDC'24's collectives the tuned cycles of {exact} are exact."


COLUMNS = ("collective", "closed form", "points", "exact", "furthest off", "as WaferLLM's kernels are written")


def summary(of: Sequence[Point]) -> list[tuple[str, ...]]:
    """Return a row under `COLUMNS` for each collective."""
    rows: list[tuple[str, ...]] = []
    for name, (text, *_) in FORMS.items():
        own = [point for point in of if point.collective == name]
        worst = max(own, key=lambda point: abs(point.ratio - 1))
        where = f"{worst.ratio:.3f} times at P = {worst.cores}, B = {worst.words}"
        written = sorted(point.written / point.closed for point in own)
        exact = sum(point.exact for point in own)
        ends = f"{written[0]:.2f} to {written[-1]:.3g} times"
        rows.append((name, text, str(len(own)), str(exact), "-" if exact == len(own) else where, ends))
    return rows


def points() -> Iterator[Point]:
    """Yield a point for each collective, number of cores and of words; two-phase for square numbers alone."""
    for name, (_, form, add) in FORMS.items():
        for p in CORES:
            if name == "two-phase" and isqrt(p) ** 2 != p:
                continue
            for words in WORDS:
                b = Builder(Mesh(*(shape(p) if name == "2-D broadcast" else (1, p)), ROOMY), name)
                b.buffer("x", (words,), "fp32", "output")
                add(b)
                cost = price(b.build(draft=words > WORDS[0]))  # no rule depends on the number of words
                yield Point(name, p, words, form(p, words), cost.tuned_cycles, cost.cycles)


# Cycles of an iteration of the 5-point stencil of github.com/Jorineg/cerebras in fp32 (r1-stencil and tiled-stencil,
# experiment_results.md, WSE-2), by the vendor's fabric simulator, not by silicon: rows and columns of a core's tile.
# The first is of code for one value a core, which adds words as they arrive.
STENCILS = (
    (1, 1, 16), (1, 1, 127), (1, 2, 132), (3, 3, 178), (4, 2, 174), (5, 4, 256), (6, 6, 363), (10, 10, 787),
    (20, 20, 2677), (64, 64, 25270),
)  # fmt: skip


def stencil(b: Builder, rows: int, cols: int) -> None:
    """Add an iteration: the edges of a tile go to four neighbours, and five vector operations go over the tile."""
    line = np.arange(b.mesh.cols)
    for name, size in (("x", rows * cols), ("y", rows * cols), ("column", rows), ("row", cols)):
        b.buffer(name, (size,), "fp32", "state")
    moves = [
        b.exchange(axis, edge, b.like(f"{edge} from {step}", edge), line[max(0, -step) :][: len(line) - 1],
                   line[max(0, step) :][: len(line) - 1])
        for axis, edge in (("x", "column"), ("y", "row"))
        for step in (1, -1)
    ]  # fmt: skip
    b.round(*moves, *[b.local("add", "y", ("x", "x"), size=rows * cols)] * 5)


STENCIL_COLUMNS = ("tile", "simulated", "as WaferLLM's kernels are written", "tuned")


def stencils() -> list[tuple[str, ...]]:
    """Return a row under `STENCIL_COLUMNS` for each stencil, all in cycles of an iteration."""
    rows: list[tuple[str, ...]] = []
    for height, width, simulated in STENCILS:
        b = Builder(Mesh(4, 4, ROOMY), "stencil")
        stencil(b, height, width)
        cost = price(b.build())
        rows.append((f"{height} x {width}", *(f"{each:,.0f}" for each in (simulated, cost.cycles, cost.tuned_cycles))))
    return rows
