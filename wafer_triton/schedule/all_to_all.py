"""All-to-all on an open mesh: every core has a tile for every other, and each axis is crossed once.

Tiles go along one axis to the line of their destination, then along the other. On a line they pass from neighbour to
neighbour, so two routes an axis serve all of them, where direct circuits would need one for every pair of cores.

- "shift": in every round all tiles that are under way move on, so a link carries bundles that shrink;
- "farthest": in every round a link carries one tile each way, of those that wait the one with the farthest to go;
- "ring": bundles go one way around the interleaved ring, whose steps take at most two hops.

Where the mesh is cut into square or oblong regions, a core has a tile for each region alone. It goes to one core there,
so that neighbours' tiles lie together: of a line of n cores in regions of w, core s sends to core s // (n / w) of each.

With dimension-ordered routes the busiest link of R x C cores carries R floor(C/2) ceil(C/2) tiles, or as many with R
and C exchanged if these are more. No all-to-all has less: so many tiles have to cross the middle. "farthest" keeps the
links of the middle busy all the time. With two parts, of which one goes along x first and one along y first, those of
both axes are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from wafer_triton.errors import MeshError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.ring import ring, ring_position
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Slot

ALGORITHMS = ("shift", "farthest", "ring")
STAGES = ("begin", "crossed", "turned", "end")
Steps = Iterator[tuple[Exchange | Local, ...]]


@dataclass(frozen=True)
class Line:
    """A line of cores in regions of `width`, and who sends to whom: cores to regions or, with `back`, regions to cores.

    Where every core is a region of its own, each sends to each.
    """

    length: int
    width: int
    back: bool = False

    @property
    def regions(self) -> int:
        """Regions of the line, so many tiles of a core to send and to receive."""
        return self.length // self.width

    @cached_property
    def slots(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Of every pair of sender and receiver, the sender's slot of the tile and the receiver's."""
        pairs = {}
        for core in range(self.length):
            for region in range(self.regions):
                other = region * self.width + core // self.regions
                if self.back:
                    pairs[other, core] = core % self.regions, region
                else:
                    pairs[core, other] = region, core % self.regions
        return pairs

    @cached_property
    def targets(self) -> list[list[int]]:
        """[length]: to whom a core sends, itself left out."""
        targets: list[list[int]] = [[] for _ in range(self.length)]
        for source, target in self.slots:
            if source != target:
                targets[source].append(target)
        return targets


class Move(NamedTuple):
    """In a round the tile from position `source` to position `target` of a line goes from core `here` to `there`."""

    source: int
    target: int
    here: int
    there: int


