"""Which planned steps share a launch, found from the buffers that they read and write.

Local operations of the same cores go together while none reads a tile of another core that is written in the launch. A
reduce tree ends a launch. A fold, which replaces a tree with elided exchange, is a launch of its own; or, where its
tiles are small, the head of the launch that reads the sums, in which every program folds for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from torch import Tensor

from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.parts import Reduction, Step
from wafer_triton.kernels.exchange import Copies
from wafer_triton.kernels.fused import HELD, FusedOp, Grid
from wafer_triton.kernels.tree import MOST
from wafer_triton.schedule.rounds import Exchange, Index

READ = 8192  # elements of parts that a program may fold before its own work,
REREAD = 2**24  # and all programs of a launch together, at some 8 TB/s from the L2: as long as two launches take
LARGE = 1024  # elements of a tile, above which the hops of a tree take little time beside its bytes
LEAST = 256  # programs that a launch keeps where a program takes several cores


class _Fused:
    """A step that runs as part of a launch."""

    def __call__(self) -> None:
        """Never: it becomes part of a launch."""
        raise AssertionError("such a step is launched as part of a group")


@dataclass(frozen=True, eq=False)
class Moved(_Fused):
    """Messages with their number of elements, none of which reads a slot that another writes."""

    moves: tuple[tuple[Copies, int], ...]
    sources: frozenset[str]
    targets: frozenset[str]

    def joined(self, other: Moved) -> Moved | None:
        """Return both as one launch, if the messages of another round can go at the same time."""
        apart = self.targets.isdisjoint(other.targets | other.sources) and self.sources.isdisjoint(other.targets)
        both = self.sources | other.sources, self.targets | other.targets
        return Moved((*self.moves, *other.moves), *both) if apart else None


@dataclass(frozen=True, eq=False)
class Task(_Fused):
    """A local operation on `cores` (None: all), which writes the buffers `outs`.

    `far` are the buffers of which it reads tiles of other cores, [cores] each.
    """

    what: str
    op: FusedOp
    outs: tuple[str, ...]
    far: tuple[tuple[str, Index], ...]
    cores: Index | None
    table: Tensor | None = None  # of `cores`


@dataclass(frozen=True, eq=False)
class Summed(_Fused):
    """A reduce tree whose messages move, and its broadcast, if that is part of the launch."""

    tree: Reduction
    sends: bool

    far: tuple[tuple[str, Index], ...] = ()
    cores: None = None

    @property
    def what(self) -> str:
        """Words for a record."""
        return f"reduce tree, {len(self.tree.rounds)} rounds" + ", broadcast" * self.sends

    @property
    def outs(self) -> tuple[str, ...]:
        """The buffer that it writes."""
        return (self.tree.acc,)

    def blocks(self, order: Index, together: int) -> tuple[Index, Index, Index, Index]:
        """Return the cores of `order` with children before parents, and the blocks of `together` that they make up.

        Three tables follow: the block of each core, its parent's block, and the messages that each block awaits.
        """
        order = order[np.argsort(self.tree.send_round[order], kind="stable")]
        block, parent = np.empty_like(order), self.tree.parent
        block[order] = np.arange(len(order)) // together
        awaited = np.bincount(block, self.tree.children, len(order) // together)
        return order, block, np.where(parent < 0, 0, block[parent]), awaited.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Folded(_Fused):
    """A reduce tree of tiles of `size` that a fold replaces, with the arguments of `kernels.fold`."""

    tree: Reduction
    first: Index
    order: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    roots: Index
    tree_of: Index
    number: Index
    size: int


@dataclass(eq=False)
class Group:
    """The contents of one launch: folds, then tasks, then a tree."""

    folds: list[Folded] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    tree: Summed | None = None

    def takes(self, step: Task | Summed | Folded) -> bool:
        """Return whether the launch can run the step as well, and if so adds it; an empty launch takes any."""
        if self.tree is not None or (self.tasks and isinstance(step, Folded)):
            return False
        if isinstance(step, Folded):
            self.folds.append(step)
            return True
        if (self.folds and isinstance(step, Summed)) or (self.tasks and not _same(self.tasks[0].cores, step.cores)):
            return False
        written = {name for task in self.tasks for name in task.outs}
        held = {name for task in self.tasks for name, _ in task.far}
        held |= {name for fold in self.folds for name in (fold.tree.acc, fold.tree.sums)}
        if not written.isdisjoint(dict(step.far)) or not held.isdisjoint(step.outs):
            return False
        if isinstance(step, Summed):
            self.tree = step
        else:
            self.tasks.append(step)
        return True

    @property
    def what(self) -> str:
        """Words for a record."""
        words = ["fold"] * len(self.folds) + [task.what for task in self.tasks]
        return ", ".join(words + ([self.tree.what] if self.tree else []))


Fusing: TypeAlias = "Group | Moved | Step"


def grouped(steps: Sequence[Step]) -> list[Fusing]:
    """Return the steps in order, neighbours in a group where one launch can run them."""
    groups: list[Fusing] = []
    for step in steps:
        last = groups[-1] if groups else None
        if isinstance(step, Moved) and isinstance(last, Moved) and (both := last.joined(step)):
            groups[-1] = both
        elif not isinstance(step, Task | Summed | Folded):
            groups.append(step)
        elif not isinstance(last, Group) or not last.takes(step):
            group = Group()
            group.takes(step)
            groups.append(group)
    return groups


def on_lines(one: Exchange, every: tuple[int, int] | None) -> tuple[Index, Index, Index | None]:
    """Return the positions that send and receive, of one shape, and their mesh rows or columns; None: all.

    With `every` = (lines, positions) all of them are listed, -1 for none, as other schedules may send more.
    """
    send, recv, lines = one.moves.table
    if every is None:
        return send, recv, lines
    whole = np.full((2, *every), -1)
    whole[:, slice(None) if lines is None else lines, : send.shape[-1]] = np.stack(np.atleast_2d(send, recv))
    return whole[0], whole[1], None


def _same(one: Index | None, other: Index | None) -> bool:
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


def heads(group: Group, mesh: Mesh) -> tuple[list[Folded], Grid | None]:
    """Return the folds that each program of a group does for itself, and how the group covers its cores then."""
    ops = [task.op for task in group.tasks]
    found = [fold for fold in group.folds if _stays(fold, group)]
    found = [fold for fold in found if np.array_equal(fold.tree_of, found[0].tree_of)]
    if not ops or not found or group.tree is not None or any(task.cores is not None for task in group.tasks):
        return [], None
    length, together = len(found[0].order), 1
    while length % (2 * together) == 0 and mesh.cores // (2 * together) >= LEAST:
        if any(op.is_product or op.elements == 0 or together * op.elements > HELD for op in ops):
            break
        together *= 2
    small = [
        fold for fold in found if length * fold.size <= READ and mesh.cores * (length // together) * fold.size <= REREAD
    ]
    return small, Grid(together) if small else None


def _stays(fold: Folded, group: Group) -> bool:
    """Return whether all cores read sums of their own tree alone."""
    far = [home for task in group.tasks for name, home in task.far if name == fold.tree.sums]
    return all((fold.tree_of[home] == fold.tree_of).all() for home in far)


def folded(tree: Reduction, size: int) -> Folded | None:
    """Return trees of tiles of `size` as a fold; None unless all are alike, with small tiles of few cores."""
    roots, tree_of = np.unique(tree.roots, return_inverse=True)
    number, span = len(tree_of) // len(roots), spans(tree.roots)
    if size > LARGE or number > MOST or span is None or (np.bincount(tree_of) != number).any():
        return None
    inside = (np.arange(len(tree_of)) - span[0][tree.roots]) // span[2]  # the number of each core in its tree
    links = np.stack([inside[tree.parent], tree.slot])  # of roots without meaning
    links[:, tree.parent < 0] = -1
    members = np.argsort(tree_of, kind="stable").reshape(-1, number)
    alike = links[:, members]
    if (alike != alike[:, :1]).any():
        return None
    order, pairs = _order(*alike[:, 0])
    return Folded(tree, span[0][roots], tuple(core * span[2] for core in order), pairs, roots, tree_of, inside, size)


def _order(parent: Index, slot: Index) -> tuple[list[int], tuple[tuple[int, int], ...]]:
    """Return the cores of one tree in the order in which their parts are added, and the pairs of `kernels.fold`."""
    order, pairs = list[int](), list[tuple[int, int]]()
    children: list[list[int]] = [[] for _ in (*parent, -1)]  # of -1 the root
    for core in np.argsort(slot, kind="stable").tolist():
        children[parent[core]].append(core)

    def summed(core: int) -> int:
        """Return the number of the sum of a core."""
        total = len(order)
        order.append(core)
        for child in children[core]:
            pairs.append((total, summed(child)))
            total = len(parent) + len(pairs) - 1
        return total

    summed(*children[-1])
    return order, tuple(pairs)


def spans(roots: Index) -> tuple[Index, Index, int] | None:
    """Return the first core of each root's tree, the number of its cores, and their distance.

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
