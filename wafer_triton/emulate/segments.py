"""Segments: consecutive rounds that an executor may run in one step.

A `Ring` of a schedule becomes `Products`, a `Tree` a `Reduction` for each of its buffers. All other rounds are in plain
`Segment`s and run one by one. The bits are the same either way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeAlias

import numpy as np

from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.parts import Products, Reduction, Segment
from wafer_triton.schedule import steps
from wafer_triton.schedule.access import accesses, fills
from wafer_triton.schedule.rounds import Buffer, Index, Local, Moves, Round, Slot, once
from wafer_triton.schedule.schedule import Schedule

Plain: TypeAlias = "Round | steps.Ring | steps.Tree"  # what loops are made of in the end


@once
def segments(schedule: Schedule) -> tuple[Segment, ...]:
    """Return the segments of a schedule, in order."""
    found, start, later = list[Segment](), 0, deque(steps.in_order(schedule.rounds.steps))
    while later:
        step = later.popleft()
        after = later[0] if later and isinstance(later[0], Round) else None  # may join, if it rounds or broadcasts sums
        rounds, fused = step.rounds, list[Segment]()
        if isinstance(step, steps.Ring):
            fused = _products(schedule, start, step, after)
        elif isinstance(step, steps.Tree):
            fused = _trees(schedule, start, step, after, later)
        found += fused or [Segment(start, rounds)]
        start += len(found[-1].rounds)
        if len(found[-1].rounds) > len(rounds):
            later.popleft()
    return tuple(found)


@once
def mailboxes(schedule: Schedule) -> frozenset[str]:
    """Return the names of scratch buffers that only carry messages of trees; a fused tree leaves them unwritten."""
    mail, others = set[str](), set[str]()
    for step in set(steps.in_order(schedule.rounds.steps)):
        uses = step.uses.keys()
        kept = {part.acc.buffer for part in step.parts} if isinstance(step, steps.Tree) else uses
        mail |= uses - kept
        others |= kept
    return frozenset(name for name in mail - others if schedule.buffers[name].role == "scratch")


def _products(schedule: Schedule, start: int, ring: steps.Ring, after: Round | None) -> list[Segment]:
    """Return a ring of products on all cores as one `Products`; none if an executor could not run it at once."""
    product, mesh, buffers = ring.product, schedule.mesh, schedule.buffers
    circling = dict(zip((hand[0] for hand in ring.hands), zip(ring.hands, ring.shifts, strict=True), strict=True))
    if product.op != "gemm" or product.where is not None or set(product.ins) != set(circling):
        return []
    (a, over_a), (b, over_b) = (circling[slot] for slot in product.ins)
    (c,), moving = product.outs, {slot.buffer for slot in (*a, *b)}
    # sums may stay in registers over all rounds if their buffer would store them without rounding
    unrounded = ("fp32", "fp16") if product.params.get("accumulate") == "fp16" else ("fp32",)
    one_tile = all(slot.is_fixed and buffers[slot.buffer].slots == 1 for slot in (*a, *b, c))
    if c.buffer in moving or not one_tile or buffers[c.buffer].dtype not in unrounded:
        return []
    ends = (*over_a.ends(mesh), *over_b.ends(mesh))
    if not all(np.array_equal(np.sort(end), np.arange(mesh.cores)) for end in ends):
        return []
    shape = ring.count, ring.count
    square = mesh.shape == shape and (over_a.axis, over_b.axis) == ("x", "y") and over_a.lines is over_b.lines is None
    passed = tuple(_order(moves) for moves in (over_b, over_a) if square)
    rings = passed if tuple(map(len, passed)) == shape else None
    params = dict(product.params)
    add, rounds, out = bool(params.pop("add", False)), ring.rounds, c.buffer
    target = None if after is None else _rounding_target(schedule, start + ring.count, after, out)
    if after and target and target not in moving:
        rounds, out = (*rounds, after), target
    return [Products(start, rounds, ring.count, c.buffer, out, a, b, add, params, (over_a, over_b), rings)]


def _order(moves: Moves) -> Index:
    """Return the positions that a tile passes from position 0 on until it is back there."""
    passed, to = [0], moves.recv[moves.send.argsort()]
    while to[passed[-1]]:
        passed.append(to[passed[-1]])
    return np.array(passed)


def _rounding_target(schedule: Schedule, at: int, after: Round, c: str) -> str | None:
    """Return the buffer to which round `at`, `after` the products, only copies c; None if it does anything else.

    c must be scratch that no later round touches.
    """
    if after.exchanges or len(after.locals) != 1:
        return None
    (op,) = after.locals
    source, target = whole_copy(schedule.buffers, op) or ("", "")
    seen = schedule.buffers[c].role != "scratch" or steps.uses(schedule.rounds.steps)[c][1] > at
    return None if source != c or op.where is not None or seen else target


def whole_copy(buffers: Mapping[str, Buffer], op: Local) -> tuple[str, str] | None:
    """Return from which buffer an operation copies whole tiles to which, both of one slot; None if it does not."""
    if op.op != "copy":
        return None
    names = op.ins[0].buffer, op.outs[0].buffer
    return names if {(buffers[name].numel, buffers[name].slots) for name in names} == {(op.params["size"], 1)} else None


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
    broadcasts = {} if after is None else _broadcasts(step.parts, after, parent, roots, mesh)
    return [
        Reduction(
            start, replace(step, parts=(part,)).rounds + broadcasts.get(part.acc, ()), step.count, part.acc.buffer,
            step.op, parent, slot, children, sent, roots, _read_once(schedule, part.acc.buffer, parent, later),
        )
        for part in step.parts
    ]  # fmt: skip


def _read_once(schedule: Schedule, name: str, parent: Index, later: Sequence[Plain]) -> bool:
    """Return whether the next step reads tiles of roots alone, by one operation, and no later one any tile."""
    after = later[0] if later else None
    if not isinstance(after, Round):
        return False
    found = [one for one in accesses(after) if one.slot.buffer == name]
    slots = schedule.buffers[name].slots
    if len(found) != 1 or found[0].writes or (parent[found[0].cells(schedule) // slots] >= 0).any():
        return False
    following = next((step for step in islice(later, 1, None) if name in step.uses), None)
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


def _broadcasts(
    parts: Sequence[steps.Part], after: Round, parent: Index, roots: Index, mesh: Mesh
) -> dict[Slot, tuple[Round]]:
    """Return for each buffer the exchanges of round `after` that send roots' sums to all other cores of their trees.

    None at all if the round does anything else.
    """
    sent = {acc: tuple(one for one in after.exchanges if one.src == acc == one.dst) for acc, *_ in parts}
    if after.locals or sum(map(len, sent.values())) < len(after.exchanges):
        return {}
    for exchanges in sent.values():
        ends = [np.stack(one.moves.ends(mesh)) for one in exchanges]
        senders, receivers = np.concatenate(ends, axis=1) if ends else (parent, parent)
        if not np.array_equal(np.sort(receivers), np.flatnonzero(parent >= 0)) or (roots[receivers] != senders).any():
            return {}
    return {acc: (replace(after, exchanges=exchanges),) for acc, exchanges in sent.items()}
