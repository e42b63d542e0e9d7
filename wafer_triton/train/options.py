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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafer_triton.errors import ConfigError, check_counts
from wafer_triton.train.cost import Streams, sliced
from wafer_triton.train.dies import Wafer
from wafer_triton.train.placement import GroupPlacement, exchange
from wafer_triton.train.product import CUTS, PASSES
from wafer_triton.train.workload import Operator, Rules, Workload

TIE = 1e-11  # that the figure counts which is not the objective
MANY, FEW = 256, 32  # samples of a micro-batch, and micro-batches, up to which all numbers are tried
RECOMPUTE = ("none", "selective", "full")
DATA, TENSOR, CONTEXT, STREAM = range(4)  # of `placement.AXES`
LANES = {"relay": 4, "none": 0}  # buffers beside the own block; of a ring two
Pair = tuple["ParallelSizes", GroupPlacement]
Column = NDArray[Any]  # of a number for every pair


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
        parts = [
            f"{name} {size}"
            for name, size in zip(("data", "tensor", "context", "stream"), self.sizes, strict=True)
            if size > 1
        ]
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
class Option:
    """An operator with a tuple, a placement and a kind of recompute, for one layer.

    Seconds and joules are of a whole step: products, exposed traffic of all micro-batches, and exposed sums of
    gradients. `state_bytes` and `kept_bytes` are a die's: states of parameters, and activations of all micro-batches in
    flight. `work_bytes` are held while the layer runs: its gathered weights, and what it recomputes.
    `takes` and `gives` are the layouts of input and output. If the layout that an operator gives is not the one that
    the next takes, a re-sharding is between them.
    """

    split: ParallelSizes
    placed: GroupPlacement
    recompute: str
    takes: tuple[object, ...]
    gives: tuple[object, ...]
    sent: tuple[float, ...]  # bytes that a die sends, as `GroupPlacement.loads`
    compute: float
    exposed: float
    hbm: float  # seconds that HBM takes beyond both
    joules: float
    cost: float  # as `Case.cost`
    state_bytes: float
    kept_bytes: float
    work_bytes: float

    @property
    def seconds(self) -> float:
        """Return seconds of a step."""
        return self.compute + self.exposed + self.hbm

    @property
    def bytes(self) -> float:
        """Return bytes that a die holds for the whole step."""
        return self.state_bytes + self.kept_bytes

    @property
    def loads(self) -> Column:
        """Return bytes over every link in a step."""
        return np.array(self.sent) @ self.placed.loads


