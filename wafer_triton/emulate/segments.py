"""Segments: consecutive rounds that an executor may run in one step, read from the patterns of a schedule.

One pass cuts a schedule, once. A round without a pattern, or with one that no executor takes as a whole, is in a plain
`Segment` and runs alone. The bits are the same either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.parts import Products, Segment, Tree, shifts
from wafer_triton.schedule.rounds import Exchange, Index, Local, Round, Slot
from wafer_triton.schedule.schedule import Schedule, once


@once
def segments(schedule: Schedule) -> tuple[Segment, ...]:
    """Return the segments of a schedule, in order."""
    return tuple(_segments(schedule))


@once
def mailboxes(schedule: Schedule) -> frozenset[str]:
    """Scratch buffers that only carry messages of trees: an executor may combine messages without them."""
    mail, others = set[str](), set[str]()
    for round_ in set(schedule.rounds):
        arriving = {exchange.dst.buffer for exchange in _messages(round_)}
        mail |= arriving
        others |= round_.touched - arriving
    return frozenset(name for name in mail - others if schedule.buffers[name].role == "scratch")


def _segments(schedule: Schedule) -> Iterator[Segment]:
    rounds, at, plain = schedule.rounds, 0, 0
    whole = {"ring": _products, "tree": _trees}
    while at <= len(rounds):
        pattern = rounds[at].pattern if at < len(rounds) else None
        found = whole[pattern.kind](schedule, at) if pattern is not None and pattern.kind in whole else []
        if plain < at and (found or at == len(rounds)):
            yield Segment(schedule.mesh, plain, rounds[plain:at])
        yield from found
        at += len(found[0].every) if found else 1
        plain = at if found else plain


def _products(schedule: Schedule, start: int) -> list[Segment]:
    """Return the compute-shift segment that begins with a round, if its sums are of a kind that can be kept."""
    first, rounds = schedule.rounds[start], schedule.rounds
    ends, (product,) = {exchange.src: exchange.dst for exchange in first.exchanges}, first.locals
    if product.op != "gemm" or set(product.ins) != set(ends):
        return []
    a, b = ((slot, ends[slot]) for slot in product.ins)
    c, moving = product.outs[0].buffer, {slot.buffer for slot in (*a, *b)}
    if c in moving or not _keeps_sums(schedule, product):
        return []
    number = 1
    while start + number < len(rounds) and _continues(rounds[start + number], first, product, a, b, number):
        number += 1
    out = _rounding(schedule, start + number, product.outs[0], moving)
    params, every = dict(product.params), rounds[start : start + number + (out is not None)]
    add = bool(params.pop("add", False))
    (over_a, to_a), (over_b, to_b) = (shifts(first, schedule.mesh)[operand] for operand in (0, 1))
    side, rings = schedule.mesh.shape[0], None
    if schedule.mesh.shape == (side, side) and (over_a.axis, over_b.axis) == ("x", "y"):
        rings = _cycle(over_b), _cycle(over_a)
    rings = rings if rings and len(rings[0]) == len(rings[1]) == side else None
    return [Products(schedule.mesh, start, every, number, c, out or c, a, b, add, params, (to_a, to_b), rings)]


def _cycle(exchange: Exchange) -> Index:
    """Return the positions that a tile passes from position 0 back to position 0."""
    to, passed = dict(zip(exchange.send.tolist(), exchange.recv.tolist(), strict=True)), [0]
    while to[passed[-1]] != 0:
        passed.append(to[passed[-1]])
    return np.array(passed)


def _continues(
    round_: Round, first: Round, product: Local, a: tuple[Slot, Slot], b: tuple[Slot, Slot], number: int
) -> bool:
    """Return whether a round is product `number` of the run that began with `product` in the round `first`."""
    if round_.pattern != first.pattern or len(round_.exchanges) != 2:
        return False
    (op,), here, there = round_.locals, number % 2, 1 - number % 2
    ends = {exchange.src: exchange.dst for exchange in round_.exchanges}
    return (
        (*op.outs, *op.ins) == (*product.outs, a[here], b[here])
        and ends == {a[here]: a[there], b[here]: b[there]}
        and {**op.params, "add": True} == {**product.params, "add": True}
        and bool(op.params.get("add"))
        and all(one.moves == other.moves for one, other in zip(round_.exchanges, first.exchanges, strict=True))
    )


def _keeps_sums(schedule: Schedule, product: Local) -> bool:
    """Return whether the sums fill their buffer, which stores them unrounded, so that registers may hold them."""
    (out,) = product.outs
    buffer = schedule.buffers[out.buffer]
    unrounded = ("fp32", "fp16") if product.params.get("accumulate") == "fp16" else ("fp32",)
    return out.is_fixed and buffer.slots == 1 and buffer.dtype in unrounded


def _rounding(schedule: Schedule, at: int, c: Slot, moving: set[str]) -> str | None:
    """Return the buffer, none of `moving`, that round `at` copies c to, if c is scratch and not touched afterwards."""
    rounds = schedule.rounds[at:]
    if not rounds or rounds[0].exchanges or len(rounds[0].locals) != 1:
        return None
    (op,) = rounds[0].locals
    buffer, target = schedule.buffers[c.buffer], schedule.buffers[op.outs[0].buffer]
    whole = op.op == "copy" and op.where is None and op.params["size"] == buffer.numel == target.numel
    plain = whole and op.ins[0].buffer == c.buffer and buffer.slots == 1 == target.slots and target.name not in moving
    if not plain or buffer.role != "scratch" or any(c.buffer in round_.touched for round_ in set(rounds[1:])):
        return None
    return target.name


def _trees(schedule: Schedule, start: int) -> list[Segment]:
    """Return the reductions that begin with a round, one buffer after another, as they touch no common memory."""
    mesh, rounds = schedule.mesh, schedule.rounds
    pattern, stop = rounds[start].pattern, start
    assert pattern is not None
    done = {name: np.zeros(mesh.cores, bool) for name in pattern.buffers}
    while stop < len(rounds) and rounds[stop].pattern == pattern:
        ends = [(one.src.buffer, *one.moves.ends(mesh)) for one in _messages(rounds[stop])]
        if any(done[name][send].any() or done[name][recv].any() for name, send, recv in ends):
            break  # a core that has sent takes no further part: another reduction begins
        for name, send, _ in ends:
            done[name][send] = True
        stop += 1
    every = [exchange for round_ in rounds[start:stop] for exchange in round_.exchanges]
    if any(slot.index != 0 for one in every for slot in (one.src, one.dst) if slot.is_fixed):
        return []
    if not {one.dst.buffer for one in every} <= mailboxes(schedule) or not all(one.src.is_fixed for one in every):
        return []
    trees = []
    for name in pattern.buffers:
        own = tuple(_only(name, round_) for round_ in rounds[start:stop])
        sent = tuple(map(_messages, own))
        trees.append(Tree(mesh, start, own, name, pattern.op, sent, *_links(sent, mesh)))
    after = rounds[stop] if stop < len(rounds) else Round()
    sums = [_broadcast(tree, after) for tree in trees]
    sends = {exchange.src.buffer for exchange in after.exchanges}
    if after.pattern is None or sends != set(pattern.buffers) or None in sums:
        return list(trees)
    return [replace(tree, broadcast=round_) for tree, round_ in zip(trees, sums, strict=True)]


def _messages(round_: Round) -> tuple[Exchange, ...]:
    """Return the messages of a round of trees, in the order of their combination; none of another round."""
    if round_.pattern is None or round_.pattern.kind != "tree":
        return ()
    arrivals = {exchange.dst: exchange for exchange in round_.exchanges}
    return tuple(arrivals[op.ins[-1]] for op in round_.locals)


def _links(messages: tuple[tuple[Exchange, ...], ...], mesh: Mesh) -> tuple[Index, Index, Index, Index, Index]:
    """Return parents, slots, numbers of children, rounds of the messages and roots of trees; see `Tree`."""
    parent, sent = np.full(mesh.cores, -1), np.full(mesh.cores, len(messages))
    slot, children = np.zeros(mesh.cores, np.int64), np.zeros(mesh.cores, np.int64)
    for number, exchanges in enumerate(messages):
        for exchange in exchanges:
            send, recv = exchange.moves.ends(mesh)
            parent[send], slot[send], sent[send] = recv, children[recv], number
            children[recv] += 1
    roots = np.where(parent < 0, np.arange(mesh.cores), parent)
    while not np.array_equal(roots, further := roots[roots]):
        roots = further
    return parent, slot, children, sent, roots


def _only(name: str, round_: Round) -> Round:
    """Return the exchanges of one buffer in a round of trees or of broadcasts, and the operations that combine them."""
    exchanges = tuple(exchange for exchange in round_.exchanges if exchange.src.buffer == name)
    if len(exchanges) == len(round_.exchanges):
        return round_
    locals_ = tuple(op for op in round_.locals if op.outs[0].buffer == name)
    return replace(round_, exchanges=exchanges, locals=locals_)


def _broadcast(tree: Tree, round_: Round) -> Round | None:
    """Return a round as the broadcast of a tree's sums, if every root sends its sum to all other cores of its tree."""
    if round_.pattern is None or round_.pattern.kind != "broadcast":
        return None
    sent = _only(tree.acc, round_)
    if not sent.exchanges or any(exchange.src.index != 0 for exchange in sent.exchanges):
        return None
    senders, receivers = map(np.concatenate, zip(*(one.moves.ends(tree.mesh) for one in sent.exchanges), strict=True))
    others = np.flatnonzero(tree.parent >= 0)
    every = np.array_equal(np.sort(receivers), others) and np.array_equal(tree.roots[receivers], senders)
    return sent if every else None
