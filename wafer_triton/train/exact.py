"""Small phases, solved exactly: every tree of every flow is tried."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import prod

from wafer_triton.train.dies import Die, Link, Wafer
from wafer_triton.train.flows import Flow, RoutedFlows, Tree

EXACT = 30_000  # combinations of trees up to which a phase is solved by trying all.
SMALL = 9  # dies up to which all trees of a flow are listed


def best_trees(wafer: Wafer, flows: tuple[Flow, ...]) -> RoutedFlows | None:
    """Return the best of all trees, by branch and bound; None for phases too large."""
    if wafer.dies > SMALL or not flows:
        return None
    choices = [trees(wafer, flow) for flow in flows]
    if prod(map(len, choices)) > EXACT**2:
        return None
    best: list[tuple[tuple[float, float], tuple[Tree, ...]]] = []
    loads: dict[Link, float] = defaultdict(float)
    least = [min(len(tree) for tree in trees_) * flow.size for flow, trees_ in zip(flows, choices, strict=True)]
    order = sorted(range(len(flows)), key=lambda i: -flows[i].size)
    steps = 0

    def descend(depth: int, most: float, total: float, chosen: dict[int, Tree]) -> bool:
        nonlocal steps
        steps += 1
        if steps > EXACT * 10:
            return False
        bound = (most, total + sum(least[i] for i in order[depth:]))
        if best and bound >= best[0][0]:
            return True
        if depth == len(order):
            best[:] = [(bound, tuple(chosen[i] for i in range(len(flows))))]
            return True
        number = order[depth]
        for tree in choices[number]:
            for link in tree:
                loads[link] += flows[number].size
            now = max(most, max(loads[link] for link in tree))
            done = descend(depth + 1, now, total + flows[number].size * len(tree), chosen | {number: tree})
            for link in tree:
                loads[link] -= flows[number].size
            if not done:
                return False
        return True

    if not descend(0, 0.0, 0.0, {}):
        return None
    return RoutedFlows(wafer, flows, best[0][1], proved=True)


def trees(wafer: Wafer, flow: Flow) -> tuple[Tree, ...]:
    """Return every tree from the source whose leaves are targets, fewest links first."""
    found: set[Tree] = set()

    def grow(tree: Tree, inside: frozenset[Die], missing: frozenset[Die]) -> None:
        if not missing:
            found.add(tree)
            return
        target = min(missing)  # each target is joined by a path that leaves the tree once
        for start in inside:
            for path in _paths(wafer, start, target, inside):
                grow(tree | frozenset(pairwise(path)), inside | set(path), missing - set(path))

    grow(frozenset(), frozenset([flow.source]), flow.targets)
    return tuple(sorted((flow.directed(tree) for tree in found), key=lambda tree: (len(tree), sorted(tree))))


def _paths(wafer: Wafer, start: Die, end: Die, outside: frozenset[Die]) -> Iterator[list[Die]]:
    """Return simple paths from a die of a tree to one beside it that touch the tree nowhere else."""
    stack = [[start]]
    while stack:
        path = stack.pop()
        if path[-1] == end:
            yield path
            continue
        stack += [[*path, die] for die in wafer.links[path[-1]] if die not in path and die not in outside]