def splits(case: Case) -> Iterator[ParallelSizes]:
    """Return every tuple that the wafer's dies and the workload's sizes allow; samples of data groups may be padded."""
    dies, work = case.wafer.dies, case.work
    for data in _divisors(dies):
        for context in _divisors(dies // data):
            if context > work.sequence:
                continue
            for tensor in _divisors(dies // data // context):
                stream = dies // data // context // tensor
                for moving in ("w", "xy") if stream > 1 else ("",):
                    cut = tensor * (stream if moving == "xy" else 1)
                    if work.kv_heads % cut or work.hidden % cut:
                        continue
                    for sharded in (0, 1, 3) if data * context > 1 else (0,):
                        for sequence in (False, True) if tensor > 1 else (False,):
                            yield ParallelSizes(data, tensor, sequence, context, sharded, stream, moving)


def cases(case: Case, pairs: Iterable[Pair]) -> Iterator[Case]:
    """Yield a case with each number of samples in a micro-batch, the fewest first, in as few as hold the batch.

    Samples come alone, or in groups with which no sample is cut over the dies of a weight stream, whose rows then need
    no ring of keys and values. Beyond `MANY` samples and `FEW` micro-batches numbers are `1 / FEW` apart.
    """
    batch, dies = case.work.batch, case.wafer.dies
    groups = sorted({1} | {split.data * split.stream for split, _ in pairs if split.moving == "w"})
    few = {-(-batch // micro // number) * number for micro in range(1, FEW + 1) for number in groups}
    apart, size = set[int](), MANY
    while size < batch // FEW:
        size = -(-(size + size // FEW) // dies) * dies
        apart.add(size)
    for samples in sorted({*range(1, min(MANY, batch + groups[-1])), *few, *apart}):
        for number in (*groups, samples) if samples in apart else groups:
            one = replace(case, micro_batches=-(-batch // samples), groups=number)
            if one.samples == samples:
                yield one
                break


class Pairs:
    """Pairs of a tuple and a placement as columns: an operator is priced with all of them at once."""

    def __init__(self, wafer: Wafer, pairs: Sequence[Pair]) -> None:
        self.wafer, self.pairs = wafer, pairs
        self.sizes = np.array([split.sizes for split, _ in pairs]).T
        self.sequence = np.array([split.sequence for split, _ in pairs])
        self.sharded = np.array([split.sharded for split, _ in pairs])
        self.xy = np.array([split.moving == "xy" for split, _ in pairs])
        links = np.array([[(step.links, step.most) for step in placed.steps] for _, placed in pairs])
        self.links, self.most = np.tile(links.transpose(2, 1, 0), (1, 2, 1))  # [8, pairs], as `GroupPlacement.loads`
        self.rings = [self._transfers([placed.steps[axis].transfers for _, placed in pairs]) for axis in range(4)]
        numbers: dict[object, int] = {}  # of layouts
        self.layouts = np.array([[numbers.setdefault(one, len(numbers)) for one in layouts(*pair)] for pair in pairs]).T
        self.by_layout = np.argsort(self.layouts[0], kind="stable")
        self.starts = np.flatnonzero(np.diff(self.layouts[0][self.by_layout], prepend=-1))  # of each in this order
        lanes = np.array([LANES.get(placed.steps[STREAM].kind, 2) for _, placed in pairs])
        alike = np.array([*self.sizes[[TENSOR, STREAM]], self.xy, lanes, *np.concatenate(self.rings[STREAM])])
        self.alike = np.unique(alike, axis=1, return_inverse=True)[1]  # a number of pairs whose products are alike
        self.streams = Streams(self.sizes[STREAM], lanes, links[:, STREAM, 0], tuple(self.rings[STREAM]))

    def passes(self, cases: Sequence[Case], op: Operator) -> list[list[Column]]:
        """Return compute, exposed and waiting seconds, bytes of HBM, copies and sums [6, pairs] of both passes.

        Of a micro-batch of each case, all of one wafer and with the same rules: the forward pass of a product, and the
        others together. Equal products of all cases are sliced once, which halves the time of a plan.
        """
        rows = np.array([self.rows(case) for case in cases])
        _, first, number = np.unique(rows * len(self.pairs) + self.alike, return_index=True, return_inverse=True)
        case, rows, first = cases[0], rows.flat[first], first % len(self.pairs)
        (_, tensor, _, stream), xy = self.sizes[:, first], self.xy[first]
        both = np.zeros((2, 6, len(first)))
        for moving, own in (("w", ~xy), ("x" if op.side == "in" else "y", xy)):
            k = np.ceil(op.k / (tensor if op.side == "out" else 1) / (stream if "k" in CUTS[moving] else 1))
            n = np.ceil(op.n / (tensor if op.side == "in" else 1) / (stream if "n" in CUTS[moving] else 1))
            for at, which in enumerate(PASSES[moving] if own.any() else ()):
                tiles = np.array(np.broadcast_arrays(rows, k, n))[:, own]
                both[min(at, 1)][:, own] += sliced(
                    self.wafer, self.streams.only(first[own]), moving, which, tiles,
                    case.rules.element, case.rules.sums, case.weights,
                )[1:]  # fmt: skip
        return [[one[:, own] for one in both] for own in number.reshape(len(cases), -1)]

    def rows(self, case: Case) -> Column:
        """Return rows of a die before tensor parallelism splits them; those that do not divide are padded."""
        data, _, context, stream = self.sizes
        own = -(-case.samples // data) * -(-case.work.sequence // context)
        return -(-own // stream)

    def _transfers(self, steps: Sequence[tuple[tuple[tuple[int, int], int], ...]]) -> list[Column]:
        """Return hops, blocks over the busiest link and count of each kind of transfer [kinds, pairs]."""
        most = max(map(len, steps))
        rows = [[(*pair, count) for pair, count in step] + [(0, 0, 0)] * (most - len(step)) for step in steps]
        return list(np.array(rows, float).reshape(len(steps), most, 3).transpose(2, 1, 0))

    def ring(self, axis: int, size: Column, beside: Column | float = 0.0) -> Column:
        """Return exposed seconds of the transfers of an axis with blocks of `size` bytes, in pieces that fit SRAM."""
        hops, load, count = self.rings[axis]
        pieces = np.maximum(1, np.ceil(5 * size / self.wafer.sram_bytes))
        taken = self.wafer.transfer_seconds(hops, size / pieces * load)
        return (size > 0) * (count * np.maximum(0.0, taken * pieces - beside)).sum(0)


def option(case: Case, op: Operator, split: ParallelSizes, placed: GroupPlacement, recompute: str) -> Option:
    """Return the price of an operator with a tuple on a placement."""
    return Priced(case, op, Pairs(case.wafer, [(split, placed)]), recompute).option(0)


class Priced:
    """An operator with each of many pairs: figures are columns, as those of `Option`, which `option` picks."""

    def __init__(self, case: Case, op: Operator, columns: Pairs, recompute: str, passes: Sequence[Column] = ()) -> None:
        self.case, self.op, self.columns, self.recompute = case, op, columns, recompute
        self.wafer, self.rules = case.wafer, case.rules
        rules, rate = case.rules, case.wafer.hbm_bytes_per_second
        self.data, self.tensor, self.context, self.stream = columns.sizes
        self.rows = columns.rows(case)
        self.weights = op.weights / self.tensor / self.stream
        self.sent, self.once = (np.zeros((8, len(columns.pairs))) for _ in range(2))
        attention = op.side == "attention"
        again = 2 if recompute == "full" or (recompute == "selective" and attention) else 1  # forward passes
        if attention:
            compute, exposed, late, hbm = self._attention(again)
        else:
            forward, backward = passes or columns.passes([case], op)[0]
            compute, exposed, late, hbm, *sent = again * forward + backward
            self.sent[[STREAM, STREAM + 4]] += sent
        exposed = exposed + self._tensor(again)
        gathers, sync, moved = self._replicas()
        hbm = hbm + moved
        exposed = exposed + np.maximum(0.0, gathers - compute)
        exposed += self._crowded(self.sent, compute + exposed + late)
        late = late + np.maximum(0.0, hbm / rate - compute - exposed - late)
        hides = compute * (1 + again) / (2 + again)  # all after the first forward pass
        ends = np.maximum(sync - hides, self._crowded(self.sent + self.once, compute + exposed + late))
        micro, over = case.micro_batches, self.data * self.context
        update = 2 * self.weights / np.where(self.columns.sharded > 0, over, 1) * rules.states
        self.compute = compute * micro
        self.exposed = exposed * micro + ends
        self.hbm = late * micro + update / rate
        self.state_bytes = rules.state_bytes(self.weights, columns.sharded, over)
        self.kept_bytes, self.work_bytes = self._memory()
        self.sent = self.sent * micro + self.once
        self.seconds, self.bytes = self.compute + self.exposed + self.hbm, self.state_bytes + self.kept_bytes
        links = (self.sent * columns.links).sum(0)
        self.joules = self.wafer.dies * self.wafer.joules(self.compute * self.wafer.flops, links, hbm * micro + update)
        self.cost = case.cost(self.seconds, self.joules)

    def option(self, number: int) -> Option:
        """Return the option of a pair."""
        split, placed = self.columns.pairs[number]
        split = split if self.op.weights else replace(split, sharded=0)
        rows, columns = layouts(split, placed)
        takes, gives = (rows if self.op.side == side else columns for side in ("in", "out"))
        figures = (
            self.compute, self.exposed, self.hbm, self.joules, self.cost, self.state_bytes, self.kept_bytes,
            self.work_bytes,
        )  # fmt: skip
        sent = tuple(map(float, self.sent[:, number]))
        return Option(split, placed, self.recompute, takes, gives, sent, *(float(column[number]) for column in figures))

    def _crowded(self, sent: Column, seconds: Column) -> Column:
        """Return what the busiest link, to which all axes add, takes beyond `seconds`."""
        rate, beyond = self.wafer.link_bytes_per_second, np.zeros_like(seconds)
        for number in map(int, np.flatnonzero((sent * self.columns.most).sum(0) > seconds * rate)):
            busiest = (sent[:, number] @ self.columns.pairs[number][1].loads).max() / rate
            beyond[number] = max(0.0, busiest - seconds[number])
        return beyond

    def _ring(self, axis: int, size: Column, beside: Column | float = 0.0, sums: bool = False) -> Column:
        """Return exposed seconds of a ring's transfers of blocks of `size` bytes; sums move backwards."""
        self.sent[axis + 4 * sums] += (self.columns.sizes[axis] - 1) * size
        return self.columns.ring(axis, size, beside)

    def _attention(self, again: int) -> tuple[Column, Column, Column, Column]:
        """Return compute, exposed transfers, waits for HBM and bytes of HBM of a micro-batch.

        Keys and values move in a ring of all dies with rows of the same samples.
        """
        work, rules = self.case.work, self.rules
        forward = self.op.flops * self.rows / self.tensor / self.wafer.flops
        spread = ~self.columns.xy & (-(-self.case.samples // self.data) % self.stream > 0)
        own = 2 * work.kv_width * self.rows / self.tensor
        exposed = np.zeros_like(own)
        for axis, size in ((CONTEXT, self.context), (STREAM, np.where(spread, self.stream, 1))):
            block, beside = own * (size > 1), forward / size
            exposed += (again + 1) * self._ring(axis, block * rules.element, beside)
            exposed += self._ring(axis, block * rules.sums, beside, sums=True)
            self.sent[axis] += again * (self.columns.sizes[axis] - 1) * block * rules.element
        rows = self.rows / self.tensor
        hbm = ((2 + again) * (self.op.split + rules.element * work.width) + 2 * self._scores()) * rows
        compute = (2 + again) * forward
        return compute, exposed, np.zeros_like(own), hbm

    def _scores(self) -> float:
        """Return bytes of scores that a row keeps."""
        return self.op.scores if self.recompute == "none" else 0.0

    def _tensor(self, again: int) -> Column:
        """Return seconds of the gathers and sums of tensor parallelism around a product."""
        op, rules = self.op, self.rules
        if op.side == "attention":
            return np.zeros(len(self.rows))
        size = self.rows * (op.k if op.side == "in" else op.n) / self.tensor * (self.tensor > 1)
        gather, scatter = self.columns.ring(TENSOR, size * rules.element), self.columns.ring(TENSOR, size * rules.sums)
        # without `sequence` both, and in the product's forward or backward pass alone
        copies, sums = (
            np.where(self.columns.sequence, own, again if op.side == "out" else 1)
            for own in ((again, 1) if op.side == "in" else (1, again))
        )
        sent = (self.tensor - 1) * size
        self.sent[TENSOR] += copies * sent * rules.element
        self.sent[TENSOR + 4] += sums * sent * rules.sums
        return copies * gather + sums * scatter

    def _replicas(self) -> tuple[Column, Column, Column]:
        """Return seconds of a micro-batch for sharded weights, of a step for sums of gradients, and bytes of HBM."""
        rules, stage = self.rules, self.columns.sharded == 3
        gathers = sync = np.zeros_like(self.weights)
        block = self.weights / (self.data * self.context)
        for axis, size in ((DATA, self.data), (CONTEXT, self.context)):
            inside, outside = block * ((size > 1) & stage), block * ((size > 1) & ~stage)
            gathers = gathers + 2 * self._ring(axis, inside * rules.element)
            self.sent[axis] += (size - 1) * inside * rules.element
            gathers = gathers + self._ring(axis, inside * rules.sums, sums=True)
            for way, own in ((axis, rules.weight), (axis + 4, rules.sums)):
                sync = sync + self.columns.ring(axis, outside * own)
                self.once[way] += (size - 1) * outside * own
            block = block * size  # the second axis gathers the first one's results
        return gathers, sync, self.weights * stage * (2 * rules.element + rules.sums)

    def _memory(self) -> tuple[Column, Column]:
        """Return a die's bytes of activations for backward, and of the layer's working memory."""
        op, cut = self.op, np.where(self.columns.sequence | (self.tensor == 1), self.tensor, 1)
        written = op.common * self.rows / cut + op.split * self.rows / self.tensor
        scores = op.scores * self.rows / self.tensor
        gathered = self.weights * (self.columns.sharded == 3) * (self.rules.weight + self.rules.gradient)
        if self.recompute == "full":
            entry = 2 * op.k * self.rows / cut if op.name == "qkv" else 0.0 * written
            return entry * self.case.in_flight, gathered + written + scores
        if self.recompute == "selective":
            return written * self.case.in_flight, gathered + scores
        return (written + scores) * self.case.in_flight, gathered


def layouts(split: ParallelSizes, placed: GroupPlacement) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Return the layout of a pair of products outside, and between them: columns if heads are cut."""
    rows = (placed.sides, placed.strides, placed.fixed, split.sizes, split.sequence)
    return rows, (*rows, split.moving) if split.moving == "xy" or split.tensor > 1 else rows


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
