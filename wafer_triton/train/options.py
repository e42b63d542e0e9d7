"""The options of an operator on a wafer: its tuple of parallel sizes with a placement, seconds, bytes and traffic.

A tuple is (data, tensor, sequence, context, sharded, stream, moving). Sizes multiply to the dies. `sequence` splits the
rows of plain tensor parallelism as well. `sharded` is a stage of ZeRO over data and context. A stream moves weights
("w"), or inputs into the first product of a pair and sums out of the second ("xy").

A product takes the passes of `wafer_triton.train.product` in slices, as `wafer_triton.train.cost` prices them. Beside
them, for one micro-batch:

| traffic | transfers | bytes of a block | hidden by |
| --- | --- | --- | --- |
| tensor, 2 gathers and 2 sums a pair (all-reduces take both) | N - 1 each | rows / N | nothing |
| keys and values over context, or rows of a weight stream | N - 1, also of sums | own keys and values | attention |
| sharded weights: two gathers, one sum of gradients | N - 1 | a shard | the operator's products |
| gradients of replicated weights, once a step | 2 (N - 1) | a shard | the last backward pass |

Traffic that goes on at once shares links and HBM: an operator takes at least the time of its bytes over each link, and
of its bytes of HBM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafer_triton.errors import ConfigError, check_counts
from wafer_triton.train.cost import sliced
from wafer_triton.train.dies import Wafer
from wafer_triton.train.placement import AXES, GroupPlacement, exchange
from wafer_triton.train.product import CUTS, PASSES
from wafer_triton.train.workload import Operator, Rules, Workload

TIE = 1e-11  # that the figure counts which is not the objective
MANY, FEW = 256, 32  # samples of a micro-batch, and micro-batches, up to which all numbers are tried
RECOMPUTE = ("none", "selective", "full")
DATA, TENSOR, CONTEXT, STREAM = range(4)  # of `placement.AXES`
LANES = {"relay": 4, "none": 0}  # buffers beside the own block; of a ring two
Pair = tuple["ParallelSizes", GroupPlacement]
Column = NDArray[Any]  # of a number for every pair
Taken = tuple[Column, Column, Column, Column, Column, Column]  # the first of `Figures`, that are not of bytes held


@dataclass(frozen=True)
class ParallelSizes:
    """A tuple of parallel sizes; `moving` is "" without a stream."""

    data: int = 1
    tensor: int = 1
    sequence: bool = False
    context: int = 1
    sharded: int = 0
    stream: int = 1
    moving: str = ""

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Return sizes in the order of `placement.AXES`."""
        return self.data, self.tensor, self.context, self.stream

    def __str__(self) -> str:
        parts = [f"{axis} {size}" for axis, size in zip(AXES, self.sizes, strict=True) if size > 1]
        flags = ["sequence"] * self.sequence + [f"sharded {self.sharded}"] * (self.sharded > 0)
        flags += [f"{self.moving.upper()} moving"] * bool(self.moving)
        return ", ".join(parts + flags) or "one die"


