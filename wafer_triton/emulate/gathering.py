"""Reduce trees with their exchange elided: a core adds up whole chains, whose tiles it reads from where they lie.

Hop by hop, a sum waits for one program after another: nine of them on a line of 64 cores. But where every core is told
the sum in the end, nobody looks at what lies on the way. So the cores of a chain leave their own parts where they are,
and the core at its end adds them up in the order of the chain, each sum rounded as on the way: the same bits, after as
many hand-overs as the K-tree has levels.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wafer_triton.emulate.launches import Tree, combining
from wafer_triton.kernels.protocol import TAKEN
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.rounds import Index, Round

LAST = 1  # of what is said of a sender: it is the last of its chain


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


def gathered(tree: Tree) -> Tree:
    """The tree in which the last of each chain's cores but one takes the parts of all.

    A core's sum with its last message is left to whoever takes its own, unless that message is the end of a chain
    beside another: so each core's part is its own tile and what it took from chains that end there.
    """
    parent, cores = tree.parent, np.arange(len(tree.parent))
    up = np.maximum(parent, 0)
    last = (parent >= 0) & (tree.slot == tree.children[up] - 1)
    passed = last & (parent[up] >= 0) & ((tree.children[up] == 1) | (tree.children > 1))
    # [cores]: the end of a core's chain, and how far it is
    end, far = np.where(passed, up, cores), passed.astype(np.int64)
    while not np.array_equal(end, end[end]):
        end, far = end[end], far + far[end]
    taker = np.where(parent[end] < 0, -1, parent[end])
    taken = np.flatnonzero(taker >= 0)
    taken = taken[np.lexsort((-far[taken], tree.slot[end[taken]], taker[taken]))]
    children = np.bincount(taker[taken], minlength=len(cores))
    first, slot = np.cumsum(children) - children, np.zeros_like(tree.slot)
    slot[taken] = np.arange(len(taken)) - first[taker[taken]]
    senders = np.pad(2 * taken + LAST * (far[taken] == 0), (0, TAKEN))  # the last may read further than there are
    return replace(tree, parent=taker, slot=slot, children=children, senders=senders, first=first)
