"""The planner: how to train a workload on wafers of dies, with every baseline beside it.

The first level chooses a tuple and a placement for every operator, exactly (`wafer_triton.train.solve`). The second
lists every rectangular placement of a tuple and keeps each that no other beats, which loses no best plan. Around
both, micro-batches and recompute are tried. Over several wafers layers form a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from time import process_time

from wafer_triton.errors import ConfigError, HbmError, shown
from wafer_triton.text.quantity import PREDICTED, Legend, unit
from wafer_triton.text.table import Result, Table
from wafer_triton.train.dies import Link, Wafer
from wafer_triton.train.flows import ring_flows
from wafer_triton.train.mapping import dimension_ordered
from wafer_triton.train.options import RECOMPUTE, Case, Option, ParallelSizes, option, splits
from wafer_triton.train.placement import AXES, GroupPlacement, fixed, groups_of, placements
from wafer_triton.train.solve import Label, Mix, layer, layers
from wafer_triton.train.workload import Operator, Rules, Workload

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
    def layer_seconds(self) -> float:
        """Return seconds of the layers of one wafer, without head and bubbles."""
        return self.mix.seconds if self.mix else inf

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

    Raises ConfigError for layers that do not divide by wafers, or where no tuple divides batch, heads and tokens.
    """
    if not recompute or not all(each in RECOMPUTE for each in recompute):
        raise ConfigError(f"recompute = {shown(recompute)}: give a tuple of some of {', '.join(RECOMPUTE)}")
    if wafers < 1 or work.layers % wafers:
        raise ConfigError(f"{work.name}: {work.layers} layers do not divide by {wafers} wafers; give a divisor")
    if objective not in ("time", "energy"):
        raise ConfigError(f"objective {objective!r}: choose 'time' or 'energy'")
    began, tried = process_time(), 0
    best: TrainingPlan | None = None
    smallest: tuple[float, dict[str, int], str] | None = None
    for micro in _counts(work.batch):
        case = Case(wafer, work, micro, work.layers // wafers, min(wafers, micro), rules or Rules())
        groups = list(_groups(case, strategy))
        if not groups:
            continue
        fixed_bytes = _head_bytes(case)
        room = wafer.hbm_bytes - fixed_bytes
        fastest = float("inf")
        for pairs in groups:
            labels: list[Label] = []
            of: dict[int, str] = {}
            for kind in recompute:
                if kind == "full" and labels:
                    first = min(labels, key=lambda label: (label.seconds, label.bytes))
                    if case.layers * first.bytes <= room:
                        break  # it computes more than selective recompute, and reads and writes as much
                options = [_options(case, op, pairs, kind) for op in work.operators]
                tried += sum(map(len, options))
                found = layer(options, case.reshard_seconds)
                labels += found
                of |= {id(label): kind for label in found}
            if not labels:
                continue
            labels.sort(key=lambda label: label.seconds)
            fastest = min(fastest, case.layers * labels[0].seconds)
            least = min(labels, key=lambda label: label.bytes)
            if smallest is None or least.bytes * case.layers + fixed_bytes < smallest[0]:
                smallest = least.bytes * case.layers + fixed_bytes, *_why(case, least, of[id(least)])
            mix = layers(labels, case.layers, room, case.reshard_seconds)
            if mix is not None:
                one = _planned(case, strategy, wafers, mix, tuple(of[id(kind)] for kind in mix.kinds))
                if best is None or _score(one, objective) < _score(best, objective):
                    best = one
        # more micro-batches make no option faster: their products hide less, and weights pass more often
        if best is not None and wafers == 1 and objective == "time" and fastest >= best.layer_seconds * (1 - 1e-12):
            break
    if best is not None:
        return replace(best, solver_seconds=process_time() - began, tried=tried)
    if smallest is None:
        raise ConfigError(
            f"no tuple divides {work.batch} samples, {work.heads} heads and {work.sequence} tokens "
            f"over {wafer.dies} dies of {wafer.name}; give a batch with more divisors, or a wafer of other sides"
        )
    _, held, why = smallest
    return TrainingPlan(
        strategy.name, work, wafer, wafers, 0, None, (), {}, held, inf, 0.0, {}, process_time() - began, tried, why
    )


def _options(case: Case, op: Operator, pairs: list[tuple[ParallelSizes, GroupPlacement]], kind: str) -> list[Option]:
    """Return the options of an operator; one without weights has the options of one stage of sharding."""
    if not op.weights:
        pairs = list(dict.fromkeys((replace(split, sharded=0), placed) for split, placed in pairs))
    return [option(case, op, split, placed, kind) for split, placed in pairs]


def demand(planned: TrainingPlan) -> TrainingPlan:
    """Return the plan; HbmError with the bytes by name if the workload does not fit."""
    if planned.why:
        raise HbmError(f"{planned.work.name} does not fit {planned.wafer.name}: {planned.why}")
    return planned


def _score(planned: TrainingPlan, objective: str) -> float:
    return planned.seconds if objective == "time" else planned.joules


def _counts(batch: int) -> list[int]:
    return [1 << power for power in range(batch.bit_length()) if batch % (1 << power) == 0]


def _groups(case: Case, strategy: Strategy) -> Iterator[list[tuple[ParallelSizes, GroupPlacement]]]:
    """Return the pairs (tuple, placement) to combine: all in one list, or one a list if all operators take the same."""
    pairs = [
        (split, placed)
        for split in splits(case)
        if strategy.allowed(split)
        for placed in strategy.places(case.wafer, split)
    ]
    if strategy.uniform:
        yield from ([pair] for pair in pairs)
    elif pairs:
        yield pairs


def _head_bytes(case: Case) -> float:
    """Return a die's part of embedding, head and a micro-batch's fp32 logits, which are cut over all dies."""
    work, dies = case.work, case.wafer.dies
    return (2 * work.vocab * work.width * case.rules.states + 4 * case.tokens * work.vocab) / dies


def _why(case: Case, label: Label, recompute: str) -> tuple[dict[str, int], str]:
    held = _held(case, Mix((label,), (case.layers,)))
    parts = ", ".join(f"{name} {size:,} B" for name, size in held.items())
    total, limit = sum(held.values()), case.wafer.hbm_bytes
    return held, (
        f"the smallest plan ({label.chosen[0].split}, recompute {recompute}, {case.micro_batches} micro-batches) needs "
        f"{total:,} B on every die, {total - limit:,} B over the {limit:,} B of HBM: {parts}"
    )


def _held(case: Case, mix: Mix) -> dict[str, int]:
    def summed(name: str) -> int:
        pairs = zip(mix.kinds, mix.counts, strict=True)
        return round(sum(getattr(own, name) * count for label, count in pairs for own in label.chosen))

    head = round(_head_bytes(case))
    return {"states": summed("state_bytes"), "activations": summed("kept_bytes"), "embedding and head": head}


def _planned(case: Case, strategy: Strategy, wafers: int, mix: Mix, recompute: tuple[str, ...]) -> TrainingPlan:
    work, wafer, micro = case.work, case.wafer, case.micro_batches
    parts = dict.fromkeys(("compute", "exposed communication", "re-sharding", "HBM", "bubbles"), 0.0)
    sent: dict[GroupPlacement, list[float]] = {}
    hbm = 0.0
    for label, count in zip(mix.kinds, mix.counts, strict=True):
        parts["re-sharding"] += label.reshards * case.reshard_seconds * count
        for own in label.chosen:
            parts["compute"] += own.compute * count
            parts["exposed communication"] += own.exposed * count
            parts["HBM"] += own.hbm * count
            hbm += own.hbm_bytes * count
            totals = sent.setdefault(own.placed, [0.0] * 4)
            for axis, size in enumerate(own.sent):
                totals[axis] += size * count
    parts["re-sharding"] += case.reshard_seconds * mix.reshards
    head = 6 * work.vocab * work.width * work.tokens
    parts["compute"] += head / wafers / wafer.dies / wafer.flops
    if wafers > 1:
        handed = case.tokens * work.width * case.rules.element / BETWEEN_WAFERS
        parts["bubbles"] = (wafers - 1) * (sum(parts.values()) / micro + 2 * handed)
    link_bytes = sum(
        size * step.links * wafer.dies
        for placed, totals in sent.items()
        for step, size in zip(placed.steps, totals, strict=True)
    )
    flops = sum(
        own.compute * count * wafer.flops * wafer.dies
        for label, count in zip(mix.kinds, mix.counts, strict=True)
        for own in label.chosen
    )
    joules = wafers * (
        flops / wafer.flops_per_joule + link_bytes * wafer.link_joules_per_byte + hbm * wafer.hbm_joules_per_byte
    )
    joules += head / wafer.flops_per_joule
    return TrainingPlan(
        strategy.name, work, wafer, wafers, micro, mix, recompute, parts, _held(case, mix), joules, link_bytes,
        link_loads(wafer, sent), 0.0,
    )  # fmt: skip


def link_loads(wafer: Wafer, sent: dict[GroupPlacement, list[float]]) -> dict[Link, float]:
    """Return bytes over every link in a step, from the bytes that every die sends along the axes of placements."""
    loads: dict[Link, float] = {}
    for placed, totals in sent.items():
        if placed.fixed:
            continue
        for axis in range(len(AXES)):
            if totals[axis] and (rings := groups_of(wafer, placed, axis)):
                for link, load in dimension_ordered(wafer, ring_flows(rings, totals[axis])).loads.items():
                    loads[link] = loads.get(link, 0.0) + load
    return loads
