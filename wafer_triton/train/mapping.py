"""Traffic-conscious mapping: routes for flows that run at the same time.

The objective is the busiest link's time first, then bytes times hops. The steps have the names of TEMP's summaries, and
are modelled on the algorithm of BALD (ISCA 2026): construct, merge multicasts, reroute flows of the busiest link.
Small phases are solved exactly (`wafer_triton.train.exact`), and `RoutedFlows.proved` says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import pairwise
from math import isqrt

from wafer_triton.errors import MeshError
from wafer_triton.train.dies import Die, Link, Wafer
from wafer_triton.train.exact import best_trees
from wafer_triton.train.flows import Flow, RoutedFlows, Tree, merge

TRIES = 60  # reroutes without gain after which the search ends


def route(wafer: Wafer, flows: Iterable[Flow], tries: int = TRIES) -> RoutedFlows:
    """Return routes for flows of one phase, by all steps of the module.

    Raises MeshError for a flow between dies that the wafer does not have.
    """
    merged = merge(flows)
    _demand(wafer, merged)
    exact = best_trees(wafer, merged)
    if exact is not None:
        return exact
    starts = [construct(wafer, merged), dimension_ordered(wafer, merged)]
    return min((_improved(start, tries) for start in starts), key=lambda found: found.objective)


def dimension_ordered(wafer: Wafer, flows: Sequence[Flow]) -> RoutedFlows:
    """Return routes along rows first, then columns (XY), without regard to loads; around failed links the shortest."""
    _demand(wafer, flows)
    trees = []
    for flow in flows:
        tree: set[Link] = set()
        for target in sorted(flow.targets):
            tree |= _xy(flow.source, target)
        if any(not wafer.links.has_edge(*link) for link in tree):
            tree = set(_grown(wafer, flow, {}))
        trees.append(flow.directed(frozenset(tree)))
    return RoutedFlows(wafer, tuple(flows), tuple(trees))


def construct(wafer: Wafer, flows: Sequence[Flow]) -> RoutedFlows:
    """Return trees that are grown flow by flow, the largest first, around busy links."""
    _demand(wafer, flows)
    order = sorted(range(len(flows)), key=lambda i: (-flows[i].size * len(flows[i].targets), i))
    loads: dict[Link, float] = defaultdict(float)
    trees: dict[int, Tree] = {}
    for number in order:
        trees[number] = flows[number].directed(_grown(wafer, flows[number], _of_kind(flows[number], loads)))
        for link in trees[number]:
            loads[link] += flows[number].size
    return RoutedFlows(wafer, tuple(flows), tuple(trees[number] for number in range(len(flows))))


def _demand(wafer: Wafer, flows: Iterable[Flow]) -> None:
    for flow in flows:
        for die in (flow.source, *flow.targets):
            if not (0 <= die[0] < wafer.rows and 0 <= die[1] < wafer.cols):
                raise MeshError(f"flow from {flow.source}: wafer {wafer.name} has no die {die}")


def _improved(start: RoutedFlows, tries: int) -> RoutedFlows:
    """Reroute flows of the busiest links; steps are judged by `_key`, and the best objective on the path is kept."""
    wafer, flows, trees = start.wafer, start.flows, list(start.trees)
    loads: dict[Link, float] = defaultdict(float, start.loads)
    best, least, kept = _key(loads), start.objective, tuple(trees)
    tabu: dict[int, int] = {}
    failed, iteration = 0, 0
    while failed < tries:
        iteration += 1
        most = max(loads.values(), default=0.0)
        hot = {link for link, load in loads.items() if load >= most * (1 - 1e-12)}
        movable = [i for i, tree in enumerate(trees) if not tree.isdisjoint(hot) and tabu.get(i, 0) < iteration]
        if not movable:
            if all(tree.isdisjoint(hot) for tree in trees) or failed + isqrt(len(flows)) >= tries:
                break
            iteration += isqrt(len(flows)) + 1
            failed += isqrt(len(flows)) + 1
            continue
        number = movable[iteration % len(movable)]
        flow, old = flows[number], trees[number]
        for link in old:
            loads[link] -= flow.size
        new = flow.directed(_grown(wafer, flow, _of_kind(flow, loads)))
        for link in new:
            loads[link] += flow.size
        key = _key(loads)
        if key < best:
            best, trees[number], failed = key, new, 0
            objective = (key[0] / wafer.link_bytes_per_second, sum(loads.values()))
            if objective < least:
                least, kept = objective, tuple(trees)
        else:
            for link in new:
                loads[link] -= flow.size
            for link in old:
                loads[link] += flow.size
            tabu[number] = iteration + isqrt(len(flows))
            failed += 1
    return replace(start, trees=kept)


def _key(loads: dict[Link, float]) -> tuple[float, int, float]:
    """Return the objective with the number of busiest links between its two parts; fewer of them are better."""
    most = max(loads.values(), default=0.0)
    return most, sum(load >= most * (1 - 1e-12) for load in loads.values()), round(sum(loads.values()), 3)


def _grown(wafer: Wafer, flow: Flow, loads: dict[Link, float]) -> Tree:
    """Return a tree from the source, grown by the cheapest path to the nearest missing target until none is missing.

    A link costs the flow's bytes plus a much larger part that grows with the fourth power of its load.
    """
    top = max([*loads.values(), 0.0]) + flow.size
    tree: set[Link] = set()
    inside, missing = {flow.source}, set(flow.targets)
    while missing:
        distance: dict[Die, float] = dict.fromkeys(inside, 0.0)
        before: dict[Die, Die] = {}
        queue = [(0.0, die) for die in sorted(inside)]
        reached = None
        while queue:
            far, die = heappop(queue)
            if far > distance[die]:
                continue
            if die in missing:
                reached = die
                break
            for other in wafer.links[die]:
                load = loads.get((die, other), 0.0) + flow.size
                further = far + flow.size * (1 + 1000 * (load / top) ** 4)
                if further < distance.get(other, float("inf")):
                    distance[other], before[other] = further, die
                    heappush(queue, (further, other))
        assert reached is not None, "a wafer's links are connected"
        while reached not in inside:
            tree.add((before[reached], reached))
            inside.add(reached)
            missing.discard(reached)
            reached = before[reached]
    return frozenset(tree)


def _of_kind(flow: Flow, loads: dict[Link, float]) -> dict[Link, float]:
    """Return the loads for a tree from the source; for a reduction each link has the load of its reverse."""
    return {link[::-1]: load for link, load in loads.items()} if flow.reduce else loads


def _xy(source: Die, target: Die) -> set[Link]:
    row, col = source
    path = [source]
    while col != target[1]:
        col += 1 if target[1] > col else -1
        path.append((row, col))
    while row != target[0]:
        row += 1 if target[0] > row else -1
        path.append((row, col))
    return set(pairwise(path))
