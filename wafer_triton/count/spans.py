"""The links that tiles cross on the lines of a mesh, and sums over them.

A tile of a logical sender crosses each link once, whatever its number of receivers: only the farthest one counts, on
either side. Positions are physical; on a mesh that is folded to its lcm grid several logical lines share a physical
one. Sums are kept as differences from link to link, so a move costs the same however far it goes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wafer_triton.count.times import Turns, along, spread
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.rounds import Index, Local, Moves, Round, Slot, disjoint, once

ContentKey = tuple[tuple[int, int], tuple[int, int], bytes]


class Sides(NamedTuple):
    """The sides of a mesh as the lines of one axis see them."""

    along: int  # physical positions of a line
    fold: int  # logical positions of a physical one
    across: int  # logical lines
    fold_across: int  # logical lines of a physical one

    @classmethod
    def of(cls, mesh: Mesh, axis: str) -> Sides:
        """Return the sides along and across an axis."""
        turned = 1 if axis == "x" else -1
        (across, along), (fold_across, fold) = mesh.shape[::turned], mesh.fold[::turned]
        return cls(along // fold, fold, across, fold_across)


@dataclass(frozen=True, eq=False)
class Spans:
    """The links that tiles cross, an entry [tiles] for each logical sender and way.

    A tile crosses the links from `rise` to before `fall`, as along + 1 if it goes to lower positions, else 0, plus the
    core that sends on the link.
    """

    along: int  # physical positions of a line
    line: Index | None  # logical lines; None: the same on each line of the moves
    rise: Index
    fall: Index

    @cached_property
    def hops(self) -> Index:
        """Links that each tile crosses."""
        return self.fall - self.rise

    @cached_property
    def differences(self) -> tuple[Index, Index]:
        """Which of the differences of a line, 2 * (along + 1), these tiles change, and by how much [n, 1]."""
        rise, fall = (np.bincount(end, minlength=2 * self.along + 2) for end in (self.rise, self.fall))
        at = np.flatnonzero(rise != fall)
        return at, (rise - fall)[at, None]


def spans(moves: Moves, mesh: Mesh) -> Spans:
    """Return the links that tiles cross; a tile that stays in its physical core has no entry."""
    sides = Sides.of(mesh, moves.axis)
    line, start, end, first = by_sender(moves, sides)
    low, high = (farthest.reduceat(end, first) for farthest in (np.minimum, np.maximum))
    up, down = (high > start).nonzero()[0], (low < start).nonzero()[0]
    downwards = sides.along + 2  # on whose way the core after a position sends on the link to it
    return Spans(
        sides.along,
        line[np.concatenate([up, down])] if moves.paired else None,
        np.concatenate([start[up], downwards + low[down]]),
        np.concatenate([high[up], downwards + start[down]]),
    )


def by_sender(moves: Moves, sides: Sides) -> tuple[Index, Index, Index, Index]:
    """Return line (0 if moves are not paired) and position of each logical sender, all receivers, and its first one.

    Positions are physical. A tile that stays in its physical core is left out.
    """
    length = sides.along * sides.fold
    sender = moves.send + moves.lines * length if moves.paired and moves.lines is not None else moves.send
    start, end = moves.send // sides.fold, moves.recv // sides.fold
    goes = (start != end).nonzero()[0]
    order = goes[np.argsort(sender[goes], kind="stable")]
    first = starts(sender[order])
    return sender[order[first]] // length, start[order[first]], end[order], first


def sends(round_: Round, mesh: Mesh) -> list[tuple[Moves, Slot]]:
    """Return the messages of a round: the moves of each slot that it sends along an axis.

    A message is the tile that a core sends along one axis in one round, to however many receivers. So exchanges that
    send the same tile are one.
    """
    return [
        (moves, slot)
        for slot, many, apart in _of_slots(round_)
        for moves in (many if apart else [joined(many, Sides.of(mesh, many[0].axis).across)])
    ]


@once  # a price reads each round for its words and for its routes, and layers share the rounds of alignments
def _of_slots(round_: Round) -> list[tuple[Slot, list[Moves], bool]]:
    """Return the moves along an axis of each slot that a round sends, and whether no core sends by two of them."""
    of_slot: dict[tuple[str, Slot], list[Moves]] = {}
    for one in round_.exchanges:
        if one.moves.send.size:
            of_slot.setdefault((one.axis, one.src), []).append(one.moves)
    return [
        (
            slot, many, len(many) == 1 or disjoint([moves.lines for moves in many])
            or disjoint([np.flatnonzero(np.bincount(moves.send)) for moves in many]),
        )
        for (_, slot), many in of_slot.items()
    ]  # fmt: skip


def joined(many: Sequence[Moves], across: int) -> Moves:
    """Return moves along one axis on `across` lines as one, each message once."""
    if len(many) == 1:
        return many[0]
    length = 1 + max(int(end.max()) for moves in many for end in (moves.send, moves.recv))
    alike, codes = all(moves.lines is None for moves in many), list[Index]()
    for moves in many:
        messages = moves.line_of_each(1 if alike else across), moves.send, moves.recv
        codes.append(np.ravel_multi_index(messages, (across, length, length)).ravel())
    line, send, recv = np.unravel_index(np.unique(np.concatenate(codes)), (across, length, length))
    return Moves(many[0].axis, send, recv) if alike else Moves(many[0].axis, send, recv, line, paired=True)


def content_key(mesh: Mesh, moved: object) -> ContentKey:
    """Return a key for what is counted of digests of moves on a mesh; it outlives the moves."""
    return mesh.shape, mesh.fold, blake2b(repr(moved).encode(), digest_size=16).digest()


class Crossed(dict[object, Spans]):
    """The spans of moves on one mesh, each read once."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()
        self.mesh = mesh

    def of(self, moves: Moves) -> Spans:
        """Return the spans of some moves: of each of their lines, if they are not paired."""
        key = moves if moves.paired else moves.content[:3]  # but for the lines
        if key not in self:
            self[key] = spans(moves, self.mesh)
        return self[key]


