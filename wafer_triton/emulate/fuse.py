"""Which planned tasks share a launch, by the buffers that they read and write.

Local operations on the same cores share a launch until one reads a tile of another core that the launch writes. A
reduce tree ends a launch. With elided exchange a fold replaces a tree: each root's sum is computed from all parts at
once. A fold is a launch of its own; or, if its tiles are small, it is at the head of the launch that reads the sums,
and every program folds for itself. A product whose parts chains of cores sum, for roots to copy, is computed where the
sums go, and so are the next ones, all in a launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.parts import LaunchPart, Reduction, Task
from wafer_triton.kernels._common import Operand
from wafer_triton.kernels.fused import MAX_ELEMENTS, FusedOp, Grid
from wafer_triton.kernels.tree import MAX_PARTS
from wafer_triton.schedule.rounds import Index, Moves

FOLD_READS = 8192  # elements of parts that one program may read for a fold at the head of a launch,
LAUNCH_FOLD_LOADS = 2**17  # and all warps of the launch, a load each: with twice as many an H100 took 14 us more
MAX_FOLD_TILE = 1024  # elements of a tile; the hops of larger ones take little time beside their bytes
MIN_PROGRAMS = 256  # a launch with folds gives a program several cores only while this many programs are left


@dataclass(frozen=True, eq=False)
class Messages(LaunchPart):
    """Messages along `axis` with tiles of `size` elements, in steps that a launch takes one after another.

    A step is moves, where the senders' tiles lie, and where the receivers' do. `sources` and `targets` name buffers.
    """

    axis: str
    size: int
    steps: tuple[tuple[tuple[Moves, ...], Operand, Operand], ...]
    sources: frozenset[str]
    targets: frozenset[str]

    def joined(self, launch: list[Messages]) -> list[Messages] | None:
        """Return these messages with those of a launch, which are independent; None if that launch cannot take them.

        It can if all that these depend on have their axis and size: on a line tiles go on element by element.
        """
        ends = self.sources | self.targets
        before = [each for each in launch if each.targets & ends or each.sources & self.targets]
        if any((each.axis, each.size) != (self.axis, self.size) for each in before):
            return None
        chain = self
        for each in reversed(before):
            names = each.sources | chain.sources, each.targets | chain.targets
            chain = Messages(self.axis, self.size, each.steps + chain.steps, *names)
        return [*(each for each in launch if each not in before), chain]


@dataclass(frozen=True, eq=False)
class LocalTask(LaunchPart):
    """A local operation on `cores` (None: all), which writes the buffers `outs`.

    `remote_reads` are the buffers of which it reads tiles of other cores, each with [cores]: whose tile a core reads.
    An operation `in_place` writes a tile of which it reads or keeps some.
    """

    what: str
    op: FusedOp
    outs: tuple[str, ...]
    remote_reads: tuple[tuple[str, Index], ...]
    cores: Index | None
    in_place: bool

    def shares_cores(self, other: LocalTask | TreeTask) -> bool:
        """Return whether another task runs on the same cores."""
        if self.cores is None or other.cores is None:
            return self.cores is other.cores
        return np.array_equal(self.cores, other.cores)


@dataclass(frozen=True, eq=False)
class TreeTask(LaunchPart):
    """A reduce tree whose messages are sent; with `spans` the launch sends the roots' sums to all cores too.

    `spans` are `tree_spans(tree.roots)`.
    """

    tree: Reduction
    spans: tuple[Index, Index, int] | None = None

    remote_reads: tuple[tuple[str, Index], ...] = ()
    cores: None = None

    @property
    def what(self) -> str:
        """The name of the task in a record."""
        return f"reduce tree, {self.tree.count} rounds" + ", broadcast" * bool(self.spans)

    @property
    def outs(self) -> tuple[str, ...]:
        """The names of the buffers that it writes."""
        return (self.tree.acc,)

    def blocks(self, order: Index, together: int) -> Index:
        """Return the cores of `order`, children before parents, in blocks of `together` cores of one level.

        A level's last block is filled up with its first core.
        """
        sent = self.tree.send_round[order]
        levels = [order[sent == level] for level in np.unique(sent)]
        full = [np.append(one, np.full(-len(one) % together, one[-(len(one) % together)])) for one in levels]
        return np.concatenate(full)


@dataclass(frozen=True, eq=False)
class Fold(LaunchPart):
    """A reduce tree, of tiles of `size` elements, as a fold: its fields are arguments of `kernels.tree.fold`."""

    tree: Reduction
    first: Index
    order: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    roots: Index
    tree_of: Index
    number: Index
    size: int


@dataclass(frozen=True, eq=False)
class Sums(LaunchPart):
    """Sums of a product's parts along chains of cores, each computed as a whole.

    `tables` are the row of the result of `product` to which each sum goes, the rows of a and of b that the cores of all
    chains multiply, chain after chain, then for each sum the cores of its chain, and those before the turn (see
    `kernels.gemm.chains`).
    """

    product: FusedOp
    tables: tuple[NDArray[np.integer[Any]], ...]

    def joined(self, launch: list[Sums]) -> list[Sums] | None:
        """Return these sums with those of a launch; None if that launch cannot compute them."""
        ends = zip(self.product.args, launch[0].product.args, strict=True)
        joins = (
            self.product.sizes == launch[0].product.sizes
            and all(x.tensor is y.tensor and x[1:] == y[1:] for x, y in ends)
            and not any(np.isin(self.tables[0], each.tables[0]).any() for each in launch)
        )
        return [*launch, self] if joins else None


@dataclass(eq=False)
class Group:
    """The contents of one launch: folds, then local operations (`tasks`), then a reduce tree."""

    folds: list[Fold] = field(default_factory=list)
    tasks: list[LocalTask] = field(default_factory=list)
    tree: TreeTask | None = None

    def try_add(self, new: LocalTask | TreeTask | Fold) -> bool:
        """Add a task if the launch can run it too, and return whether it did; an empty launch takes any."""
        if self.tree is not None:
            return False
        if isinstance(new, Fold):
            self.folds += [new] * (not self.tasks)
            return not self.tasks
        if (self.folds and isinstance(new, TreeTask)) or (self.tasks and not self.tasks[0].shares_cores(new)):
            return False
        written = {name for task in self.tasks for name in task.outs}
        read = {name for task in self.tasks for name, _ in task.remote_reads}
        read |= {name for fold in self.folds for name in (fold.tree.acc, fold.tree.sums)}
        if not written.isdisjoint(dict(new.remote_reads)) or not read.isdisjoint(new.outs):
            return False
        if isinstance(new, LocalTask):
            self.tasks.append(new)
        elif new.spans and any(task.in_place and new.tree.acc in task.outs for task in self.tasks):
            return False  # what it writes must lie apart from the sums that a root sends
        else:
            self.tree = new
        return True

    @property
    def what(self) -> str:
        """The name of the launch in a record."""
        words = groupby(["fold"] * len(self.folds) + [task.what for task in self.tasks])
        runs = ((word, len(list(run))) for word, run in words)
        named = [f"{word} {number} times" if number > 1 else word for word, number in runs]
        return ", ".join(named + ([self.tree.what] if self.tree else []))


def group_tasks(tasks: Sequence[Task]) -> list[Any]:
    """Return the tasks in order; consecutive ones of one launch are a `Group`, or a list of `Messages` or `Sums`."""
    groups: list[Any] = []
    for task in tasks:
        last = groups[-1] if groups else None
        if isinstance(task, Messages | Sums):
            joined = task.joined(last) if isinstance(last, list) and type(last[0]) is type(task) else None
            groups[len(groups) - bool(joined) :] = [joined or [task]]
        elif not isinstance(task, LocalTask | TreeTask | Fold):
            groups.append(task)
        elif not isinstance(last, Group) or not last.try_add(task):
            groups.append(Group())
            groups[-1].try_add(task)
    return groups


def with_sums(tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks with `Sums` in place of a product, a tree of its parts, and a copy of the roots' sums."""
    result: list[Task] = []
    for task in tasks:
        sums = _as_sums(result[-2], result[-1], task) if len(result) > 1 else None
        result[len(result) - 2 * bool(sums) :] = [sums or task]
    return result


