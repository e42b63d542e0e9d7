"""Trees of reductions along an axis, as stages of messages: the K-tree of MeshGEMV and chains (WaferLLM, section 6).

A K-tree has K levels. On each level the remaining cores form groups. In every group chains run from both ends to the
group's root, each link one routing stage. The roots are the cores of the next level, where a link crosses a whole group
over a pass-through circuit. K = 1 is one group: chains from both ends to the middle.

Pipeline and two-phase are trees too, with roots at the last cores of their groups.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import zip_longest
from math import isqrt
from typing import Any

import numpy as np

from wafer_triton.algorithms.collectives import on_segments
from wafer_triton.errors import MeshError, plain, shown
from wafer_triton.schedule.rounds import Index, Moves
from wafer_triton.schedule.steps import Stages

ALGORITHMS = ("ktree", "pipeline", "two-phase", "star", "ring")
Stage = tuple[list[tuple[int, int]], list[tuple[int, int]]]  # (sender, receiver) pairs: upwards, downwards
Way = tuple[int, Moves]  # one direction of a stage: 0 upwards or 1 downwards, and its messages


def default_groups(size: int) -> tuple[int, ...]:
    """Return about sqrt(size) groups, so that two levels are equally long; none, so one level, on up to four cores."""
    return (isqrt(size),) if size > 4 else ()


def ktree(
    size: int, groups: tuple[int, ...] = (), root: int | None = None, ends: bool = False
) -> tuple[tuple[Stage, ...], int]:
    """Return the stages of a K-tree over `size` cores and its root.

    `groups` holds the number of groups of each level but the last, which is one group; K = len(groups) + 1. The root of
    a group of g cores is its core g // 2, or with `ends` its last core. A given `root` of the tree is the root of its
    groups as well. Raises MeshError when a level has more groups than cores, or none, or when the root is off the line.
    """
    if root is not None:
        _check_root(size, root)
    points = np.arange(size)
    stages: list[Stage] = []
    for number, count in enumerate((*groups, 1)):
        if not 1 <= count <= len(points):
            raise MeshError(
                f"K-tree over {size} cores: level {number + 1} has {len(points)} cores for {count} groups; "
                f"give from 1 to {len(points)} groups there"
            )
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


def _check_root(size: int, root: int) -> None:
    if not 0 <= root < size:
        raise MeshError(f"K-tree over {size} cores: root {root} is off the line")


def two_level_costs(size: int) -> tuple[Index, Index, Index]:
    """Return three arrays [size]: each number of groups of a two-level K-tree, and the stages and hops it gives.

    Hops are the hops of the longest route to the root and of the multicast from it. Groups are as in `ktree`: the first
    `size % count` groups are one core larger, and roots lie in the middle.
    """
    count = np.arange(1, size + 1)
    each, larger = np.divmod(size, count)

    def root(group: Index | int) -> Index:
        return group * each + np.minimum(group, larger) + (each + (group < larger)) // 2

    top, depth = count // 2, (each + (larger > 0)) // 2
    middle = root(top)
    across = np.maximum(middle - root(0), root(count - 1) - middle)
    return count, depth + top, depth + across + np.maximum(middle, size - 1 - middle)


def as_groups(groups: Any) -> tuple[int, ...] | None:
    """Return the numbers of groups, given as one number or several, as a tuple of ints; None stays None.

    MeshError for anything else.
    """
    if groups is None:
        return None
    one = plain(groups)
    counts = (one,) if type(one) is int else tuple(map(plain, groups))
    if not all(type(count) is int for count in counts):
        raise MeshError(f"groups = {shown(groups)}: give the number of groups of each level but the last, such as (5,)")
    return counts


def tree(size: int, algorithm: str, groups: tuple[int, ...] | None, root: int | None) -> tuple[tuple[Stage, ...], int]:
    """Return the tree of an algorithm: "ktree", "pipeline" (one chain) or "two-phase" (chains of sqrt(size) cores).

    The chains of pipeline and two-phase run one way, to the last core of each, unless `root` is given. Raises MeshError
    for another algorithm, or for groups where the algorithm has its own.
    """
    return ktree(size, _group_counts(size, algorithm, groups), root, ends=algorithm != "ktree")


def _group_counts(size: int, algorithm: str, groups: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the number of groups of each level but the last."""
    if algorithm == "ktree":
        return default_groups(size) if groups is None else groups
    own = {"pipeline": (), "two-phase": (-(-size // max(1, isqrt(size))),)}
    if algorithm not in own:
        raise MeshError(f"all-reduce algorithm {algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
    if groups is not None:
        raise MeshError(f"all-reduce algorithm {algorithm!r} takes no groups; use 'ktree'")
    return own[algorithm]


@lru_cache(maxsize=64)
def segment_trees(
    axis: str, size: int, times: int, algorithm: str, groups: tuple[int, ...] | None, root: int | None
) -> tuple[Stages, int]:
    """Return the stages of one tree on each of `times` segments of `size` cores, and the root within a segment."""
    if root is not None and not _group_counts(size, algorithm, groups):  # two chains, whose links all roots share
        _check_root(size, root)
        ways = [links[:most] for links, most in zip(_links(axis, size, times), (root, size - 1 - root), strict=True)]
        return Stages(tuple(tuple(way for way in stage if way) for stage in zip_longest(*ways))), root
    stages, place = tree(size, algorithm, groups, root)
    each = (
        (_stage_moves(axis, number, pairs, size, times) for number, pairs in enumerate(stage) if pairs)
        for stage in stages
    )
    return Stages(tuple(map(tuple, each))), place


def _stage_moves(axis: str, number: int, pairs: list[tuple[int, int]], size: int, times: int) -> Way:
    """Return the messages of a stage in one direction on all segments."""
    send, recv = (on_segments(end, size, times) for end in np.array(pairs).T)
    return number, Moves(axis, send, recv)


@lru_cache(maxsize=2)
def _links(axis: str, size: int, times: int) -> tuple[list[Way], list[Way]]:
    """Return the messages of each stage of a chain upwards, and of one downwards, on all segments."""
    up = [_stage_moves(axis, 0, [(start, start + 1)], size, times) for start in range(size - 1)]
    return up, [_stage_moves(axis, 1, [(start, start - 1)], size, times) for start in range(size - 1, 0, -1)]


@lru_cache(maxsize=4)
def chains(axis: str, size: int, roots: bytes) -> Stages:
    """Return the stages of chains from both ends of every line to its root; `roots` are int64 [lines] as bytes.

    A stage skips the lines whose chain has ended.
    """
    place = np.frombuffer(roots, np.int64)
    for root in (int(place.min()), int(place.max())):
        _check_root(size, root)
    stages = []
    for step in range(int(np.maximum(place, size - 1 - place).max())):
        going = [np.flatnonzero(step < links) for links in (place, size - 1 - place)]
        ends = [(step, step + 1), (size - 1 - step, size - 2 - step)]
        stages.append(
            tuple(
                (way, Moves(axis, np.array([send]), np.array([recv]), lines))
                for way, (lines, (send, recv)) in enumerate(zip(going, ends, strict=True))
                if lines.size
            )
        )
    return Stages(tuple(stages))
