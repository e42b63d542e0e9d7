"""The solver's first level: one option for every operator of a layer, exactly, with labels of cost and bytes.

The cost is that of `Case.cost`. A layer is a closed chain: after its last operator comes the first of the next layer.
Between options of different layouts an activation is re-sharded, which costs the same everywhere. A best chain has no
re-sharding, so that all its operators share a placement and sizes; or it has one, after which it is an open chain. Both
are solved by dynamic programming over layouts that keeps every label which no other beats in cost, bytes and working
memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from wafer_triton.train.options import Option


@dataclass(frozen=True)
class Label:
    """Options of the first operators of a chain, with their cost, bytes and working memory, and their re-shardings."""

    cost: float = 0.0
    bytes: float = 0.0
    work: float = 0.0
    chosen: tuple[Option, ...] = ()
    reshards: int = 0

    def __add__(self, other: Label) -> Label:
        return Label(
            self.cost + other.cost, self.bytes + other.bytes, self.work + other.work, self.chosen + other.chosen,
            self.reshards + other.reshards,
        )  # fmt: skip


def label_of(option: Option) -> Label:
    """Return the label of one option."""
    return Label(option.cost, option.bytes, option.work_bytes, (option,))


def front(labels: Iterable[Label]) -> list[Label]:
    """Return the labels that no other beats, the cheapest first."""
    kept: list[Label] = []
    for one in sorted(labels, key=lambda one: (one.cost, one.bytes, one.work)):
        if not beaten(kept, one.cost, one.bytes, one.work):
            kept.append(one)
    return kept


def layer(
    options: Sequence[Sequence[Option]], reshard: float = 0.0, known: Sequence[Label] = (),
    prices: tuple[float, float, float] = (1.0, 0.0, 0.0), most: float = inf,
) -> list[Label]:  # fmt: skip
    """Return the front of all closed chains of one option for every operator, and of chains that are `known`.

    A change of layout costs `reshard`. Chains with a re-sharding whose cost, bytes and working memory at `prices` are
    above `most` are left out.
    """

    def weighed(one: Label) -> float:
        return sum(price * own for price, own in zip(prices, (one.cost, one.bytes, one.work), strict=True))

    change = Label(cost=reshard, reshards=1)
    kept = [_undominated([label_of(option) for option in own]) for own in options]
    best = front([*known, *(label for labels in _without_reshards(kept) for label in labels)])
    least = [
        [
            min((figure(one) for one in own), default=inf)
            for figure in (lambda one: one.cost, lambda one: one.bytes, lambda one: one.work, weighed)
        ]
        for own in kept
    ]
    for first in range(len(kept)):  # a chain with a re-sharding before operator `first`
        turned = _open([*kept[first:], *kept[:first]], change, best, [*least[first:], *least[:first]], prices, most)
        back = len(kept) - first
        best = front([*best, *(replace(one, chosen=one.chosen[back:] + one.chosen[:back]) for one in turned)])
    return best


def _undominated(labels: Sequence[Label]) -> list[Label]:
    """Return the labels of one option that no other between the same layouts beats."""
    by_layouts: dict[tuple[object, object], list[Label]] = defaultdict(list)
    for label in labels:
        by_layouts[label.chosen[0].takes, label.chosen[0].gives].append(label)
    return [label for own in by_layouts.values() for label in front(own)]


def _without_reshards(options: Sequence[Sequence[Label]]) -> Iterable[list[Label]]:
    """Yield the front of chains without re-sharding that end in the layout of their beginning, for every layout."""
    tables = []
    for own in options:
        table: dict[object, list[Label]] = defaultdict(list)
        for one in own:
            table[one.chosen[0].takes].append(one)
        tables.append(table)
    for start in tables[0]:
        labels: dict[object, list[Label]] = {start: [Label()]}
        for table in tables:
            after: dict[object, list[Label]] = defaultdict(list)
            for layout, here in labels.items():
                for one in table.get(layout, ()):
                    after[one.chosen[0].gives] += [label + one for label in here]
            labels = {layout: front(own) for layout, own in after.items()}
        yield labels.get(start, [])


def _open(
    options: Sequence[Sequence[Label]], change: Label, best: Sequence[Label], least: Sequence[Sequence[float]],
    prices: tuple[float, float, float], most: float,
) -> list[Label]:  # fmt: skip
    """Return the front of open chains after one re-sharding; labels that cannot beat `best` are left out."""
    every, labels = [change], dict[object, list[Label]]()

    def useful(both: Label, rest: Sequence[float]) -> bool:
        cost, size, work, weighed = rest
        if prices[0] * both.cost + prices[1] * both.bytes + prices[2] * both.work + weighed > most:
            return False
        return not beaten(best, both.cost + cost, both.bytes + size, both.work + work)

    whole = [sum(own) for own in zip(*least, strict=True)]
    for number, own in enumerate(options):
        rest = [sum(column) for column in zip(*least[number + 1 :], [0.0] * 4, strict=True)]
        others = [total - mine for total, mine in zip(whole, least[number], strict=True)]
        after: dict[object, list[Label]] = defaultdict(list)
        for one in own:
            if not useful(change + one, others):
                continue
            for label in [*labels.get(one.chosen[0].takes, ()), *every]:
                both = label + one
                if useful(both, rest):
                    after[one.chosen[0].gives].append(both)
        labels = {layout: front(own) for layout, own in after.items()}
        every = front(label for own in labels.values() for label in own)
        if number + 1 < len(options):
            every = [one + change for one in every]
    return every


def beaten(best: Sequence[Label], cost: float, size: float, work: float) -> bool:
    """Return whether a label of the front `best`, cheapest first, is at least as good in all three."""
    for label in best:
        if label.cost > cost:
            return False
        if label.bytes <= size and label.work <= work:
            return True
    return False


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

    def total(self, name: str) -> float:
        """Return a figure of the labels, added up over all layers."""
        return sum(getattr(label, name) * count for label, count in self.parts)

    @property
    def reshards(self) -> bool:
        """Return whether an activation changes its layout between the two kinds."""
        return len(self.kinds) > 1 and self.kinds[0].chosen[-1].gives != self.kinds[1].chosen[0].takes

    def cost(self, reshard: float) -> float:
        """Return the cost of all layers, and of the re-sharding between the two kinds if they need it."""
        return self.total("cost") + self.reshards * reshard

    @property
    def bytes(self) -> float:
        """Return bytes of all layers on a die, with the working memory of one."""
        return self.total("bytes") + self.work


def layers(labels: Sequence[Label], count: int, limit: float, reshard: float = 0.0) -> Mix | None:
    """Return the cheapest `count` layers of at most two kinds whose bytes fit `limit`; None if none do.

    If the two kinds have different layouts, a re-sharding is between them.
    """
    best, least = None, inf
    for fast in labels:
        for small in labels:
            room = limit - max(fast.work, small.work) - count * small.bytes
            if fast is small:
                number, mix = count, Mix((fast,), (count,))
            elif small.bytes < fast.bytes and small.cost > fast.cost and room >= 0:
                number = min(count - 1, int(room / (fast.bytes - small.bytes)))
                mix = Mix((fast, small), (number, count - number))
            else:
                continue
            if not number or mix.bytes > limit:
                continue
            cost = mix.cost(reshard)
            if cost < least:
                best, least = mix, cost
    return best
