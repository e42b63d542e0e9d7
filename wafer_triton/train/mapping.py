"""Traffic-conscious mapping: routes for flows that run at the same time, and orders of dies in rings.

A phase is a set of flows. Each flow takes one directed tree in the graph of working links; a multicast crosses a link
once, and a reduction is a multicast backwards. The objective is the busiest link's time first, then bytes times hops.
The steps have the names of TEMP's summaries, and are modelled on the algorithm of BALD (ISCA 2026):
construct, merge multicasts, reroute flows of the busiest link, permute dies.

Small phases are solved exactly: every tree of every flow is tried, and `Routing.proved` says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise, permutations
from math import isqrt, prod

from wafer_triton.errors import MeshError
from wafer_triton.train.dies import Die, Link, Wafer

Tree = frozenset[Link]
EXACT = 30_000  # combinations of trees up to which a phase is solved by trying all.
SMALL = 9  # dies up to which all trees of a flow are listed
TRIES = 60  # reroutes without gain after which the search ends


@dataclass(frozen=True)
class Flow:
    """`size` bytes from `source` to every target, or with `reduce` summed from the targets to the source.

    Flows of one source with the same `block` carry the same bytes, and are merged.
    """

    source: Die
    targets: frozenset[Die]
    size: float
    block: str = ""
    reduce: bool = False


@dataclass(frozen=True)
class RoutedFlows:
    """Flows and a tree for each; `history` has the objective after every accepted change, which never rises."""

    wafer: Wafer
    flows: tuple[Flow, ...]
    trees: tuple[Tree, ...]
    proved: bool = False
    history: tuple[tuple[float, float], ...] = field(default=(), compare=False)

    @property
    def loads(self) -> dict[Link, float]:
        """Return bytes over every link in use."""
        return _loads(self.flows, self.trees)

    @property
    def objective(self) -> tuple[float, float]:
        """Return seconds of the busiest link, and bytes times hops of all flows."""
        loads = self.loads
        return max(loads.values(), default=0.0) / self.wafer.link_bytes_per_second, sum(loads.values())

    @property
    def seconds(self) -> float:
        """Return seconds of the phase: the busiest link, and the latency of the longest path."""
        longest = max((_depth(flow, tree) for flow, tree in zip(self.flows, self.trees, strict=True)), default=0)
        return self.objective[0] + longest * self.wafer.link_seconds

    @property
    def hottest(self) -> Link | None:
        """Return the busiest link, of equal ones the first."""
        loads = self.loads
        return min(loads, key=lambda link: (-loads[link], link)) if loads else None


def route(wafer: Wafer, flows: Iterable[Flow], tries: int = TRIES) -> RoutedFlows:
    """Return routes for flows of one phase, by all steps of the module.

    Raises MeshError for a flow between dies that the wafer does not have.
    """
    merged = merge(flows)
    for flow in merged:
        for die in (flow.source, *flow.targets):
            if die not in wafer.links:
                raise MeshError(f"flow from {flow.source}: wafer {wafer.name} has no die {die}")
    exact = _exact(wafer, merged)
    if exact is not None:
        return exact
    starts = [construct(wafer, merged), dimension_ordered(wafer, merged)]
    return min((_improved(start, tries) for start in starts), key=lambda found: found.objective)


def merge(flows: Iterable[Flow]) -> tuple[Flow, ...]:
    """Return flows of the same source, block, size and kind as one multicast; flows without a block stay apart."""
    joined: dict[tuple[object, ...], Flow] = {}
    for number, flow in enumerate(flows):
        key = (flow.source, flow.size, flow.reduce, flow.block or number)
        targets = flow.targets - {flow.source}
        if key in joined:
            targets |= joined[key].targets
        joined[key] = replace(flow, targets=targets)
    return tuple(flow for flow in joined.values() if flow.targets)


def dimension_ordered(wafer: Wafer, flows: Sequence[Flow]) -> RoutedFlows:
    """Return routes along rows first, then columns (XY), without regard to loads; around failed links the shortest."""
    trees = []
    for flow in flows:
        tree: set[Link] = set()
        for target in sorted(flow.targets):
            tree |= _xy(flow.source, target)
        if any(not wafer.links.has_edge(*link) for link in tree):
            tree = set(_grown(wafer, flow, {}))
        trees.append(_turned(flow, frozenset(tree)))
    return RoutedFlows(wafer, tuple(flows), tuple(trees))


def construct(wafer: Wafer, flows: Sequence[Flow]) -> RoutedFlows:
    """Return trees that are grown one flow after the other, largest first, around links that carry much already."""
    order = sorted(range(len(flows)), key=lambda i: (-flows[i].size * len(flows[i].targets), i))
    loads: dict[Link, float] = defaultdict(float)
    trees: dict[int, Tree] = {}
    for number in order:
        trees[number] = _turned(flows[number], _grown(wafer, flows[number], _of_kind(flows[number], loads)))
        for link in trees[number]:
            loads[link] += flows[number].size
    return RoutedFlows(wafer, tuple(flows), tuple(trees[number] for number in range(len(flows))))


def _improved(start: RoutedFlows, tries: int) -> RoutedFlows:
    """Reroute flows of the busiest links; steps are judged by `_key`, and the best objective on the path is kept."""
    wafer, flows, trees = start.wafer, start.flows, list(start.trees)
    loads: dict[Link, float] = defaultdict(float, start.loads)
    best, history, kept = _key(loads), [start.objective], tuple(trees)
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
        new = _turned(flow, _grown(wafer, flow, _of_kind(flow, loads)))
        for link in new:
            loads[link] += flow.size
        key = _key(loads)
        if key < best:
            best, trees[number], failed = key, new, 0
            objective = (key[0] / wafer.link_bytes_per_second, sum(loads.values()))
            if objective < history[-1]:
                history.append(objective)
                kept = tuple(trees)
        else:
            for link in new:
                loads[link] -= flow.size
            for link in old:
                loads[link] += flow.size
            tabu[number] = iteration + isqrt(len(flows))
            failed += 1
    return replace(start, trees=kept, history=tuple(history))


def _key(loads: dict[Link, float]) -> tuple[float, int, float]:
    """Return the objective with the number of busiest links between its two parts; fewer of them are better."""
    most = max(loads.values(), default=0.0)
    return most, sum(load >= most * (1 - 1e-12) for load in loads.values()), round(sum(loads.values()), 3)


def _grown(wafer: Wafer, flow: Flow, loads: dict[Link, float]) -> Tree:
    """Return a tree from the source: again and again the cheapest path to the nearest target that it lacks.

    A link costs its bytes and, much more, the fourth power of its load over the highest.
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
    """Return loads as a tree from the source meets them: a reduction's links point the other way."""
    return {link[::-1]: load for link, load in loads.items()} if flow.reduce else loads


