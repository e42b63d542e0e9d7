"""The solver's first level: one option for every operator of a layer, exactly, with labels of seconds and bytes.

A layer is a closed chain: after its last operator comes the first of the next layer. Between options of different
layouts an activation is re-sharded, which costs the same everywhere. A best chain has no re-sharding, so that all its
operators share a placement and sizes; or it has one, after which it is an open chain. Both are solved by
dynamic programming over layouts that keeps every label which no other beats in both seconds and bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from wafer_triton.train.options import Option


@dataclass(frozen=True)
class Label:
    """Options of the first operators of a chain, with their seconds and bytes, and the re-shardings between them.

    Of labels with the same seconds and bytes the one with the least `traffic` is kept.
    """

    seconds: float
    bytes: float
    chosen: tuple[Option, ...] = ()
    reshards: int = 0
    traffic: float = 0.0


One = TypeVar("One", Label, Option)


def front(of: Iterable[One]) -> list[One]:
    """Return the Pareto front of labels or options in seconds and bytes, the fastest first."""
    kept: list[One] = []
    for one in sorted(of, key=lambda one: (one.seconds, one.bytes, one.traffic)):
        if not kept or one.bytes < kept[-1].bytes:
            kept.append(one)
    return kept


def layer(options: Sequence[Sequence[Option]], reshard: float) -> list[Label]:
    """Return the front of all closed chains of one option for every operator; `reshard` seconds a change of layout."""
    kept = [_undominated(own) for own in options]
    best = front(label for labels in _without_reshards(kept).values() for label in labels)
    least_seconds = [min((option.seconds for option in own), default=float("inf")) for own in kept]
    least_bytes = [min((option.bytes for option in own), default=float("inf")) for own in kept]
    for first in range(len(kept)):  # a chain with a re-sharding before operator `first`
        turned = [*kept[first:], *kept[:first]]
        rest = [[*numbers[first:], *numbers[:first]] for numbers in (least_seconds, least_bytes)]
        found = _open(turned, reshard, best, *rest)
        back = len(kept) - first
        labels = (replace(one, chosen=one.chosen[back:] + one.chosen[:back]) for one in found)
        best = front([*best, *labels])
    return best


def _undominated(options: Sequence[Option]) -> list[Option]:
    """Return the options that no other option between the same layouts beats."""
    by_layouts: dict[tuple[object, object], list[Option]] = defaultdict(list)
    for option in options:
        by_layouts[option.takes, option.gives].append(option)
    return [option for own in by_layouts.values() for option in front(own)]


def _without_reshards(options: Sequence[Sequence[Option]]) -> dict[object, list[Label]]:
    """Return the fronts of chains without re-sharding that end in the layout of their beginning, by this layout."""
    starts = {option.takes for option in options[0]}
    found: dict[object, list[Label]] = {}
    tables = []
    for own in options:
        table: dict[object, list[Option]] = defaultdict(list)
        for option in own:
            table[option.takes].append(option)
        tables.append(table)
    for start in starts:
        labels: dict[object, list[Label]] = {start: [Label(0.0, 0.0)]}
        for table in tables:
            after: dict[object, list[Label]] = defaultdict(list)
            for layout, here in labels.items():
                for option in table.get(layout, ()):
                    after[option.gives] += [_joined(label, option) for label in here]
            labels = {layout: front(own) for layout, own in after.items()}
        if start in labels:
            found[start] = labels[start]
    return found


def _open(
    options: Sequence[Sequence[Option]], reshard: float, best: Sequence[Label], seconds: Sequence[float],
    sizes: Sequence[float],
) -> list[Label]:  # fmt: skip
    """Return the front of open chains after one re-sharding; labels that cannot beat `best` are left out."""
    every, labels = [Label(reshard, 0.0, (), 1)], dict[object, list[Label]]()
    others = [(sum(seconds) - own, sum(sizes) - size) for own, size in zip(seconds, sizes, strict=True)]
    for number, own in enumerate(options):
        rest = sum(seconds[number + 1 :]), sum(sizes[number + 1 :])
        after: dict[object, list[Label]] = defaultdict(list)
        for option in own:
            others_seconds, others_bytes = others[number]
            if _beaten(best, reshard + option.seconds + others_seconds, option.bytes + others_bytes):
                continue
            for label in [*labels.get(option.takes, ()), *every]:
                if not _beaten(best, label.seconds + option.seconds + rest[0], label.bytes + option.bytes + rest[1]):
                    after[option.gives].append(_joined(label, option))
        labels = {layout: front(own) for layout, own in after.items()}
        every = front(label for own in labels.values() for label in own)
        if number + 1 < len(options):
            every = [replace(one, seconds=one.seconds + reshard, reshards=one.reshards + 1) for one in every]
    return every


def _joined(label: Label, option: Option) -> Label:
    return Label(
        label.seconds + option.seconds,
        label.bytes + option.bytes,
        (*label.chosen, option),
        label.reshards,
        label.traffic + option.traffic,
    )


def _beaten(best: Sequence[Label], seconds: float, size: float) -> bool:
    """Return whether a label of the front `best`, fastest first, is at least as good in both seconds and bytes."""
    for label in best:
        if label.seconds > seconds:
            return False
        if label.bytes <= size:
            return True
    return False


@dataclass(frozen=True)
class Mix:
    """Layers of at most two kinds: `counts[i]` layers of `kinds[i]`."""

    kinds: tuple[Label, ...]
    counts: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Return seconds of all layers."""
        return sum(label.seconds * count for label, count in zip(self.kinds, self.counts, strict=True))

    @property
    def reshards(self) -> bool:
        """Return whether an activation changes its layout between the two kinds."""
        return len(self.kinds) > 1 and self.kinds[0].chosen[-1].gives != self.kinds[1].chosen[0].takes

    @property
    def bytes(self) -> float:
        """Return bytes of all layers on a die."""
        return sum(label.bytes * count for label, count in zip(self.kinds, self.counts, strict=True))


def layers(labels: Sequence[Label], count: int, limit: float, switch: float) -> Mix | None:
    """Return the fastest `count` layers of at most two kinds whose bytes fit `limit`; None if none do.

    If the two kinds have different layouts, `switch` seconds are added between them.
    """
    best: tuple[float, Mix] | None = None
    for fast in labels:
        for small in labels:
            if fast is small:
                number = count if count * fast.bytes <= limit else 0
                mix = Mix((fast,), (count,)) if number else None
            elif small.bytes < fast.bytes and small.seconds > fast.seconds and count * small.bytes <= limit:
                number = min(count - 1, int((limit - count * small.bytes) / (fast.bytes - small.bytes)))
                mix = Mix((fast, small), (number, count - number)) if number else None
            else:
                continue
            if mix is None or mix.bytes > limit:
                continue
            seconds = mix.seconds + switch * mix.reshards
            if best is None or seconds < best[0]:
                best = seconds, mix
    return None if best is None else best[1]
