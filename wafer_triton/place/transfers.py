"""Transfers: schedules that bring tiles from one place to another, in slices that a core can hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import gcd

import numpy as np

from wafer_triton.dtype import BYTES
from wafer_triton.mesh import Mesh
from wafer_triton.schedule import sram
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.gemm import align, transpose_by_rings
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Schedule, Slot

Scheduled = tuple[Schedule, int]  # a schedule, and how often it runs


def redistribute(mesh: Mesh, axis: str, source: Index, target: Index, numel: int, dtype: str) -> Schedule:
    """Unit u of `numel` elements moves on every line from core source[u] to core target[u] of an axis.

    The units of a core lie in the slots of `from` and `to` in the order of u. In a round a core sends one and receives
    one.
    """
    b = Builder(mesh, f"redistribute along {axis}")
    slots, rounds = _planned(mesh.length(axis), source.tobytes(), target.tobytes())
    b.buffer("from", (numel,), dtype, "input", slots[0])
    b.buffer("to", (numel,), dtype, "output", slots[1])
    for moves, stays in rounds:
        steps: list[Exchange | Local] = []
        if moves is not None:
            send, recv, sent, got = moves
            steps.append(Exchange(axis, Slot("from", sent, axis), Slot("to", got, axis), send, recv))
        if stays is not None:
            cores, sent, got = stays
            ends = Slot("to", got, axis), Slot("from", sent, axis)
            steps.append(b.local("copy", *ends, Cores(axis, cores), size=numel))
        b.round(*steps, label="redistribute")
    return b.build(draft=True)


Moves = tuple[Index, Index, Index, Index]  # senders, receivers in ascending order, and the slots on both sides
Stays = tuple[Index, Index, Index]  # cores, and their slots on both sides


@lru_cache(maxsize=1024)
def _planned(
    length: int, source: bytes, target: bytes
) -> tuple[tuple[int, int], list[tuple[Moves | None, Stays | None]]]:
    """Return the slots that units take on both sides, and the units of every round that move and that stay.

    Moves of other sizes share them, so that each is counted once.
    """
    here, there = np.frombuffer(source, np.int64), np.frombuffer(target, np.int64)
    ranks, rounds = (_ranks(here), _ranks(there)), _rounds(here, there)
    order, planned = np.argsort(rounds, kind="stable"), list[tuple[Moves | None, Stays | None]]()
    for units in np.split(order, np.flatnonzero(np.diff(rounds[order])) + 1):
        moving = here[units] != there[units]
        part, rest = units[moving], units[~moving]
        part = part[np.argsort(there[part], kind="stable")]
        slots = [
            (_at(length, here[own], ranks[0][own]), _at(length, there[own], ranks[1][own])) for own in (part, rest)
        ]
        moves = (here[part], there[part], *slots[0]) if part.size else None
        planned.append((moves, (np.sort(here[rest]), *slots[1]) if rest.size else None))
    return (int(ranks[0].max()) + 1, int(ranks[1].max()) + 1), planned


def _rounds(source: Index, target: Index) -> Index:
    """[units]: the round of each unit, so that no core sends two in a round, or receives two.

    Units in order on both sides, as many on each core but the last, take turns: units next to each other are never in
    one round. Other units take the first round that is free on both sides.
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


def _slots(mesh: Mesh, axis: str, name: str, cores: Index, ranks: Index) -> Slot:
    return Slot(name, _at(mesh.length(axis), cores, ranks), axis)


def _at(length: int, cores: Index, ranks: Index) -> Index:
    """[length]: the ranks at their cores, 0 elsewhere."""
    index = np.zeros(length, np.int64)
    index[cores] = ranks
    return index


def _ranks(cores: Index) -> Index:
    """Return how many earlier units lie on the same core."""
    order = np.argsort(cores, kind="stable")
    placed = cores[order]
    first = np.searchsorted(placed, placed)
    ranks = np.empty_like(cores)
    ranks[order] = np.arange(len(cores)) - first
    return ranks


