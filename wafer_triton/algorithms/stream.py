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
of block-hops has them, and `without_unused_sends` drops them.

`wafer_triton.algorithms.stream_rounds` makes rounds of a stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from wafer_triton.algorithms.ring import ring
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import MeshError, ScheduleError

KINDS = ("relay", "cycle", "interleaved", "wrap")
OWN = "own"
Die = tuple[int, int]
Group = tuple[Die, ...]  # the die of each position


class Send(NamedTuple):
    """A send of a transfer: lane `src` of position `sender` goes to lane `dst` of position `receiver`."""

    sender: int
    src: str
    receiver: int
    dst: str


class Hold(NamedTuple):
    """A position copies a block from lane `src` to lane `dst`, so that the block stays for one step."""

    position: int
    src: str
    dst: str


@dataclass(frozen=True)
class Stream:
    """A gather stream on `size` positions: sends of transfer t, between steps t and t + 1, and holds of step t.

    A lane is the position's own block, or one of the slots left0, left1, right0, right1. Position i computes with lane
    `compute_lanes[t][i]` in step t.
    """

    size: int
    sends: tuple[tuple[Send, ...], ...]
    holds: tuple[tuple[Hold, ...], ...]
    compute_lanes: tuple[tuple[str, ...], ...]

    @property
    def lanes(self) -> tuple[str, ...]:
        """Return the slots beside the own block."""
        named = {send.dst for sends in self.sends for send in sends}
        return tuple(sorted(named | {hold.dst for holds in self.holds for hold in holds}))

    @property
    def order(self) -> tuple[tuple[int, ...], ...]:
        """Return [position][step]: the block that the position computes with, found by following every send."""
        held = {(position, OWN): position for position in range(self.size)}
        order: list[list[int]] = [[] for _ in range(self.size)]
        for step in range(self.size):
            for position, lane in enumerate(self.compute_lanes[step]):
                order[position].append(held[position, lane])
            after = {(hold.position, hold.dst): held[hold.position, hold.src] for hold in self.holds[step]}
            if step < self.size - 1:
                after |= {(send.receiver, send.dst): held[send.sender, send.src] for send in self.sends[step]}
            held |= after
        return tuple(map(tuple, order))

    def without_unused_sends(self) -> Stream:
        """Return the stream without the sends whose block no position computes with afterwards."""
        sends, holds = list(self.sends), list(self.holds)
        live: set[tuple[int, str]] = set()  # the lanes that have a needed block in the next step
        for step in reversed(range(self.size)):
            if step < self.size - 1:
                sends[step] = tuple(send for send in sends[step] if (send.receiver, send.dst) in live)
            holds[step] = tuple(hold for hold in holds[step] if (hold.position, hold.dst) in live)
            live = {*enumerate(self.compute_lanes[step])} | {(hold.position, hold.src) for hold in holds[step]}
            if step < self.size - 1:
                live |= {(send.sender, send.src) for send in sends[step]}
        return replace(self, sends=tuple(sends), holds=tuple(holds))


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


def circle(size: int) -> Stream:
    """Return the stream in which each position sends to the next, and the last to the first, N - 1 times."""
    lanes = [OWN if step == 0 else f"left{step % 2}" for step in range(size)]
    sends = [
        tuple(Send(i, lanes[step], (i + 1) % size, f"left{1 - step % 2}") for i in range(size))
        for step in range(size - 1)
    ]
    return Stream(size, tuple(sends), ((),) * size, tuple((lane,) * size for lane in lanes))


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ScheduleError(f"stream {kind!r}: choose one of {', '.join(KINDS)}")


def stream(kind: str, size: int) -> Stream:
    """Return the stream of a kind (see the module's table); ScheduleError for another kind or size."""
    _check_kind(kind)
    if type(size) is not int or size < 1:
        raise ScheduleError(f"stream of {size!r} positions: give a whole number of at least 1")
    return relay(size) if kind == "relay" else circle(size)


# --- positions on dies ---


def path(kind: str, rows: int, cols: int) -> Group:
    """Return the die (row, column) of every position in a rectangle of dies.

    Raises ScheduleError for another kind, MeshError if the kind has no path there.
    """
    size = rows * cols
    _check_kind(kind)
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
    """Return rectangles of `rows` x `cols` dies that tile a mesh, each as the die of every position.

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


def _snake(rows: int, cols: int) -> Group:
    """Return the dies of rows to and fro or, where there are more columns than rows, of columns up and down."""
    if cols > rows > 1:
        return tuple((row, col) for col, row in _rows_to_and_fro(cols, rows))
    return _rows_to_and_fro(rows, cols)


def _rows_to_and_fro(rows: int, cols: int) -> Group:
    return tuple((row, col if row % 2 == 0 else cols - 1 - col) for row in range(rows) for col in range(cols))