def all_to_all(
    b: Builder, x: str, out: str, *, size: int, parts: int = 1, algorithm: str = "farthest",
    regions: tuple[int, int] | None = None, back: bool = False, label: str = "all-to-all",
) -> None:  # fmt: skip
    """out [parts, row, column, size] = the tiles that all cores had in x [parts, row, column, size] for this one.

    Of x rows and columns are those of destinations, of out those of sources; a part is a slot. The first part goes
    along x first, the second, if there is one, along y first.

    With `regions`, how many there are along y and x, x has a tile for each of these, and out those of the cores that
    send to this one of its region. `back` is the way back: x is as that out, and out as that x.

    Raises MeshError for another algorithm, for more parts, and for regions that the mesh cannot be cut into.
    """
    if algorithm not in ALGORITHMS:
        raise MeshError(f"{b.name}: all-to-all algorithm {algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
    if parts not in (1, 2):
        raise MeshError(f"{b.name}: all-to-all in {parts!r} parts; give 1, or 2 that cross the axes in both orders")
    regions = b.mesh.shape if regions is None else regions
    for axis, number in zip("yx", regions, strict=True):
        if number < 1 or b.mesh.length(axis) % number:
            raise MeshError(
                f"{b.name}: mesh {b.mesh} cannot be cut into {number} equal regions along {axis}; give a divisor of "
                f"{b.mesh.length(axis)}"
            )
    lines = {axis: Line(b.mesh.length(axis), b.mesh.length(axis) // number, back)
             for axis, number in zip("yx", regions, strict=True)}  # fmt: skip
    ways = [
        _along(b, Slot(x, part), Slot(out, part), f"{x}.{part}", size, algorithm, "xy"[part], lines)
        for part in range(parts)
    ]
    for steps in zip_longest(*ways, fillvalue=()):
        b.round(*(step for part in steps for step in part), label=label)


def _along(
    b: Builder, x: Slot, out: Slot, name: str, size: int, algorithm: str, first: str, along: dict[str, Line]
) -> Steps:
    """The rounds of one part, along the axis `first` and then along the other."""
    rows, cols = along["y"].regions, along["x"].regions
    buffers = []
    for number, axis in enumerate(("x", "x", "y", "y") if first == "x" else ("y", "y", "x", "x")):
        lines, slots = (rows, cols) if axis == "x" else (cols, rows)
        dtype = b.buffers[x.buffer].dtype
        buffers.append(b.buffer(f"{name}.{STAGES[number]}", (lines, size), dtype, "scratch", slots))
    begin, crossed, turned, end = buffers
    whole, numel = {buffer: Slot(buffer, None) for buffer in buffers}, rows * cols * size
    if first == "x":  # given row by row, they go column by column
        yield (b.local("swap", whole[begin], x, rows=rows, cols=cols, size=size),)
        yield from _line(b, begin, crossed, f"{name}.x", "x", algorithm, along["x"])
        yield (b.local("swap", whole[turned], whole[crossed], rows=cols, cols=rows, size=size),)
        yield from _line(b, turned, end, f"{name}.y", "y", algorithm, along["y"])
        yield (b.local("copy", out, whole[end], size=numel),)
        return
    yield (b.local("copy", whole[begin], x, size=numel),)
    yield from _line(b, begin, crossed, f"{name}.y", "y", algorithm, along["y"])
    yield (b.local("swap", whole[turned], whole[crossed], rows=rows, cols=cols, size=size),)
    yield from _line(b, turned, end, f"{name}.x", "x", algorithm, along["x"])
    yield (b.local("swap", out, whole[end], rows=cols, cols=rows, size=size),)


def _line(b: Builder, src: str, dst: str, name: str, axis: str, algorithm: str, line: Line) -> Steps:
    """The tiles of src go to dst of the cores along an axis for which they are, into the slots that `line` says."""
    own = [core for core in range(line.length) if (core, core) in line.slots]
    sent, kept = np.zeros((2, line.length), np.int64)
    for core in own:
        sent[core], kept[core] = line.slots[core, core]
    where = None if len(own) == line.length else Cores(axis, np.array(own))
    keep = b.local("copy", Slot(dst, kept, axis), Slot(src, sent, axis), where, size=b.buffers[src].numel)
    rounds, slots = _planned(line, algorithm)
    if not rounds:
        yield (keep,)
        return
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


@lru_cache(maxsize=32)
def _planned(line: Line, algorithm: str) -> tuple[list[list[Sends]], int]:
    """The exchanges of every round, as ends of slots by position, senders and receivers; and the slots for waiting.

    A tile on its way lies in a slot that is free when it arrives: one that is sent in that round is not. The way back
    is the way there, backwards.
    """
    if line.back:
        onward, slots = _planned(replace(line, back=False), algorithm)
        return [[_backwards(sends) for sends in exchanges] for exchanges in reversed(onward)], slots
    if algorithm == "farthest":
        return _farthest(line)
    held: dict[tuple[int, int], Place] = {}
    free: list[list[int]] = [[] for _ in range(line.length)]  # of the slots for waiting, each a heap
    used = [0] * line.length
    planned = list[list[Sends]]()
    for moves in MOVES[algorithm](line):
        # by both ends, way and number in that way: the sender, its slot, the receiver and its slot
        groups: dict[tuple[str, str, bool, int], list[tuple[int, int, int, int]]] = defaultdict(list)
        sent: dict[tuple[str, str, bool, int], int] = defaultdict(int)
        freed = []
        for source, target, here, there in moves:
            sent_from, sent_to = line.slots[source, target]
            src, before = held.pop((source, target), ("src", sent_from))
            if src == "waiting":
                freed.append((here, before))
            if there == target:
                dst, after = "dst", sent_to
            elif free[there]:
                dst, after = "waiting", heappop(free[there])
            else:
                dst, after = "waiting", used[there]
                used[there] += 1
            if there != target:
                held[source, target] = dst, after
            way = src, dst, there > here
            number = sent[(*way, here)]
            sent[(*way, here)] = number + 1
            groups[(*way, number)].append((there, after, here, before))
        for core, slot in freed:
            heappush(free[core], slot)
        if groups:
            sends = ((key, np.array(sorted(group)).T) for key, group in sorted(groups.items()))
            planned.append([_exchange(line.length, *key[:2], moves) for key, moves in sends])
    return planned, max(used)


def _exchange(length: int, src: str, dst: str, moves: Index) -> Sends:
    """The ends of one exchange, in which a core sends one tile at most: receivers, slots, senders and their slots."""
    recv, after, send, before = moves
    held, placed = np.zeros((2, length), np.int64)
    held[send], placed[recv] = before, after
    return ((src, held), (dst, placed)), send, recv


def _farthest(line: Line) -> tuple[list[list[Sends]], int]:
    """In every round one tile each way over a link, of those that wait the one with the farthest to go.

    Upwards, the tiles that have t regions beyond theirs take rounds t (j + 1) to t (j + 1) + j of the link above core
    j, first that of core j, last that of core 0. So they wait t rounds at a core, and a core has a slot for each region
    from its own on, and one more. Downwards is the mirror image.
    """
    length, count = line.length, line.regions
    room = count + 1 - np.arange(length) // line.width  # slots of a core for tiles on their way upwards
    source, region = np.divmod(np.arange(length * count), count)
    hops = np.maximum(region * line.width + source // count - source, 0)
    done = np.arange(hops.sum()) - np.repeat(np.cumsum(hops) - hops, hops)
    source, region, hops = (np.repeat(numbers, hops) for numbers in (source, region, hops))
    here, beyond, first, last = source + done, count - 1 - region, done == 0, done == hops - 1
    when, there = beyond * (here + 1) + done, here + 1
    waited, waits = (when - beyond - 1) % room[here], when % room[there]
    ways = []
    for upwards in (True, False):
        if upwards:
            ends, sent, kept = (there, here), region, source % count
        else:
            ends, sent, kept = (length - 1 - there, length - 1 - here), beyond, (length - 1 - source) % count
            waits, waited = (slot + room[core] for slot, core in zip((waits, waited), ends, strict=True))
        held, placed = np.where(first, sent, waited), np.where(last, kept, waits)
        ways.append((when, 4 * upwards + 2 * first + last, ends[0], placed, ends[1], held))
    moves = np.concatenate(ways, 1)
    moves = moves[:, np.lexsort(moves[2::-1])]
    edges = np.flatnonzero(np.diff(moves[0] * 8 + moves[1])) + 1
    rounds: dict[int, list[Sends]] = defaultdict(list)
    for group in np.split(moves, edges, 1) if moves.size else ():
        names = "src" if group[1, 0] & 2 else "waiting", "dst" if group[1, 0] & 1 else "waiting"
        rounds[int(group[0, 0])].append(_exchange(length, *names, group[2:]))
    return list(rounds.values()), count + 3


def _backwards(sends: Sends) -> Sends:
    """The ends of an exchange that undoes one."""
    ((src, held), (dst, placed)), send, recv = sends
    order = np.argsort(send)
    other = {"src": "dst", "dst": "src"}
    ends = (other.get(dst, dst), placed), (other.get(src, src), held)
    return ends, recv[order], send[order]


def _shift(line: Line) -> Iterator[list[Move]]:
    """In round t every tile is t hops from where it came."""
    for done in range(line.length - 1):
        moves = []
        for way in (1, -1):
            for source, targets in enumerate(line.targets):
                here = source + way * done
                moves += [Move(source, target, here, here + way) for target in targets if (target - here) * way > 0]
        yield moves


def _ring(line: Line) -> Iterator[list[Move]]:
    """In step t every tile is t steps of the interleaved ring from where it came."""
    length, order, position = line.length, ring(line.length).tolist(), ring_position(line.length).tolist()
    for done in range(length - 1):
        moves = []
        for source, targets in enumerate(line.targets):
            start = position[source]
            here, there = (order[(start + steps) % length] for steps in (done, done + 1))
            onward = sorted((position[target] - start) % length for target in targets)
            moves += [Move(source, order[(start + away) % length], here, there) for away in onward if away > done]
        yield moves


MOVES = {"shift": _shift, "ring": _ring}


def busiest(rows: int, cols: int) -> int:
    """Tiles over the busiest link, at least: those that have to cross the middle of an axis, over its links."""
    return max(rows * (cols // 2) * -(-cols // 2), cols * (rows // 2) * -(-rows // 2))