def blocks_of(size: int, cores: int) -> Index:
    """[size]: the core that holds each element of a dimension cut into whole tiles."""
    return np.arange(size) // -(-size // cores)


def moved(grid: Mesh, axis: str, source: Index, target: Index, numel: int, dtype: str) -> Scheduled:
    """Return units moving along an axis; units that always go together are moved as one."""
    together = np.diff(np.flatnonzero(np.diff(source) | np.diff(target)) + 1, prepend=0, append=len(source))
    unit = int(np.gcd.reduce(together))
    ends = np.stack([source[::unit], target[::unit]]).astype(np.int64)
    return _moved(grid, axis, ends.tobytes(), numel * unit, dtype)


@lru_cache(maxsize=1024)
def _moved(grid: Mesh, axis: str, ends: bytes, numel: int, dtype: str) -> Scheduled:
    source, target = np.frombuffer(ends, np.int64).reshape(2, -1)
    most = sum(int(np.bincount(cores).max()) for cores in (source, target))
    return sliced(grid, numel, dtype, most, lambda part: redistribute(grid, axis, source, target, part, dtype))


def sides(mesh: Mesh, other: Mesh) -> tuple[int, int]:
    """Return rows and columns of a mesh that covers both from a shared corner."""
    return max(mesh.rows, other.rows), max(mesh.cols, other.cols)


def grid(like: Mesh, rows: int, cols: int, fold: tuple[int, int]) -> Mesh:
    """Return a mesh of so many cores on the device of another, or on a wider one where regions are counted by area."""
    device = like.device
    if rows > device.rows or cols > device.cols:
        device = replace(device, rows=max(rows, device.rows), cols=max(cols, device.cols))
    return Mesh(rows, cols, device, fold=fold)


@lru_cache(maxsize=256)
def turned(mesh: Mesh, numel: int, dtype: str) -> Scheduled:
    """Return every core's tile of `numel` elements goes to the core across the diagonal."""

    def build(part: int) -> Schedule:
        b = Builder(mesh, "transpose weights")
        b.buffer("w", (part,), dtype, "input")
        b.buffer("t", (part,), dtype, "output")
        transpose_by_rings(b, "w", "t")
        return b.build(draft=True)

    return sliced(mesh, numel, dtype, 3, build)


@lru_cache(maxsize=256)
def skewed(mesh: Mesh, numel: int, dtype: str, region: int | None = None) -> Scheduled:
    """Return the alignment of weight tiles of `numel` elements, in every `region` of so many cores a side by itself."""

    def build(part: int) -> Schedule:
        b = Builder(mesh, "skew weights")
        align(b, b.buffer("w", (part,), dtype, "weight"), "y", region=region)
        return b.build(draft=True)

    return sliced(mesh, numel, dtype, 2, build)


