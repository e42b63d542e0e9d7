"""Streams: one operand of a product moves over a group of dies, block by block, while every die computes (TEMP).

N positions hold one block each. A stream takes N - 1 transfers, after which every position has had every block once.
There are two streams on positions, and four ways to lay positions on dies:

| kind | stream | dies | longest transfer |
| --- | --- | --- | --- |
| "relay" | both ways along an open line, with return | a snake through any rectangle | 1 hop |
| "cycle" | one way round a circle | a closed snake: both sides even or one even, 2 x 2 at least | 1 hop |
| "interleaved" | one way round a circle | 0, 2, 4, ..., 5, 3, 1 on a strip | 2 hops |
| "wrap" | one way round a circle | 0, 1, 2, ... on a strip | N - 1 hops |

**The relay** (TEMP, HPCA 2026, Algorithm 1, as proved in docs/temp.md). Left streams carry blocks to lower positions,
right streams to higher ones. Position i < N // 2 computes with block (i + t) mod N in step t, the others with block
(i - t) mod N. A block that a position needs after it has passed the position turns at distance N // 2 and comes back.
Blocks N // 2 - 1 and N // 2 return to no position that needs them: `relay` keeps these returns, as the published count
of block-hops has them, and `needed` drops them.

**A reduce stream** is a gather stream backwards in time: copies become sums. So a block of sums visits every position
and ends at its own. Both take the same transfers over the same links.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import MeshError, ScheduleError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.ring import ring
from wafer_triton.schedule.rounds import Cores, Exchange, Local

KINDS = ("relay", "cycle", "interleaved", "wrap")
OWN = "own"
Die = tuple[int, int]
Group = tuple[Die, ...]  # the die of each position


class Send(NamedTuple):
    """A send of a transfer, from lane `src` of position `here` to lane `dst` of position `there`."""

    here: int
    src: str
    there: int
    dst: str


class Hold(NamedTuple):
    """A position copies a block from a lane to another, so that the block stays for one step."""

    here: int
    src: str
    dst: str


@dataclass(frozen=True)
class Stream:
    """A gather stream on `size` positions: sends of transfer t, between steps t and t + 1, and holds of step t.

    A lane is the position's own block, or one of the slots left0, left1, right0, right1. `uses[t][i]` is the lane that
    position i computes with in step t.
    """

    size: int
    sends: tuple[tuple[Send, ...], ...]
    holds: tuple[tuple[Hold, ...], ...]
    uses: tuple[tuple[str, ...], ...]

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """Return the slots beside the own block."""
        named = {send.dst for sends in self.sends for send in sends}
        return tuple(sorted(named | {hold.dst for holds in self.holds for hold in holds}))

    @cached_property
    def order(self) -> tuple[tuple[int, ...], ...]:
        """Return [position][step]: the block that the position computes with, found by following every send."""
        held = {(position, OWN): position for position in range(self.size)}
        order: list[list[int]] = [[] for _ in range(self.size)]
        for step in range(self.size):
            for position, lane in enumerate(self.uses[step]):
                order[position].append(held[position, lane])
            after = {(hold.here, hold.dst): held[hold.here, hold.src] for hold in self.holds[step]}
            if step < self.size - 1:
                after |= {(send.there, send.dst): held[send.here, send.src] for send in self.sends[step]}
            held |= after
        return tuple(map(tuple, order))

    def needed(self) -> Stream:
        """Return the stream without sends whose block no position computes with from there on."""
        sends, holds = list(self.sends), list(self.holds)
        live: set[tuple[int, str]] = set()  # the lanes that hold a needed block in the step after
        for step in reversed(range(self.size)):
            if step < self.size - 1:
                sends[step] = tuple(send for send in sends[step] if (send.there, send.dst) in live)
            holds[step] = tuple(hold for hold in holds[step] if (hold.here, hold.dst) in live)
            live = {*enumerate(self.uses[step])} | {(hold.here, hold.src) for hold in holds[step]}
            if step < self.size - 1:
                live |= {(send.here, send.src) for send in sends[step]}
        return replace(self, sends=tuple(sends), holds=tuple(holds))


@lru_cache(maxsize=256)
def relay(size: int) -> Stream:
    """Return the turning relay on an open line, N - 1 transfers of one position each."""
    half, sends, holds, uses = size // 2, list[tuple[Send, ...]](), list[tuple[Hold, ...]](), list[tuple[str, ...]]()
    turn = size // 2 if size % 2 == 0 else half + 1  # the first transfer of the way back
    for step in range(size):
        now, then = step % 2, 1 - step % 2
        left, right = (OWN, OWN) if step == 0 else (f"left{now}", f"right{now}")
        uses.append(tuple(left if position < half else right for position in range(size)))
        waits = size % 2 == 1 and step == half
        back_left = [block for block in range(half) if half + block < size]
        back_right = list(range(size - half, size)) if size % 2 == 0 else range(half + 1, size)
        holds.append(
            tuple(
                [Hold(half + block, right, f"left{then}") for block in back_left]
                + [Hold(block - half, left, f"right{then}") for block in back_right]
            ) if waits else ()
        )  # fmt: skip
        if step == size - 1:
            break
        moves = [Send(i, left, i - 1, f"left{then}") for i in range(1, size) if i + step < size]
        moves += [Send(i, right, i + 1, f"right{then}") for i in range(size - 1) if i - step >= 0]
        if step >= turn:
            first = step == turn and size % 2 == 0  # straight out of the slot in which the block arrived
            for block in back_left:
                here = size + block - step
                moves.append(Send(here, right if first else left, here - 1, f"left{then}"))
            for block in back_right:
                here = step + block - size
                moves.append(Send(here, left if first else right, here + 1, f"right{then}"))
        sends.append(tuple(moves))
    return Stream(size, tuple(sends), tuple(holds), tuple(uses))


@lru_cache(maxsize=256)
def circle(size: int) -> Stream:
    """Return every position sends to the next and the last to the first, N - 1 times."""
    lanes = [OWN if step == 0 else f"left{step % 2}" for step in range(size)]
    sends = [
        tuple(Send(i, lanes[step], (i + 1) % size, f"left{1 - step % 2}") for i in range(size))
        for step in range(size - 1)
    ]
    return Stream(size, tuple(sends), ((),) * size, tuple((lane,) * size for lane in lanes))


def stream(kind: str, size: int) -> Stream:
    """Return the stream of a kind (see the module's table); ScheduleError for another kind or size."""
    if kind not in KINDS:
        raise ScheduleError(f"stream {kind!r}: choose one of {', '.join(KINDS)}")
    if type(size) is not int or size < 1:
        raise ScheduleError(f"stream of {size!r} positions: give a whole number of at least 1")
    return relay(size) if kind == "relay" else circle(size)


# --- positions on dies ---


def path(kind: str, rows: int, cols: int) -> Group:
    """Return the die (row, column) of every position in a rectangle of dies; MeshError if the kind has no path."""
    size = rows * cols
    if kind not in KINDS:
        raise ScheduleError(f"stream {kind!r}: choose one of {', '.join(KINDS)}")
    if kind == "relay":
        return _snake(rows, cols)
    if kind == "cycle" and size > 2:
        if size % 2 or min(rows, cols) < 2:
            raise MeshError(
                f"no cycle of one-hop transfers through {rows} x {cols} dies: it needs two rows, two columns and an "
                f"even number of dies; use the relay, which any rectangle has"
            )
        if rows % 2:
            return tuple((row, col) for col, row in path(kind, cols, rows))
        there = ((row, col + 1) for row, col in _rows_to_and_fro(rows, cols - 1))
        return (*there, *((row, 0) for row in reversed(range(rows))))
    if min(rows, cols) > 1:
        raise MeshError(f"stream {kind!r} runs on a strip of dies, not on {rows} x {cols}; use the cycle or the relay")
    line = ring(size).tolist() if kind == "interleaved" else range(size)
    return tuple((place, 0) if cols == 1 else (0, place) for place in line)


def groups(mesh: Mesh, kind: str, rows: int, cols: int) -> tuple[Group, ...]:
    """Return rectangles of `rows` x `cols` dies that tile a mesh, each with its die of every position.

    Raises MeshError where they do not tile it.
    """
    if rows < 1 or cols < 1 or mesh.rows % rows or mesh.cols % cols:
        raise MeshError(
            f"groups of {rows} x {cols} dies do not tile mesh {mesh}: rows must divide {mesh.rows} and columns "
            f"{mesh.cols}; leave dies out, or take groups of other sides"
        )
    inner = path(kind, rows, cols)
    corners = [(top, left) for top in range(0, mesh.rows, rows) for left in range(0, mesh.cols, cols)]
    return tuple(tuple((top + row, left + col) for row, col in inner) for top, left in corners)


def peers(mesh: Mesh, rows: int, cols: int) -> tuple[Group, ...]:
    """Return the dies at the same place of all groups of `rows` x `cols` dies, a line in snake order for each."""
    corners = _snake(mesh.rows // rows, mesh.cols // cols)
    return tuple(
        tuple((top * rows + row, left * cols + col) for top, left in corners)
        for row in range(rows)
        for col in range(cols)
    )


def _snake(rows: int, cols: int) -> Group:
    """Return rows to and fro; where there are more columns than rows, columns up and down."""
    if cols > rows > 1:
        return tuple((row, col) for col, row in _rows_to_and_fro(cols, rows))
    return _rows_to_and_fro(rows, cols)


def _rows_to_and_fro(rows: int, cols: int) -> Group:
    return tuple((row, col if row % 2 == 0 else cols - 1 - col) for row in range(rows) for col in range(cols))


# --- rounds ---

Compute = Callable[[int, str, Cores | None], Sequence[Local]]  # step, buffer of the block, dies: the local operations


def gather(b: Builder, moves: Stream, on: Sequence[Group], own: str, compute: Compute, label: str = "stream") -> None:
    """Add the rounds of a gather stream: all groups at once move copies of buffer `own`.

    In step t a die has block `moves.order[position][t]`, and runs the operations that `compute` gives for the buffer
    that holds the block. The next block arrives meanwhile.
    """
    lanes = _lanes(b, moves, own)
    for step in range(moves.size):
        ops = [op for lane, where in _used(b.mesh, moves, on, step) for op in compute(step, lanes[lane], where)]
        ops += [
            b.local("copy", lanes[dst], lanes[src], _cores(b.mesh, dies), size=b.buffers[own].numel)
            for (src, dst), dies in _holding(moves, on, step)
        ]
        exchanges = []
        if step < moves.size - 1:
            pairs = [(send.src, send.dst, send.here, send.there) for send in moves.sends[step]]
            exchanges = list(_exchanges(b, on, lanes, pairs))
        b.round(*exchanges, *ops, label=label)


def reduce(b: Builder, moves: Stream, on: Sequence[Group], own: str, compute: Compute, label: str = "stream") -> None:
    """Add the rounds of a reduce stream: buffer `own` of every die ends with the sum of all dies' parts of its block.

    In step t, from N - 1 down to 0, a die's `compute` writes its part of block `moves.order[position][t]` to the buffer
    given. That buffer is `own`, which has nothing to hold until the last sum. A round moves sums while parts are
    computed, the next adds the two.
    """
    moves = moves.needed()
    lanes = _lanes(b, moves, own)
    size = b.buffers[own].numel
    for step in reversed(range(moves.size)):
        parity = step % 2
        arrivals: dict[tuple[int, str], list[str]] = defaultdict(list)  # lanes to be added to a lane of a position
        exchanges = []
        if step < moves.size - 1:
            backwards = []
            for send in moves.sends[step]:
                lands = f"{send.dst[:-1]}{parity}"
                backwards.append((send.dst, lands, send.there, send.here))
                arrivals[send.here, send.src].append(lands)
            exchanges = list(_exchanges(b, on, lanes, backwards))
        for hold in moves.holds[step]:
            arrivals[hold.here, hold.src].append(hold.dst)
        b.round(*exchanges, *compute(step, own, None), label=label)
        sums: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        late: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for position, lane in enumerate(moves.uses[step]):
            found = arrivals.pop((position, lane), [])
            if lane == OWN:
                for number, other in enumerate(sorted(found)):
                    (late if number else sums)[OWN, OWN, other].append(position)
                continue
            if lane not in found:
                sums[lane, OWN, ""].append(position)  # the first part of a block
            else:
                sums[lane, lane, OWN].append(position)
            for other in found:
                if other != lane:
                    late[lane, lane, other].append(position)
        for (position, lane), found in arrivals.items():  # blocks that only pass
            if lane not in found:
                sums[lane, found.pop(0), ""].append(position)
            for other in found:
                if other != lane:
                    late[lane, lane, other].append(position)
        ops = []
        for (out, first, second), positions in (*sorted(sums.items()), *sorted(late.items())):
            where = _cores(b.mesh, [group[position] for group in on for position in positions])
            ins = [lanes[first], lanes[second]] if second else lanes[first]
            ops.append(b.local("add" if second else "copy", lanes[out], ins, where, size=size))
        b.round(*ops, label=label)


def _lanes(b: Builder, moves: Stream, own: str) -> dict[str, str]:
    """Return the buffer of every lane, declared where it is missing: each stream has two, which take turns."""
    sides = sorted({lane[:-1] for lane in moves.lanes})
    return {OWN: own} | {f"{side}{parity}": b.like(f"{own}.{side}{parity}", own) for side in sides for parity in (0, 1)}


def _used(mesh: Mesh, moves: Stream, on: Sequence[Group], step: int) -> Iterator[tuple[str, Cores | None]]:
    """Return the lanes that are computed with in a step, each with its dies."""
    positions: dict[str, list[int]] = defaultdict(list)
    for position, lane in enumerate(moves.uses[step]):
        positions[lane].append(position)
    for lane, places in sorted(positions.items()):
        yield lane, _cores(mesh, [group[place] for group in on for place in places])


def _holding(moves: Stream, on: Sequence[Group], step: int) -> Iterator[tuple[tuple[str, str], list[Die]]]:
    table: dict[tuple[str, str], list[int]] = defaultdict(list)
    for hold in moves.holds[step]:
        table[hold.src, hold.dst].append(hold.here)
    for ends, places in sorted(table.items()):
        yield ends, [group[place] for group in on for place in places]


def _cores(mesh: Mesh, dies: Sequence[Die]) -> Cores | None:
    """Return the dies as `Cores` along x; None for all."""
    if len(dies) == mesh.cores:
        return None
    by_row: dict[int, list[int]] = defaultdict(list)
    for row, col in dies:
        by_row[row].append(col)
    rows = sorted(by_row)
    lists = [sorted(by_row[row]) for row in rows]
    lines = np.array(rows)
    if all(cols == lists[0] for cols in lists):
        return Cores("x", np.array(lists[0]), None if len(rows) == mesh.rows else lines)
    return Cores("x", _padded(lists), lines)


def _exchanges(
    b: Builder, on: Sequence[Group], lanes: dict[str, str], sends: Sequence[tuple[str, str, int, int]]
) -> Iterator[Exchange]:
    """Return exchanges of sends (lane, lane there, position, position there) in all groups, by axis and lanes."""
    table: dict[tuple[str, str, str], dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for src, dst, here, there in sends:
        for group in on:
            (row, col), (to_row, to_col) = group[here], group[there]
            if row == to_row:
                table["x", src, dst][row].append((to_col, col))
            elif col == to_col:
                table["y", src, dst][col].append((to_row, row))
            else:
                raise MeshError(f"{b.name}: dies {group[here]} and {group[there]} are in no common row or column")
    for (axis, src, dst), by_line in sorted(table.items()):
        lines = sorted(by_line)
        pairs = [sorted(by_line[line]) for line in lines]
        across = b.mesh.rows if axis == "x" else b.mesh.cols
        numbers = None if len(lines) == across else lines
        if all(line == pairs[0] for line in pairs):
            recv, send = np.array(pairs[0]).T
        else:
            recv = _padded([[to for to, _ in line] for line in pairs])
            send = _padded([[frm for _, frm in line] for line in pairs])
        yield b.exchange(axis, lanes[src], lanes[dst], send, recv, numbers)


def _padded(lists: Sequence[Sequence[int]]) -> np.ndarray:
    """Return rows of numbers, -1 after the shorter ones."""
    table = np.full((len(lists), max(map(len, lists))), -1, np.int64)
    for row, numbers in zip(table, lists, strict=True):
        row[: len(numbers)] = numbers
    return table
