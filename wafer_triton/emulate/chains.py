"""Which steps of a program share a launch: found from the memory that they read and write.

Operations of all cores by themselves go together while nobody reads what others write there. Behind a reduce tree a
core goes on once its root says so (see `kernels.chain`), so that what follows can be in the same launch too, and the
root's broadcast with it. A launch ends where a core would read a tile of another that was written in it, or write one
that others still read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from wafer_triton.emulate.launches import Tree
from wafer_triton.emulate.steps import Step
from wafer_triton.kernels import chain as kernel
from wafer_triton.kernels.exchange import Moves
from wafer_triton.kernels.parts import Part
from wafer_triton.schedule.rounds import Index

Address = int  # of the first element of a buffer's memory


@dataclass(frozen=True, eq=False)
class Move:
    """Messages that one exchange kernel carries, of `numel` elements; `broadcast`: from a slot to the same slot."""

    moves: Moves
    numel: int
    receivers: Index
    senders: Index
    source: Address
    target: Address
    broadcast: bool


@dataclass(frozen=True, eq=False)
class Exchanged:
    """The moves of a round, none of which reads what another writes."""

    moves: tuple[Move, ...]

    def __call__(self) -> None:
        """Never: it becomes part of a launch."""
        raise AssertionError("moves are launched by what `chained` makes of them")

    def joins(self, other: Exchanged) -> bool:
        """Whether the moves of another round can go at the same time."""
        both = (*self.moves, *other.moves)
        targets = [{move.target for move in one.moves} for one in (self, other)]
        sources = [{move.source for move in one.moves} for one in (self, other)]
        apart = targets[0].isdisjoint(targets[1] | sources[1]) and sources[0].isdisjoint(targets[1])
        return apart and len({len(move.moves.recv) for move in both}) == 1


@dataclass(frozen=True, eq=False)
class Work:
    """What cores (None: all) do by themselves, then a reduce tree if any, then sends of its roots.

    `move` is the same as a move, if that is all it is. `far` is the memory that is read, and whose tiles. `roots` are
    the cores that tell each core when to go on, `start` is the first round of the tree. `folds`, by axis of lines,
    is given if nobody looks at what the tree leaves on the way (see `emulate.lines`).
    """

    ops: tuple[str, ...]
    parts: tuple[Part, ...]
    order: Tensor
    writes: frozenset[Address]
    reads: frozenset[Address]
    far: tuple[tuple[Address, Index], ...] = ()
    cores: Index | None = None
    move: Move | None = None
    tree: kernel.Tree | None = None
    found: Tree | None = None
    start: int = 0
    roots: Index | None = None
    receivers: kernel.Receivers | None = None
    sends: tuple[tuple[kernel.Operand, int], ...] = ()
    folds: Mapping[str, tuple[Index, Index, int]] = field(default_factory=dict)

    def __call__(self) -> None:
        """Never: it becomes part of a launch."""
        raise AssertionError("work is launched by what `chained` makes of it")

    @property
    def what(self) -> str:
        """Words for it."""
        words = [*self.ops]
        if self.found is not None:
            words.append(f"reduce tree, {self.found.rounds} rounds")
        return ", ".join([*words, *["broadcast"] * bool(self.sends)])

    def round_of(self, core: int, slot: int | None) -> int:
        """The round in which a core's message number `slot` arrives in the tree, or what its root sends."""
        assert self.found is not None, "work goes on behind a tree alone"
        return self.start + (self.found.rounds if slot is None else self.found.round_of(core, slot))


def relays(steps: Sequence[Step], relay: Callable[[list[tuple[Move, ...]]], Step | None]) -> list[Step]:
    """The steps, in which rounds that only move tiles, and are no tree's broadcast, are what `relay` makes of them."""
    result, run = list[Step](), list[Step]()
    tree: Work | None = None
    for step in (*steps, None):
        sent = tree is not None and isinstance(step, Exchanged) and _broadcasts(tree, step)
        if not sent:
            tree = step if isinstance(step, Work) and step.found is not None else None
        if step is not None and _moves(step) and not sent:
            run.append(step)
            continue
        rounds = list[tuple[Move, ...]]()
        for one, before in zip(run, (None, *run), strict=False):
            # all that the round has so far, not its last alone
            so_far = Exchanged(rounds[-1]) if isinstance(before, Exchanged) else None
            if so_far is not None and isinstance(one, Exchanged) and so_far.joins(one):
                rounds[-1] += one.moves
            else:
                rounds.append(_moves(one))
        made = relay(rounds) if len(rounds) > 1 else None
        result += run if made is None else [made]
        run = []
        if step is not None:
            result.append(step)
    return result