def starts(ordered: Index) -> Index:
    """Return where the runs of equal numbers start."""
    begins = np.ones(ordered.size, bool)
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    return begins.nonzero()[0]


def on_lines(sides: Sides, moved: Sequence[tuple[Moves, Turns, int]]) -> tuple[list[Moves], Index]:
    """Return moves that differ on a line, and the sums of their weights over all times, [moves, logical lines].

    The moves are along one axis, and not paired; of several that differ in lines alone the first is there.
    """
    first: dict[object, tuple[int, Moves]] = {}
    numbers = [first.setdefault(moves.content[1:3], (len(first), moves))[0] for moves, _, _ in moved]
    straight = np.zeros((sides.across, len(first)), np.int64)
    in_turn = defaultdict[Turns, Index](lambda: np.zeros_like(straight), {(): straight})
    for number, (moves, turns, weight) in zip(numbers, moved, strict=True):
        turns, times = along(moves.axis, turns)
        of_each = in_turn[turns][:, number]
        of_each[slice(None) if moves.lines is None else moves.lines] += weight * times
    return [moves for _, moves in first.values()], spread(in_turn).T


def line_loads(crossed: Crossed, axis: str, moved: Iterable[tuple[Moves, Turns, int]]) -> tuple[Index, Index]:
    """Return the sums of weights of moves along an axis over each link, and the kind of each logical line, [across].

    Lines of a kind have the same sums, [2, along + 1, kinds] by sending core. Moves along the other axis do not count.
    """
    every, sides = [each for each in moved if each[0].axis == axis], Sides.of(crossed.mesh, axis)
    paired = [each for each in every if each[0].paired]
    lines, weights = on_lines(sides, [each for each in every if not each[0].paired])
    kind = np.arange(sides.across)
    if not paired:
        of_each, kind = kinds_of(weights)
        weights = weights[:, of_each]
    changes = np.zeros((2 * sides.along + 2, weights.shape[1]), np.int64)
    for line, own in zip(lines, weights, strict=True):
        at, change = crossed.of(line).differences
        changes[at] += change * own
    in_turn = defaultdict[Turns, Index](lambda: np.zeros_like(changes.T), {(): changes.T})
    for moves, turns, weight in paired:
        turns, times = along(axis, turns)
        tiles = crossed.of(moves)
        assert tiles.line is not None
        np.add.at(in_turn[turns], (tiles.line, tiles.rise), weight * times)
        np.add.at(in_turn[turns], (tiles.line, tiles.fall), -weight * times)
    return spread(in_turn).T.reshape(2, sides.along + 1, -1).cumsum(1), kind


def busiest(loads: Index, kind: Index, fold: int) -> Index:
    """Return the most on a link of each physical line, which `fold` neighbours of the logical lines share."""
    if fold > 1:
        lines = kind.reshape(-1, fold)
        one_of_each, kind = kinds_of(lines.T)
        loads = loads[..., lines[one_of_each]].sum(-1)
    return loads.max((0, 1))[kind]


def by_cores(mesh: Mesh, ops: Sequence[Local]) -> list[list[Local]]:
    """Return the local operations of a core, for each group of cores that run the same ones."""
    some = list({op.where: None for op in ops if op.where is not None})
    if len(some) < 2:
        return [list(ops)]
    if any(where.paired for where in some):
        named = np.unique(np.concatenate([where.flat(mesh) for where in some]))
        runs = np.array([np.isin(named, where.flat(mesh)) for where in some])
    else:  # rows that are in the same of them are alike, and so are columns
        every = [
            [np.ones(side, bool) if at is None else np.isin(np.arange(side), at)
             for side, at in zip(mesh.shape, (where.rows, where.cols), strict=True)] for where in some
        ]  # fmt: skip
        rows, cols = (each[:, kinds_of(each)[0]] for each in map(np.array, zip(*every, strict=True)))
        runs = (rows[:, :, None] & cols[:, None]).reshape(len(some), -1)
    groups = runs[:, kinds_of(runs)[0]].T
    return [[op for op in ops if op.where is None or own[some.index(op.where)]] for own in groups]


def kinds_of(rows: Index | NDArray[np.bool_]) -> tuple[Index, Index]:
    """Return a column of each kind of those of `rows`, which are alike, and the kind of each column."""
    kind, kinds = np.zeros(rows.shape[1], np.int64), 1
    for row in rows:
        size = 1 + int(row.max())
        if kinds * size >= 2**63:
            kind, kinds = np.unique(kind, return_inverse=True)[1], kind.size
        kind, kinds = kind * size + row, kinds * size
    if (kind == kind[0]).all():  # as in most rounds
        return np.zeros(1, np.int64), np.zeros_like(kind)
    return np.unique(kind, return_index=True, return_inverse=True)[1:]
