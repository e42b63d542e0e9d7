"""Segments: consecutive rounds that an executor may run in one step.

A `Ring` of a schedule becomes `Products`, a `Tree` a `Reduction` for each of its buffers. All other rounds are in plain
`Segment`s and run one by one. The bits are the same either way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from itertools import islice
from typing import TypeAlias

import numpy as np

from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.parts import Products, Reduction, Segment, receivers
from wafer_triton.schedule import steps
from wafer_triton.schedule.access import acts, fills
from wafer_triton.schedule.rounds import Index, Local, Moves, Round, Slot, once, touched
from wafer_triton.schedule.schedule import Schedule

Plain: TypeAlias = "Round | steps.Ring | steps.Tree"  # what loops are made of in the end


@once
def segments(schedule: Schedule) -> tuple[Segment, ...]:
    """Return the segments of a schedule, in order."""
    return tuple(_segments(schedule))


@once
def mailboxes(schedule: Schedule) -> frozenset[str]:
    """Return the names of scratch buffers that only carry messages of trees; a fused tree leaves them unwritten."""
    mail, others = set[str](), set[str]()
    for step in set(steps.in_order(schedule.rounds.steps)):
        if isinstance(step, steps.Tree):
            sums = {part.acc.buffer for part in step.parts}
            mail |= step.uses.keys() - sums
            others |= sums
        else:
            others |= _touched(step)
    return frozenset(name for name in mail - others if schedule.buffers[name].role == "scratch")


def _touched(step: Plain) -> Set[str]:
    return touched(step) if isinstance(step, Round) else step.uses.keys()


def _segments(schedule: Schedule) -> Iterator[Segment]:
    start, single, pending = 0, list[Round](), deque(steps.in_order(schedule.rounds.steps))
    while pending:
        step = pending.popleft()
        rounds = (step,) if isinstance(step, Round) else step.rounds
        fused = _fused_segments(schedule, start, step, pending)
        if not fused:
            single += rounds
            start += len(rounds)
            continue
        if single:
            yield Segment(schedule.mesh, start - len(single), tuple(single))
            single = []
        yield from fused
        start += len(fused[0].all_rounds)
        if len(fused[0].all_rounds) > len(rounds):
            pending.popleft()
    if single:
        yield Segment(schedule.mesh, start - len(single), tuple(single))


def _fused_segments(schedule: Schedule, at: int, step: Plain, later: Sequence[Plain]) -> list[Segment]:
    """Return the segments of a step that an executor may run at once; [] if it must run round by round.

    `at` is the number of the step's first round. The round after it, the first of `later`, joins the last segment if it
    rounds the sums, or broadcasts them.
    """
    after = later[0] if later and isinstance(later[0], Round) else None
    if isinstance(step, steps.Ring):
        return _products(schedule, at, step, after)
    return _trees(schedule, at, step, after, later) if isinstance(step, steps.Tree) else []


def _products(schedule: Schedule, start: int, ring: steps.Ring, after: Round | None) -> list[Segment]:
    """Return a ring of products on all cores as one `Products`; none if an executor could not run it at once."""
    product, mesh, hands = ring.product, schedule.mesh, {hand[0]: hand for hand in ring.hands}
    if product.op != "gemm" or product.where is not None or set(product.ins) != set(hands):
        return []
    a, b = (hands[slot] for slot in product.ins)
    c, moving = product.outs[0].buffer, {slot.buffer for slot in (*a, *b)}
    one_tile = all(slot.is_fixed and schedule.buffers[slot.buffer].slots == 1 for slot in (*a, *b))
    if c in moving or not one_tile or not _can_stay_in_registers(schedule, product):
        return []
    out = after and _rounding_target(schedule, start + ring.count, after, product.outs[0], moving)
    params = dict(product.params)
    add = bool(params.pop("add", False))
    over_a, over_b = (ring.shifts[ring.hands.index(hand)] for hand in (a, b))
    to_a, to_b = receivers(over_a, mesh), receivers(over_b, mesh)
    if to_a is None or to_b is None:
        return []
    side, rings = mesh.shape[0], None
    same = over_a.lines is None and over_b.lines is None
    if mesh.shape == (side, side) and (over_a.axis, over_b.axis) == ("x", "y") and same:
        rings = _ring_order(over_b), _ring_order(over_a)
    rings = rings if rings and len(rings[0]) == len(rings[1]) == side else None
    every = (*ring.rounds, after) if out and after else ring.rounds
    return [Products(mesh, start, every, ring.count, c, out or c, a, b, add, params, (to_a, to_b), rings)]


def _ring_order(moves: Moves) -> Index:
    """Return the positions that a tile passes from position 0 on until it is back there."""
    to, passed = dict(zip(moves.send.tolist(), moves.recv.tolist(), strict=True)), [0]
    while to[passed[-1]] != 0:
        passed.append(to[passed[-1]])
    return np.array(passed)


def _can_stay_in_registers(schedule: Schedule, product: Local) -> bool:
    """Return whether sums may stay in registers over all rounds: their buffer would store them without rounding."""
    (out,) = product.outs
    buffer = schedule.buffers[out.buffer]
    unrounded = ("fp32", "fp16") if product.params.get("accumulate") == "fp16" else ("fp32",)
    return out.is_fixed and buffer.slots == 1 and buffer.dtype in unrounded


def _rounding_target(schedule: Schedule, at: int, after: Round, c: Slot, moving: set[str]) -> str | None:
    """Return the buffer to which round `at`, `after` the products, only copies c; None if it does anything else.

    c must be scratch that no later round touches, and the buffer none of those that are `moving`.
    """
    if after.exchanges or len(after.locals) != 1:
        return None
    (op,) = after.locals
    buffer, target = schedule.buffers[c.buffer], schedule.buffers[op.outs[0].buffer]
    whole = op.op == "copy" and op.where is None and op.params["size"] == buffer.numel == target.numel
    plain = whole and op.ins[0].buffer == c.buffer and buffer.slots == 1 == target.slots and target.name not in moving
    if not plain or buffer.role != "scratch" or steps.uses(schedule.rounds.steps)[c.buffer][1] > at:
        return None
    return target.name


def _trees(
    schedule: Schedule, start: int, step: steps.Tree, after: Round | None, later: Sequence[Plain]
) -> list[Segment]:
    """Return a reduction for each buffer of a tree; as they share no memory, they may run one after another."""
    mesh, slots = schedule.mesh, {slot for part in step.parts for slot in (part.acc, *part.mail)}
    if step.op not in ("add", "maximum") or any(slot != Slot(slot.buffer) for slot in slots):
        return []
    if not step.uses.keys() - {part.acc.buffer for part in step.parts} <= mailboxes(schedule):
        return []
    parent, slot, children, sent, roots = _links(step.stages, mesh)
    sums = {
        part.acc: None if after is None else _broadcast(part.acc, after, parent, roots, mesh) for part in step.parts
    }
    both = after is not None and {one.src for one in after.exchanges} == sums.keys() and None not in sums.values()
    return [
        Reduction(
            mesh, start, _rounds_of(part, step), part.acc.buffer, step.op, parent, slot, children, sent, roots,
            sums[part.acc] if both else None, _read_once(schedule, part.acc.buffer, parent, later),
        )
        for part in step.parts
    ]  # fmt: skip


def _read_once(schedule: Schedule, name: str, parent: Index, later: Sequence[Plain]) -> bool:
    """Return whether the next step reads tiles of roots alone, by one operation, and no later one any tile."""
    after = later[0] if later else None
    if not isinstance(after, Round):
        return False
    accesses = [one for act in acts(after) for one in (*act.reads, *act.writes) if one.slot.buffer == name]
    if len(accesses) != 1 or accesses[0].writes or (parent[accesses[0].cells(schedule)] >= 0).any():
        return False
    following = next((step for step in islice(later, 1, None) if name in _touched(step)), None)
    if following is None:
        return schedule.buffers[name].role == "scratch"
    return isinstance(following, Round) and fills(schedule, following, name)


def _links(stages: steps.Stages, mesh: Mesh) -> tuple[Index, Index, Index, Index, Index]:
    """Return `parent`, `slot`, `children`, `send_round` and `roots` of `parts.Reduction`."""
    parent, sent = np.full(mesh.cores, -1), np.full(mesh.cores, len(stages.each))
    slot, children = np.zeros(mesh.cores, np.int64), np.zeros(mesh.cores, np.int64)
    for number, stage in enumerate(stages.each):
        for _, moves in stage:
            send, recv = moves.ends(mesh)
            parent[send], slot[send], sent[send] = recv, children[recv], number
            children[recv] += 1
    roots = np.where(parent < 0, np.arange(mesh.cores), parent)
    while not np.array_equal(roots, further := roots[roots]):
        roots = further
    return parent, slot, children, sent, roots


def _rounds_of(part: steps.Part, step: steps.Tree) -> tuple[Round, ...]:
    """Return the rounds of a tree with the exchanges of one of its buffers alone."""
    return step.rounds if len(step.parts) == 1 else replace(step, parts=(part,)).rounds


def _broadcast(acc: Slot, after: Round, parent: Index, roots: Index, mesh: Mesh) -> Round | None:
    """Return the exchanges of round `after` that send every root's sum to all other cores of its tree, if they do."""
    sent = tuple(one for one in after.exchanges if one.src == acc == one.dst)
    if after.locals or not sent:
        return None
    senders, receivers = map(np.concatenate, zip(*(one.moves.ends(mesh) for one in sent), strict=True))
    every = np.array_equal(np.sort(receivers), np.flatnonzero(parent >= 0))
    if not every or not np.array_equal(roots[receivers], senders):
        return None
    return after if len(sent) == len(after.exchanges) else replace(after, exchanges=sent)
