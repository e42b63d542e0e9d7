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
def _loaded(tiles, cores_ptr, offs, mask, NUMBER: tl.constexpr):
    """Return the parts of some cores; a function, as the frontend then walks it once for all of its calls."""
    values = ()
    for item in tl.static_range(NUMBER):
        tile = tl.load(tile_ptr(tiles, tl.load(cores_ptr + item)) + offs, mask=mask, other=0.0)
        values += (tile.to(tl.float32),)
    return values


@triton.jit
def _combined(one, other, DTYPE: tl.constexpr, COMBINE: tl.constexpr):
    return rounded(COMBINE(one, other), DTYPE).to(tl.float32)


@triton.jit
def _columns(args, tree, start, end, P):
    """Fold P.BLOCK columns from `start` on."""
    total, tiles, cores_ptr, roots_ptr, _, _ = args
    dtype: tl.constexpr = total.tensor.dtype.element_ty
    # [BLOCK]
    offs = start + tl.arange(0, P.BLOCK)
    mask = offs < end
    cores_ptr += tree * P.NUMBER
    values = ()
    for begun in tl.static_range(0, P.NUMBER, 8):
        values += _loaded(tiles, cores_ptr + begun, offs, mask, min(8, P.NUMBER - begun))
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
    total: Operand, tiles: Operand, cores: Tensor, roots: Tensor, tree_of: Tensor, number: Tensor, *,
    pairs: Sequence[tuple[int, int]], size: int, op: str, step: int | None = None,
) -> FusedOp:  # fmt: skip
    """Return the sums by `op` of tiles [size] of every tree, into their roots' totals.

    `cores`, int32 [trees, number], are the cores of each tree. Their parts have the numbers from 0 on; each of
    the `pairs` of numbers is combined to a value of the next number, the last one the sum. Int32 are `roots` [trees],
    and `tree_of` and `number` [cores]: the tree of a core, and its number there. By default each core folds the whole
    tile; with a `step` core number i of a tree folds columns from i * step to (i + 1) * step.
    """
    step = size if step is None else step
    wide = block(step, WIDE)
    first, second = (tuple(pair[end] for pair in pairs) for end in (0, 1))
    sizes: dict[str, Any] = {
        "SIZE": size, "STEP": step, "BLOCK": wide, "NUMBER": len(pairs) + 1, "FIRST": first, "SECOND": second,
        "COMBINE": COMBINE[op],
    }  # fmt: skip
    return fused_op(_fold, (total, tiles, cores, roots, tree_of, number), sizes, max(1, wide // 32), elements=1)
