"""Which rounds of a schedule share a launch: found from the rounds alone.

A run of compute-shift rounds keeps its sums in registers and ends with their rounding, if that is what follows. The
rounds of a reduce tree run in topological order: programs wait only for lower ones, so any mesh is safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from wafer_triton.mesh import Mesh
from wafer_triton.schedule.rounds import Exchange, Index, Local, Round, Schedule, Slot

COMBINING = ("add", "maximum")  # what a reduce tree can do with its messages


@dataclass(frozen=True, eq=False)
class ComputeShifts:
    """A run of leading rounds, each a shift of two operands beside their product: c += a b.

    `number` products take `rounds` rounds, one more if the last only rounds the sums from `c` to `out`. In product t
    the operands lie in slots a[t % 2] and b[t % 2]; `to` are the cores that each core's a and b go to.
    """

    rounds: int
    number: int
    c: str
    out: str
    a: tuple[Slot, Slot]
    b: tuple[Slot, Slot]
    to: tuple[Index, Index]
    add: bool
    params: Mapping[str, Any]


def compute_shifts(schedule: Schedule, rounds: tuple[Round, ...]) -> ComputeShifts | None:
    """The longest run of leading rounds that shift both operands of one product to and fro between two slots."""
    first = sends_of(rounds[0], schedule.mesh) or {}
    if len(first) < 2:
        return None
    (product,), to = rounds[0].locals, (first[0][1], first[1][1])
    slots = [(slot, first[i][0].dst) for i, slot in enumerate(product.ins)]
    if product.outs[0].buffer in _moving(slots) or not _keeps_sums(schedule, product):
        return None
    number = 1
    while number < len(rounds) and _goes_on(rounds[number], schedule.mesh, product, slots, to, number):
        number += 1
    c = product.outs[0].buffer
    out = _rounding(schedule, rounds[number:], product.outs[0], _moving(slots))
    params = {name: value for name, value in product.params.items() if name != "add"}
    return ComputeShifts(
        number + (out is not None), number, c, out or c, slots[0], slots[1], to, bool(product.params.get("add")), params
    )


def rings_of(run: ComputeShifts, mesh: Mesh) -> tuple[Index, Index] | None:
    """The rows and the columns of a square mesh in the order in which a run's b and a pass them; None if it has none.

    That is, unless every row hands a on alike along one ring of all columns, and so every column b.
    """
    rows, cols = mesh.shape
    if rows != cols:
        return None
    to_a, to_b = (to.reshape(mesh.shape) for to in run.to)
    along, down = to_a[0], to_b[:, 0] // cols
    if not np.array_equal(to_a, np.arange(rows)[:, None] * cols + along):
        return None
    if not np.array_equal(to_b, down[:, None] * cols + np.arange(cols)):
        return None
    rings = _cycle(down), _cycle(along)
    return rings if all(len(order) == rows for order in rings) else None


def _cycle(to: Index) -> Index:
    """What is passed on the way from 0 back to 0."""
    passed = [0]
    while to[passed[-1]] != 0:
        passed.append(int(to[passed[-1]]))
    return np.array(passed)


def _goes_on(
    round_: Round, mesh: Mesh, product: Local, slots: list[tuple[Slot, Slot]], to: tuple[Index, Index], number: int
) -> bool:
    """Whether a round is product `number` of a run that began with `product`."""
    sends = sends_of(round_, mesh) or {}
    if len(sends) < 2:
        return False
    (op,) = round_.locals
    here, there = number % 2, 1 - number % 2
    return (
        str(op.outs[0]) == str(product.outs[0])
        and all(str(op.ins[i]) == str(slots[i][here]) and str(sends[i][0].dst) == str(slots[i][there]) for i in (0, 1))
        and {**op.params, "add": True} == {**product.params, "add": True}
        and bool(op.params.get("add"))
        and all(np.array_equal(sends[i][1], to[i]) for i in (0, 1))
    )


def _moving(slots: list[tuple[Slot, Slot]]) -> set[str]:
    """The buffers that a run's operands pass through: until all cores are done nothing else may be written there."""
    return {slot.buffer for pair in slots for slot in pair}


