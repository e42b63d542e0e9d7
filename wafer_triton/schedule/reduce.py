"""Reductions along an axis: the K-tree of MeshGEMV (WaferLLM, OSDI'25, section 6) and its rivals.

A K-tree has K levels. On each level the cores that are left form groups; in every group a chain runs from both ends to
the group's root, one routing stage a link; the roots go on to the next level, where a link crosses a whole group over
a pass-through circuit. K = 1 is a chain from both ends to the middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import ArrayLike

from wafer_triton.errors import MeshError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.collectives import broadcast, reduce_scatter, ring_all_gather
from wafer_triton.schedule.rounds import Cores, Index, Slot

Stage = tuple[list[tuple[int, int]], list[tuple[int, int]]]  # (sender, receiver) pairs: upwards, downwards


def default_groups(size: int) -> tuple[int, ...]:
    """Two levels with about sqrt(size) groups, which balances their lengths; one level on up to four cores."""
    return (isqrt(size),) if size > 4 else ()


@lru_cache(maxsize=4096)
def ktree(
    size: int, groups: tuple[int, ...] = (), root: int | None = None, ends: bool = False
) -> tuple[tuple[Stage, ...], int]:
    """The stages of a K-tree over a line of `size` cores and its root.

    `groups` holds the number of groups of each level but the last, which is one group; K = len(groups) + 1. Roots are
    the middles of their groups (g // 2), or their last cores with `ends`; a given `root` of the whole tree is the root
    of its groups as well. Raises MeshError when a level has more groups than cores, or none,
    or the root is off the line.
    """
    if root is not None and not 0 <= root < size:
        raise MeshError(f"K-tree over {size} cores: root {root} is off the line")
    points = np.arange(size)
    stages: list[Stage] = []
    for number, count in enumerate((*groups, 1)):
        if not 1 <= count <= len(points):
            raise MeshError(f"K-tree over {size} cores: level {number + 1} has {len(points)} cores for {count} groups")
        chains, roots = [], []
        for members in np.array_split(points, count):
            inside = np.flatnonzero(members == root)
            middle = int(inside[0]) if inside.size else len(members) - 1 if ends else len(members) // 2
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


def checked_groups(groups: object) -> None:
    """MeshError unless `groups` is None or a tuple of whole numbers."""
    if groups is not None and not (isinstance(groups, tuple) and all(isinstance(one, int) for one in groups)):
        raise MeshError(f"groups = {groups!r}: give the number of groups of each level but the last, such as (5,)")


def tree(size: int, algorithm: str, groups: tuple[int, ...] | None, root: int | None) -> tuple[tuple[Stage, ...], int]:
    """The tree of a reduction algorithm: "ktree", "pipeline" (one chain) or "two-phase" (chains of sqrt(size) cores).

    Pipeline and two-phase run one way, to the last core of each chain. Raises MeshError for another algorithm, or for
    groups where the algorithm has its own.
    """
    checked_groups(groups)
    if algorithm == "ktree":
        return ktree(size, default_groups(size) if groups is None else groups, root)
    own = {"pipeline": (), "two-phase": (-(-size // max(1, isqrt(size))),)}
    if algorithm not in own:
        raise MeshError(f"all-reduce algorithm {algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
    if groups is not None:
        raise MeshError(f"all-reduce algorithm {algorithm!r} takes no groups; use 'ktree'")
    return ktree(size, own[algorithm], root, ends=True)


def reduce(
    b: Builder,
    acc: str,
    axis: str,
    *,
    op: str = "add",
    algorithm: str = "ktree",
    groups: tuple[int, ...] | None = None,
    root: int | ArrayLike | None = None,
    label: str = "reduce",
) -> int | Index:
    """Combine the buffer `acc` of every line of `axis` by `op` into `acc` of one core, and return its position.

    `root` is a position, or one for each line; None takes the tree's own. Every message arrives in a mailbox
    (`acc.up` from lower positions, `acc.down` from higher ones) and is combined before the next stage.
    """
    size = b.mesh.length(axis)
    place: int | Index
    stages: Iterable[tuple[Index, ...]]
    if root is None or np.ndim(root) == 0:
        pairs, place = tree(size, algorithm, groups, None if root is None else int(np.asarray(root)))
        stages, lines = [tuple(np.array(way, np.int64).reshape(-1, 2).T for way in stage) for stage in pairs], None
    else:
        place = np.asarray(root)
        stages, lines = _stages(size, algorithm, groups, place), np.arange(len(place))
    numel = b.buffers[acc].numel
    for stage in stages:
        exchanges, adds = [], []
        for (send, recv), inbox in zip(stage, (f"{acc}.up", f"{acc}.down"), strict=True):
            if not send.size:
                continue
            b.like(inbox, acc)
            exchange = b.exchange(axis, acc, inbox, send, recv, lines)
            exchanges.append(exchange)
            adds.append(b.local(op, acc, (acc, inbox), Cores(axis, exchange.recv, lines), size=numel))
        b.round(*exchanges, *adds, label=label)
    return place


def star(b: Builder, acc: str, axis: str, *, op: str = "add", label: str = "star") -> int:
    """All other cores of a line send to its middle at once; its links serialise them. Returns the position.

    The middle needs a mailbox for each sender.
    """
    size = b.mesh.length(axis)
    root, buffer = size // 2, b.buffers[acc]
    others = np.delete(np.arange(size), root)
    if others.size:
        inbox = b.buffer(f"{acc}.all", buffer.tile, buffer.dtype, "scratch", len(others))
        moves = [b.exchange(axis, acc, Slot(inbox, slot), [one], [root]) for slot, one in enumerate(others)]
        where = Cores(axis, np.array([root]))
        adds = [b.local(op, acc, (acc, Slot(inbox, slot)), where, size=buffer.numel) for slot in range(len(others))]
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
    acc: str,
    axis: str,
    *,
    op: str = "add",
    algorithm: str = "ktree",
    groups: tuple[int, ...] | None = None,
    label: str = "all-reduce",
) -> None:
    """Every core of a line gets the combination of the line's tiles of `acc`.

    "ktree", "pipeline", "two-phase" and "star" reduce to one core, which multicasts; "ring" passes chunks around.
    Raises MeshError for another algorithm, or for groups where the algorithm has its own.
    """
    if algorithm in ("ring", "star") and groups is not None:
        raise MeshError(f"all-reduce algorithm {algorithm!r} takes no groups; use 'ktree'")
    if algorithm == "ring":
        ring_all_reduce(b, acc, axis, op=op, label=label)
        return
    if algorithm == "star":
        root: int | Index = star(b, acc, axis, op=op, label=label)
    else:
        root = reduce(b, acc, axis, op=op, algorithm=algorithm, groups=groups, label=label)
    assert isinstance(root, int)
    broadcast(b, acc, axis, root, label=label)


ALGORITHMS = ("ktree", "pipeline", "two-phase", "star", "ring")


def _stages(size: int, algorithm: str, groups: tuple[int, ...] | None, place: Index) -> Iterator[tuple[Index, ...]]:
    """The stages of trees whose roots are at `place`: upwards and downwards senders and receivers [2, lines, n]."""
    for one in (place.min(), place.max()):
        tree(size, algorithm, groups, int(one))  # raises for a root off the line
    for stage in _all_stages(size, algorithm, groups):
        ways = [way[:, place] for way in stage]
        chosen = tuple(way[:, :, (way[0] >= 0).any(0)] for way in ways)
        if any(way.size for way in chosen):
            yield chosen


@lru_cache(maxsize=64)
def _all_stages(size: int, algorithm: str, groups: tuple[int, ...] | None) -> list[tuple[Index, Index]]:
    """For every root on the line its tree's senders and receivers [2, roots, n] of each stage, padded with -1."""
    trees = [tree(size, algorithm, groups, root)[0] for root in range(size)]
    found = []
    for step in range(max(map(len, trees))):
        ways = []
        for way in range(2):
            pairs = [stages[step][way] if step < len(stages) else [] for stages in trees]
            table = np.full((size, max(map(len, pairs)), 2), -1, np.int64)
            for root, some in enumerate(pairs):
                table[root, : len(some)] = np.array(some, np.int64).reshape(-1, 2)
            ways.append(np.moveaxis(table, 2, 0))
        found.append((ways[0], ways[1]))
    return found
