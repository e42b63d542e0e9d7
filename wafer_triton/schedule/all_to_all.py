"""All-to-all on an open mesh: every core has a tile for every other, and each axis is crossed once.

Tiles go along one axis to the line of their destination, then along the other. On a line they pass from neighbour to
neighbour, so two routes an axis serve all of them, where direct circuits would need one for every pair of cores.

- "shift": in every round all tiles that are under way move on, so a link carries bundles that shrink;
- "farthest": in every round a link carries one tile each way, of those that wait the one with the farthest to go;
- "ring": bundles go one way around the interleaved ring, whose steps take at most two hops.

With dimension-ordered routes the busiest link of R x C cores carries R floor(C/2) ceil(C/2) tiles, or as many with R
and C exchanged if these are more. No all-to-all has less: so many tiles have to cross the middle. "farthest" keeps the
links of the middle busy all the time. With two parts, of which one goes along x first and one along y first, those of
both axes are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from wafer_triton.errors import MeshError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.ring import ring, ring_position
from wafer_triton.schedule.rounds import Exchange, Index, Local, Slot

ALGORITHMS = ("shift", "farthest", "ring")
LABEL = "all-to-all"
STAGES = ("begin", "crossed", "turned", "end")
Steps = Iterator[tuple[Exchange | Local, ...]]


class Move(NamedTuple):
    """In a round the tile from position `source` to position `target` of a line goes from core `here` to `there`."""

    source: int
    target: int
    here: int
    there: int


def all_to_all(b: Builder, x: str, out: str, *, size: int, parts: int = 1, algorithm: str = "farthest") -> None:
    """out [parts, row, column, size] = the tiles that all cores had in x [parts, row, column, size] for this one.

    Of x rows and columns are those of destinations, of out those of sources; a part is a slot. The first part goes
    along x first, the second, if there is one, along y first. Raises MeshError for another algorithm, or more parts.
    """
    if algorithm not in ALGORITHMS:
        raise MeshError(f"{b.name}: all-to-all algorithm {algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
    if parts not in (1, 2):
        raise MeshError(f"{b.name}: all-to-all in {parts!r} parts; give 1, or 2 that cross the axes in both orders")
    ways = [
        _along(b, Slot(x, part), Slot(out, part), f"{x}.{part}", size, algorithm, "xy"[part]) for part in range(parts)
    ]
    for steps in zip_longest(*ways, fillvalue=()):
        b.round(*(step for part in steps for step in part), label=LABEL)


def _along(b: Builder, x: Slot, out: Slot, name: str, size: int, algorithm: str, first: str) -> Steps:
    """The rounds of one part, along the axis `first` and then along the other."""
    rows, cols = b.mesh.shape
    buffers = []
    for number, axis in enumerate(("x", "x", "y", "y") if first == "x" else ("y", "y", "x", "x")):
        lines, slots = (rows, cols) if axis == "x" else (cols, rows)
        dtype = b.buffers[x.buffer].dtype
        buffers.append(b.buffer(f"{name}.{STAGES[number]}", (lines, size), dtype, "scratch", slots))
    begin, crossed, turned, end = buffers
    whole, numel = {buffer: Slot(buffer, None) for buffer in buffers}, rows * cols * size
    if first == "x":  # given row by row, they go column by column
        yield (b.local("swap", whole[begin], x, rows=rows, cols=cols, size=size),)
        yield from _line(b, begin, crossed, f"{name}.x", "x", algorithm)
        yield (b.local("swap", whole[turned], whole[crossed], rows=cols, cols=rows, size=size),)
        yield from _line(b, turned, end, f"{name}.y", "y", algorithm)
        yield (b.local("copy", out, whole[end], size=numel),)
        return
    yield (b.local("copy", whole[begin], x, size=numel),)
    yield from _line(b, begin, crossed, f"{name}.y", "y", algorithm)
    yield (b.local("swap", whole[turned], whole[crossed], rows=rows, cols=cols, size=size),)
    yield from _line(b, turned, end, f"{name}.x", "x", algorithm)
    yield (b.local("swap", out, whole[end], rows=cols, cols=rows, size=size),)


def _line(b: Builder, src: str, dst: str, name: str, axis: str, algorithm: str) -> Steps:
    """Slot q of src goes to position q of its line, into slot p of dst, if it came from position p."""
    length = b.mesh.length(axis)
    here = np.arange(length)
    keep = b.local("copy", Slot(dst, here, axis), Slot(src, here, axis), size=b.buffers[src].numel)
    if length == 1:
        yield (keep,)
        return
    rounds, slots = _planned(length, algorithm)
    waiting = b.buffer(f"{name}.waiting", b.buffers[src].tile, b.buffers[src].dtype, "scratch", max(1, slots))
    names = {"src": src, "dst": dst, "waiting": waiting}
    for number, moves in enumerate(rounds):
        exchanges = []
        for ((source, held), (target, placed)), send, recv in moves:
            ends = Slot(names[source], held, axis), Slot(names[target], placed, axis)
            exchanges.append(Exchange(axis, *ends, send, recv))
        yield (*exchanges, keep) if number == 0 else tuple(exchanges)


Place = tuple[str, int]  # "src", "dst" or "waiting", and the slot there
Sends = tuple[
    tuple[tuple[str, Index], tuple[str, Index]], Index, Index
]  # both ends as buffer and slots, senders, receivers


@lru_cache(maxsize=128)
def _planned(length: int, algorithm: str) -> tuple[list[list[Sends]], int]:
    """The exchanges of every round, as ends of slots by position, senders and receivers; and the slots for waiting.

    A tile on its way lies in a slot that is free when it arrives: one that is sent in that round is not.
    """
    held: dict[tuple[int, int], Place] = {}
    taken: list[set[int]] = [set() for _ in range(length)]
    planned, most = list[list[Sends]](), 0
    for moves in MOVES[algorithm](length):
        groups: dict[tuple[str, str, int, int], list[tuple[Move, Place, Place]]] = defaultdict(list)
        sent: dict[tuple[str, str, int, int], int] = defaultdict(int)
        freed = []
        for move in moves:
            tile = move.source, move.target
            place = held.get(tile, ("src", move.target))
            if place[0] == "waiting":
                freed.append((move.here, place[1]))
            if move.there == move.target:
                after: Place = ("dst", move.source)
            else:
                slot = next(slot for slot in range(length * length) if slot not in taken[move.there])
                taken[move.there].add(slot)
                after, most = ("waiting", slot), max(most, slot + 1)
            held[tile] = after
            kind = place[0], after[0], int(move.there > move.here), move.here
            groups[place[0], after[0], kind[2], sent[kind]].append((move, place, after))
            sent[kind] += 1
        for core, slot in freed:
            taken[core].discard(slot)
        planned.append([_exchange(length, *key[:2], group) for key, group in sorted(groups.items())])
    return planned, most


def _exchange(length: int, src: str, dst: str, group: list[tuple[Move, Place, Place]]) -> Sends:
    """The ends of one exchange, in which a core sends one tile at most."""
    group = sorted(group, key=lambda entry: entry[0].there)
    held, placed = np.zeros(length, np.int64), np.zeros(length, np.int64)
    for move, before, after in group:
        held[move.here], placed[move.there] = before[1], after[1]
    send, recv = (np.array(cores) for cores in zip(*((move.here, move.there) for move, _, _ in group), strict=True))
    return ((src, held), (dst, placed)), send, recv


def _shift(length: int) -> Iterator[list[Move]]:
    """In round t every tile is t hops from where it came."""
    for done in range(length - 1):
        moves = []
        for way in (1, -1):
            for source in range(length):
                here = source + way * done
                targets = range(here + way, length) if way > 0 else range(here + way, -1, -1)
                moves += [Move(source, target, here, here + way) for target in targets if 0 <= here < length]
        yield moves


def _farthest(length: int) -> Iterator[list[Move]]:
    """Over every link one tile each way, of those that wait the one with the farthest to go."""
    waiting = {core: [(core, target) for target in range(length) if target != core] for core in range(length)}
    while any(waiting.values()):
        moves = []
        for core, tiles in waiting.items():
            for way in (1, -1):
                onward = [tile for tile in tiles if (tile[1] - core) * way > 0]
                if onward:
                    source, target = max(onward, key=lambda tile: (abs(tile[1] - core), tile))
                    moves.append(Move(source, target, core, core + way))
        for move in moves:
            waiting[move.here].remove((move.source, move.target))
            if move.there != move.target:
                waiting[move.there].append((move.source, move.target))
        yield moves


def _ring(length: int) -> Iterator[list[Move]]:
    """In step t every tile is t steps of the interleaved ring from where it came."""
    order, position = ring(length).tolist(), ring_position(length).tolist()
    for done in range(length - 1):
        moves = []
        for source in range(length):
            start = position[source]
            here, there = (order[(start + steps) % length] for steps in (done, done + 1))
            moves += [Move(source, order[(start + away) % length], here, there) for away in range(done + 1, length)]
        yield moves


MOVES = {"shift": _shift, "farthest": _farthest, "ring": _ring}


def busiest(rows: int, cols: int) -> int:
    """Tiles over the busiest link, at least: those that have to cross the middle of an axis, over its links."""
    return max(rows * (cols // 2) * -(-cols // 2), cols * (rows // 2) * -(-rows // 2))