def _keeps_sums(schedule: Schedule, product: Local) -> bool:
    """Whether the sums are all of their buffer, which stores them unrounded: then registers can hold them for long."""
    (out,) = product.outs
    buffer = schedule.buffers[out.buffer]
    unrounded = ("fp32", "fp16") if product.params.get("accumulate") == "fp16" else ("fp32",)
    return out.is_fixed and buffer.slots == 1 and buffer.dtype in unrounded


def _rounding(schedule: Schedule, rounds: tuple[Round, ...], c: Slot, moving: set[str]) -> str | None:
    """The buffer, none of `moving`, that the next round copies c to, if c is scratch and nobody looks at it again."""
    if not rounds or rounds[0].exchanges or len(rounds[0].locals) != 1:
        return None
    (op,) = rounds[0].locals
    buffer, target = schedule.buffers[c.buffer], schedule.buffers[op.outs[0].buffer]
    whole = op.op == "copy" and op.where is None and op.params["size"] == buffer.numel == target.numel
    plain = whole and op.ins[0].buffer == c.buffer and buffer.slots == 1 == target.slots and target.name not in moving
    if not plain or buffer.role != "scratch" or any(c.buffer in round_.touched for round_ in set(rounds[1:])):
        return None
    return target.name


@lru_cache(maxsize=256)
def sends_of(round_: Round, mesh: Mesh) -> dict[int, tuple[Exchange, Index]] | None:
    """For each shifted input (0: a, 1: b) of a compute-shift round its exchange and whom each core sends to.

    None if the round is not one product on all cores beside full shifts of its inputs.
    """
    if [(op.op, op.where) for op in round_.locals] != [("gemm", None)] or not round_.overlaps:
        return None
    (op,) = round_.locals
    sends = {}
    for exchange in round_.exchanges:
        number = next((i for i, slot in enumerate(op.ins) if str(slot) == str(exchange.src)), None)
        full = (
            exchange.lines is None and exchange.recv.ndim == 1 and len(set(exchange.send)) == mesh.length(exchange.axis)
        )
        if number is None or not full or not (exchange.src.is_fixed and exchange.dst.is_fixed) or number in sends:
            return None
        to = np.empty(mesh.cores, np.int64)
        to[exchange.senders.flat(mesh)] = exchange.receivers.flat(mesh)
        sends[number] = (exchange, to)
    return sends


def reduce_tree(schedule: Schedule, rounds: tuple[Round, ...]) -> Tree | None:
    """The reduce tree that rounds begin with, if its messages come to mailboxes of their own."""
    tree = reduction(rounds, schedule.mesh)
    return tree if tree is not None and tree.inboxes <= mailboxes(schedule) else None


@dataclass(frozen=True, eq=False)
class Tree:
    """A reduction found in the leading rounds: per core its parent, its message's slot there, its children."""

    rounds: int
    acc: str
    op: str
    parent: Index
    slot: Index
    children: Index
    inboxes: frozenset[str]  # buffers that the messages pass through
    sent: Index  # in which round the core sends; after all others for roots

    def round_of(self, core: int, slot: int) -> int:
        """In which of its rounds a core's message number `slot` arrives."""
        return int(self.sent[(self.parent == core) & (self.slot == slot)][0])


