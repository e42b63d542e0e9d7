"""A chain of stretches in one launch: in each a core computes by itself, then sums go up a reduce tree to its root.

A program is one core in one stretch. In the stretches all programs are numbered one after another, and within a stretch
children before parents; every program waits only for lower numbers. A GPU starts programs in order, so an awaited
program is running or done and a wait ends at any mesh size; the interpreter runs one program after another, so it never
waits at all.

A root tells the cores of its tree when it is done, and before that may write its sums into their memory, which is the
broadcast of an all-reduce. A core begins its next stretch when it has been told; without a tree it tells itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.errors import BackendError
from wafer_triton.kernels import protocol
from wafer_triton.kernels._common import Operand, block, load, registers, rounded, store, tile_ptr, warps
from wafer_triton.kernels.elementwise import add_values, max_values
from wafer_triton.kernels.parts import Part, constants, options, run_parts, source
from wafer_triton.kernels.waiting import Alarm, wait

UP = tl.constexpr(protocol.UP)
COMBINE = {"add": add_values, "maximum": max_values}
STRETCH = tl.constexpr(256)  # waits are numbered by stretch, those for children from 1 on


class Tree(NamedTuple):
    """A reduction by `op` of acc [size]: afterwards every core's acc holds the sum of its subtree, a root's of all.

    All tables are int32 [cores]. Core i takes its `children[i]` messages in ascending slots, each sum rounded to acc's
    dtype; it puts its own into slot `slot[i]` of core `parent[i]` (-1: a root). A core's tile of `mailbox` is
    [slots, size]; `slots` is the most children that a core has.
    """

    acc: Operand
    mailbox: Operand
    children: Tensor
    parent: Tensor
    slot: Tensor
    slots: int
    size: int
    op: str = "add"


class Receivers(NamedTuple):
    """Whom each core tells, or sends to: `number[i]` cores from `first[i]` on, `step` apart; int32 [cores]."""

    first: Tensor
    number: Tensor
    step: int


class Stretch(NamedTuple):
    """What all cores do in a program each: `parts`, a tree if any, then tiles [size] of `sends` go to `receivers`.

    `order` int32 [cores] lists the cores, children before parents. `flags` int32 [cores, 1 + slots of the tree] is zero
    before and after.
    """

    order: Tensor
    flags: Tensor
    parts: tuple[Part, ...] = ()
    tree: Tree | None = None
    receivers: Receivers | None = None
    sends: tuple[tuple[Operand, int], ...] = ()


class _Given(NamedTuple):
    """A stretch as the kernel is given it; P tells what there is, as Triton 3.6 has no len of what holds None."""

    order: Tensor
    flags: Tensor
    args: tuple[Any, ...]
    sizes: tuple[Any, ...]
    tree: tuple[Any, ...]
    receivers: tuple[Any, ...]
    sends: tuple[Operand, ...]
    P: Any


@triton.jit
def _reduce(x, flags_ptr, core, number, alarm_ptr, launch, P):
    """Add what the children send, send the sum to the parent."""
    acc, mailbox, children_ptr, parent_ptr, slot_ptr = x
    acc_ptr = tile_ptr(acc, core)
    children, parent = tl.load(children_ptr + core), tl.load(parent_ptr + core)
    slot_there = tl.load(slot_ptr + core)
    out_ptr = tile_ptr(mailbox, tl.maximum(parent, 0)) + slot_there * P.SIZE
    for start in range(0, P.SIZE, P.BLOCK):
        # [BLOCK]
        offs = start + tl.arange(0, P.BLOCK)
        mask = offs < P.SIZE
        total = load(acc_ptr + offs, mask)
        for slot in range(P.SLOTS):
            if slot < children:
                if start == 0:
                    flag_ptr = flags_ptr + core * P.FLAGS + 1 + slot
                    wait(flag_ptr, UP, alarm_ptr, launch, core, number * STRETCH + 1 + slot)
                # from L2: another SM wrote it
                message_ptr = tile_ptr(mailbox, core) + slot * P.SIZE
                message = tl.load(message_ptr + offs, mask=mask, other=0.0, cache_modifier=".cg").to(tl.float32)
                total = rounded(P.COMBINE(total, message), acc.tensor.dtype.element_ty).to(tl.float32)
        store(acc_ptr + offs, total, mask)
        store(out_ptr + offs, total, mask & (parent >= 0))

    if parent >= 0:
        tl.debug_barrier()
        tl.atomic_xchg(flags_ptr + parent * P.FLAGS + 1 + slot_there, UP, sem="release", scope="gpu")


@triton.jit
def _send(x, core, first, count, step, SIZE: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr):
    """The core's tile into the memory of those that receive it, a few of them at once."""
    for start in range(0, SIZE, BLOCK):
        # [1, BLOCK]
        offs = start + tl.arange(0, BLOCK)[None, :]
        tile = tl.load(tile_ptr(x, core) + offs, mask=offs < SIZE)
        for begun in range(0, count, AT_ONCE):
            # [AT_ONCE, BLOCK]
            near = begun + tl.arange(0, AT_ONCE)[:, None]
            rows = (first + near * step).to(tl.int64) * x.stride
            tiles = tl.broadcast_to(tile, [AT_ONCE, BLOCK])
            tl.store(x.tensor + x.offset + rows + offs, tiles, mask=(near < count) & (offs < SIZE))


