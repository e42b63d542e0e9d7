"""The solver's first level: one option for every operator of a layer, exactly, with labels of cost and bytes.

The cost is that of `Case.cost`. A layer is a closed chain: after its last operator comes the first of the next layer.
Between options of different layouts an activation is re-sharded, which costs the same everywhere. Dynamic programming
over layouts keeps every label which no other beats in cost, bytes and working memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafer_triton.train.options import Option

Numbers = NDArray[Any]
Table = tuple[Numbers, Numbers, Numbers]  # figures, layouts and numbers of an operator's options
NOTHING = np.zeros((3, 0))
TOGETHER = 32  # that are compared with all others at once


@dataclass(frozen=True)
class Label:
    """An option for every operator of a layer: their cost with that of re-shardings, bytes and working memory."""

    chosen: tuple[Option, ...]
    cost: float
    bytes: float
    work: float = 0.0

    @property
    def reshards(self) -> int:
        """Return how often an activation changes its layout in a layer and before the next."""
        return sum(one.gives != after.takes for one, after in pairwise([*self.chosen, self.chosen[0]]))


def useful(figures: Numbers, layouts: Numbers, reshard: float) -> Numbers:
    """Return the numbers of those that no other beats in cost, bytes and working memory [3, n], the cheapest first.

    For each of the `layouts` [2, n] in which they differ, the other one costs a re-sharding more.
    """

    def beats(best: Numbers, rest: Numbers) -> Numbers:
        """Return [best, rest] which of `best` beat which of `rest`."""
        changes = (layouts[:, best, None] != layouts[:, None, rest]).sum(0)
        cheaper = figures[0, best, None] + changes * reshard <= figures[0, rest]
        return cheaper & (figures[1:, best, None] <= figures[1:, None, rest]).all(0)

    kept, rest = list[int](), np.lexsort(figures[::-1])
    while len(rest):
        best, rest = rest[:TOGETHER], rest[TOGETHER:]
        best = best[~np.triu(beats(best, best), 1).any(0)]  # a beaten one beats nothing that its better does not
        rest = rest[~beats(best, rest).any(0)]
        kept += best.tolist()
    return np.array(kept, int)


def layer(
    figures: Sequence[Numbers], layouts: Sequence[Numbers], reshard: float = 0.0, known: Numbers = NOTHING,
    prices: tuple[float, float, float] = (1.0, 0.0, 0.0), most: float = inf,
) -> tuple[Numbers, Numbers]:  # fmt: skip
    """Return cost, bytes and memory [3, n] of the front of all closed chains, and an option for each operator [n, ops].

    An operator's options have `figures` [3, options] and numbers of the `layouts` of their input and output [2,
    options], from 0. A change of layout costs `reshard`. Chains that a `known` one beats are left out, and those whose
    figures are above `most` at `prices`.
    """
    count, limit = len(figures), (np.array(prices), most)
    tables: list[Table] = [(own, some, np.arange(some.shape[1])) for own, some in zip(figures, layouts, strict=True)]
    places = range(count if reshard + sum((limit[0] @ own).min() for own in figures) <= most else 0)  # of re-shardings
    for place in [*places] * 2:
        own, (takes, gives), numbers = tables[place]
        given, taken = tables[place - 1][1][1], tables[(place + 1) % count][1][0]
        # layouts that no neighbour has are alike
        near = np.array([np.where(np.isin(takes, given), takes, -1), np.where(np.isin(gives, taken), gives, -2)])
        kept = useful(own, near, reshard)
        tables[place] = own[:, kept], near[:, kept], numbers[kept]
    labels, chosen = _chains(tables, np.unique(tables[0][1][0]), reshard, known, limit, closed=True)
    for first in places:  # before which an activation changes its layout, from one that no option has
        order = [*tables[first:], *tables[:first]]
        sums, path = _chains(order, np.array([-3]), reshard, np.hstack([labels, known]), limit)
        labels, chosen = np.hstack([labels, sums]), np.vstack([chosen, np.roll(path, first, 1)])
        kept = useful(labels, np.zeros_like(labels[:2]), 0.0)
        labels, chosen = labels[:, kept], chosen[kept]
    return labels, chosen


def _chains(
    tables: Sequence[Table], starts: Numbers, reshard: float, known: Numbers, limit: tuple[Numbers, float],
    closed: bool = False,
) -> tuple[Numbers, Numbers]:  # fmt: skip
    """Return figures [3, n] of chains from one of the layouts on, and their options [n, operators].

    Chains that a `known` one beats, or that are above a `limit` at prices, are left out. Those that are `closed` end
    where they began, without a re-sharding.
    """
    prices, most = limit
    ends, sums, path = np.tile(starts, (2, 1)), np.zeros((3, len(starts))), np.zeros((len(starts), 0), int)
    for place, (figures, (takes, gives), numbers) in enumerate(tables, 1):
        before, option = np.nonzero((ends[1][:, None] == takes) | (not closed))
        both, layouts = sums[:, before] + figures[:, option], np.array([ends[0, before], gives[option]])
        both[0] += reshard * (ends[1, before] != takes[option])
        least = both + sum((later.min(1, keepdims=True) for later, *_ in tables[place:]), np.zeros((3, 1)))
        fits = prices @ both <= most - sum((prices @ later).min() for later, *_ in tables[place:])
        for best in known.T:
            fits[fits] = (least[:, fits] < best[:, None]).any(0)
        kept = np.flatnonzero(fits)
        kept = kept[useful(both[:, kept], layouts[:, kept], reshard)]
        sums, ends = both[:, kept], layouts[:, kept]
        path = np.column_stack([path[before[kept]], numbers[option[kept]]])
    kept = np.flatnonzero((ends[0] == ends[1]) | (not closed))
    return sums[:, kept], path[kept]


@dataclass(frozen=True)
class Mix:
    """Layers of at most two kinds: `counts[i]` layers of `kinds[i]`."""

    kinds: tuple[Label, ...]
    counts: tuple[int, ...]

    @property
    def parts(self) -> list[tuple[Label, int]]:
        """Return every kind with its number of layers."""
        return list(zip(self.kinds, self.counts, strict=True))

    @property
    def work(self) -> float:
        """Return the working memory of a layer, of the kind with the most."""
        return max(label.work for label in self.kinds)

    @property
    def changes(self) -> bool:
        """Return whether an activation changes its layout between the two kinds."""
        return len(self.kinds) > 1 and self.kinds[0].chosen[-1].gives != self.kinds[1].chosen[0].takes

    @property
    def reshards(self) -> int:
        """Return how often an activation changes its layout in all layers."""
        return self.changes + sum(label.reshards * count for label, count in self.parts)

    def cost(self, reshard: float) -> float:
        """Return the cost of all layers, and of the re-sharding between the two kinds if they need it."""
        return sum(label.cost * count for label, count in self.parts) + self.changes * reshard

    @property
    def bytes(self) -> float:
        """Return bytes of all layers on a die, with the working memory of one."""
        return sum(label.bytes * count for label, count in self.parts) + self.work

    def total(self, name: str) -> Any:
        """Return a figure of the options, added up over all layers."""
        return sum(getattr(own, name) * count for label, count in self.parts for own in label.chosen)


def layers(labels: Sequence[Label], count: int, limit: float, reshard: float = 0.0) -> Mix | None:
    """Return the cheapest `count` layers of at most two kinds whose bytes fit `limit`; None if none do.

    If the two kinds have different layouts, a re-sharding is between them.
    """
    mixes = [Mix((label,), (count,)) for label in labels]
    for fast, small in permutations(labels, 2):
        room = limit - max(fast.work, small.work) - count * small.bytes
        if small.bytes < fast.bytes and small.cost > fast.cost and room >= 0:
            number = min(count - 1, int(room / (fast.bytes - small.bytes)))
            mixes.append(Mix((fast, small), (number, count - number)))
    fit = (mix for mix in mixes if mix.counts[0] and mix.bytes <= limit)
    return min(fit, key=lambda mix: mix.cost(reshard), default=None)
