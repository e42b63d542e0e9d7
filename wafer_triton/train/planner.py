"""The planner: how to train a workload on wafers of dies, with every baseline beside it.

The first level chooses a tuple and a placement for every operator, exactly (`wafer_triton.train.solve`). The second
lists every rectangular placement of a tuple and keeps each that no other beats, which loses no best plan. Around
both, micro-batches and recompute are tried. Over several wafers layers form a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import islice
from math import inf
from operator import add
from time import process_time
from typing import Any

import numpy as np

from wafer_triton.errors import ConfigError, HbmError, shown
from wafer_triton.text.quantity import PREDICTED, Legend, unit
from wafer_triton.text.table import Result, Table
from wafer_triton.train.dies import Link, Wafer
from wafer_triton.train.options import RECOMPUTE, Case, Column, Option, Pairs, ParallelSizes, Priced, cases, splits
from wafer_triton.train.placement import GroupPlacement, fixed, placements
from wafer_triton.train.solve import Label, Mix, beaten, label_of, layer, layers
from wafer_triton.train.workload import Rules, Workload

TOGETHER = 48  # cases whose products are sliced together
BETWEEN_WAFERS = 9e12  # bytes a second, taken from Dojo by TEMP's summaries
Allowed = Callable[[ParallelSizes], bool]
Placer = Callable[[Wafer, ParallelSizes], tuple[GroupPlacement, ...]]


@dataclass(frozen=True)
class Strategy:
    """The tuples that a plan may take, and their placements; if `uniform`, all operators take the same."""

    name: str
    allowed: Allowed
    placer: Placer
    uniform: bool = True

    def places(self, wafer: Wafer, split: ParallelSizes) -> tuple[GroupPlacement, ...]:
        """Return the placements of a tuple; ConfigError if the placer returns anything else."""
        found = self.placer(wafer, split)
        if not isinstance(found, tuple) or not all(isinstance(each, GroupPlacement) for each in found):
            raise ConfigError(f"{self.name}: placer returned {shown(found)} for {split}; return a tuple of placements")
        return found


def _every(wafer: Wafer, split: ParallelSizes) -> tuple[GroupPlacement, ...]:
    return placements(wafer, split.sizes)


def _row_by_row(wafer: Wafer, split: ParallelSizes) -> tuple[GroupPlacement, ...]:
    return (fixed(wafer, split.sizes),)


def _blind(wafer: Wafer, split: ParallelSizes) -> tuple[GroupPlacement, ...]:
    """Return the rectangular placements with the shortest steps, whatever the loads of their links."""
    every = placements(wafer, split.sizes, prune=False)
    return every and (min(every, key=lambda placed: placed.links),)


def _megatron(split: ParallelSizes) -> bool:
    return split.stream == split.context == 1 and not split.sequence and split.sharded == 0


def _megatron_sequence(split: ParallelSizes) -> bool:
    return split.stream == 1 and (split.sequence or split.tensor == 1) and split.sharded <= 1


def _sharded(split: ParallelSizes) -> bool:
    return split.stream == split.tensor == 1 and split.sharded == 3


_BASES: tuple[tuple[str, Allowed], ...] = (
    ("Megatron TP", _megatron),
    ("Megatron TP + SP", _megatron_sequence),
    ("sharded data", _sharded),
)
BASELINES = tuple(
    Strategy(f"{name}, {where}", allowed, placer)
    for name, allowed in _BASES
    for where, placer in (("fixed", _row_by_row), ("blind", _blind))
)


def _useful(split: ParallelSizes) -> bool:
    """Return whether the rows of tensor groups are split, which has the same traffic and fewer bytes on a die."""
    return split.sequence or split.tensor == 1


PLANNED = Strategy("planned", _useful, _every, uniform=False)


@dataclass(frozen=True, repr=False)
class TrainingPlan(Result):
    """A plan of a strategy, for one training step: `parts` has its seconds by name, `held` the bytes of a die by name.

    `why` is the reason if the workload does not fit: `held` is then of the smallest plan, seconds and joules infinite.
    """

    strategy: str
    work: Workload
    wafer: Wafer
    wafers: int
    micro_batches: int
    mix: Mix | None
    recompute: tuple[str, ...]
    parts: dict[str, float]
    held: dict[str, int]
    joules: float
    link_bytes: float
    loads: dict[Link, float]  # bytes over every link in a step, of rectangular placements
    solver_seconds: float = field(compare=False)
    tried: int = 0
    why: str = ""

    def table(self, *_: str) -> Table:
        """Return the time of a step and its parts, the bytes of a die, the power, and the reason if it does not fit."""
        figures = {"step": self.seconds, **self.parts, "held": self.bytes, "power": self.watts, "why": self.why or None}
        legend = Legend(dict.fromkeys(("step", *self.parts), unit("s")), {"held": unit("B"), "power": unit("W")})
        title = f"{self.strategy}: {self.work.name} on {self.wafers} x {self.wafer.name}, {PREDICTED}"
        return Table([figures], legend, title=title, upright=True)

    @property
    def seconds(self) -> float:
        """Return seconds of a step; infinity for a workload that does not fit."""
        return sum(self.parts.values()) if self.mix else inf

    @property
    def bytes(self) -> int:
        """Return bytes that a die holds."""
        return sum(self.held.values())

    @property
    def hottest(self) -> tuple[Link, float] | None:
        """Return the busiest link and its bytes in a step."""
        if not self.loads:
            return None
        link = min(self.loads, key=lambda each: (-self.loads[each], each))
        return link, self.loads[link]

    @property
    def tokens_per_second(self) -> float:
        """Return tokens of a batch over the seconds of a step."""
        return self.work.tokens / self.seconds

    @property
    def watts(self) -> float:
        """Return joules over seconds; infinity for a workload that does not fit."""
        return self.joules / self.seconds if self.mix else inf

    @property
    def operators(self) -> dict[str, Option]:
        """Return the option of every operator in most layers."""
        if self.mix is None:
            return {}
        kind = max(zip(self.mix.counts, range(len(self.mix.counts)), strict=True))[1]
        return {op.name: own for op, own in zip(self.work.operators, self.mix.kinds[kind].chosen, strict=True)}


def plan(
    work: Workload, wafer: Wafer, strategy: Strategy = PLANNED, wafers: int = 1, rules: Rules | None = None,
    recompute: tuple[str, ...] = RECOMPUTE, objective: str = "time",
) -> TrainingPlan:  # fmt: skip
    """Return the best plan of a strategy, by "time" or by "energy"; a plan that does not fit has a reason in `why`.

    Raises ConfigError for layers that do not divide by wafers, or where no tuple divides heads over the dies.
    """
    if not recompute or not all(each in RECOMPUTE for each in recompute):
        raise ConfigError(f"recompute = {shown(recompute)}: give a tuple of some of {', '.join(RECOMPUTE)}")
    if wafers < 1 or work.layers % wafers:
        raise ConfigError(f"{work.name}: {work.layers} layers do not divide by {wafers} wafers; give a divisor")
    began = process_time()
    case = Case(wafer, work, 1, work.layers // wafers, wafers, rules or Rules(), objective)
    pairs = [
        (split, placed) for split in splits(case) if strategy.allowed(split) for placed in strategy.places(wafer, split)
    ]
    if not pairs:
        raise ConfigError(
            f"no tuple divides {work.kv_heads} key-value heads and {work.hidden} hidden elements over {wafer.dies} "
            f"dies of {wafer.name}; give a wafer of other sides"
        )
    columns, kinds = Pairs(wafer, pairs), [kind for kind in RECOMPUTE if kind in recompute]
    searches, more = list[Search](), cases(case, pairs)
    while some := list(islice(more, TOGETHER)):
        nothing: list[list[Column]] = [[]] * len(some)
        passes = zip(*(columns.passes(some, op) if op.weights else nothing for op in work.operators), strict=True)
        added = [Search(one, columns, kinds, strategy.uniform, own) for one, own in zip(some, passes, strict=True)]
        searches += added
        if all(search.least_bytes > search.room for search in added):
            break  # nor do more samples at once fit
    best, score = None, inf
    for search in sorted(searches, key=lambda search: search.bound):
        if search.bound >= score:
            break
        for bound, labels in search.labels(score):
            if bound >= score:
                break
            mix = layers(labels, search.case.layers, search.room, search.reshard)
            if mix is not None and (reached := search.score(mix)) < score:
                best, score = (search.case, mix), reached
    tried = len(searches) * len(pairs) * len(kinds) * len(work.operators)
    if best is not None:
        return replace(_planned(strategy, *best), solver_seconds=process_time() - began, tried=tried)
    search = min(searches, key=lambda search: search.least_bytes)
    held, why = _why(search.case, search.smallest())
    return TrainingPlan(
        strategy.name, work, wafer, wafers, 0, None, (), {}, held, inf, 0.0, {}, process_time() - began, tried, why
    )


class Search:
    """A case with all pairs that its operators may take.

    No plan of it scores less than `bound`, or needs less than `least_bytes` on a die beside embedding and head. Bytes
    of layers have a `price`, Lagrange's multiplier of those that fit; no layer costs less than `least_layer` with it.
    """

    def __init__(
        self, case: Case, pairs: Pairs, kinds: Sequence[str], uniform: bool, passes: Sequence[list[Column]]
    ) -> None:
        self.case, self.pairs, self.kinds, self.uniform, self.passes = case, pairs, kinds, uniform, passes
        self.room = case.wafer.hbm_bytes - _head_bytes(case)
        self.reshard = case.cost(case.reshard.seconds, case.reshard.joules)
        head = case.cost(case.head_seconds, case.head_flops / case.wafers / case.wafer.flops_per_joule)
        self.rest = head + case.weights[0] * _handed(case)  # that all plans of the case cost beside layers
        columns = np.array([_columns(self._priced(kind)) for kind in kinds])  # [kinds, 3, operators, pairs]
        cost, size, work = (columns.sum(2).min(2) if uniform else columns.min(3).sum(2)).min(0)
        self.least_bytes = case.layers * size + work
        self.price, self.least_layer = (0.0, float(cost)) if uniform else self._multiplier(*columns.swapaxes(0, 1))
        self.bound = self.rest + case.layers * self.least_layer - self.price * self.room

    def score(self, mix: Mix) -> float:
        """Return the cost of a plan."""
        return self.rest + mix.cost(self.reshard)

    def labels(self, score: float) -> Iterator[tuple[float, list[Label]]]:
        """Yield labels that layers may combine to a score below `score`, after a bound of it, the least first."""
        if self.least_bytes > self.room:
            return
        count, labels = self.case.layers, list[Label]()
        if self.uniform:
            priced = [self._priced(kind) for kind in self.kinds]
            cost, size, work = np.array([_columns(own).sum(1) for own in priced]).swapaxes(0, 1)
            fits, cost = (count * size + work).min(0) <= self.room, cost.min(0)
            for number in np.flatnonzero(fits)[np.argsort(cost[fits], kind="stable")]:
                yield self.rest + count * cost[number], [_chain(own, number) for own in priced]
            return
        chains = {kind: self._alone(kind) for kind in self.kinds}
        known = layers([chain for own in chains.values() for chain in own], count, self.room, self.reshard)
        if known is not None:
            score = min(score, self.score(known))
        # what a layer with its bytes may cost beside the least of the others
        most = score - self.bound + self.least_layer
        for kind in self.kinds:
            cheapest = min(labels, key=lambda label: label.cost, default=None)
            if kind == "full" and cheapest and count * cheapest.bytes + cheapest.work <= self.room:
                break  # it computes more than selective recompute, and reads and writes as much
            labels += self._layer(kind, chains[kind], most * (1 + 1e-9))
        yield self.bound, labels

    def smallest(self) -> Label:
        """Return the label of the layer with the fewest bytes."""
        chains = [chain for kind in self.kinds for chain in self._alone(kind)]
        return min(chains, key=lambda label: self.case.layers * label.bytes + label.work)

    def _multiplier(self, cost: np.ndarray, size: np.ndarray, work: np.ndarray) -> tuple[float, float]:
        """Return the price of a byte, and the least cost of a layer with its bytes and its share of working memory.

        Cost, bytes and working memory are [kinds, operators, pairs].
        """
        count = self.case.layers
        best, price, step = (-inf, 0.0, 0.0), 0.0, cost.min(2).sum(1).min() * count / self.case.wafer.hbm_bytes
        for _ in range(16):
            least = min(map(self._least, cost + price * (size + work / count)))
            reached = count * least - price * self.room
            step = 2 * step if reached > best[0] else -step / 2
            best = max(best, (reached, price, least))
            price = max(0.0, best[1] + step)
        return best[1:]

    def _least(self, cost: np.ndarray) -> float:
        """Return the least sum of a closed chain with costs [operators, pairs], as the solver's without any label."""
        columns, operators = self.pairs, self.case.work.operators
        least = float(np.minimum.reduceat(cost[:, columns.by_layout], columns.starts, axis=1).sum(0).min())
        for first in range(len(cost) if cost.min(1).sum() + self.reshard < least else 0):
            labels, every = np.full(columns.layouts.max() + 1, inf), self.reshard
            for number in (*range(first, len(cost)), *range(first)):
                takes, gives = (columns.layouts[int(operators[number].side != side)] for side in ("in", "out"))
                sums = np.minimum(labels[takes], every) + cost[number]
                labels = np.full(len(labels), inf)
                np.minimum.at(labels, gives, sums)
                every = labels.min() + self.reshard
            least = min(least, float(labels.min()))
        return least

    def _priced(self, kind: str) -> list[Priced]:
        return [
            Priced(self.case, op, self.pairs, kind, passes)
            for op, passes in zip(self.case.work.operators, self.passes, strict=True)
        ]

    def _alone(self, kind: str) -> list[Label]:
        """Return the front of layers whose operators all take one pair."""
        priced, chains = self._priced(kind), list[Label]()
        summed = _columns(priced).sum(1)
        for number in np.lexsort(summed[::-1]):
            if summed[0, number] < inf and not beaten(chains, *summed[:, number]):
                chains.append(_chain(priced, number))
        return chains

    def _layer(self, kind: str, chains: Sequence[Label], most: float) -> list[Label]:
        """Return the front of layers that cost up to `most` with their bytes, which includes `chains`."""
        priced = self._priced(kind)
        columns = _columns(priced)
        prices = 1.0, self.price, self.price / self.case.layers
        columns = np.concatenate([columns, np.tensordot(prices, columns, 1)[None]])
        least = columns.min(2)
        bounds = columns + (least.sum(1, keepdims=True) - least)[:, :, None]  # with the best of the others
        figures = np.array([(one.cost, one.bytes, one.work) for one in chains]).reshape(-1, 3, 1, 1)
        useful = ~(figures <= bounds[:3]).all(1).any(0) & (bounds[3] <= most)
        options = [
            [one.option(int(number)) for number in np.flatnonzero(own)] for one, own in zip(priced, useful, strict=True)
        ]
        return layer(options, self.reshard, chains, prices, most)


