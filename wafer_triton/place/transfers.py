"""Transfers: schedules that move weights and caches from cores to other cores, in slices that a core can hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from wafer_triton.algorithms.align import align, transpose_by_rings
from wafer_triton.device.dtype import BYTES
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule import sram
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Moves, Round, Slot
from wafer_triton.schedule.schedule import Schedule

ScheduleRuns = tuple[Schedule, int]  # a schedule and its number of runs


@dataclass(frozen=True, eq=False)
class Shift:
    """A move of units of `numel` elements, `times` times, on every mesh line of `axis`.

    Unit u moves from core `source[u]` to core `target[u]` of the mesh line.
    """

    mesh: Mesh
    axis: str
    source: Index
    target: Index
    numel: int
    dtype: str
    times: int = 1

    @property
    def schedule_runs(self) -> ScheduleRuns:
        """The schedule and its number of runs; SramError if a core does not hold even one element."""
        # adjacent units move as one: as many as have, in every bundle, one sender and one receiver
        runs = np.diff(
            np.flatnonzero(np.diff(self.source) | np.diff(self.target)) + 1, prepend=0, append=len(self.source)
        )
        unit = int(np.gcd.reduce(runs))
        source, target = self.source[::unit], self.target[::unit]
        most = sum(int(np.bincount(cores).max()) for cores in (source, target))

        def build(part: int) -> Schedule:
            return redistribute(self.mesh, self.axis, source, target, part, self.dtype)

        schedule, slices = slice_to_fit(self.mesh, self.numel * unit, self.dtype, most, build)
        return schedule, slices * self.times


@dataclass(frozen=True)
class Relayout:
    """A transpose of the tiles across the mesh's diagonal or, with `skew`, a skew in squares of `skew` cores a side.

    A tile has `numel` elements.
    """

    mesh: Mesh
    numel: int
    dtype: str
    skew: int | None = None

    @property
    def schedule_runs(self) -> ScheduleRuns:
        """The schedule and its number of runs; SramError if a core does not hold even one element."""
        return slice_to_fit(self.mesh, self.numel, self.dtype, 3 if self.skew is None else 2, self._schedule)

    def _schedule(self, numel: int) -> Schedule:
        """Return the schedule for tiles of `numel` elements."""
        if self.skew is None:
            b = Builder(self.mesh, "transpose weights")
            w, t = b.buffer("w", (numel,), self.dtype, "input"), b.buffer("t", (numel,), self.dtype, "output")
            transpose_by_rings(b, w, t)
        else:
            b = Builder(self.mesh, "skew weights")
            region = None if self.skew == self.mesh.shape[0] else self.skew
            align(b, b.buffer("w", (numel,), self.dtype, "weight"), "y", region=region)
        return b.build(draft=True)


def redistribute(mesh: Mesh, axis: str, source: Index, target: Index, numel: int, dtype: str) -> Schedule:
    """Return the schedule that moves unit u of `numel` elements on every mesh line from core source[u] to target[u].

    The units of a core are in the slots of buffers "from" and "to" in the order of u. In a round a core sends at most
    one unit and receives at most one.
    """
    b = Builder(mesh, f"redistribute along {axis}")
    rounds, moving = _rounds(source, target), (source != target).astype(np.int64)
    count = int(rounds.max()) + 1
    slots = np.zeros((2, 2, count, mesh.length(axis)), np.int64)  # for resident and moving units, on both sides
    for side, (name, role, cores) in enumerate((("from", "input", source), ("to", "output", target))):
        ranks = ranks_of(cores)
        b.buffer(name, (numel,), dtype, role, int(ranks.max()) + 1)
        slots[moving, side, rounds, cores] = ranks
    kinds = 2 * rounds + moving
    order = np.lexsort((target, kinds))
    source, target, kinds = source[order], target[order], kinds[order]
    acts = [(list[Exchange](), list[Local]()) for _ in range(count)]
    edges = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    for start, end in pairwise(edges):
        number, moves = divmod(int(kinds[start]), 2)
        exchanges, copies = acts[number]
        sent, got = (Slot(name, of, axis) for name, of in zip(("from", "to"), slots[moves, :, number], strict=True))
        send, recv = source[start:end], target[start:end]
        if moves:
            exchanges.append(Exchange(Moves(axis, send, recv), sent, got))
        else:
            copies.append(Local("copy", (got,), (sent,), {"size": numel}, Cores(axis, recv)))
    b.steps += [Round(tuple(exchanges), tuple(copies), "redistribute") for exchanges, copies in acts]
    return b.build(draft=True)


def _rounds(source: Index, target: Index) -> Index:
    """Return [units]: the round of each unit, in which no core sends two units or receives two.

    If `source` and `target` never decrease, units take the rounds 0, 1, 2, ... in turn. Otherwise each unit takes the
    first round in which its sender and its receiver are both free.
    """
    most = max(int(np.bincount(cores).max()) for cores in (source, target))
    if all((np.diff(cores) >= 0).all() for cores in (source, target)):
        return np.arange(len(source)) % most
    sending, getting = defaultdict[int, int](int), defaultdict[int, int](int)  # rounds as bits
    rounds = []
    for sender, receiver in zip(source.tolist(), target.tolist(), strict=True):
        free = ~(sending[sender] | getting[receiver])
        first = free & -free
        sending[sender] |= first
        getting[receiver] |= first
        rounds.append(first.bit_length() - 1)
    return np.array(rounds)


def at_cores(length: int, cores: Index, ranks: Index) -> Index:
    """Return [length]: ranks[i] at core cores[i], 0 at other cores."""
    index = np.zeros(length, np.int64)
    index[cores] = ranks
    return index


def ranks_of(cores: Index) -> Index:
    """Return for each unit the number of earlier units on the same core."""
    order = np.argsort(cores, kind="stable")
    starts = np.flatnonzero(np.diff(cores[order], prepend=-1))  # of each core's units
    first = np.repeat(starts, np.diff(starts, append=len(cores)))
    ranks = np.empty_like(cores)
    ranks[order] = np.arange(len(cores)) - first
    return ranks


def owners(size: int, cores: int) -> Index:
    """Return [size]: the core that holds each element of a dimension that `cores` cores cut into equal tiles."""
    return np.arange(size) // -(-size // cores)


def grid(like: Mesh, rows: int, cols: int, fold: tuple[int, int]) -> Mesh:
    """Return a mesh of `rows` x `cols` cores on the device of `like`, which is enlarged if it is smaller.

    A mesh may exceed the device if regions are counted by area.
    """
    device = like.device
    if rows > device.rows or cols > device.cols:
        device = replace(device, rows=max(rows, device.rows), cols=max(cols, device.cols))
    return Mesh(rows, cols, device, fold=fold)


def slice_to_fit(mesh: Mesh, numel: int, dtype: str, tiles: int, build: Callable[[int], Schedule]) -> ScheduleRuns:
    """Return the schedule of one slice, and the number of slices: a power of two, so that a core holds `tiles` slices.

    `build(size)` returns the schedule for tiles of `size` elements; a slice has `numel` over the number of slices.
    Raises SramError if a core does not hold even slices of one element.
    """
    need = tiles * numel * BYTES[dtype] * mesh.per_core
    slices = 1 << (max(1, -(-need // mesh.device.sram_bytes)) - 1).bit_length()
    while True:
        schedule = build(-(-numel // slices))
        if sram.account(schedule).peak_bytes <= mesh.device.sram_bytes:
            return schedule, slices
        if slices >= numel:
            sram.check(schedule)
        slices *= 2
