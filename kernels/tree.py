"""A reduce tree in one launch: cores run local operations, sums go up to the roots, and these may broadcast them.

A program is one core, or a few that send in the same round. Programs are numbered children before parents, and each
waits only for lower numbers. A GPU starts programs in order, so an awaited program is running or done, and a wait ends
at any mesh size; the interpreter runs one program after another, so it never waits at all. A message is its own flag:
a parent reads its mailbox until every element has come (see `waiting`).

With elided exchange nobody can observe partial sums on their way, so one program may `fold` all parts of a tree. It
adds in the order of the tree and rounds each sum to the buffer's dtype, so the bits are those of messages hop by hop.
The order is constexpr, and all parts are loaded before the first is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.errors import BackendError
from wafer_triton.kernels import fused
from wafer_triton.kernels._common import (
    Operand,
    block,
    constants,
    load,
    round_to,
    rounded,
    start,
    store,
    tile_ptr,
    warps,
    write,
)
from wafer_triton.kernels.elementwise import COMBINE
from wafer_triton.kernels.fused import FusedOp, Grid
from wafer_triton.kernels.waiting import EMPTY, Alarm, receive, send

MAX_PARTS = 128  # of a tree that is folded
MAX_COLUMNS = 128  # of a tile that a program folds at once, one a thread


class TreeTables(NamedTuple):
    """A reduction by `op` of acc [size]: afterwards every core's acc is the sum of its subtree, a root's of its tree.

    Tables are int32. `order` lists the cores, children before parents, in blocks of `Grid.cores_per_block` of one
    level; a block that is not full repeats its first core. [cores]: core i combines `children[i]` messages, in
    ascending slots, and rounds each sum to acc's dtype. It sends its sum to slot `slot[i]` of core `parent[i]` (-1:
    none, a root). A core's tile of `mailbox` is [slots, size], the bits of numbers of acc's dtype as integers; all are
    `waiting.EMPTY` before and after.
    """

    acc: Operand
    mailbox: Operand
    order: Tensor
    children: Tensor
    parent: Tensor
    slot: Tensor
    slots: int
    size: int
    op: str = "add"


class Receivers(NamedTuple):
    """Core i sends its sum to the tiles of `sums` of `number[i]` cores from `first[i]` on, `step` apart; int32 [cores].

    `sums` is not what operations of the launch write, as nothing orders their stores and a root's.
    """

    sums: Operand
    first: Tensor
    number: Tensor
    step: int


@triton.jit
def _combined(a, b, DTYPE: tl.constexpr, COMBINE: tl.constexpr):
    return round_to(COMBINE(a, b), DTYPE)


@triton.jit
def _reduce(tree, core, counted, alarm_ptr, launch, P):
    """Combine the children's messages on the `counted` cores of a block, [CORES, 1], and send the sums to the parents.

    With P.SENDS only roots keep their sums, as nothing orders a core's own store and that of its root.
    """
    dtype: tl.constexpr = tree.acc.tensor.dtype.element_ty
    # tables are loaded before any wait
    children, parent = tl.where(counted, tl.load(tree.children + core), 0), tl.load(tree.parent + core)
    keeps, sends = counted & ((parent < 0) | (not P.SENDS)), counted & (parent >= 0)
    acc_ptr, mail_ptr = tile_ptr(tree.acc, core), tile_ptr(tree.mailbox, core)
    out_ptr = tile_ptr(tree.mailbox, tl.maximum(parent, 0)) + tl.load(tree.slot + core) * tree.size
    for begin in range(0, tree.size, P.BLOCK):
        # [CORES, BLOCK]
        offs = begin + tl.arange(0, P.BLOCK)[None, :]
        mask = offs < tree.size
        total = load(acc_ptr + offs, mask)
        for slot in range(tree.slots):
            sent = slot < children
            bits = receive(mail_ptr + slot * tree.size + offs, mask & sent, core, slot, alarm_ptr, launch)
            combined = _combined(total, bits.to(dtype, bitcast=True).to(tl.float32), dtype, tree.op)
            total = tl.where(sent, combined, total)
        store(acc_ptr + offs, total, mask & keeps)
        send(out_ptr + offs, rounded(total, dtype), mask & sends)
        tl.debug_barrier()  # until every warp has read the messages
        for slot in range(tree.slots):
            empty = tl.full([P.CORES, P.BLOCK], EMPTY, tree.mailbox.tensor.dtype.element_ty)
            tl.store(mail_ptr + slot * tree.size + offs, empty, mask=mask & (slot < children))


@triton.jit
def _one(values, chosen):
    """Return the value of [CORES, 1] that is chosen, as a scalar."""
    return tl.max(tl.max(tl.where(chosen, values, 0), axis=1), axis=0)


@triton.jit
def _broadcast(tree, receivers, core, first, count, P):
    """Write a core's sum to the tiles of `count` receivers, a few of them at once."""
    to = receivers.sums
    for begin in range(0, count, P.AT_ONCE):
        # [AT_ONCE, 1]
        receiver = begin + tl.arange(0, P.AT_ONCE)[:, None]
        rows = (first + receiver * receivers.step).to(tl.int64) * to.stride
        for start_n in range(0, tree.size, P.SENT_BLOCK):
            # [AT_ONCE, SENT_BLOCK]
            offs = start_n + tl.arange(0, P.SENT_BLOCK)[None, :]
            tile = tl.load(tile_ptr(tree.acc, core) + offs, mask=offs < tree.size)
            tiles = tl.broadcast_to(tile, [P.AT_ONCE, P.SENT_BLOCK])
            tl.store(to.tensor + to.offset + rows + offs, tiles, mask=(receiver < count) & (offs < tree.size))