def reduction(rounds: tuple[Round, ...], mesh: Mesh) -> Tree | None:
    """The longest run of leading rounds that only send one buffer and combine what arrives, as a tree."""
    parent, slot = np.full(mesh.cores, -1), np.zeros(mesh.cores, np.int64)
    children, sent = np.zeros(mesh.cores, np.int64), np.full(mesh.cores, len(rounds))
    used, acc, name = 0, "", ""
    inboxes: set[str] = set()
    for number, round_ in enumerate(rounds):
        messages = combining(round_)
        if messages is None:
            break
        (_, first) = messages[0]
        if used and (first.outs[0].buffer, first.op) != (acc, name):
            break
        pairs = [(exchange.senders.flat(mesh), exchange.receivers.flat(mesh)) for exchange, _ in messages]
        # a core that has sent is done; a round that breaks this begins another tree (or is none)
        if any((parent[send] >= 0).any() or (parent[recv] >= 0).any() for send, recv in pairs):
            break
        acc, name, used = first.outs[0].buffer, first.op, number + 1
        inboxes |= {exchange.dst.buffer for exchange, _ in messages}
        for send, recv in pairs:
            parent[send], slot[send], sent[send] = recv, children[recv], number
            children[recv] += 1
    return Tree(used, acc, name, parent, slot, children, frozenset(inboxes), sent) if used else None


@lru_cache(maxsize=64)
def mailboxes(schedule: Schedule) -> frozenset[str]:
    """Scratch buffers that only pass messages to the operation that combines them: a tree may have its own instead."""
    inboxes: set[str] = set()
    others: set[str] = set()
    for round_ in {id(round_): round_ for round_ in schedule.rounds}.values():
        arriving = {exchange.dst.buffer for exchange, _ in combining(round_) or ()}
        inboxes |= arriving
        others |= round_.touched - arriving
    return frozenset(name for name in inboxes - others if schedule.buffers[name].role == "scratch")


@lru_cache(maxsize=64)
def one_by_one(schedule: Schedule) -> Schedule:
    """A schedule whose reductions that go together come one after another, as none touches what another does.

    The bits are the same, and each is then a tree that executors know.
    """
    rounds: list[Round] = []
    for names, stretch in groupby(schedule.rounds, lambda round_: tuple(_apart(round_))):
        each = list(stretch)
        parts = [_apart(round_) for round_ in each] if names else []
        rounds += [part[name] for name in names for part in parts] or each
    return replace(schedule, rounds=tuple(rounds)) if len(rounds) > len(schedule.rounds) else schedule


def _apart(round_: Round) -> dict[str, Round]:
    """The reductions of a round that reduces several buffers, by buffer; nothing of any other round."""
    parts: dict[str, Round] = {}
    for name in dict.fromkeys(exchange.src.buffer for exchange in round_.exchanges):
        exchanges = tuple(exchange for exchange in round_.exchanges if exchange.src.buffer == name)
        locals_ = tuple(op for op in round_.locals if op.outs[0].buffer == name)
        parts[name] = Round(exchanges, locals_, round_.label)
    touched = [name for part in parts.values() for name in part.touched]
    whole = sum(len(part.locals) for part in parts.values()) == len(round_.locals)
    apart = whole and len(parts) > 1 and len(touched) == len(set(touched))
    return parts if apart and all(combining(part) for part in parts.values()) else {}


def combining(round_: Round) -> list[tuple[Exchange, Local]] | None:
    """Each exchange of a round with the operation that combines its arrivals, in the order of the operations."""
    if not round_.exchanges or len(round_.exchanges) != len(round_.locals):
        return None
    pairs = []
    for op in round_.locals:
        exchange = next((arrival for arrival in round_.exchanges if arrival.dst.buffer == op.ins[-1].buffer), None)
        if exchange is None or op.op not in COMBINING or op.where is None or op.where.at is not exchange.recv:
            return None
        lines = {str(None if index is None else index.tolist()) for index in (op.where.lines, exchange.lines)}
        if op.where.axis != exchange.axis or len(lines) > 1:
            return None
        accs = {op.outs[0].buffer, op.ins[0].buffer, exchange.src.buffer}
        slots = (exchange.src, exchange.dst, *op.outs, *op.ins)
        if len(accs) > 1 or exchange.dst.buffer in accs or any(slot.index != 0 for slot in slots if slot.is_fixed):
            return None
        if not all(slot.is_fixed for slot in slots):
            return None
        pairs.append((exchange, op))
    return pairs if len({op.outs[0].buffer for _, op in pairs}) == 1 else None
