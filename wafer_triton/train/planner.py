"""The planner: how to train a workload on wafers of dies, with every baseline beside it.

The first level chooses a tuple and a placement for every operator, exactly (`wafer_triton.train.solve`). The second
lists every rectangular placement of a tuple and keeps each that no other beats, which loses no best plan. Around
both, micro-batches and recompute are tried. Over several wafers layers form a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from time import process_time
from typing import Any

import numpy as np

from wafer_triton.errors import ConfigError, HbmError, shown
from wafer_triton.text.quantity import PREDICTED, Legend, unit
from wafer_triton.text.table import Result, Table
from wafer_triton.train.dies import Link, Wafer
from wafer_triton.train.options import (
    RECOMPUTE,
    Case,
    Column,
    Figures,
    Option,
    Pairs,
    ParallelSizes,
    cases,
    picked,
    priced,
    splits,
)  # fmt: skip
from wafer_triton.train.placement import GroupPlacement, fixed, placements
from wafer_triton.train.solve import Label, Mix, layer, layers, useful
from wafer_triton.train.workload import Rules, Workload

PRICES = np.array([0.0, *np.geomspace(1 / 16, 16, 65)])  # of all bytes of a die, in the cost of a step
TOGETHER = 48  # cases whose products are sliced together
BETWEEN_WAFERS = 9e12  # bytes a second, taken from Dojo by TEMP's summaries
Part = tuple[float, float, np.ndarray]  # a bound, the price of a byte that gives it, and numbers of pairs
Allowed = Callable[[ParallelSizes], bool]
Placer = Callable[[Wafer, ParallelSizes], tuple[GroupPlacement, ...]]


@dataclass(frozen=True)
class Strategy:
    """The tuples that a plan may take, and their placements; if `uniform`, all operators take the same."""

    name: str
    allowed: Allowed
    placer: Placer
    uniform: bool = True


def _blind(wafer: Wafer, split: ParallelSizes) -> tuple[GroupPlacement, ...]:
    """Return the rectangular placement with the shortest steps, whatever the loads of its links."""
    return tuple(sorted(placements(wafer, split.sizes, prune=False), key=lambda placed: placed.links)[:1])


_BASES: dict[str, Allowed] = {
    "Megatron TP": lambda split: split.stream == split.context == 1 and not split.sequence and split.sharded == 0,
    "Megatron TP + SP": lambda split: split.stream == 1 and _useful(split) and split.sharded <= 1,
    "sharded data": lambda split: split.stream == split.tensor == 1 and split.sharded == 3,
}
_PLACERS: dict[str, Placer] = {"fixed": lambda wafer, split: (fixed(wafer, split.sizes),), "blind": _blind}
BASELINES = tuple(
    Strategy(f"{name}, {where}", allowed, placer)
    for name, allowed in _BASES.items()
    for where, placer in _PLACERS.items()
)


def _useful(split: ParallelSizes) -> bool:
    """Return whether the rows of tensor groups are split, which has the same traffic and fewer bytes on a die."""
    return split.sequence or split.tensor == 1


PLANNED = Strategy("planned", _useful, lambda wafer, split: placements(wafer, split.sizes), uniform=False)


@dataclass(frozen=True, repr=False)
class TrainingPlan(Result):
    """A plan of a strategy, for one training step of a case.

    `why` is the reason if the workload does not fit: the plan is then the smallest, its seconds and joules infinite.
    """

    strategy: str
    case: Case
    mix: Mix
    why: str = ""
    solver_seconds: float = field(default=0.0, compare=False)
    tried: int = 0

    @property
    def parts(self) -> dict[str, float]:
        """Return the seconds of a step by what takes them; nothing for a workload that does not fit."""
        if self.why:
            return {}
        case, mix = self.case, self.mix
        parts = {
            "compute": mix.total("compute") + case.head_seconds, "exposed communication": mix.total("exposed"),
            "re-sharding": mix.reshards * case.reshard.seconds, "HBM": mix.total("hbm"),
        }  # fmt: skip
        bubbles = (case.wafers - 1) * sum(parts.values()) / case.micro_batches + _handed(case)
        return {**parts, "bubbles": bubbles}

    @property
    def held(self) -> dict[str, int]:
        """Return the bytes of a die by what they hold."""
        held = {
            "states": self.mix.total("state_bytes"), "activations": self.mix.total("kept_bytes"),
            "working memory": self.mix.work, "embedding and head": _head_bytes(self.case),
        }  # fmt: skip
        return {name: round(size) for name, size in held.items()}

    @property
    def loads(self) -> dict[Link, float]:
        """Return bytes over every link in a step."""
        loads = self.mix.total("loads") + self.mix.reshards * self.case.reshard.loads
        links = self.case.wafer.edges  # none of a wafer of one die, whose loads are 0
        return {link: float(load) for link, load in zip(links, loads, strict=bool(links)) if load}

    @property
    def joules(self) -> float:
        """Return joules of all wafers; infinity for a workload that does not fit."""
        case = self.case
        layers = self.mix.total("joules") + self.mix.reshards * case.reshard.joules
        return inf if self.why else case.wafers * layers + case.head_flops / case.wafer.flops_per_joule

    def table(self, *_: str) -> Table:
        """Return the time of a step and its parts, the bytes of a die, the power, and the reason if it does not fit."""
        figures = {"step": self.seconds, **self.parts, "held": self.bytes, "power": self.watts, "why": self.why or None}
        legend = Legend(dict.fromkeys(("step", *self.parts), unit("s")), {"held": unit("B"), "power": unit("W")})
        title = f"{self.strategy}: {self.case.work.name} on {self.case.wafers} x {self.case.wafer.name}, {PREDICTED}"
        return Table([figures], legend, title=title, upright=True)

    @property
    def seconds(self) -> float:
        """Return seconds of a step; infinity for a workload that does not fit."""
        return inf if self.why else sum(self.parts.values())

    @property
    def bytes(self) -> int:
        """Return bytes that a die holds."""
        return sum(self.held.values())

    @property
    def hottest(self) -> tuple[Link, float] | None:
        """Return the busiest link and its bytes in a step."""
        return min(self.loads.items(), key=lambda item: (-item[1], item[0]), default=None)

    @property
    def tokens_per_second(self) -> float:
        """Return tokens of a batch over the seconds of a step."""
        return self.case.work.tokens / self.seconds

    @property
    def watts(self) -> float:
        """Return joules over seconds; infinity for a workload that does not fit."""
        return inf if self.why else self.joules / self.seconds

    @property
    def link_bytes(self) -> float:
        """Return the bytes of a step, each counted on every link that it crosses."""
        return sum(self.loads.values())

    @property
    def recompute(self) -> tuple[str, ...]:
        """Return the kind of recompute of each kind of layers."""
        return tuple(label.chosen[0].recompute for label in self.mix.kinds)

    @property
    def operators(self) -> dict[str, Option]:
        """Return the option of every operator in most layers."""
        chosen = max(reversed(self.mix.parts), key=lambda part: part[1])[0].chosen
        return {op.name: own for op, own in zip(self.case.work.operators, chosen, strict=True)}


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
        (split, placed) for split in splits(case) if strategy.allowed(split) for placed in strategy.placer(wafer, split)
    ]
    if not pairs:
        raise ConfigError(
            f"no tuple divides {work.kv_heads} key-value heads and {work.hidden} hidden elements over {wafer.dies} "
            f"dies of {wafer.name}; give a wafer of other sides"
        )
    columns, kinds = Pairs(wafer, pairs), [kind for kind in RECOMPUTE if kind in recompute]
    searches, more = list[Search](), iter(cases(case, pairs))
    while some := list(islice(more, TOGETHER)):
        passes = [columns.passes(some, op) if op.weights else [None] * len(some) for op in work.operators]
        added = [Search(one, columns, kinds, strategy.uniform, own) for one, *own in zip(some, *passes, strict=True)]
        searches += added
        if all(search.least_bytes > search.room for search in added):
            break  # nor do more samples at once fit
    best, score = None, min(search.reached for search in searches) * (1 + 1e-12)
    parts = ((search, part) for search in searches if search.least_bytes <= search.room for part in search.parts)
    for search, part in sorted(parts, key=lambda one: one[1][0]):
        if part[0] >= score:
            break
        mix = layers(search.labels(part, score), search.case.layers, search.room, search.reshard)
        if mix is not None and (reached := search.rest + mix.cost(search.reshard)) < score:
            best, score = (search.case, mix), reached
    why = ""
    if best is None:
        search = min(searches, key=lambda search: search.least_bytes)
        best = search.case, Mix((search.smallest(),), (search.case.layers,))
        why = _why(TrainingPlan(strategy.name, *best))
    tried = len(searches) * len(pairs) * len(kinds) * len(work.operators)
    return TrainingPlan(strategy.name, *best, why, process_time() - began, tried)


class Search:
    """A case with all pairs that its operators may take.

    No plan whose operators choose among the pairs of a part scores less than its bound, and none needs less than
    `least_bytes` on a die beside embedding and head. Layers whose operators all take one pair have `reached` a score.
    Where no slices of a product fit SRAM there are no parts, and all is infinite.
    """

    def __init__(
        self, case: Case, pairs: Pairs, kinds: Sequence[str], uniform: bool, passes: Sequence[Column | None]
    ) -> None:
        self.case, self.pairs, self.kinds, self.passes = case, pairs, kinds, passes
        self.room = case.wafer.hbm_bytes - _head_bytes(case)
        self.reshard = case.cost(case.reshard.seconds, case.reshard.joules)
        head = case.cost(case.head_seconds, case.head_flops / case.wafers / case.wafer.flops_per_joule)
        self.rest = head + case.weights[0] * _handed(case)  # that all plans of the case cost beside layers

        def least(figures: np.ndarray) -> np.ndarray:
            """Return the least of all kinds [parts] for figures [kinds, operators, pairs]."""
            return (figures.sum(1) if uniform else figures.min(2).sum(1, keepdims=True)).min(0)

        count, numbers = case.layers, np.arange(len(pairs.pairs))
        cost, size, work = np.array([_columns(own) for own in self._priced()]).swapaxes(0, 1)
        self.least_bytes = least(count * size + work).min()
        fits = count * size.sum(1) + work.sum(1) <= self.room
        self.reached = self.rest + count * np.where(fits, cost.sum(1), inf).min()
        self.parts: list[Part] = []
        fastest = cost.min(2).sum(1).min()
        if fastest == inf:
            self.least_bytes = inf
            return
        # of every price of the bytes that fit, Lagrange's multiplier, the cost of layers with their bytes is a bound
        prices = PRICES * fastest * count / case.wafer.hbm_bytes
        bounds = np.array([count * least(cost + price * (size + work / count)) - price * self.room for price in prices])
        best, bound = bounds.argmax(0), bounds.max(0)
        if not uniform:  # operators share the layout of rows, or an activation changes it
            rows, price = pairs.layouts["in"][0], prices[best[0]]
            order, weighed = np.argsort(rows), cost + price * (size + work / count)
            starts = np.flatnonzero(np.diff(rows[order], prepend=-1))
            alike = np.minimum.reduceat(weighed[..., order], starts, 2).sum(1).min()
            bound = count * np.minimum(alike, least(weighed) + self.reshard) - price * self.room
        self.parts += [
            (self.rest + own, prices[at], some)
            for own, at, some in zip(bound, best, np.split(numbers, len(bound)), strict=True)
        ]

    def labels(self, part: Part, score: float) -> list[Label]:
        """Return the fronts of layers, of each kind of recompute, that may be in a plan of a part below a score."""
        (bound, price, numbers), count, work = part, self.case.layers, self.case.work
        figures = self._priced()
        columns = [_columns(own)[..., numbers] for own in figures]
        fronts, labels = list[np.ndarray](), list[Label]()
        for kind, own, column in zip(self.kinds, figures, columns, strict=True):
            alone = column.sum(1)  # of layers whose operators all take one pair
            best = useful(alone, np.zeros_like(alone[:2]), 0.0)
            fronts.append(alone[:, best])
            labels += [self._label(kind, own, [numbers[at]] * len(own), alone[:, at]) for at in best]
        if mix := layers(labels, count, self.room, self.reshard):
            score = min(score, self.rest + mix.cost(self.reshard))
        prices, most = (1.0, price, price / count), (bound - self.rest + price * self.room) / count + score - bound
        most *= 1 + 1e-9  # beside layers that cost the least
        layouts = [self.pairs.layouts[op.side][:, numbers] for op in work.operators]
        for kind, own, column, known in zip(self.kinds, figures, columns, fronts, strict=True):
            costs = np.tensordot(prices, column, 1)
            fits = costs - costs.min(1, keepdims=True) + costs.min(1).sum() <= most
            least = column.min(2, keepdims=True)
            for best in known.T:  # beats what an option reaches with the least of all others
                fits &= (column - least + least.sum(1, keepdims=True) < best[:, None, None]).any(0)
            if not fits.any(1).all():
                continue
            places = [numbers[chosen] for chosen in fits]
            sums, chosen = layer(
                [column[:, at, some] for at, some in enumerate(fits)],
                [both[:, some] for both, some in zip(layouts, fits, strict=True)], self.reshard, known, prices, most,
            )  # fmt: skip
            for path, one in zip(chosen, sums.T, strict=True):
                labels.append(self._label(kind, own, [some[at] for some, at in zip(places, path, strict=True)], one))
        return labels

    def smallest(self) -> Label:
        """Return the layer that needs the fewest bytes, of those in which all operators share tuple and placement."""
        figures, count = self._priced(), len(self.pairs.pairs)
        sums = np.concatenate([_columns(own).sum(1) for own in figures], 1)  # [3, pairs of each kind]
        cost, size, work = sums
        first = int(np.lexsort((cost, self.case.layers * size + work, cost == inf))[0])
        kind, number = divmod(first, count)
        return self._label(self.kinds[kind], figures[kind], [number] * len(figures[kind]), sums[:, first])

    def _label(self, kind: str, figures: Sequence[Figures], numbers: Sequence[Any], sums: np.ndarray) -> Label:
        chosen = (
            picked(own, op, self.pairs.pairs[number], kind, number)
            for own, op, number in zip(figures, self.case.work.operators, numbers, strict=True)
        )
        return Label(tuple(chosen), *sums.tolist())

    def _priced(self) -> list[tuple[Figures, ...]]:
        """Return figures of every operator, for each kind of recompute."""
        operators = zip(self.case.work.operators, self.passes, strict=True)
        return [*zip(*(priced(self.case, op, self.pairs, self.kinds, own) for op, own in operators), strict=True)]


def _columns(figures: Sequence[Figures]) -> np.ndarray:
    """Return cost, bytes and working memory [3, operators, pairs]."""
    return np.array([[one.cost, one.bytes, one.work_bytes] for one in figures]).swapaxes(0, 1)


def demand(planned: TrainingPlan) -> TrainingPlan:
    """Return the plan; HbmError with the bytes by name if the workload does not fit."""
    if planned.why:
        raise HbmError(f"{planned.case.work.name} does not fit {planned.case.wafer.name}: {planned.why}")
    return planned


def _head_bytes(case: Case) -> float:
    """Return a die's part of embedding, head and a micro-batch's fp32 logits, which are cut over all dies."""
    work, dies = case.work, case.wafer.dies
    return (2 * work.vocab * work.width * case.rules.states + 4 * case.tokens * work.vocab) / dies


def _handed(case: Case) -> float:
    """Return seconds in which a micro-batch's activations and their gradients go through all wafers."""
    return (case.wafers - 1) * 2 * case.tokens * case.work.width * case.rules.element / BETWEEN_WAFERS


def _why(smallest: TrainingPlan) -> str:
    parts = ", ".join(f"{name} {size:,} B" for name, size in smallest.held.items())
    case, limit, first = smallest.case, smallest.case.wafer.hbm_bytes, smallest.mix.kinds[0].chosen[0]
    if smallest.mix.kinds[0].cost == inf:
        return f"no slices of its products fit the {case.wafer.sram_bytes:,} B of SRAM of a die; give dies with more"
    return (
        f"the smallest plan ({first.split}, recompute {first.recompute}, {case.micro_batches} micro-batches) needs "
        f"{smallest.bytes:,} B on every die, {smallest.bytes - limit:,} B over the {limit:,} B of HBM: {parts}"
    )