@triton.jit
def _block(tree, receivers, args, sizes, number, alarm_ptr, launch, BODIES: tl.constexpr, P):
    order_ptr = tree.order + number * P.CORES
    if len(BODIES) > 0:
        fused.run_ops(args, sizes, fused.cores_at(tree.order, number, P.CORES), BODIES)
        tl.debug_barrier()
    # [CORES, 1]
    places = tl.arange(0, P.CORES)[:, None]
    core = tl.load(order_ptr + places)
    counted = (places == 0) | (core != tl.load(order_ptr))  # not those that fill up the block
    if P.SENDS:
        first, count = tl.load(receivers.first + core), tl.where(counted, tl.load(receivers.number + core), 0)
    _reduce(tree, core, counted, alarm_ptr, launch, P)
    if P.SENDS:  # noqa: SIM102  a constexpr
        if tl.max(count) > 0:  # a block of roots
            tl.debug_barrier()
            for place in range(P.CORES):
                chosen = places == place
                _broadcast(tree, receivers, _one(core, chosen), _one(first, chosen), _one(count, chosen), P)


@triton.jit(do_not_specialize=["launch"])
def _tree_kernel(
    tree, receivers, blocks, alarm_ptr, launch, P, args, sizes, BODIES: tl.constexpr, SOURCE: tl.constexpr,
    LOOPS: tl.constexpr,
):  # fmt: skip
    # a grid of one axis, as only there programs certainly start in order
    pid = tl.program_id(0)
    if LOOPS == 1:  # a loop costs registers
        _block(tree, receivers, args, sizes, pid, alarm_ptr, launch, BODIES, P)
    else:
        for number in range(pid * LOOPS, min(pid * LOOPS + LOOPS, blocks)):
            _block(tree, receivers, args, sizes, number, alarm_ptr, launch, BODIES, P)
            tl.debug_barrier()


