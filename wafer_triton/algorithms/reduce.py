"""Reductions along an axis: the K-tree of MeshGEMV (WaferLLM, OSDI'25, section 6) and its rivals.

`wafer_triton.algorithms.trees` has the K-tree, pipeline and two-phase. Star and ring are no trees. A reduction whose
root differs from line to line takes chains from both ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from wafer_triton.algorithms.collectives import broadcast, reduce_scatter, ring_all_gather, segment_size_and_count
from wafer_triton.algorithms.trees import as_groups, chains, segment_trees
from wafer_triton.errors import MeshError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Index, Slot, as_slot
from wafer_triton.schedule.steps import Part, Tree


def reduce(
    b: Builder,
    acc: str | Slot | Sequence[str],
    axis: str,
    *,
    op: str = "add",
    algorithm: str = "ktree",
    groups: tuple[int, ...] | None = None,
    root: int | ArrayLike | None = None,
    inbox: str | None = None,
    segment: int | None = None,
    label: str = "reduce",
) -> int | Index:
    """Combine the buffer `acc` of every line of `axis` by `op` into `acc` of one core, the root; return its position.

    `acc` is a buffer's name for its first slot, a `Slot`, or `Slot(name, None)` for all slots as one tile. Several are
    reduced together: in every stage their tiles follow one another over the same links. `root` is a position, or one
    for each line; None takes the tree's own. A message arrives in a mailbox, `<inbox>.up` from lower positions or
    `<inbox>.down` from higher ones, and is combined before the next stage; `inbox` is `acc` unless given.
    Roots that differ from line to line take chains from both ends, whose routes lead to neighbours and serve any root.

    With `segment` every line is cut into segments of `segment` cores, which are reduced at the same time, each over
    its own links. Cores left over at the end do nothing. A root is then a position in its segment.

    Raises MeshError for a root off the mesh, and for a segment longer than the mesh row or column. Roots that differ
    allow no groups, no segments and no other algorithm: MeshError, too.
    """
    if root is not None and type(root) is not int and np.ndim(root):
        lines, given = b.mesh.length("y" if axis == "x" else "x"), np.asarray(root)
        if given.shape != (lines,) or given.dtype.kind not in "iu":
            raise MeshError(f"{b.name}: roots {root!r} are not one whole number for each of {lines} lines")
        root = given.astype(np.int64)
        groups = () if groups is None else groups
    position: int | Index
    if isinstance(root, np.ndarray) and root.ndim:
        if algorithm != "ktree" or groups or segment is not None:
            raise MeshError(
                f"{b.name}: roots that differ from line to line are reached by chains, without groups or segments"
            )
        position = root
        stages = chains(axis, b.mesh.length(axis), root.tobytes())
    else:
        fixed = None if root is None else int(np.asarray(root))
        stages, position = segment_trees(
            axis, *segment_size_and_count(b, axis, segment), algorithm, as_groups(groups), fixed
        )
    slots = [as_slot(acc)] if isinstance(acc, str | Slot) else list(map(as_slot, acc))
    parts = []
    for slot in slots:
        up, down = names = (f"{inbox or slot.buffer}.up", f"{inbox or slot.buffer}.down")
        for number in stages.used:
            b.like(names[number], slot.buffer)
        buffer = b.buffers[slot.buffer]
        size = buffer.slot_numel(slot)
        parts.append(Part(slot, (replace(slot, buffer=up), replace(slot, buffer=down)), size))
    if stages.each:
        b.steps.append(Tree(op, tuple(parts), stages, label))
    return position


def star(b: Builder, acc: str, axis: str, *, op: str = "add", label: str = "star") -> int:
    """Send all tiles of a mesh row or column to its middle core at once, whose links serialise the messages.

    Returns the position of the middle core, which needs a mailbox for each sender.
    """
    size = b.mesh.length(axis)
    root, buffer = size // 2, b.buffers[acc]
    senders = np.delete(np.arange(size), root)
    if senders.size:
        inbox = b.buffer(f"{acc}.all", buffer.tile, buffer.dtype, "scratch", len(senders))
        moves = [b.exchange(axis, acc, Slot(inbox, slot), [sender], [root]) for slot, sender in enumerate(senders)]
        where = Cores(axis, np.array([root]))
        adds = [b.local(op, acc, (acc, Slot(inbox, slot)), where, size=buffer.numel) for slot in range(len(senders))]
        b.round(*moves, *adds, label=label)
    return root


def ring_all_reduce(b: Builder, acc: str, axis: str, *, op: str = "add", label: str = "ring") -> None:
    """Reduce-scatter, then all-gather, of `size` chunks around the two-hop ring (HPDC'24's ring all-reduce)."""
    size = b.mesh.length(axis)
    if size == 1:
        return
    buffer = b.buffers[acc]
    chunk = -(-buffer.numel // size)
    chunks = b.buffer(f"{acc}.chunks", (chunk,), buffer.dtype, "scratch", size)
    b.round(b.local("copy", Slot(chunks, None), acc, size=buffer.numel), label=label)
    reduce_scatter(b, chunks, axis, op=op, label=label)
    ring_all_gather(b, chunks, axis, label=label)
    b.round(b.local("copy", acc, Slot(chunks, None), size=buffer.numel), label=label)


def all_reduce(
    b: Builder,
    acc: str | Slot | Sequence[str],
    axis: str,
    *,
    op: str = "add",
    algorithm: str = "ktree",
    groups: tuple[int, ...] | None = None,
    segment: int | None = None,
    label: str = "all-reduce",
) -> None:
    """Combine the tiles of `acc` over each mesh row or column, or each segment (see `reduce`), onto all of its cores.

    "ktree", "pipeline", "two-phase" and "star" reduce to one core, which multicasts; "ring" passes chunks around. The
    trees take a whole buffer as well, `Slot(name, None)`, or several buffers together. Raises MeshError for another
    algorithm, for groups where the algorithm has its own, and for segments with "ring" or "star".
    """
    if algorithm not in ("ring", "star"):
        root = reduce(b, acc, axis, op=op, algorithm=algorithm, groups=groups, segment=segment, label=label)
    else:
        if groups is not None:
            raise MeshError(f"all-reduce algorithm {algorithm!r} takes no groups; use 'ktree'")
        if segment is not None:
            raise MeshError(f"all-reduce algorithm {algorithm!r} takes whole lines, no segments; use a tree")
        if not isinstance(acc, str):
            raise MeshError(f"all-reduce algorithm {algorithm!r} takes the first slot of a buffer; use a tree")
        if algorithm == "ring":
            ring_all_reduce(b, acc, axis, op=op, label=label)
            return
        root = star(b, acc, axis, op=op, label=label)
    assert isinstance(root, int)
    broadcast(b, acc, axis, root, label=label, segment=segment)
