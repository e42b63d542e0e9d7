"""A fold: the sums of the reduce trees of a mesh row or column, added up by one program from every core's part.

With elided exchange, intermediate partial sums are unobservable, so one program may fold the row. It adds in the order
of the trees, and rounds each sum to the buffer's dtype: the result is bit-identical to messages hop by hop. All
loads are in flight before the first part is added. The order is known when the kernel is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, block, rounded, store, tile_ptr
from wafer_triton.kernels.elementwise import COMBINE
from wafer_triton.kernels.fused import FusedOp, fused_op

MOST = 128  # parts that are added in one go
WIDE = 128  # columns at once, one a thread


@triton.jit
def _combined(one, other, DTYPE: tl.constexpr, COMBINE: tl.constexpr):
    return rounded(COMBINE(one, other), DTYPE).to(tl.float32)


@triton.jit
def _columns(args, tree, start, end, P):
    """Fold P.BLOCK columns from `start` on."""
    total, tiles, first_ptr, roots_ptr, _, _ = args
    dtype: tl.constexpr = total.tensor.dtype.element_ty
    # [BLOCK]
    offs = start + tl.arange(0, P.BLOCK)
    mask = offs < end
    parts_ptr, values = tile_ptr(tiles, tl.load(first_ptr + tree)), ()
    for number in tl.static_range(P.NUMBER):
        values += (tl.load(parts_ptr + P.PARTS[number] + offs, mask=mask, other=0.0).to(tl.float32),)
    for number in tl.static_range(P.NUMBER - 1):
        values += (_combined(values[P.FIRST[number]], values[P.SECOND[number]], dtype, P.COMBINE),)
    store(tile_ptr(total, tl.load(roots_ptr + tree)) + offs, values[2 * P.NUMBER - 2], mask)


@triton.jit
def _fold(args, core, P):
    if P.CORES > 1:  # all of one tree
        core = tl.max(tl.reshape(core, [P.CORES]), axis=0)
    tree = tl.load(args[4] + core)
    first = tl.load(args[5] + core) * P.STEP if P.STEP < P.SIZE else 0
    end = min(first + P.STEP, P.SIZE)
    for start in range(first, end, P.BLOCK):
        _columns(args, tree, start, end, P)


def fold(
    total: Operand, tiles: Operand, first: Tensor, roots: Tensor, tree_of: Tensor, number: Tensor, *,
    order: Sequence[int], pairs: Sequence[tuple[int, int]], size: int, op: str, step: int | None = None,
) -> FusedOp:  # fmt: skip
    """Return the sums by `op` of tiles [size] of every tree, into their roots' totals.

    Part i is of the core that follows the `first` of its tree by order[i] cores. Each of the `pairs` of numbers is
    combined to a value of the next number, the last one the sum. Int32 are `first` and `roots` [trees], and `tree_of`
    and `number` [cores]: the tree of a core, and its number there. By default each core folds the whole tile; with a
    `step` core number i of a tree folds columns from i * step to (i + 1) * step.
    """
    step = size if step is None else step
    wide = block(step, WIDE)
    left, right = (tuple(pair[end] for pair in pairs) for end in (0, 1))
    sizes: dict[str, Any] = {
        "SIZE": size, "STEP": step, "BLOCK": wide, "NUMBER": len(order), "FIRST": left, "SECOND": right,
        "PARTS": tuple(tiles.stride * core for core in order), "COMBINE": COMBINE[op],
    }  # fmt: skip
    return fused_op(_fold, (total, tiles, first, roots, tree_of, number), sizes, max(1, wide // 32), elements=1)
