"""A fold: the sums of the reduce trees of a mesh row or column, added up by one program from every core's part.

With elided exchange, intermediate partial sums are unobservable, so one program may fold the row. It adds in the order
of the trees, and rounds each sum to the buffer's dtype: the result is bit-identical to that of messages hop by hop. All
loads are in flight before the first part is added. The order is known when the kernel is compiled.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, block, rounded, store, tile_ptr
from wafer_triton.kernels.elementwise import COMBINE
from wafer_triton.kernels.fused import FusedOp, fused_op

MOST = 128  # parts that are added in one go
WIDE = 128  # columns at once, one a thread
# What is done with a part: it begins a sum (the one so far is kept), or is added; then as many kept sums are added as
# TAKES counts, the last one first.
STARTS, TAKES = tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _part(tiles, core_ptr, offs, mask):
    tile = tl.load(tile_ptr(tiles, tl.load(core_ptr)) + offs, mask=mask, other=0.0)
    return tile.to(tl.float32)


@triton.jit
def _sum(one, other, DTYPE: tl.constexpr, COMBINE: tl.constexpr):
    return rounded(COMBINE(one, other), DTYPE).to(tl.float32)


@triton.jit
def _columns(args, tree, start, end, P):
    """Fold P.BLOCK columns from `start` on."""
    total, tiles, cores_ptr, roots_ptr, _ = args
    dtype: tl.constexpr = total.tensor.dtype.element_ty
    # [BLOCK]
    offs = start + tl.arange(0, P.BLOCK)
    mask = offs < end
    values = ()
    for item in tl.static_range(len(P.CODES)):
        values += (_part(tiles, cores_ptr + tree * len(P.CODES) + item, offs, mask),)
    sum_, kept = values[0], ()
    for item in tl.static_range(1, len(P.CODES)):
        if P.CODES[item] % TAKES == STARTS:
            kept = (sum_,) + kept
            sum_ = values[item]
        else:
            sum_ = _sum(values[item], sum_, dtype, P.COMBINE)
        for _ in tl.static_range(P.CODES[item] // TAKES):
            sum_ = _sum(kept[0], sum_, dtype, P.COMBINE)
            kept = kept[1:]
    store(tile_ptr(total, tl.load(roots_ptr + tree)) + offs, sum_, mask)


@triton.jit
def _fold(args, core, P, piece=0):
    if P.CORES > 1:  # all of one tree
        core = tl.max(tl.reshape(core, [P.CORES]), axis=0)
    tree = tl.load(args[4] + core)
    if P.BLOCK >= P.STEP:
        _columns(args, tree, piece * P.STEP, min(piece * P.STEP + P.STEP, P.SIZE), P)
    else:
        for start in range(piece * P.STEP, min(piece * P.STEP + P.STEP, P.SIZE), P.BLOCK):
            _columns(args, tree, start, min(piece * P.STEP + P.STEP, P.SIZE), P)


def fold(
    total: Operand, tiles: Operand, cores: Tensor, roots: Tensor, tree_of: Tensor, *, codes: tuple[int, ...], size: int,
    op: str, step: int | None = None,
) -> FusedOp:  # fmt: skip
    """The sums by `op` of tiles [size] of every tree, into their roots' totals.

    `cores`, int32 [trees, number], is the order in which the parts of a tree come, `codes` [number] what is done with
    each. `roots` int32 [trees], `tree_of` int32 [cores]. A slice of the launch is `step` columns, by default all; parts
    and totals may share memory if slices are folded once.
    """
    step = size if step is None else step
    wide = block(step, WIDE)
    sizes: dict[str, Any] = {"SIZE": size, "STEP": step, "BLOCK": wide, "CODES": codes, "COMBINE": COMBINE[op]}
    return fused_op(_fold, (total, tiles, cores, roots, tree_of), sizes, max(1, wide // 32), elements=1)
