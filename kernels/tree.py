"""A reduce tree in one launch: cores compute alone, sums go up to the roots, which may broadcast them.

A program is one core, or a few of one height. Programs are numbered children before parents, and each waits only for
lower numbers. A GPU starts programs in order, so an awaited program is running or done and a wait ends at any mesh
size; the interpreter runs one program after another, so it never waits at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.errors import BackendError
from wafer_triton.kernels._common import Operand, block, load, rounded, start, store, tile_ptr, warps
from wafer_triton.kernels.elementwise import COMBINE
from wafer_triton.kernels.fused import FusedOp, Grid, constants, cores_at, given, options, run_ops, settled, source
from wafer_triton.kernels.waiting import Alarm, wait


class TreeTables(NamedTuple):
    """A reduction by `op` of acc [size]: afterwards every core's acc holds the sum of its subtree, a root's of all.

    `order` int32 [cores] lists the cores, children before parents, in blocks of `grid.together`. Of the tables, all
    int32 [cores]: core i takes its `children[i]` messages in ascending slots, each sum rounded to acc's dtype; it puts
    its own into slot `slot[i]` of core `parent[i]` (-1: a root), which is in block `block_of_parent[i]`. A core's tile
    of `mailbox` is [slots, size]. By block, int32: the messages `awaited`, and `arrived`, zero before and after.
    """

    acc: Operand
    mailbox: Operand
    order: Tensor
    children: Tensor
    parent: Tensor
    slot: Tensor
    block_of_parent: Tensor
    awaited: Tensor
    arrived: Tensor
    slots: int
    size: int
    op: str = "add"


class Receivers(NamedTuple):
    """The cores that receive a root's tile of `sums`: `number[i]` from `first[i]` on, `step` apart; int32 [cores]."""

    sums: Operand
    first: Tensor
    number: Tensor
    step: int


@triton.jit
def _reduce(acc, mailbox, tables, number, P):
    """Add the children's messages, and send the sums to the parents."""
    order_ptr, children_ptr, parent_ptr, slot_ptr, block_of_parent_ptr, _, arrived_ptr = tables
    # [CORES, 1]
    core = tl.load(order_ptr + number * P.CORES + tl.arange(0, P.CORES))[:, None]
    children, parent = tl.load(children_ptr + core), tl.load(parent_ptr + core)
    acc_ptr = tile_ptr(acc, core)
    out_ptr = tile_ptr(mailbox, tl.maximum(parent, 0)) + tl.load(slot_ptr + core) * P.SIZE
    for begun in range(0, P.SIZE, P.BLOCK):
        # [CORES, BLOCK]
        offs = begun + tl.arange(0, P.BLOCK)[None, :]
        mask = offs < P.SIZE
        total = load(acc_ptr + offs, mask)
        for slot in range(P.SLOTS):
            there = slot < children
            # from L2: another SM wrote it
            message_ptr = tile_ptr(mailbox, core) + slot * P.SIZE
            message = tl.load(message_ptr + offs, mask=mask & there, other=0.0, cache_modifier=".cg").to(tl.float32)
            combined = rounded(P.COMBINE(total, message), acc.tensor.dtype.element_ty).to(tl.float32)
            total = tl.where(there, combined, total)
        store(acc_ptr + offs, total, mask)
        store(out_ptr + offs, total, mask & (parent >= 0))
    tl.debug_barrier()
    arrived_ptrs = arrived_ptr + tl.load(block_of_parent_ptr + core)
    tl.atomic_add(arrived_ptrs, 1, mask=parent >= 0, sem="release", scope="gpu")