def _turned(flow: Flow, tree: Tree) -> Tree:
    return frozenset(link[::-1] for link in tree) if flow.reduce else tree


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


def _loads(flows: Sequence[Flow], trees: Sequence[Tree]) -> dict[Link, float]:
    loads: dict[Link, float] = defaultdict(float)
    for flow, tree in zip(flows, trees, strict=True):
        for link in tree:
            loads[link] += flow.size
    return dict(loads)


def _depth(flow: Flow, tree: Tree) -> int:
    """Return links of the longest path of a tree."""
    children: dict[Die, list[Die]] = defaultdict(list)
    for start, end in _turned(flow, tree):
        children[start].append(end)

    def deepest(die: Die) -> int:
        return max((1 + deepest(child) for child in children[die]), default=0)

    return deepest(flow.source)


# --- exact ---


def _exact(wafer: Wafer, flows: tuple[Flow, ...]) -> RoutedFlows | None:
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
    return RoutedFlows(wafer, flows, best[0][1], proved=True, history=())


@lru_cache(maxsize=4096)
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
    return tuple(sorted((_turned(flow, tree) for tree in found), key=lambda tree: (len(tree), sorted(tree))))


def _paths(wafer: Wafer, start: Die, end: Die, outside: frozenset[Die]) -> Iterator[list[Die]]:
    """Return simple paths from a die of a tree to one beside it that touch the tree nowhere else."""
    stack = [[start]]
    while stack:
        path = stack.pop()
        if path[-1] == end:
            yield path
            continue
        stack += [[*path, die] for die in wafer.links[path[-1]] if die not in path and die not in outside]


# --- orders of dies in rings ---


def ring_flows(rings: Sequence[Sequence[Die]], size: float) -> list[Flow]:
    """Return one step of rings that run at the same time: every die sends `size` bytes to the next of its ring."""
    return [
        Flow(die, frozenset([after]), size)
        for ring in rings
        if len(ring) > 1
        for die, after in zip(ring, [*ring[1:], ring[0]], strict=True)
    ]


def permute(
    wafer: Wafer, rings: Sequence[Sequence[Die]], size: float = 1.0
) -> tuple[list[tuple[Die, ...]], RoutedFlows]:
    """Return orders of the dies within each ring for which one step is fastest, and its routes.

    Rings of up to 6 dies are tried in every order, longer ones by reversing runs, ring by ring until none improves.
    """
    orders = [tuple(ring) for ring in rings]
    best = dimension_ordered(wafer, ring_flows(orders, size)).objective
    changed = True
    while changed:
        changed = False
        for number, ring in enumerate(orders):
            for other in _reorders(ring):
                trial = [*orders[:number], other, *orders[number + 1 :]]
                objective = dimension_ordered(wafer, ring_flows(trial, size)).objective
                if objective < best:
                    best, orders, changed = objective, trial, True
    return orders, route(wafer, ring_flows(orders, size))


def _reorders(ring: tuple[Die, ...]) -> Iterator[tuple[Die, ...]]:
    if len(ring) <= 6:
        yield from ((ring[0], *rest) for rest in permutations(ring[1:]))
        return
    for start in range(1, len(ring) - 1):
        for end in range(start + 2, len(ring) + 1):
            yield (*ring[:start], *reversed(ring[start:end]), *ring[end:])


# --- peers for tests and documents ---


def all_gather(wafer: Wafer, size: float) -> list[Flow]:
    """Return every die sends its part of `size` bytes in all to every other."""
    dies = sorted(wafer.links)
    return [Flow(die, frozenset(dies) - {die}, size / len(dies), "own") for die in dies]


def all_to_all(wafer: Wafer, size: float) -> list[Flow]:
    """Return every die sends `size` bytes of its own to each other die."""
    return [Flow(a, frozenset([b]), size) for a in sorted(wafer.links) for b in sorted(wafer.links) if a != b]


def bisection_bytes(rows: int, cols: int, size: float) -> float:
    """Return the least bytes over the busiest link of an all-to-all of `size` bytes a pair, by the mesh's halves."""
    return max(rows * (cols // 2) * (cols - cols // 2), cols * (rows // 2) * (rows - rows // 2)) * size
