"""Launches whose programs are lines of cores: with elided exchange nobody waits on the way of a reduce tree.

Where all cores are told a tree's sum in the end, nobody looks at what lies on the way. So one program adds the parts of
a line's cores up, in the tree's order: the same bits. It can do all else that stays on its line too, from one change of
the axis to the next. `kernels.lines` has the phases of such a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
from torch import Tensor

from wafer_triton.emulate.chains import Address, Work
from wafer_triton.emulate.launches import Tree, combining
from wafer_triton.emulate.steps import Step
from wafer_triton.kernels._common import MAX_BLOCK, block
from wafer_triton.kernels.lines import DONE, KEPT, ROOT, STARTS, TAKEN, TAKES, Fold, Phase, Slices
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.rounds import Index, Round

LIGHT = 1024  # elements of a tile, up to which each program of a line may do the work of all, or the last of them
PROGRAMS = 512  # that a launch should have: about four for each multiprocessor of a large GPU
NARROW = 16  # columns of a slice at the least: 32 bytes of 16-bit weights


@dataclass(frozen=True, eq=False)
class Run:
    """Works that are one launch on the lines of one of the `axes`, those from `first` up to `end` in slices.

    Slices are of `rows` rows in all, or of columns. The trees `apart` are added up by every slice: their sums go
    elsewhere than their parts.
    """

    works: tuple[Work, ...]
    axes: tuple[str, ...]
    first: int
    end: int
    rows: int = 0
    apart: tuple[int, ...] = ()

    def cut(self, lines: int) -> tuple[int, int, int]:
        """Into how many slices, and of how many rows or columns each; 0 of both if there is one."""
        inside = self.works[self.first : self.end]
        sizes = [part.sizes for work in inside for part in work.parts]
        trees = [work.tree.size for work in inside if work.tree is not None]
        if self.rows:
            whole, least = self.rows, 1
            size = min([triton.next_power_of_2(self.rows), *(each.BLOCK_M.value for each in sizes)])
        elif sizes:
            whole, size, least = sizes[0].N.value, sizes[0].BLOCK_N.value, NARROW
        else:
            whole = sum(trees)
            size, least = block(whole, MAX_BLOCK // TAKEN), NARROW
        size = narrowed(size, whole, lines, least)
        if size >= whole:
            return 1, 0, 0
        return -(-whole // size), size if self.rows else 0, 0 if self.rows else size


def narrowed(size: int, whole: int, lines: int, least: int) -> int:
    """The size of slices, halved until there are programs enough."""
    while size > least and lines * -(-whole // size) < PROGRAMS:
        size //= 2
    return size


def told_to_all(tree: Tree, rounds: tuple[Round, ...], roots: Index, mesh: Mesh) -> bool:
    """Whether the first of `rounds` that touches a tree's sums sends those of the `roots` to all other cores."""
    after = next((round_ for round_ in rounds if tree.acc in round_.touched), None)
    if after is None or combining(after) is not None:
        return False
    sent = [exchange for exchange in after.exchanges if tree.acc in (exchange.src.buffer, exchange.dst.buffer)]
    if any(str(one.src) != str(one.dst) or one.src.index != 0 for one in sent):
        return False
    others = np.flatnonzero(roots != np.arange(len(roots)))
    ends = [(one.receivers.flat(mesh), one.senders.flat(mesh)) for one in sent] or [(others[:0], others[:0])]
    receivers, senders = map(np.concatenate, zip(*ends, strict=True))
    return np.array_equal(np.sort(receivers), others) and np.array_equal(roots[receivers], senders)


def lines_of(mesh: Mesh, axis: str) -> Index:
    """[lines, cores]: the cores of every line along an axis."""
    cores = np.arange(mesh.cores).reshape(mesh.shape)
    return cores if axis == "x" else cores.T


def line_of(mesh: Mesh, axis: str) -> Index:
    """[cores]: the number of each core's line along an axis."""
    return np.arange(mesh.cores) // mesh.shape[1] if axis == "x" else np.arange(mesh.cores) % mesh.shape[1]