def _as_sums(product: Task, reduction: Task, copy: Task) -> Sums | None:
    """Return three tasks as `Sums`; None if they are others, or if the trees are not chains with at most two ends."""
    if not (isinstance(product, LocalTask) and isinstance(reduction, TreeTask) and isinstance(copy, LocalTask)):
        return None
    tree, (part, *operands), (out, source) = reduction.tree, product.op.args, copy.op.args[:2]
    mapped = [homes.astype(np.int32) for _, homes in product.remote_reads]
    if not (
        tree.once and tree.op == "add" and product.op.is_product and product.cores is None and not product.in_place
        and copy.what == "copy" and copy.cores is not None
        and source.tensor is part.tensor and out.tensor.dtype == part.tensor.dtype and out.index is None
        and copy.op.sizes.NUMEL.value == part.stride and out.offset % part.stride == 0 == out.stride % part.stride
        and all(out.tensor is not each.tensor for each in operands)
        and sum(each.index is not None for each in operands) == len(mapped)
    ):  # fmt: skip
        return None
    chains = _chains(tree, copy.cores)
    if chains is None:
        return None
    order, lengths, turns = chains
    a, b = (order if each.index is None else mapped.pop(0)[order] for each in operands)
    ends = out._replace(offset=0, stride=part.stride), *(each._replace(index=None) for each in operands)
    rows = (out.offset + copy.cores * out.stride) // part.stride
    return Sums(product.op._replace(args=ends), (rows, a, b, lengths, turns))


