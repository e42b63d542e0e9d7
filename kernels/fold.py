"""A fold: the sums of the reduce trees of a mesh row or column, added up by one program from every core's part.

With elided exchange, intermediate partial sums are unobservable, so one program may fold the row. It adds in the order
of the trees, and rounds each sum to the buffer's dtype: the result is bit-identical to that of messages hop by hop. All
loads are in flight before the first part is added. The order is known when the kernel is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
    """The parts of some cores; a function, as the frontend then walks it once for all of its calls."""
    values = ()
    for item in tl.static_range(NUMBER):
        tile = tl.load(tile_ptr(tiles, tl.load(cores_ptr + item)) + offs, mask=mask, other=0.0)
        values += (tile.to(tl.float32),)
    return values


@triton.jit
def _chained(sum_, values, DTYPE: tl.constexpr, COMBINE: tl.constexpr):
    """The sum, to which values are added in order."""
    for item in tl.static_range(len(values)):
        sum_ = rounded(COMBINE(values[item], sum_), DTYPE).to(tl.float32)
    return sum_


@triton.jit
def _columns(args, tree, start, end, P):
    """Fold P.BLOCK columns from `start` on."""
    total, tiles, cores_ptr, roots_ptr, _ = args
    dtype: tl.constexpr = total.tensor.dtype.element_ty
    # [BLOCK]
    offs = start + tl.arange(0, P.BLOCK)
    mask = offs < end
    cores_ptr += tree * P.NUMBER
    values = ()
    for begun in tl.static_range(0, P.NUMBER, 8):
        values += _loaded(tiles, cores_ptr + begun, offs, mask, min(8, P.NUMBER - begun))
    sum_, kept = values[0], ()
    for chain in tl.static_range(P.CHAINS):
        if P.BEGINS[chain]:
            if chain > 0:
                kept = (sum_,) + kept  # noqa: RUF005  Triton has no starred tuples
            sum_ = _chained(values[0], values[1 : P.LENGTHS[chain]], dtype, P.COMBINE)
        else:
            sum_ = _chained(sum_, values[: P.LENGTHS[chain]], dtype, P.COMBINE)
        values = values[P.LENGTHS[chain] :]
        sum_ = _chained(sum_, kept[: P.TAKES[chain]], dtype, P.COMBINE)
        kept = kept[P.TAKES[chain] :]
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


class Chain(NamedTuple):
    """`length` parts that are added one after another, then as many kept sums as the chain `takes`, the last one first.

    A chain that `begins` a sum keeps the one so far; another adds to it.
    """

    begins: bool
    length: int
    takes: int


def fold(
    total: Operand, tiles: Operand, cores: Tensor, roots: Tensor, tree_of: Tensor, *, chains: Sequence[Chain],
    size: int, op: str, step: int | None = None,
) -> FusedOp:  # fmt: skip
    """The sums by `op` of tiles [size] of every tree, into their roots' totals.

    `cores`, int32 [trees, number], is the order in which the parts of a tree come, in `chains`. `roots` int32 [trees],
    `tree_of` int32 [cores]. A slice of the launch is `step` columns, by default all; parts and totals may share
    memory if slices are folded once.
    """
    step = size if step is None else step
    wide = block(step, WIDE)
    begins, lengths, takes = zip(*chains, strict=True)
    sizes: dict[str, Any] = {
        "SIZE": size, "STEP": step, "BLOCK": wide, "NUMBER": sum(lengths), "CHAINS": len(chains), "BEGINS": begins,
        "LENGTHS": lengths, "TAKES": takes, "COMBINE": COMBINE[op],
    }  # fmt: skip
    return fused_op(_fold, (total, tiles, cores, roots, tree_of), sizes, max(1, wide // 32), elements=1)