def folds(tree: Tree, mesh: Mesh) -> dict[str, tuple[Index, Index, int]]:
    """By axis, if the tree stays on its lines, the cores, codes and sums kept of `kernels.lines.Fold`.

    Nothing if more sums wait for others than registers keep.
    """
    (sends,) = np.nonzero(tree.parent >= 0)
    found = {}
    for axis in "xy":
        lines, line, at = lines_of(mesh, axis), line_of(mesh, axis), line_of(mesh, "yx"[axis == "y"])
        if (line[sends] != line[tree.parent[sends]]).any():
            continue
        parents = np.where(tree.parent[lines] < 0, -1, at[tree.parent[lines]])
        kinds, which = np.unique(np.stack([parents, tree.slot[lines]], axis=1), axis=0, return_inverse=True)
        orders = [_order(*kind) for kind in kinds]
        kept = max(waiting for *_, waiting in orders)
        if kept <= KEPT:
            order, does, roots = (np.stack(each)[which.ravel()] for each in list(zip(*orders, strict=True))[:3])
            root = np.take_along_axis(lines, np.maximum(roots, 0), axis=1)
            codes = does + np.where(roots < 0, 0, DONE.value + ROOT.value * root)
            found[axis] = np.take_along_axis(lines, order, axis=1), codes, kept
    return found


def _order(parent: Index, slot: Index) -> tuple[Index, Index, Index, int]:
    """Of one line: the cores in order, what is done with each, and the root where its tree ends, else -1.

    The last is how many sums wait for others at once: as few as can be, as of two the one that needs more goes first.
    """
    children: list[list[int]] = [[] for _ in parent]
    for core in np.argsort(slot, kind="stable"):
        if parent[core] >= 0:
            children[parent[core]].append(int(core))
    roots = [int(root) for root in np.flatnonzero(parent < 0)]
    above = list(roots)
    for core in above:
        above += children[core]
    # [core][i]: how many wait while its part and the sums of i children are added
    needs: list[list[int]] = [[] for _ in parent]
    for core in reversed(above):
        needs[core] = [0, *(needs[child][-1] for child in children[core][:1])]
        for child in children[core][1:]:
            fewer, more = sorted((needs[core][-1], needs[child][-1]))
            needs[core].append(max(more, fewer + 1))
    order, does, ends = list[int](), list[int](), np.full(len(parent), -1)
    for root in roots:
        # of the last first: a core's sum with so many of its children, or its part alone, or a sum that was kept
        todo = [("sum", root, len(children[root]))]
        while todo:
            what, one, number = todo.pop()
            if what == "kept":
                does[-1] += TAKES.value
            elif what == "part" or not number:
                order.append(one)
                does.append(STARTS.value if what == "sum" else 0)
            else:
                child = children[one][number - 1]
                mine, its = ("sum", one, number - 1), ("sum", child, len(children[child]))
                if number == 1:
                    todo += [("part", one, 0), its]
                else:
                    mine_first = needs[one][number - 1] >= needs[child][-1]
                    todo += [("kept", one, 0), *([its, mine] if mine_first else [mine, its])]
        ends[len(order) - 1] = root
    return np.array(order), np.array(does), ends, max(needs[root][-1] for root in roots)


def lined(steps: Sequence[Step], mesh: Mesh, launch: Callable[[Run], Step]) -> list[Step]:
    """The steps, in which works around trees whose sums all are told are launches of lines."""
    result, run = list[Step](), None
    for step in (*steps, None):
        longer = _joined((*run.works, step), mesh) if run is not None and isinstance(step, Work) else None
        if longer is None and run is not None:
            result += [launch(run)] if any(work.folds for work in run.works) else run.works
        run = longer or (_joined((step,), mesh) if isinstance(step, Work) else None)
        if run is None and step is not None:
            result.append(step)
    return result