def sliced(mesh: Mesh, numel: int, dtype: str, tiles: int, build: Callable[[int], Schedule]) -> Scheduled:
    """A move of `numel` elements a tile, in as many equal slices as fit the SRAM at once, of which it holds `tiles`.

    Raises SramError where a core does not hold even one element of what moves.
    """
    need = tiles * numel * BYTES[dtype] * mesh.fold[0] * mesh.fold[1]
    slices = 1 << (max(1, -(-need // mesh.device.sram_bytes)) - 1).bit_length()
    while True:
        made = build(-(-numel // slices))
        if sram.account(made).peak_bytes <= mesh.device.sram_bytes:
            return made, slices
        if slices >= numel:
            sram.check(made)
        slices *= 2


def from_corner(source: Mesh, target: Mesh) -> tuple[Mesh, Mesh]:
    """Return two regions moved together so that the smallest rectangle with both begins at the device's first core."""
    top, left = (min(ends) for ends in zip(source.origin, target.origin, strict=True))
    here, there = (
        replace(mesh, origin=(mesh.origin[0] - top, mesh.origin[1] - left)) for mesh in (source, target)
    )  # fmt: skip
    return here, there


@lru_cache(maxsize=256)
def hand_over(source: Mesh, target: Mesh, width: int, tokens: int, dtype: str) -> Schedule:
    """Return the activation of decode, cut along y and repeated along x, going from a region to another.

    Both lie as `from_corner` has them. Where rows of cores are others, a tile goes along y first: that of row r down or
    up column r, so that no two tiles of a region with as many columns as rows take the same link. It is then multicast
    along x to all columns.
    """
    ends = [
        (mesh.origin[0], mesh.origin[1], mesh.origin[0] + mesh.rows, mesh.origin[1] + mesh.cols)
        for mesh in (source, target)
    ]
    rows, cols = (max(end[2 + side] for end in ends) for side in (0, 1))
    b = Builder(Mesh(rows, cols, source.device), "hand over", "decode")
    shares = [-(-width // mesh.rows) for mesh in (source, target)]
    unit = gcd(*shares)
    slots = [share // unit for share in shares]
    b.buffer("from", (tokens * unit,), dtype, "input", slots[0])
    b.buffer("to", (tokens * unit,), dtype, "output", slots[1])
    units = np.arange(-(-width // unit))
    here, there = (end[0] + units // each for end, each in zip(ends, slots, strict=True))
    down = bool((here != there).any())
    for number in range(max(slots)):
        own = units[units % max(slots) == number]
        _hand_over(b, source, ends, here[own], there[own], own % slots[0], own % slots[1], down)
    return b.build(draft=True)


def _hand_over(
    b: Builder, source: Mesh, ends: list[tuple[int, int, int, int]], here: Index, there: Index, sent: Index,
    got: Index, down: bool,
) -> None:  # fmt: skip
    """The rounds of units of which a row of cores sends one and gets one."""
    (_, left, _, right), (_, first, _, last) = ends
    numel, label = b.buffers["to"].numel, "hand over"
    src, dst = _slots(b.mesh, "y", "from", here, sent), _slots(b.mesh, "y", "to", there, got)
    columns = np.arange(first, last)
    if not down:  # rows stay what they are
        nearest = right - 1 if first >= right else left if last <= left else None
        if nearest is None:
            b.round(b.local("copy", dst, src, Cores("y", here, columns), size=numel), label=label)
            return
        rest = columns[columns != nearest]
        b.round(b.exchange("x", src, dst, np.full(len(rest), nearest), rest, lines=here), label=label)
        return
    via = b.buffer("via", b.buffers["to"].tile, b.buffers["to"].dtype)
    column = left + here % source.cols  # of each unit
    most = int(np.bincount(column).max())
    lines, place = np.unique(column, return_inverse=True)
    send, recv = (np.full((len(lines), most), -1) for _ in range(2))
    rank = _ranks(column)
    send[place, rank], recv[place, rank] = here, there
    moving = (send != recv) & (send >= 0)
    send, recv = np.where(moving, send, -1), np.where(moving, recv, -1)
    b.round(b.exchange("y", src, via, send, recv, lines=lines), label=label)
    stay = here == there
    if stay.any():
        b.round(b.local("copy", via, src, Cores("x", column[stay, None], here[stay]), size=numel), label=label)
    senders = np.broadcast_to(column[:, None], (len(there), len(columns)))
    receivers = np.broadcast_to(columns, senders.shape)
    others = senders != receivers
    steps: list[Exchange | Local] = [
        b.exchange("x", via, dst, np.where(others, senders, -1), np.where(others, receivers, -1), lines=there)
    ]
    inside = (column >= first) & (column < last)
    if inside.any():
        steps.append(b.local("copy", dst, via, Cores("x", column[inside, None], there[inside]), size=numel))
    b.round(*steps, label=label)
