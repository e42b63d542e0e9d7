"""Traffic-conscious mapping: routes for blocks of the same size that move at the same time.

The objective is the blocks over the busiest link first, then blocks times hops. The steps are modelled on the algorithm
of BALD (ISCA 2026): construct, reroute what crosses the busiest link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from itertools import pairwise
from math import isqrt

from wafer_triton.train.dies import Die, Link, Wafer

TRIES = 8  # reroutes without gain after which the search ends
Pair = tuple[Die, Die]  # a block's die, and the one to which it goes
Path = frozenset[Link]


def route(wafer: Wafer, pairs: Iterable[Pair]) -> dict[Pair, Path]:
    """Return a path for the block of each pair, by all steps of the module."""
    pairs = list(pairs)
    starts = construct(wafer, pairs), dimension_ordered(wafer, pairs)
    return min((_improved(wafer, start) for start in starts), key=lambda paths: objective(link_blocks(paths)))


def dimension_ordered(wafer: Wafer, pairs: Iterable[Pair]) -> dict[Pair, Path]:
    """Return paths along rows first, then columns (XY), without regard to loads; around failed links the shortest."""
    paths = {pair: _xy(*pair) for pair in pairs}
    return {
        pair: path if all(wafer.links.has_edge(*link) for link in path) else _cheapest(wafer, pair, {})
        for pair, path in paths.items()
    }


def construct(wafer: Wafer, pairs: Iterable[Pair]) -> dict[Pair, Path]:
    """Return paths that are found pair by pair, around busy links."""
    loads, paths = Counter[Link](), dict[Pair, Path]()
    for pair in pairs:
        paths[pair] = _cheapest(wafer, pair, loads)
        loads.update(paths[pair])
    return paths


def link_blocks(paths: Mapping[Pair, Path]) -> Counter[Link]:
    """Return blocks over every link in use."""
    return Counter(link for path in paths.values() for link in path)


def objective(loads: Mapping[Link, int]) -> tuple[int, int]:
    """Return blocks over the busiest link, and blocks times hops."""
    return max(loads.values(), default=0), sum(loads.values())


def _improved(wafer: Wafer, start: Mapping[Pair, Path]) -> dict[Pair, Path]:
    """Reroute pairs of the busiest links; fewer of these count as a gain, and the best objective on the way is kept."""
    paths, loads = dict(start), link_blocks(start)
    pairs, rest = list(paths), isqrt(len(paths))

    def key() -> tuple[int, int, int]:
        most, total = objective(loads)
        return most, sum(load == most for load in loads.values()), total

    best, least, kept = key(), objective(loads), dict(paths)
    tabu: dict[Pair, int] = {}
    failed, iteration = 0, 0
    while failed < TRIES:
        iteration += 1
        hot = {link for link, load in loads.items() if load == best[0]}
        movable = [pair for pair in pairs if not hot.isdisjoint(paths[pair]) and tabu.get(pair, 0) < iteration]
        if not movable:
            iteration += rest + 1
            failed += rest + 1
            continue
        pair = movable[iteration % len(movable)]
        old = paths[pair]
        loads.subtract(old)
        new = _cheapest(wafer, pair, loads)
        loads.update(new)
        if key() < best:
            best, paths[pair], failed = key(), new, 0
            if objective(loads) < least:
                least, kept = objective(loads), dict(paths)
        else:
            loads.subtract(new)
            loads.update(old)
            tabu[pair] = iteration + rest
            failed += 1
    return kept


def _cheapest(wafer: Wafer, pair: Pair, loads: Mapping[Link, int]) -> Path:
    """Return the cheapest path: a link costs one, plus a much larger part that grows with the 4th power of its load."""
    source, target = pair
    top = max(loads.values(), default=0) + 1
    distance, before, queue = {source: 0.0}, dict[Die, Die](), [(0.0, source)]
    while (die := (nearest := heappop(queue))[1]) != target:
        if nearest[0] > distance[die]:
            continue
        for other in wafer.links[die]:
            further = nearest[0] + 1 + 1000 * ((loads.get((die, other), 0) + 1) / top) ** 4
            if further < distance.get(other, float("inf")):
                distance[other], before[other] = further, die
                heappush(queue, (further, other))
    path = [target]
    while path[-1] != source:
        path.append(before[path[-1]])
    return frozenset(pairwise(reversed(path)))


def _xy(source: Die, target: Die) -> Path:
    (row, col), (last_row, last_col) = source, target
    right, down = (1 if col < last_col else -1), (1 if row < last_row else -1)
    along = [(row, at) for at in range(col, last_col, right)] + [(at, last_col) for at in range(row, last_row, down)]
    return frozenset(pairwise([*along, target]))