def _chains(tree: Reduction, roots: Index) -> tuple[Index, Index, Index] | None:
    """Return cores, lengths and turns of the chains that end at `roots`, see `Sums`; None if trees have branches."""
    inner = np.flatnonzero(tree.parent >= 0)
    if (tree.children[inner] > 1).any() or tree.children.max(initial=0) > 2:
        return None
    child = np.full((2, len(tree.parent) + 1), -1)  # of index -1 too
    child[tree.slot[inner], tree.parent[inner]] = inner

    def from_end(way: Index) -> Index:
        """Return [roots, most] the cores of a way to each root, the last one first, -1 for none."""
        cores = [way[roots]]
        while (cores[-1] >= 0).any():
            cores.append(child[0, cores[-1]])
        return np.stack(cores[::-1], axis=1)

    first, second = map(from_end, child)
    cores = np.concatenate([second, first, roots[:, None]], axis=1)  # the root adds the sum of its first way first
    return cores[cores >= 0].astype(np.int32), (cores >= 0).sum(1), (second >= 0).sum(1)


def head_folds(group: Group, mesh: Mesh) -> tuple[list[Fold], Grid | None]:
    """Return the folds at the head of a launch, which every program repeats, and the launch's grid (None: as usual)."""
    ops = [task.op for task in group.tasks]
    remote_reads = [read for task in group.tasks for read in task.remote_reads]
    folds = [
        fold
        for fold in group.folds  # of which every core reads the sum of its own tree only
        if all((fold.tree_of[home] == fold.tree_of).all() for name, home in remote_reads if name == fold.tree.sums)
    ]
    folds = [fold for fold in folds if np.array_equal(fold.tree_of, folds[0].tree_of)]
    if not ops or not folds or group.tasks[0].cores is not None:
        return [], None
    length, together = len(folds[0].order), 1
    while (
        length % (2 * together) == 0
        and mesh.cores // (2 * together) >= MIN_PROGRAMS
        and all(not op.is_product and 0 < together * op.elements <= MAX_ELEMENTS for op in ops)
    ):
        together *= 2
    repeated = [
        fold
        for fold in folds
        if length * fold.size <= FOLD_READS
        and mesh.cores // together * length * -(-fold.size // 32) <= LAUNCH_FOLD_LOADS
    ]
    return repeated, Grid(together) if repeated else None


def as_fold(tree: Reduction, size: int) -> Fold | None:
    """Return trees of tiles of `size` elements as a fold; None unless all have the same shape and are small."""
    roots, tree_of = np.unique(tree.roots, return_inverse=True)
    number, spans = len(tree_of) // len(roots), tree_spans(tree.roots)
    if size > MAX_FOLD_TILE or number > MAX_PARTS or spans is None or (spans[1][roots] != number).any():
        return None
    first, _, step = spans
    inside = (np.arange(len(tree_of)) - first[tree.roots]) // step  # the number of each core in its tree
    links = np.stack([inside[tree.parent], tree.slot])  # of roots without meaning
    links[:, tree.parent < 0] = -1
    members = np.argsort(tree_of, kind="stable").reshape(-1, number)
    alike = links[:, members]
    if (alike != alike[:, :1]).any():
        return None
    order, pairs = _fold_order(*alike[:, 0])
    return Fold(tree, first[roots], tuple(core * step for core in order), pairs, roots, tree_of, inside, size)


def _fold_order(parent: Index, slot: Index) -> tuple[list[int], tuple[tuple[int, int], ...]]:
    """Return `order` and `pairs` of `kernels.tree.fold` for one tree, whose cores have numbers from 0 on."""
    order, pairs = list[int](), list[tuple[int, int]]()
    children: list[list[int]] = [[] for _ in (*parent, -1)]  # of -1 the root
    for core in np.argsort(slot, kind="stable").tolist():
        children[parent[core]].append(core)

    def summed(core: int) -> int:
        """Append the parts and pairs of a core's subtree, and return the number of the value that is its sum."""
        total = len(order)
        order.append(core)
        for child in children[core]:
            pairs.append((total, summed(child)))
            total = len(parent) + len(pairs) - 1
        return total

    summed(*children[-1])
    return order, tuple(pairs)


def tree_spans(roots: Index) -> tuple[Index, Index, int] | None:
    """Return [cores] the first core of each root's tree, [cores] how many cores it has, and the distance of two.

    `roots` [cores] is the root of each core's tree. None if the cores of trees are not equally spaced.
    """
    cores = np.argsort(roots, kind="stable")
    steps = np.unique(np.diff(cores)[np.diff(roots[cores]) == 0])
    if len(steps) > 1:
        return None
    every, begin, number = np.unique(roots, return_index=True, return_counts=True)
    first, count = np.zeros((2, len(roots)), np.int64)
    first[every], count[every] = begin, number
    return first, count, int(steps[0]) if len(steps) else 1