def _columns(priced: Sequence[Priced]) -> np.ndarray:
    """Return cost, bytes and working memory [3, operators, pairs]."""
    return np.array([[one.cost, one.bytes, one.work_bytes] for one in priced]).transpose(1, 0, 2)


def _chain(priced: Sequence[Priced], number: Any) -> Label:
    """Return the layer whose operators all take one pair."""
    return reduce(add, [label_of(one.option(number)) for one in priced])


def demand(planned: TrainingPlan) -> TrainingPlan:
    """Return the plan; HbmError with the bytes by name if the workload does not fit."""
    if planned.why:
        raise HbmError(f"{planned.work.name} does not fit {planned.wafer.name}: {planned.why}")
    return planned


def _head_bytes(case: Case) -> float:
    """Return a die's part of embedding, head and a micro-batch's fp32 logits, which are cut over all dies."""
    work, dies = case.work, case.wafer.dies
    return (2 * work.vocab * work.width * case.rules.states + 4 * case.tokens * work.vocab) / dies


def _why(case: Case, label: Label) -> tuple[dict[str, int], str]:
    held = _held(case, Mix((label,), (case.layers,)))
    parts = ", ".join(f"{name} {size:,} B" for name, size in held.items())
    total, limit, first = sum(held.values()), case.wafer.hbm_bytes, label.chosen[0]
    return held, (
        f"the smallest plan ({first.split}, recompute {first.recompute}, {case.micro_batches} micro-batches) needs "
        f"{total:,} B on every die, {total - limit:,} B over the {limit:,} B of HBM: {parts}"
    )