@triton.jit
def _stretch(now, P, then_flags_ptr, pid, number, alarm_ptr, launch, BODIES: tl.constexpr, LAST: tl.constexpr):
    core = tl.load(now.order + pid)
    if number > 0:
        wait(now.flags + core * P.FLAGS, UP, alarm_ptr, launch, core, number * STRETCH)
    run_parts(now.args, now.sizes, core, BODIES)
    if P.REDUCES:
        if len(BODIES) > 0:
            tl.debug_barrier()
        _reduce(now.tree, now.flags, core, number, alarm_ptr, launch, P)
    if P.TELLS:
        first, count = tl.load(now.receivers.first + core), tl.load(now.receivers.number + core)
        tl.debug_barrier()
        for item in tl.static_range(P.SENDS):
            _send(now.sends[item], core, first, count, now.receivers.step, P.SENT[item], P.SENT_BLOCK, P.AT_ONCE)
        if not LAST:
            if P.SENDS > 0:
                tl.debug_barrier()
            for begun in range(0, count, P.TOLD):
                # [TOLD]
                near = begun + tl.arange(0, P.TOLD)
                flag_ptrs = then_flags_ptr + (first + near * now.receivers.step) * P.NEXT_FLAGS
                tl.atomic_add(flag_ptrs, UP, mask=near < count, sem="release", scope="gpu")


@triton.jit(do_not_specialize=["launch"])
def _chain_kernel(stretches, cores, alarm_ptr, launch, BODIES: tl.constexpr, SOURCE: tl.constexpr):
    # one axis, as its programs begin in order everywhere
    pid = tl.program_id(0)
    for number in tl.static_range(len(BODIES)):
        if pid // cores == number:
            _stretch(
                stretches[number], stretches[number].P, stretches[min(number + 1, len(BODIES) - 1)].flags,
                pid % cores, number, alarm_ptr, launch, BODIES[number], number + 1 == len(BODIES),
            )  # fmt: skip


def chain(stretches: Sequence[Stretch], alarm: Alarm, among: Sequence[Part] = ()) -> None:
    """Run stretches one after another, in one launch; all but the last need `receivers`; `among` as of `options`."""
    cores = stretches[0].order.numel()
    parts = [part for one in stretches for part in one.parts]
    sums = max([warps(block(one.tree.size, 1024)) for one in stretches if one.tree], default=1)
    chosen, given = options(parts, sums, among), []
    for one, following in zip(stretches, (*stretches[1:], None), strict=True):
        assert one.receivers is not None or following is None, "somebody must begin the next stretch"
        if one.tree is not None and one.tree.op not in COMBINE:
            raise BackendError(f"a reduce tree combines by one of {', '.join(COMBINE)}, not {one.tree.op!r}")
        given.append(_given(one, following, 8 * 32 * chosen["num_warps"]))
    _chain_kernel[(len(given) * cores,)](
        tuple(given), cores, alarm.word, alarm.launch,
        BODIES=tuple(tuple(part.body for part in one.parts) for one in stretches), SOURCE=source(parts),
        **chosen, **registers(128),
    )  # fmt: skip


def _given(one: Stretch, following: Stretch | None, at_once: int) -> _Given:
    """`at_once`: how many elements a program sends at once."""
    tree: tuple[Any, ...] = ()
    slots, size, combine = 0, 0, ""
    if one.tree is not None:
        tree, slots, size, combine = one.tree[:5], one.tree.slots, one.tree.size, COMBINE[one.tree.op]
    assert one.flags.shape[-1] == 1 + slots < STRETCH.value
    sent = [numel for _, numel in one.sends]
    sent_block = block(max(sent, default=1), 1024)
    known = {
        "REDUCES": bool(tree), "TELLS": one.receivers is not None, "SENDS": len(sent),
        "FLAGS": 1 + slots, "SLOTS": slots, "SIZE": size, "COMBINE": combine, "BLOCK": block(size, 1024),
        "SENT": tuple(sent), "SENT_BLOCK": sent_block, "AT_ONCE": max(1, at_once // sent_block), "TOLD": 64,
        "NEXT_FLAGS": 0 if following is None else following.flags.shape[-1],
    }  # fmt: skip
    return _Given(
        one.order, one.flags, tuple(part.args for part in one.parts), tuple(part.sizes for part in one.parts), tree,
        one.receivers or (), tuple(operand for operand, _ in one.sends), constants(known),
    )  # fmt: skip


def number_of(number: int) -> tuple[int, int | None]:
    """The stretch and the child's slot that a core waited for, by the number that it tells; None: for the root."""
    stretch, slot = divmod(number, STRETCH.value)
    return stretch, slot - 1 if slot else None


def flags_of(cores: int, slots: int, device: str) -> Tensor:
    """Fresh flags of a stretch."""
    return torch.zeros(cores, 1 + slots, dtype=torch.int32, device=device)