def _moves(step: Step) -> tuple[Move, ...]:
    if isinstance(step, Exchanged):
        return step.moves
    return (step.move,) if isinstance(step, Work) and step.move is not None else ()


def chained(steps: Sequence[Step], launch: Callable[[tuple[Work, ...]], Step],
            move: Callable[[Exchanged], list[Step]], *, long: bool = True) -> list[Step]:  # fmt: skip
    """The steps with all works and moves made into launches; unless `long`, none goes on behind a tree."""
    result: list[Step] = []
    works: tuple[Work, ...] = ()
    moves: Exchanged | None = None
    for step in (*steps, None):
        more = _extended(works, step, long) if isinstance(step, Work | Exchanged) else None
        if more is not None and moves is None:
            works = more
            continue
        if works:
            result.append(launch(works))
            works = ()
        if moves is not None and isinstance(step, Exchanged) and moves.joins(step):
            moves = Exchanged((*moves.moves, *step.moves))
            continue
        if moves is not None:
            result += move(moves)
            moves = None
        if isinstance(step, Work):
            works = (step,)
        elif isinstance(step, Exchanged):
            moves = step
        elif step is not None:
            result.append(step)
    return result


def _extended(works: tuple[Work, ...], step: Work | Exchanged, long: bool) -> tuple[Work, ...] | None:
    """The works of a launch with one more, or with what the last one's roots send; None if that cannot be."""
    if not works:
        return (step,) if isinstance(step, Work) else None
    *before, last = works
    if isinstance(step, Exchanged):
        sends = (*last.sends, *((move.moves.src, move.numel) for move in step.moves))
        writes = last.writes | {move.target for move in step.moves}
        if not _broadcasts(last, step) or any(not writes.isdisjoint(dict(one.far)) for one in works):
            return None
        return (*before, replace(last, sends=sends, writes=writes))
    if not _safe(works, step):
        return None
    alone = last.tree is None and not last.sends
    same = last.cores is step.cores or (
        last.cores is not None and step.cores is not None and np.array_equal(last.cores, step.cores)
    )
    if alone and same:
        ops, parts = (*last.ops, *step.ops), (*last.parts, *step.parts)
        reads, writes = last.reads | step.reads, last.writes | step.writes
        both = replace(step, ops=ops, parts=parts, writes=writes, reads=reads, far=(*last.far, *step.far))
        return (*before, both)
    everyone = last.cores is None and step.cores is None
    return (*works, step) if long and everyone and last.receivers is not None else None


def _safe(before: Sequence[Work], step: Work) -> bool:
    """Whether a work neither reads tiles of others that are written in a launch, nor writes what others read there."""
    written = {memory for one in before for memory in one.writes}
    return written.isdisjoint(dict(step.far)) and all(step.writes.isdisjoint(dict(one.far)) for one in before)


def _broadcasts(last: Work, step: Exchanged) -> bool:
    """Whether moves are what the roots of a tree send: to all others of their tree, from a slot to the same slot."""
    if last.found is None or last.receivers is None:
        return False
    assert last.roots is not None
    others = np.flatnonzero(last.roots != np.arange(len(last.roots)))
    return all(
        move.broadcast
        and np.array_equal(np.sort(move.receivers), others)
        and np.array_equal(last.roots[move.receivers], move.senders)
        for move in step.moves
    )


def roots_of(parent: Index) -> Index:
    """[cores]: the root of each core's tree, of the parents of all (-1: a root)."""
    roots = np.where(parent < 0, np.arange(len(parent)), parent)
    while not np.array_equal(roots, further := roots[roots]):
        roots = further
    return roots


def spans(roots: Index) -> tuple[Index, Index, int] | None:
    """Of each core the first of those that it is the root of, and their number, and how far they are apart.

    None where they are not equally far apart.
    """
    cores = np.argsort(roots, kind="stable")
    alike = roots[cores][1:] == roots[cores][:-1]
    steps = np.unique(np.diff(cores)[alike])
    if len(steps) > 1:
        return None
    count = np.bincount(roots, minlength=len(roots))
    first = np.full_like(roots, len(roots))
    np.minimum.at(first, roots, np.arange(len(roots)))
    return np.where(count > 0, first, 0), count, int(steps[0]) if len(steps) else 1
