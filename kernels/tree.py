"""A whole reduce tree in one launch: every core adds its children's messages to its own and passes the sum on.

Programs are numbered in topological order, leaves first and root last, and wait only for lower numbers. A GPU starts
programs in order, so an awaited program is running or done and the wait ends at any mesh size; the interpreter
runs one program after another, so it never waits at all.

What a core computes by itself before, such as the product of a MeshGEMV, can be part of the launch.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.errors import BackendError
from wafer_triton.kernels import protocol
from wafer_triton.kernels._common import Operand, block, load, rounded, store, this_core, tile_ptr, warps
from wafer_triton.kernels.elementwise import add_values, max_values
from wafer_triton.kernels.parts import Part, arguments, run_parts
from wafer_triton.kernels.waiting import Alarm, wait

UP = tl.constexpr(protocol.UP)
COMBINE = {"add": add_values, "maximum": max_values}


@triton.jit(do_not_specialize=["launch"])
def _tree_kernel(
    acc, mailbox, flags_ptr, alarm_ptr, launch, order_ptr, children_ptr, parent_ptr, parent_slot_ptr, args, sizes,
    SLOTS: tl.constexpr, SIZE: tl.constexpr, COMBINE: tl.constexpr, BLOCK: tl.constexpr, BODIES: tl.constexpr,
    SOURCE: tl.constexpr,
):  # fmt: skip
    core = this_core(order_ptr)
    acc_ptr = tile_ptr(acc, core)
    run_parts(args, sizes, core, BODIES)
    if len(BODIES) > 0:
        tl.debug_barrier()

    children = tl.load(children_ptr + core)
    parent = tl.load(parent_ptr + core)
    parent_slot = tl.load(parent_slot_ptr + core)
    out_ptr = tile_ptr(mailbox, tl.maximum(parent, 0)) + parent_slot * SIZE
    for start in range(0, SIZE, BLOCK):
        # [BLOCK]
        offs = start + tl.arange(0, BLOCK)
        mask = offs < SIZE
        total = load(acc_ptr + offs, mask)
        for slot in range(SLOTS):
            if slot < children:
                if start == 0:
                    wait(flags_ptr + core * SLOTS + slot, UP, alarm_ptr, launch, core, slot)
                # from L2: another SM wrote it
                message_ptr = tile_ptr(mailbox, core) + slot * SIZE
                message = tl.load(message_ptr + offs, mask=mask, other=0.0, cache_modifier=".cg").to(tl.float32)
                total = rounded(COMBINE(total, message), acc.tensor.dtype.element_ty).to(tl.float32)
        store(acc_ptr + offs, total, mask)
        store(out_ptr + offs, total, mask & (parent >= 0))

    if parent >= 0:
        tl.debug_barrier()
        tl.atomic_xchg(flags_ptr + parent * SLOTS + parent_slot, UP, sem="release", scope="gpu")


def tree(
    acc: Operand,
    mailbox: Operand,
    flags: Tensor,
    alarm: Alarm,
    order: Tensor,
    children: Tensor,
    parent: Tensor,
    parent_slot: Tensor,
    *,
    size: int,
    op: str = "add",
    before: Sequence[Part] = (),
) -> None:
    """Reduce acc [size] up the tree; afterwards every core's acc holds the sum of its subtree, the root's of all.

    All tables are int32. `order` lists the cores, children before parents. Core i takes its `children[i]` messages in
    ascending slots, each sum rounded to acc's dtype; it puts its own into slot `parent_slot[i]` of core `parent[i]`
    (-1: the root). A core's tile of `mailbox` is [slots, size]; `flags` [cores, slots] is zero before and after.
    The parts `before` come first, in the same program.
    """
    if op not in COMBINE:
        raise BackendError(f"a reduce tree combines by one of {', '.join(COMBINE)}, not {op!r}")
    cap = block(size, 1024)
    _tree_kernel[(order.numel(),)](
        acc, mailbox, flags, *alarm, order, children, parent, parent_slot,
        SLOTS=flags.shape[-1], SIZE=size, COMBINE=COMBINE[op], BLOCK=cap, **arguments(before, warps(cap)),
    )  # fmt: skip