@triton.jit
def _send(receivers, core, P):
    """Write the core's tile to the memory of its receivers, a few of them at once."""
    x, first_ptr, number_ptr, step = receivers
    first, count = tl.load(first_ptr + core), tl.load(number_ptr + core)
    for begun in range(0, count, P.AT_ONCE):
        # [AT_ONCE, 1]
        near = begun + tl.arange(0, P.AT_ONCE)[:, None]
        rows = (first + near * step).to(tl.int64) * x.stride
        for start_n in range(0, P.SIZE, P.SENT_BLOCK):
            # [AT_ONCE, SENT_BLOCK]
            offs = start_n + tl.arange(0, P.SENT_BLOCK)[None, :]
            tile = tl.load(tile_ptr(x, core) + offs, mask=offs < P.SIZE)
            tiles = tl.broadcast_to(tile, [P.AT_ONCE, P.SENT_BLOCK])
            tl.store(x.tensor + x.offset + rows + offs, tiles, mask=(near < count) & (offs < P.SIZE))


@triton.jit
def _block(acc, mailbox, tables, args, sizes, receivers, number, alarm_ptr, launch, BODIES: tl.constexpr, P):
    order_ptr, _, _, _, _, awaited_ptr, arrived_ptr = tables
    if len(BODIES) > 0:
        run_ops(args, sizes, cores_at(order_ptr, number, P.CORES), BODIES)
        tl.debug_barrier()
    awaited = tl.load(awaited_ptr + number)
    if awaited > 0:
        wait(arrived_ptr + number, awaited, alarm_ptr, launch, tl.load(order_ptr + number * P.CORES), 0)
    _reduce(acc, mailbox, tables, number, P)
    if receivers is not None:
        for item in range(P.CORES):
            _send(receivers, tl.load(order_ptr + number * P.CORES + item), P)


@triton.jit(do_not_specialize=["launch"])
def _tree_kernel(
    acc, mailbox, tables, args, sizes, receivers, blocks, alarm_ptr, launch, P, BODIES: tl.constexpr,
    SOURCE: tl.constexpr, LOOPS: tl.constexpr,
):  # fmt: skip
    # one axis, as its programs begin in order everywhere
    pid = tl.program_id(0)
    if LOOPS == 1:
        _block(acc, mailbox, tables, args, sizes, receivers, pid, alarm_ptr, launch, BODIES, P)
    else:
        for number in range(pid * LOOPS, min(pid * LOOPS + LOOPS, blocks)):
            _block(acc, mailbox, tables, args, sizes, receivers, number, alarm_ptr, launch, BODIES, P)
            tl.debug_barrier()


def reduce_tree(
    tree: TreeTables, ops: Sequence[FusedOp], alarm: Alarm, receivers: Receivers | None = None,
    among: Sequence[FusedOp] = (), grid: Grid = Grid(),  # noqa: B008  a value
) -> None:  # fmt: skip
    """Run `ops` on every core, reduce, then write the roots' sums to their `receivers`, if any.

    `among` as in `fused.options`. Raises BackendError for an operation that does not combine.
    """
    if tree.op not in COMBINE:
        raise BackendError(f"a reduce tree combines by one of {', '.join(COMBINE)}, not {tree.op!r}")
    cores = tree.order.numel()
    ops = [settled(op, tree.order) for op in ops]
    wide = block(tree.size, max(128, 1024 // grid.together))
    sent_block = block(tree.size, 1024)
    chosen = options(ops, warps(wide * grid.together), among)
    known = {
        "SLOTS": tree.slots, "SIZE": tree.size, "BLOCK": wide, "COMBINE": COMBINE[tree.op], "CORES": grid.together,
        "SENT_BLOCK": sent_block, "AT_ONCE": max(1, 1024 * chosen["num_warps"] // sent_block),
    }  # fmt: skip
    operands = tree.acc, tree.mailbox, tuple(tree[2:9]), *given(ops, grid), receivers, cores // grid.together
    start(
        _tree_kernel, grid.programs(cores), *operands, alarm.word, alarm.launch, constants(known),
        BODIES=tuple(op.body for op in ops), SOURCE=source(ops), LOOPS=grid.loops, **chosen,
    )  # fmt: skip
