"""A fold: the sums of the reduce trees of a mesh row or column, added up by one program from every core's part.

With elided exchange, intermediate partial sums are unobservable, so one program may fold the row. It adds in the order
of the trees, and rounds each sum to the buffer's dtype: the result is bit-identical to that of messages hop by hop. All
loads of up to `taken` parts are in flight before the first is added.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, block, rounded, store, tile_ptr
from wafer_triton.kernels.elementwise import COMBINE
from wafer_triton.kernels.fused import FusedOp, fused_op

KEPT = 7  # sums that wait for others, at the most: three in a K-tree of two levels, two more for each further one
WIDE = 128  # columns at once, one a thread
# An entry is a core's number and what is done with its part. It begins a sum (the one so far is kept), or is added; then
# as many kept sums are added as TAKES counts, the last one first; DONE if that is the sum of a root.
STARTS, TAKES, DONE, CORE = tl.constexpr(1), tl.constexpr(2), tl.constexpr(16), tl.constexpr(32)


@triton.jit
def _added(sum_, kept, value, entry, DTYPE: tl.constexpr, COMBINE: tl.constexpr, TAKEN: tl.constexpr):
    """The sum, and those that are kept, after one part."""
    begins = entry % TAKES == STARTS
    pushed, before = (), sum_
    for number in tl.static_range(len(kept)):
        pushed += (tl.where(begins, before, kept[number]),)
        before = kept[number]
    kept = pushed
    sum_ = tl.where(begins, value, rounded(COMBINE(value, sum_), DTYPE).to(tl.float32))
    for number in tl.static_range(TAKEN):
        takes = entry % DONE // TAKES > number
        sum_ = tl.where(takes, rounded(COMBINE(kept[0], sum_), DTYPE).to(tl.float32), sum_)
        popped = ()
        for one in tl.static_range(len(kept)):
            popped += (tl.where(takes, kept[min(one + 1, len(kept) - 1)], kept[one]),)
        kept = popped
    return sum_, kept


@triton.jit
def _columns(args, line, start, end, P):
    """Fold P.BLOCK columns from `start` on."""
    total, tiles, entries_ptr, roots_ptr = args
    dtype: tl.constexpr = total.tensor.dtype.element_ty
    # [BLOCK]
    offs = start + tl.arange(0, P.BLOCK)
    mask = offs < end
    sum_ = tl.zeros([P.BLOCK], tl.float32)
    kept = ()
    for _ in tl.static_range(P.KEPT):
        kept += (sum_,)
    for begun in range(0, P.NUMBER, P.AT_ONCE):
        values, entries = (), ()
        for item in tl.static_range(P.AT_ONCE):
            there = begun + item < P.NUMBER
            entry = tl.load(entries_ptr + line * P.NUMBER + begun + item, mask=there, other=STARTS)
            tile = tl.load(tile_ptr(tiles, entry // CORE) + offs, mask=mask & there, other=0.0)
            entries += (entry,)
            values += (tile.to(tl.float32),)
        for item in tl.static_range(P.AT_ONCE):
            sum_, kept = _added(sum_, kept, values[item], entries[item], dtype, P.COMBINE, P.TAKEN)
            if entries[item] % CORE // DONE == 1:
                root = tl.load(roots_ptr + line * P.NUMBER + begun + item)
                store(tile_ptr(total, root) + offs, sum_, mask)


@triton.jit
def _fold(args, core, P, piece=0):
    if P.CORES > 1:  # all on one mesh row or column
        core = tl.max(tl.reshape(core, [P.CORES]), axis=0)
    line = core // P.COLS if P.ROWWISE else core % P.COLS
    if P.BLOCK >= P.STEP:
        _columns(args, line, piece * P.STEP, min(piece * P.STEP + P.STEP, P.SIZE), P)
    else:
        for start in range(piece * P.STEP, min(piece * P.STEP + P.STEP, P.SIZE), P.BLOCK):
            _columns(args, line, start, min(piece * P.STEP + P.STEP, P.SIZE), P)


def fold(
    total: Operand, tiles: Operand, entries: Tensor, roots: Tensor, *, size: int, op: str, rowwise: bool, cols: int,
    kept: int, takes: int, step: int | None = None,
) -> FusedOp:  # fmt: skip
    """The sums by `op` of the trees of every mesh row (`rowwise`) or column, of tiles [size], into their roots' totals.

    `entries`, int32 [lines, cores of a line], is the order in which parts come and what is done with each. `roots`
    has the core of the root at each entry that is DONE. At most `kept` sums are kept, and `takes` taken at once. A slice of
    the launch is `step` columns, by default all; parts and totals may share memory if slices are folded once.
    """
    step = size if step is None else step
    number, wide = entries.shape[1], block(step, WIDE)
    sizes: dict[str, Any] = {
        "SIZE": size, "STEP": step, "BLOCK": wide, "NUMBER": number, "AT_ONCE": block(number, 64 if step < size else 32),
        "KEPT": kept, "TAKEN": takes, "COMBINE": COMBINE[op], "ROWWISE": rowwise, "COLS": cols,
    }  # fmt: skip
    return fused_op(_fold, (total, tiles, entries, roots), sizes, max(1, wide // 32), elements=1)