def reduce_tree(
    tree: TreeTables, ops: Sequence[FusedOp], alarm: Alarm, receivers: Receivers | None = None,
    all_ops: Sequence[FusedOp] = (), grid: Grid = Grid(),  # noqa: B008  a value
) -> None:  # fmt: skip
    """Run `ops` on every core, reduce by the tree, then send the roots' sums to their `receivers`, if any.

    `all_ops` as in `fused.options`. Raises BackendError if a tree cannot combine by `tree.op`.
    """
    if tree.op not in COMBINE:
        raise BackendError(f"a reduce tree combines by one of {', '.join(COMBINE)}, not {tree.op!r}")
    cores = tree.order.numel()
    wide = block(tree.size, max(128, 512 // grid.cores_per_block))
    sent_block = block(tree.size, 1024)
    chosen = fused.options(ops, warps(wide * grid.cores_per_block), all_ops)
    sizes = {
        "BLOCK": wide, "CORES": grid.cores_per_block, "SENDS": receivers is not None, "SENT_BLOCK": sent_block,
        "AT_ONCE": max(1, 1024 * chosen["num_warps"] // sent_block),
    }  # fmt: skip
    known = {"slots": tree.slots, "size": tree.size, "op": COMBINE[tree.op]}
    tables = tree._replace(**{name: tl.constexpr(value) for name, value in known.items()})
    start(
        _tree_kernel, grid.programs(cores), tables, receivers or (), cores // grid.cores_per_block, alarm.word,
        alarm.launch, constants(sizes), **fused.arguments(ops, grid), **chosen,
    )  # fmt: skip


@triton.jit
def _fold(args, core, P):
    total, tiles, first_ptr, roots_ptr, tree_of_ptr, number_ptr = args
    dtype: tl.constexpr = total.tensor.dtype.element_ty
    if P.CORES > 1:  # the cores of a block are of one tree
        core = tl.max(tl.reshape(core, [P.CORES]), axis=0)
    tree = tl.load(tree_of_ptr + core)
    first = tl.load(number_ptr + core) * P.STEP if P.STEP < P.SIZE else 0
    end = min(first + P.STEP, P.SIZE)
    for begin in range(first, end, P.BLOCK):
        # [BLOCK]
        offs = begin + tl.arange(0, P.BLOCK)
        mask = offs < end
        parts_ptr, values = tile_ptr(tiles, tl.load(first_ptr + tree)), ()
        for number in tl.static_range(P.NUMBER):
            values += (load(parts_ptr + P.PARTS[number] + offs, mask),)
        for number in tl.static_range(P.NUMBER - 1):
            values += (_combined(values[P.FIRST[number]], values[P.SECOND[number]], dtype, P.COMBINE),)
        write(total, tl.load(roots_ptr + tree), offs, values[2 * P.NUMBER - 2], mask)


def fold(
    total: Operand, tiles: Operand, first: Tensor, roots: Tensor, tree_of: Tensor, number: Tensor, *,
    order: Sequence[int], pairs: Sequence[tuple[int, int]], size: int, op: str, step: int,
) -> FusedOp:  # fmt: skip
    """Return a fused op that combines the tiles [size] of every tree by `op` into `total` of its root.

    Value i is the tile of core `first` + order[i] of a tree. Each of `pairs` combines two values to the next one, the
    last of which is the sum. Tables are int32: `first` and `roots` [trees] are cores, `tree_of` [cores] is a core's
    tree, `number` [cores] its number there. Core number i of a tree does columns i * step to (i + 1) * step; with a
    step of `size` each core combines whole tiles.
    """
    wide = block(step, MAX_COLUMNS)
    left, right = (tuple(pair[end] for pair in pairs) for end in (0, 1))
    sizes: dict[str, Any] = {
        "SIZE": size, "STEP": step, "BLOCK": wide, "NUMBER": len(order), "FIRST": left, "SECOND": right,
        "PARTS": tuple(tiles.stride * core for core in order), "COMBINE": COMBINE[op], "CORES": 1,
    }  # fmt: skip
    args = total, tiles, first, roots, tree_of, number
    return FusedOp(_fold, args, constants(sizes), max(1, wide // 32), elements=1)
