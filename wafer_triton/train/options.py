"""The options of an operator on a wafer: its tuple of parallel sizes with a placement, seconds, bytes and traffic.

A tuple is (data, tensor, sequence, context, sharded, stream, moving). Sizes multiply to the dies. `sequence` splits the
rows of plain tensor parallelism as well. `sharded` is a stage of ZeRO over data and context. A stream moves weights
("w"), or inputs into the first product of a pair and sums out of the second ("xy").

Seconds are for one micro-batch, forward and backward, at the dies' peak rate:

| traffic | steps | bytes of a step | hidden by |
| --- | --- | --- | --- |
| stream, forward and twice backward | N - 1 | a block of the moving operand | the product of the step |
| tensor, 2 gathers and 2 sums a pair (all-reduces take both) | 2 (N - 1) each pair | rows / N | nothing |
| keys and values over context, or a weight stream's rows | N - 1, backward twice | own keys and values | attention |
| sharded weights: two gathers, one sum of gradients | N - 1 | a shard | the operator's products |
| gradients of replicated weights, once a step | 2 (N - 1) | a shard | the last backward pass |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from wafer_triton.errors import ConfigError, check_counts
from wafer_triton.train.dies import Wafer
from wafer_triton.train.flows import bisection_bytes
from wafer_triton.train.placement import IDLE, GroupPlacement
from wafer_triton.train.workload import Operator, Rules, Workload

RECOMPUTE = ("none", "selective", "full")
DATA, TENSOR, CONTEXT, STREAM = range(4)  # of `placement.AXES`


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
    """A workload on a wafer, which holds `layers` of its layers, with the size of micro-batches and the rules of bytes.

    `in_flight` micro-batches keep activations at once (a pipeline over wafers has several).
    """

    wafer: Wafer
    work: Workload
    micro_batches: int = 1
    layers: int = 0
    in_flight: int = 1
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        check_counts(micro_batches=self.micro_batches, in_flight=self.in_flight)
        if self.work.batch % self.micro_batches:
            raise ConfigError(
                f"{self.work.name}: a batch of {self.work.batch} samples does not divide by {self.micro_batches} "
                f"micro-batches; give a divisor of {self.work.batch}"
            )

    @property
    def samples(self) -> int:
        """Return samples of a micro-batch on the wafer."""
        return self.work.batch // self.micro_batches

    @property
    def tokens(self) -> int:
        """Return tokens of a micro-batch on the wafer."""
        return self.samples * self.work.sequence

    @cached_property
    def reshard_seconds(self) -> float:
        """Return seconds of a step to change the layout of an activation of the layer's width, forward and backward.

        The change is an all-to-all over the wafer. It takes its bisection bound, which routes along rows and then
        columns reach.
        """
        wafer = self.wafer
        pair = self.tokens * self.work.width * self.rules.element / wafer.dies**2
        load = bisection_bytes(wafer.rows, wafer.cols, pair) / wafer.link_bytes_per_second
        return 2 * self.micro_batches * (load + (wafer.rows + wafer.cols - 2) * wafer.link_seconds)


@dataclass(frozen=True)
class Option:
    """An operator with a tuple, a placement and a kind of recompute, for one layer.

    `seconds` are of a whole step: products, exposed traffic of all micro-batches, and exposed sums of gradients.
    `state_bytes` and `kept_bytes` are a die's: states of parameters, and activations of all micro-batches in flight.
    `takes` and `gives` are the layouts of input and output. If the layout that an operator gives is not the one that
    the next takes, a re-sharding is between them.
    """

    split: ParallelSizes
    placed: GroupPlacement
    takes: tuple[object, ...]
    gives: tuple[object, ...]
    compute: float
    exposed: float
    hbm: float  # seconds that HBM takes beyond both
    state_bytes: float
    kept_bytes: float
    sent: tuple[float, ...]  # bytes that a die sends along every axis, in a step
    hbm_bytes: float  # of the wafer, in a step

    @cached_property
    def seconds(self) -> float:
        """Return seconds of a step."""
        return self.compute + self.exposed + self.hbm

    @cached_property
    def traffic(self) -> float:
        """Return bytes times links of a die, in a step."""
        return sum(size * step.links for step, size in zip(self.placed.steps, self.sent, strict=True))

    @cached_property
    def bytes(self) -> float:
        """Return bytes that a die holds."""
        return self.state_bytes + self.kept_bytes


def splits(case: Case) -> Iterator[ParallelSizes]:
    """Return every tuple that the wafer's dies and the workload's sizes allow."""
    dies, work = case.wafer.dies, case.work
    for data in _divisors(dies):
        if case.samples % data:
            continue
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


def option(case: Case, op: Operator, split: ParallelSizes, placed: GroupPlacement, recompute: str) -> Option:
    """Return the price of an operator with a tuple on a placement."""
    return _Priced(case, op, split, placed, recompute).option()


class _Priced:
    def __init__(self, case: Case, op: Operator, split: ParallelSizes, placed: GroupPlacement, recompute: str) -> None:
        self.case, self.op, self.split, self.placed, self.recompute = case, op, split, placed, recompute
        self.wafer, self.rules = case.wafer, case.rules
        self.sent = [0.0] * 4  # by a die in one micro-batch, along every axis
        self.once = [0.0] * 4  # likewise once a step
        # rows that do not divide are padded
        own = case.samples // split.data * -(-case.work.sequence // split.context)
        self.group_tokens = -(-own // split.stream) * split.stream  # of the dies that share rows by tensor, stream
        self.weights = op.weights / split.tensor  # of the stream's dies together
        self.forward = op.flops * self.group_tokens / (split.tensor * split.stream) / self.wafer.flops

    def option(self) -> Option:
        case, split, rules = self.case, self.split, self.rules
        attention = self.op.side == "attention"
        there, back = self._attention() if attention else self._product()  # exposed, forward and backward
        recomputed = self.recompute == "full" or (self.recompute == "selective" and attention)
        compute = self.forward * (4 if recomputed else 3)
        exposed = there * (2 if self.recompute == "full" else 1) + back
        gathers, sync = self._replicas(3 * self.forward)
        exposed += gathers
        kept, moved = self._kept()
        shard = self.weights / split.stream * rules.weight
        hbm_bytes = 3 * shard + 2 * moved
        late = max(0.0, hbm_bytes / self.wafer.hbm_bytes_per_second - compute - exposed)
        micro, dies = case.micro_batches, self.wafer.dies
        over = split.data * split.context
        states = rules.state_bytes(self.weights / split.stream, split.sharded, over)
        update = 2 * self.weights / split.stream / (over if split.sharded else 1) * rules.states
        rows = (self.placed.sides, self.placed.strides, self.placed.fixed, split.sizes, split.sequence)
        # between the products of a pair: columns if heads are cut
        inner = (*rows, split.moving, "columns") if split.moving == "xy" or split.tensor > 1 else rows
        return Option(
            split, self.placed, rows if self.op.side == "in" else inner, rows if self.op.side == "out" else inner,
            compute * micro, exposed * micro + sync,
            late * micro + update / self.wafer.hbm_bytes_per_second,
            states, kept * case.in_flight,
            tuple(each * micro + once for each, once in zip(self.sent, self.once, strict=True)),
            (hbm_bytes * micro + update) * dies,
        )  # fmt: skip

    # --- traffic: seconds not hidden, forward and backward ---

    def _ring(self, axis: int, count: float, size: float, hidden: float = 0.0, once: bool = False) -> float:
        """Return exposed seconds of `count` steps with blocks of `size` bytes; `hidden` seconds of each are hidden."""
        step = self.placed.steps[axis]
        if step is IDLE or count <= 0:
            return 0.0
        (self.once if once else self.sent)[axis] += count * size
        return count * max(0.0, step.seconds(self.wafer, size) - hidden)

    def _product(self) -> tuple[float, float]:
        op, split, rules = self.op, self.split, self.rules
        n, rows = split.stream, self.group_tokens / split.stream
        there = back = 0.0
        if n > 1:
            work = self.forward / n
            size = self.weights / n if split.moving == "w" else rows * (op.k if op.side == "in" else op.n)
            copies, sums = size * rules.element, size * rules.sums
            if split.moving == "w" or op.side == "in":
                there += self._ring(STREAM, n - 1, copies, work)
                back += self._ring(STREAM, n - 1, copies, work) + self._ring(STREAM, n - 1, sums, work)
            else:
                there += self._ring(STREAM, n - 1, sums, work)
                back += self._ring(STREAM, n - 1, copies, 2 * work)
        t = split.tensor
        if t > 1:
            size = rows * (op.k if op.side == "in" else op.n) / t
            gather, scatter = size * rules.element, size * rules.sums
            if split.sequence:
                first, second = (gather, scatter) if op.side == "in" else (scatter, gather)
                there += self._ring(TENSOR, t - 1, first)
                back += self._ring(TENSOR, t - 1, second)
            else:
                both = self._ring(TENSOR, t - 1, gather) + self._ring(TENSOR, t - 1, scatter)
                there, back = (there, back + both) if op.side == "in" else (there + both, back)
        return there, back

    def _attention(self) -> tuple[float, float]:
        """Return exposed seconds of keys and values, which move in a ring of all dies with rows of the same samples."""
        split, rules = self.split, self.rules
        there = back = 0.0
        around = [(CONTEXT, split.context)]
        if split.moving == "w" and self.case.samples // split.data % split.stream:
            around.append((STREAM, split.stream))
        own = 2 * self.case.work.kv_width * self.group_tokens / split.tensor / split.stream
        for axis, size in around:
            there += self._ring(axis, size - 1, own * rules.element, self.forward / size)
            back += self._ring(axis, size - 1, own * (rules.element + rules.sums), 2 * self.forward / size)
        return there, back

    def _replicas(self, products: float) -> tuple[float, float]:
        """Return exposed seconds of a micro-batch for sharded weights, and of a step for sums of gradients."""
        split, rules = self.split, self.rules
        exposed = sync = 0.0
        block = self.weights / split.stream / (split.data * split.context)
        for axis, size in ((DATA, split.data), (CONTEXT, split.context)):
            if size > 1 and block:
                if split.sharded == 3:
                    exposed += 2 * self._ring(axis, size - 1, block * rules.element)
                    exposed += self._ring(axis, size - 1, block * rules.sums)
                    self.sent[axis] += (size - 1) * block * rules.element  # the second gather
                else:
                    sync += self._ring(axis, size - 1, block * rules.sums, once=True)
                    sync += self._ring(axis, size - 1, block * rules.weight, once=True)
            block *= size  # the second axis gathers the first one's results
        return max(0.0, exposed - products), max(0.0, sync - products * 2 / 3)

    def _kept(self) -> tuple[float, float]:
        """Return bytes of activations of a micro-batch on a die: kept for backward, and written at all."""
        op, split = self.op, self.split
        rows = self.group_tokens / split.stream
        common = op.common * rows / (split.tensor if split.sequence or split.tensor == 1 else 1)
        written = common + op.split * rows / split.tensor
        scores = op.scores * rows / split.tensor
        if self.recompute == "none":
            return written + scores, written + scores
        if self.recompute == "selective":
            return written, written
        entry = 2 * op.k * rows / (split.tensor if split.sequence else 1) if op.name == "qkv" else 0.0
        return entry, written


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