def _held(case: Case, mix: Mix) -> dict[str, int]:
    states, kept = (
        sum(getattr(own, name) * count for label, count in mix.parts for own in label.chosen)
        for name in ("state_bytes", "kept_bytes")
    )
    held = {"states": states, "activations": kept, "working memory": mix.work, "embedding and head": _head_bytes(case)}
    return {name: round(size) for name, size in held.items()}


def _handed(case: Case) -> float:
    """Return seconds in which a micro-batch's activations and their gradients go through all wafers."""
    return (case.wafers - 1) * 2 * case.tokens * case.work.width * case.rules.element / BETWEEN_WAFERS


def _planned(strategy: Strategy, case: Case, mix: Mix) -> TrainingPlan:
    work, wafer, micro, wafers = case.work, case.wafer, case.micro_batches, case.wafers
    chosen = [(own, count) for label, count in mix.parts for own in label.chosen]
    reshards = mix.reshards + sum(label.reshards * count for label, count in mix.parts)
    parts = {
        "compute": sum(own.compute * count for own, count in chosen) + case.head_seconds,
        "exposed communication": sum(own.exposed * count for own, count in chosen),
        "re-sharding": reshards * case.reshard.seconds,
        "HBM": sum(own.hbm * count for own, count in chosen),
    }
    parts["bubbles"] = (wafers - 1) * sum(parts.values()) / micro + _handed(case)
    loads = sum((own.loads * count for own, count in chosen), reshards * case.reshard.loads)
    joules = sum(own.joules * count for own, count in chosen) + reshards * case.reshard.joules
    return TrainingPlan(
        strategy.name, work, wafer, wafers, micro, mix, tuple(label.chosen[0].recompute for label in mix.kinds), parts,
        _held(case, mix), wafers * joules + case.head_flops / wafer.flops_per_joule, float(loads.sum()),
        {link: float(load) for link, load in zip(wafer.edges, loads, strict=True) if load}, 0.0,
    )  # fmt: skip