@dataclass(frozen=True)
class Case:
    """A workload on `wafers` wafers, each with `layers` of its layers, the number of micro-batches and rules of bytes.

    A batch that does not divide by micro-batches is padded, and a micro-batch to whole `groups` of samples. `objective`
    is "time" or "energy"; of plans that are equal in it the one with less of the other is better.
    """

    wafer: Wafer
    work: Workload
    micro_batches: int = 1
    layers: int = 0
    wafers: int = 1
    rules: Rules = field(default_factory=Rules)
    objective: str = "time"
    groups: int = 1

    def __post_init__(self) -> None:
        check_counts(micro_batches=self.micro_batches, wafers=self.wafers, groups=self.groups)
        if self.objective not in ("time", "energy"):
            raise ConfigError(f"objective {self.objective!r}: choose 'time' or 'energy'")

    @property
    def in_flight(self) -> int:
        """Return the micro-batches that keep activations at once; a pipeline over wafers has several."""
        return min(self.wafers, self.micro_batches)

    @property
    def samples(self) -> int:
        """Return samples of a micro-batch on the wafer."""
        return -(-self.work.batch // self.micro_batches // self.groups) * self.groups

    @property
    def tokens(self) -> int:
        """Return tokens of a micro-batch on the wafer."""
        return self.samples * self.work.sequence

    @property
    def weights(self) -> tuple[float, float]:
        """Return what a second and a joule of a wafer count: the objective's one, the other as at full power `TIE`."""
        return (1.0, TIE / self.wafer.watts) if self.objective == "time" else (TIE * self.wafer.watts, 1.0)

    def cost(self, seconds: Any, joules: Any) -> Any:
        """Return what seconds and joules of each wafer's layers count in a step of all wafers with its bubbles."""
        time, energy = self.weights
        return time * (1 + (self.wafers - 1) / self.micro_batches) * seconds + energy * self.wafers * joules

    @property
    def head_flops(self) -> float:
        """Return FLOPs of the head in a step."""
        return 6.0 * self.work.vocab * self.work.width * self.tokens * self.micro_batches

    @property
    def head_seconds(self) -> float:
        """Return seconds of the head in a step, which all dies of all wafers share."""
        return self.head_flops / self.wafers / self.wafer.dies / self.wafer.flops

    @cached_property
    def reshard(self) -> Reshard:
        """Return the cost of a change of the layout of an activation of the layer's width, forward and backward."""
        wafer, step = self.wafer, exchange(self.wafer)
        pair = self.tokens * self.work.width * self.rules.element / wafer.dies**2
        times = 2 * self.micro_batches
        loads, (hops, most) = times * pair * step.loads, step.worst
        return Reshard(times * wafer.transfer_seconds(hops, pair * most), wafer.joules(0, float(loads.sum()), 0), loads)


@dataclass(frozen=True)
class Reshard:
    """An all-to-all of an activation: seconds and joules of a step, and bytes over every link."""

    seconds: float
    joules: float
    loads: Column


@dataclass(frozen=True)
class Figures:
    """What an operator takes of a step with one layer; arrays with a column for each of many pairs.

    Seconds and joules are of all micro-batches: products, exposed traffic, and exposed sums of gradients. `sent` are
    bytes [8] of a die, as `GroupPlacement.loads`. `state_bytes` and `kept_bytes` are a die's: states of parameters, and
    activations of all micro-batches in flight. `work_bytes` are held while the layer runs: its gathered weights, and
    what it recomputes.
    """

    sent: Any
    compute: Any
    exposed: Any
    hbm: Any  # seconds that HBM takes beyond both
    joules: Any
    cost: Any  # as `Case.cost`
    state_bytes: Any
    kept_bytes: Any
    work_bytes: Any

    @property
    def seconds(self) -> Any:
        """Return seconds of a step."""
        return self.compute + self.exposed + self.hbm

    @property
    def bytes(self) -> Any:
        """Return bytes that a die holds for the whole step."""
        return self.state_bytes + self.kept_bytes


@dataclass(frozen=True)
class Option(Figures):
    """An operator with a tuple, a placement and a kind of recompute.

    `takes` and `gives` are the layouts of input and output. If the layout that an operator gives is not the one that
    the next takes, a re-sharding is between them.
    """

    split: ParallelSizes
    placed: GroupPlacement
    recompute: str
    takes: tuple[object, ...]
    gives: tuple[object, ...]

    @property
    def loads(self) -> Column:
        """Return bytes over every link in a step."""
        return np.array(self.sent) @ self.placed.loads


def splits(case: Case) -> Iterator[ParallelSizes]:
    """Return every tuple that the wafer's dies and the workload's sizes allow; samples of data groups may be padded."""
    dies, work = case.wafer.dies, case.work
    divisors = [size for size in range(1, dies + 1) if dies % size == 0]
    for data, context, tensor in product(divisors, repeat=3):
        stream, rest = divmod(dies, data * context * tensor)
        if rest or context > work.sequence:
            continue
        for moving, sharded, sequence in product(
            ("w", "xy") if stream > 1 else ("",),
            (0, 1, 3) if data * context > 1 else (0,),
            (False, True) if tensor > 1 else (False,),
        ):
            cut = tensor * (stream if moving == "xy" else 1)
            if not work.kv_heads % cut and not work.hidden % cut:
                yield ParallelSizes(data, tensor, sequence, context, sharded, stream, moving)


def cases(case: Case, pairs: Iterable[Pair]) -> list[Case]:
    """Return a case for each number of samples in a micro-batch, the fewest first, in as few as hold the batch.

    Samples come alone, or in groups with which no sample is cut over the dies of a weight stream, whose rows then need
    no ring of keys and values. Beyond `MANY` samples and `FEW` micro-batches numbers are `1 / FEW` apart.
    """
    batch = case.work.batch
    groups = sorted({1} | {split.data * split.stream for split, _ in pairs if split.moving == "w"})
    micros = {*range(1, FEW + 1), *(-(-batch // samples) for samples in range(1, MANY))}
    tried, samples = {(micro, group) for micro in micros for group in groups}, MANY
    while samples < batch // FEW:
        samples = -(-(samples + samples // FEW) // case.wafer.dies) * case.wafer.dies
        tried.add((-(-batch // samples), samples))
    fewest = dict[int, Case]()
    for micro, group in sorted(tried, reverse=True):
        one = replace(case, micro_batches=micro, groups=group)
        fewest[one.samples] = one
    return [fewest[samples] for samples in sorted(fewest)]


class Pairs:
    """Pairs of a tuple and a placement as columns: an operator is priced with all of them at once."""

    def __init__(self, wafer: Wafer, pairs: Sequence[Pair]) -> None:
        self.wafer, self.pairs = wafer, pairs
        self.sizes = np.array([split.sizes for split, _ in pairs]).T
        self.sequence, self.sharded, self.xy = np.array(
            [(split.sequence, split.sharded, split.moving == "xy") for split, _ in pairs]
        ).T
        numbers: dict[object, int] = {}
        both = np.array([[numbers.setdefault(one, len(numbers)) for one in layouts(*pair)] for pair in pairs]).T
        self.layouts = {"in": both, "out": both[::-1], "attention": both[[1, 1]]}  # of input and output [2, pairs]
        steps = [placed.steps for _, placed in pairs]
        links = np.array([[(step.links, step.most) for step in own] for own in steps])
        self.links, self.most = np.tile(links.transpose(2, 1, 0), (1, 2, 1))  # [8, pairs], as `GroupPlacement.loads`
        kinds = max(len(step.transfers) for own in steps for step in own)
        self.rings = np.zeros((4, 3, kinds, len(pairs)))  # hops, blocks over the busiest link and count of transfers
        for number, own in enumerate(steps):
            for axis, step in enumerate(own):
                for kind, ((hops, blocks), count) in enumerate(step.transfers):
                    self.rings[axis, :, kind, number] = hops, blocks, count
        lanes = [LANES.get(own[STREAM].kind, 2) for own in steps]
        self.streams = np.array(
            [self.sizes[STREAM], lanes, links[:, STREAM, 0], *self.rings[STREAM].reshape(-1, len(pairs))]
        )
        self.alike = np.unique([*self.streams, self.sizes[TENSOR], self.xy], axis=1, return_inverse=True)[1]

    def rows(self, case: Case) -> Column:
        """Return rows of a die before tensor parallelism splits them; those that do not divide are padded."""
        data, _, context, stream = self.sizes
        own = -(-case.samples // data) * -(-case.work.sequence // context)
        return -(-own // stream)

    def passes(self, cases: Sequence[Case], op: Operator) -> Column:
        """Return the forward pass of a product, and the others together, of a micro-batch of each case.

        Compute, exposed and waiting seconds, bytes of HBM, copies and sums [cases, 2, 6, pairs]. Cases differ in their
        samples alone. Equal products of all cases are sliced once, which halves the time of a plan.
        """
        rows = np.array([self.rows(case) for case in cases])
        _, first, number = np.unique(rows * len(self.pairs) + self.alike, return_index=True, return_inverse=True)
        rows, first = rows.flat[first], first % len(self.pairs)
        (_, tensor, _, stream), xy = self.sizes[:, first], self.xy[first]
        both = np.zeros((2, 6, len(first)))
        for moving, chosen in (("w", xy == 0), ("x" if op.side == "in" else "y", xy == 1)):
            k, n = (
                np.ceil(size / np.where(op.side == side, tensor, 1) / np.where(axis in CUTS[moving], stream, 1))
                for axis, size, side in (("k", op.k, "out"), ("n", op.n, "in"))
            )
            for at, which in enumerate(PASSES[moving] if chosen.any() else ()):
                both[min(at, 1)][:, chosen] += sliced(
                    self.wafer, self.streams[:, first[chosen]], moving, which, np.array([rows, k, n])[:, chosen],
                    cases[0].rules.element, cases[0].rules.sums, cases[0].weights,
                )[1:]  # fmt: skip
        return np.moveaxis(both[:, :, number.reshape(len(cases), -1)], 2, 0)


class Traffic:
    """What a die of every pair sends: bytes [8, pairs] as `GroupPlacement.loads`, in rings beside its products."""

    def __init__(self, pairs: Pairs, rules: Rules) -> None:
        self.pairs, self.rules = pairs, rules
        self.sent = np.zeros((8, len(pairs.pairs)))

    def rings(self, axis: int, block: Column, gathers: Any, sums: Any, beside: Column | float = 0.0) -> Column:
        """Add rings of an axis with blocks of `block` elements; return seconds beyond those `beside` each transfer."""
        wafer, rules, (hops, load, count) = self.pairs.wafer, self.rules, self.pairs.rings[axis]
        others, seconds = self.pairs.sizes[axis] - 1, dict[int, Column]()
        for element in {rules.element, rules.sums}:
            size = block * element
            pieces = np.maximum(1, np.ceil(5 * size / wafer.sram_bytes))  # that fit SRAM
            taken = pieces * wafer.transfer_seconds(hops, size / pieces * load)
            seconds[element] = (size > 0) * (count * np.maximum(0.0, taken - beside)).sum(0)
        self.sent[axis] += gathers * others * block * rules.element
        self.sent[axis + 4] += sums * others * block * rules.sums
        return gathers * seconds[rules.element] + sums * seconds[rules.sums]

    def replicas(self, weights: Column, gathers: int) -> Column:
        """Return seconds of gathers of weights and a sum of their gradients over data and context groups."""
        data, _, context, _ = self.pairs.sizes
        block = weights / (data * context)  # the second axis gathers the first one's results
        return self.rings(DATA, block, gathers, 1) + self.rings(CONTEXT, block * data, gathers, 1)

    def crowded(self, seconds: Column) -> Column:
        """Return what the busiest link, to which all axes add, takes beyond `seconds`."""
        rate, beyond = self.pairs.wafer.link_bytes_per_second, np.zeros_like(seconds)
        crowded = np.flatnonzero((self.sent * self.pairs.most).sum(0) > seconds * rate)
        if len(crowded):
            loads = np.array([self.sent[:, at] @ self.pairs.pairs[at][1].loads for at in crowded.tolist()])
            beyond[crowded] = np.maximum(0.0, loads.max(1) / rate - seconds[crowded])
        return beyond


def priced(
    case: Case, op: Operator, pairs: Pairs, kinds: Sequence[str], passes: Column | None = None
) -> list[Figures]:  # fmt: skip
    """Return figures of an operator with every pair, for kinds of recompute; `passes` are of `Pairs.passes`."""
    rules, rows = case.rules, pairs.rows(case)
    data, tensor, context, stream = pairs.sizes
    weights = op.weights / tensor / stream
    forward = {kind: 1 + (kind == "full" or (kind == "selective" and not op.weights)) for kind in kinds}
    taken = {times: _taken(case, op, pairs, times, passes) for times in {*forward.values()}}
    cut = np.where(pairs.sequence | (tensor == 1), tensor, 1)
    written, scores = op.common * rows / cut + op.split * rows / tensor, op.scores * rows / tensor
    entry = 2 * op.k * rows / cut * (op.name == "qkv")  # of the layer
    held = {"none": (written + scores, 0.0), "selective": (written, scores), "full": (entry, written + scores)}
    states = rules.state_bytes(weights, pairs.sharded, data * context)
    gathered = weights * (pairs.sharded == 3) * (rules.weight + rules.gradient)
    figures = list[Figures]()
    for kind in kinds:
        kept, recomputed = held[kind]
        figures.append(Figures(*taken[forward[kind]], states, kept * case.in_flight, gathered + recomputed))
    return figures


def _taken(case: Case, op: Operator, pairs: Pairs, again: int, passes: Column | None) -> Taken:
    """Return what `again` forward passes and the backward ones take."""
    wafer, rules, rate = case.wafer, case.rules, case.wafer.hbm_bytes_per_second
    data, tensor, context, stream = pairs.sizes
    rows, weights, stage = pairs.rows(case), op.weights / tensor / stream, pairs.sharded == 3
    traffic, once = Traffic(pairs, rules), Traffic(pairs, rules)  # of a micro-batch, and of a step
    if op.weights:
        forward, backward = pairs.passes([case], op)[0] if passes is None else passes
        compute, exposed, late, hbm, *sent = again * forward + backward
        traffic.sent[[STREAM, STREAM + 4]] = sent
        copies, sums = (again, 1) if op.side == "in" else (1, again)
        gathers = np.where(pairs.sequence, copies, sums)  # all-reduces take both in the same pass
        block = rows * (op.k if op.side == "in" else op.n) / tensor
        exposed = exposed + traffic.rings(TENSOR, block, gathers, sums)
    else:
        forward = op.flops * rows / tensor / wafer.flops
        compute, late = (2 + again) * forward, np.zeros_like(forward)
        # keys and values move in a ring of all dies with rows of the same samples
        block = 2 * case.work.kv_width * rows / tensor
        spread = (pairs.xy == 0) & (-(-case.samples // data) % stream > 0)
        exposed = traffic.rings(CONTEXT, block, 1 + again, 1, forward / context)
        exposed = exposed + traffic.rings(STREAM, block * spread, 1 + again, 1, forward / stream)
        scores = 2 * op.scores * (again == 1)  # that are kept
        hbm = ((2 + again) * (op.split + rules.element * case.work.width) + scores) * rows / tensor
    exposed = exposed + np.maximum(0.0, traffic.replicas(weights * stage, 2) - compute)
    exposed = exposed + traffic.crowded(compute + exposed + late)
    hbm = hbm + weights * stage * (2 * rules.element + rules.sums)
    late = late + np.maximum(0.0, hbm / rate - compute - exposed - late)
    hides = compute * (1 + again) / (2 + again)  # all after the first forward pass
    sync = once.replicas(weights * ~stage, 1) - hides
    once.sent += traffic.sent
    ends = np.maximum(sync, once.crowded(compute + exposed + late))
    micro = case.micro_batches
    update = 2 * weights / np.where(pairs.sharded > 0, data * context, 1) * rules.states
    compute, exposed, late = compute * micro, exposed * micro + ends, late * micro + update / rate
    sent = traffic.sent * (micro - 1) + once.sent
    joules = wafer.dies * wafer.joules(compute * wafer.flops, (sent * pairs.links).sum(0), hbm * micro + update)
    return sent, compute, exposed, late, joules, case.cost(compute + exposed + late, joules)


def option(case: Case, op: Operator, split: ParallelSizes, placed: GroupPlacement, recompute: str) -> Option:
    """Return the price of an operator with a tuple on a placement."""
    pairs = Pairs(case.wafer, [(split, placed)])
    return picked(priced(case, op, pairs, [recompute])[0], op, pairs.pairs[0], recompute, 0)


def picked(figures: Figures, op: Operator, pair: Pair, recompute: str, number: int) -> Option:
    """Return the option of a pair, whose number in the figures is `number`."""
    split, placed = pair
    rows, columns = layouts(split, placed)
    takes, gives = (rows if op.side == side else columns for side in ("in", "out"))
    own: dict[str, Any] = {name: column[..., number].tolist() for name, column in vars(figures).items()}
    return Option(
        split=split if op.weights else replace(split, sharded=0), placed=placed, recompute=recompute, takes=takes,
        gives=gives, **own,
    )  # fmt: skip


def layouts(split: ParallelSizes, placed: GroupPlacement) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Return the layout of a pair of products outside, and between them: columns if heads are cut."""
    rows = (placed.sides, placed.strides, split.sizes, split.sequence)
    return rows, (*rows, split.moving) if split.moving == "xy" or split.tensor > 1 else rows
