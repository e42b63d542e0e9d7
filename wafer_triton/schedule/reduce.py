"""Reductions along an axis: the K-tree of MeshGEMV (WaferLLM, OSDI'25, section 6), broadcast and all-reduce.

A K-tree has K levels. On each level the cores that are left form groups; in every group a chain runs from both ends to
the group's root, one routing stage a link; the roots go on to the next level, where a link crosses a whole group over
a pass-through circuit. K = 1 is a chain from both ends to the middle.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import ArrayLike

from wafer_triton.errors import MeshError
from wafer_triton.schedule.rounds import Builder, Cores, Index

Stage = tuple[list[tuple[int, int]], list[tuple[int, int]]]  # (sender, receiver) pairs: upwards, downwards


def default_groups(size: int) -> tuple[int, ...]:
    """Two levels with about sqrt(size) groups, which balances their lengths; one level on up to four cores."""
    return (isqrt(size),) if size > 4 else ()


@lru_cache(maxsize=4096)
def ktree(size: int, groups: tuple[int, ...], root: int | None = None) -> tuple[tuple[Stage, ...], int]:
    """The stages of a K-tree over a line of `size` cores and its root.

    `groups` holds the number of groups of each level but the last, which is one group; K = len(groups) + 1. Roots are
    the middles of their groups (g // 2); a given `root` of the whole tree is the root of its groups as well.
    Raises MeshError when a level has more groups than cores, or none.
    """
    points = np.arange(size)
    stages: list[Stage] = []
    for number, count in enumerate((*groups, 1)):
        if not 1 <= count <= len(points):
            raise MeshError(f"K-tree over {size} cores: level {number + 1} has {len(points)} cores for {count} groups")
        chains, roots = [], []
        for members in np.array_split(points, count):
            inside = np.flatnonzero(members == root)
            middle = int(inside[0]) if inside.size else len(members) // 2
            chains.append((members[: middle + 1], members[middle:][::-1]))
            roots.append(members[middle])
        depth = max(len(side) - 1 for sides in chains for side in sides)
        for step in range(depth):
            up, down = (
                [(int(side[step]), int(side[step + 1])) for side in sides if step + 1 < len(side)]
                for sides in zip(*chains, strict=True)
            )
            stages.append((up, down))
        points = np.array(roots)
    return tuple(stages), int(points[0])


def reduce(
    b: Builder,
    acc: str,
    axis: str,
    *,
    op: str = "add",
    groups: tuple[int, ...] | None = None,
    root: int | ArrayLike | None = None,
    label: str = "reduce",
) -> int | Index:
    """Combine the buffer `acc` of every line of `axis` by `op` into `acc` of one core, and return its position.

    `root` is a position, or one for each line; None takes the tree's own. Every message arrives in a mailbox
    (`acc.up` from lower positions, `acc.down` from higher ones) and is combined before the next stage.
    """
    size = b.mesh.length(axis)
    chosen = default_groups(size) if groups is None else groups
    if root is None or np.ndim(root) == 0:
        stages, place = ktree(size, chosen, None if root is None else int(np.asarray(root)))
        trees, lines = [stages], None
    else:
        trees = [ktree(size, chosen, int(one))[0] for one in np.asarray(root)]
        place, lines = np.asarray(root), np.arange(len(trees))
    numel = b.buffers[acc].numel
    for step in range(max(map(len, trees))):
        exchanges, adds = [], []
        for way, inbox in enumerate((f"{acc}.up", f"{acc}.down")):
            pairs = _table([tree[step][way] if step < len(tree) else [] for tree in trees])
            if pairs is None:
                continue
            send, recv = pairs if lines is not None else (pairs[0][0], pairs[1][0])
            b.like(inbox, acc)
            exchange = b.exchange(axis, acc, inbox, send, recv, lines)
            exchanges.append(exchange)
            adds.append(b.local(op, acc, (acc, inbox), Cores(axis, exchange.recv, lines), size=numel))
        b.round(*exchanges, *adds, label=label)
    return place


def broadcast(b: Builder, name: str, axis: str, root: int, label: str = "broadcast") -> None:
    """Position `root` of every line multicasts its tile of `name` to the rest of the line, both ways at once."""
    below, above = np.arange(root), np.arange(root + 1, b.mesh.length(axis))
    b.round(*(b.exchange(axis, name, name, root, side) for side in (below, above)), label=label)


def all_reduce(
    b: Builder,
    acc: str,
    axis: str,
    *,
    op: str = "add",
    groups: tuple[int, ...] | None = None,
    label: str = "all-reduce",
) -> None:
    """Every core of a line gets the combination of the line's tiles of `acc`: a K-tree, then a broadcast."""
    root = reduce(b, acc, axis, op=op, groups=groups, label=label)
    assert isinstance(root, int)
    broadcast(b, acc, axis, root, label=label)


def _table(lines: list[list[tuple[int, int]]]) -> tuple[Index, Index] | None:
    """Pairs of each line as two arrays [lines, n], padded with -1; None if there are no pairs."""
    width = max(map(len, lines))
    if width == 0:
        return None
    table = np.full((2, len(lines), width), -1, np.int64)
    for number, pairs in enumerate(lines):
        if pairs:
            table[:, number, : len(pairs)] = np.transpose(pairs)
    return table[0], table[1]