def _joined(works: tuple[Work, ...], mesh: Mesh) -> Run | None:
    """Works as one launch, if they can be."""
    parts = [part for work in works for part in work.parts]
    axes = tuple(axis for axis in "xy" if _stay(works, axis, mesh))
    if not axes or not all(part.elements for part in parts) or any(one.tree and not one.folds for one in works):
        return None
    if rows := max((part.rows for part in parts), default=0):
        # every slice has the same rows of all of them
        alike = all(part.rows == rows for part in parts)
        alike = alike and all(one.tree.size % rows == 0 for one in works if one.tree is not None)
        return Run(works, axes, 0, len(works), rows) if alike else None
    products = [at for at, work in enumerate(works) if any("BLOCK_K" in part.sizes._fields for part in work.parts)]
    first = products[0] if products else 0
    end = first + 1 if products or works[0].tree is not None else 0
    apart = _repeated(works[: first + 1]) if first else ()
    if len(products) > 1 or apart is None:
        return None
    if products and end < len(works) and works[end].tree is not None and works[end].writes == works[first].writes:
        end += 1
    light = all(_is_light(work) for at, work in enumerate(works) if not first <= at < end)
    return Run(works, axes, first, end, apart=apart) if light else None


def _is_light(work: Work) -> bool:
    ends = [operand for part in work.parts for operand in part.args]
    return max(end.stride for end in ([work.tree.acc] if work.tree is not None else ends)) <= LIGHT


def _stay(works: Sequence[Work], axis: str, mesh: Mesh) -> bool:
    """Whether works touch nothing of other lines that is written meanwhile, and leave no line out."""
    line = line_of(mesh, axis)
    written = {memory for work in works for memory in work.writes}
    for work in works:
        cores = np.arange(mesh.cores) if work.cores is None else work.cores
        far = [whose[cores] for memory, whose in work.far if memory in written]
        if any((line[cores] != line[whose]).any() for whose in far):
            return False
        if work.tree is not None and axis not in work.folds:
            return False
        if len(set(np.bincount(line[cores], minlength=line.max() + 1))) > 1:
            return False
    return True


def _repeated(works: Sequence[Work]) -> tuple[int, ...] | None:
    """The trees of works that may be done again while others go on, if these may: nothing that is read changes.

    The last is a product, each slice of which is done once. A tree's sums go elsewhere than its parts.
    """
    reads, writes = [set[object](work.reads) for work in works], [set[object](work.writes) for work in works]
    apart = tuple(at for at, work in enumerate(works) if work.tree is not None)
    for at in apart:
        made = max((one for one in range(at) if writes[at] <= writes[one]), default=None)
        if made is None:
            return None
        reads[at] = {at}
        writes[made] = writes[made] - writes[at] | {at}
    for at, mine in enumerate(writes):
        if any(mine & those for those in (*reads[: at + 1], *writes[:at])):
            return None
    return apart


def laid_out(
    run: Run, mesh: Mesh, shuffled: Callable[[int], Index], table: Callable[[Index], Tensor], *, poison: bool
) -> tuple[list[Phase], Slices]:
    """The phases of a launch and its slices; lines come in the order `shuffled`, `table` puts indices on the device."""
    axis, line = run.axes[0], line_of(mesh, run.axes[0])
    order = shuffled(int(line.max()) + 1)
    number, rows, cols = run.cut(len(order))
    phases, parts = list[Phase](), dict[Address, Tensor]()
    for at, work in reversed([*enumerate(run.works)]):
        if work.tree is None:
            cores = np.arange(mesh.cores) if work.cores is None else work.cores
            cores = cores[np.argsort(line[cores], kind="stable")].reshape(len(order), -1)[order]
            for part in work.parts:
                args = (end._replace(tensor=parts.get(end.tensor.data_ptr(), end.tensor)) for end in part.args)
                phases.append(Phase(part._replace(args=tuple(args)), table(cores)))
            continue
        acc = tiles = work.tree.acc
        if at in run.apart:
            apart = torch.full_like(acc.tensor, float("nan") if poison else 0.0)
            parts[acc.tensor.data_ptr()] = apart
            tiles = acc._replace(tensor=apart)
        inside = run.works[run.first : at] if at < run.end else ()
        height = run.rows or max((part.sizes.M.value for one in inside for part in one.parts), default=1)
        cores, codes, kept = work.folds[axis]
        fold = Fold(tiles, acc, table(cores[order]), table(codes[order]), kept, work.tree.size, work.tree.op, height)
        phases.append(Phase(fold=fold))
    arrived = torch.zeros(len(order), dtype=torch.int32, device=run.works[0].order.device)
    end = run.end if number > 1 else len(phases)
    return phases[::-1], Slices(run.first, end, number, rows, cols, arrived)
