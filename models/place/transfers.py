"""Transfers: schedules that bring tiles from one place to another, and their tallies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import count

import numpy as np

from wafer_triton.cost.price import Tally, tally
from wafer_triton.errors import SramError
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.collectives import transpose
from wafer_triton.schedule.gemm import align
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Schedule, Slot


def redistribute(mesh: Mesh, axis: str, source: Index, target: Index, numel: int, dtype: str) -> Schedule:
    """Unit u of `numel` elements moves on every line from core source[u] to core target[u] of an axis.

    The units of a core lie in the slots of `from` and `to` in the order of u. In a round a core sends one and receives
    one.
    """
    b = Builder(mesh, f"redistribute along {axis}")
    here, there = _ranks(source), _ranks(target)
    b.buffer("from", (numel,), dtype, "input", int(here.max()) + 1)
    b.buffer("to", (numel,), dtype, "output", int(there.max()) + 1)
    ends = (("from", source, here), ("to", target, there))
    sending: dict[int, set[int]] = defaultdict(set)
    getting: dict[int, set[int]] = defaultdict(set)
    rounds: dict[int, list[int]] = defaultdict(list)
    for unit, (sender, receiver) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        busy = sending[sender], getting[receiver]
        number = next(number for number in count() if all(number not in numbers for numbers in busy))
        for numbers in busy:
            numbers.add(number)
        rounds[number].append(unit)
    for number in sorted(rounds):
        units = np.array(rounds[number])
        steps: list[Exchange | Local] = []
        moving = source[units] != target[units]
        for part, moves in ((units[moving], True), (units[~moving], False)):
            if part.size:
                src, dst = (_slots(mesh, axis, name, cores[part], ranks[part]) for name, cores, ranks in ends)
                steps.append(
                    b.exchange(axis, src, dst, source[part], target[part])
                    if moves
                    else b.local("copy", dst, src, Cores(axis, np.sort(source[part])), size=numel)
                )
        b.round(*steps, label="redistribute")
    return b.build()


def _slots(mesh: Mesh, axis: str, name: str, cores: Index, ranks: Index) -> Slot:
    index = np.zeros(mesh.length(axis), np.int64)
    index[cores] = ranks
    return Slot(name, index, axis)


def _ranks(cores: Index) -> Index:
    """How many earlier units lie on the same core."""
    order = np.argsort(cores, kind="stable")
    placed = cores[order]
    first = np.searchsorted(placed, placed)
    ranks = np.empty_like(cores)
    ranks[order] = np.arange(len(cores)) - first
    return ranks


def blocks_of(size: int, cores: int) -> Index:
    """[size]: the core that holds each element of a dimension cut into whole tiles."""
    return np.arange(size) // -(-size // cores)


def moved(grid: Mesh, axis: str, source: Index, target: Index, numel: int, dtype: str) -> Tally:
    """The tally of units moving along an axis; units that always go together are moved as one."""
    together = np.diff(np.flatnonzero(np.diff(source) | np.diff(target)) + 1, prepend=0, append=len(source))
    unit = int(np.gcd.reduce(together))
    return sliced(numel * unit, lambda part: redistribute(grid, axis, source[::unit], target[::unit], part, dtype))


def sides(mesh: Mesh, other: Mesh) -> tuple[int, int]:
    """Rows and columns of a mesh that covers both from a shared corner."""
    return max(mesh.rows, other.rows), max(mesh.cols, other.cols)


def grid(like: Mesh, rows: int, cols: int, fold: tuple[int, int]) -> Mesh:
    """A mesh of so many cores on the device of another."""
    return Mesh(rows, cols, like.device, fold=fold)


def turned_schedule(mesh: Mesh, numel: int, dtype: str) -> Schedule:
    """Every core's tile of `numel` elements to the core across the diagonal."""
    b = Builder(mesh, "transpose weights")
    b.buffer("w", (numel,), dtype, "input")
    b.buffer("t", (numel,), dtype, "output")
    transpose(b, "w", "t")
    return b.build()


def skewed_schedule(mesh: Mesh, numel: int, dtype: str, region: int | None = None) -> Schedule:
    """The alignment of weight tiles of `numel` elements, in every `region` of so many cores a side by itself."""
    b = Builder(mesh, "skew weights")
    align(b, b.buffer("w", (numel,), dtype, "weight"), "y", region=region)
    return b.build()


def sliced(numel: int, build: Callable[[int], Schedule]) -> Tally:
    """The tally of moving `numel` elements a tile, in as many equal slices as fit the SRAM at once."""
    slices = 1
    while True:
        try:
            return tally(build(-(-numel // slices))) * slices
        except SramError:
            slices *= 2
