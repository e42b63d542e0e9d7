"""Softmax of rows that lie over several cores: a core's maximum of a row, its exponentials and their sum, the division.

Rows are (head, query) pairs, `row = head * m + query`. All heads of a query have one bias [n], -inf where masked.
"""

from __future__ import annotations

import triton
import triton.language as tl

from wafer_triton.kernels._common import read, sum_by_halves, write
from wafer_triton.kernels.fused import each, local_kernel, rows_of


@triton.jit
def _biased(s, bias, core, offs_row, offs_n, mask, P):
    """Return scale * s + bias for a block [rows, n]; -inf where masked off."""
    score = read(s, core, offs_row[:, None] * P.N + offs_n[None, :], mask)
    by = read(bias, core, (offs_row % P.M)[:, None] * P.N + offs_n[None, :], mask)
    return tl.where(mask, score * P.SCALE + by, float("-inf"))


@local_kernel(lambda ins, heads, m, n, **_: rows_of(heads * m, n))
@triton.jit
def row_max(args, core, P):
    top, s, bias = args
    for start_row in range(0, P.HEADS * P.M, P.BLOCK_M):
        # [BLOCK_M, BLOCK_N]
        offs_row = start_row + tl.arange(0, P.BLOCK_M)
        mask_row = offs_row < P.HEADS * P.M
        highest = tl.full([1, P.CORES, P.BLOCK_M, 1], float("-inf"), tl.float32)
        nans = tl.zeros([1, P.CORES, P.BLOCK_M, 1], tl.int32)
        for start_n in range(0, P.N, P.BLOCK_N):
            offs_n = start_n + tl.arange(0, P.BLOCK_N)
            mask = mask_row[:, None] & (offs_n < P.N)[None, :]
            score = _biased(s, bias, core, offs_row, offs_n, mask, P)
            # tl.max drops NaN; the definition keeps it
            nan = score != score
            nans += tl.sum(nan.to(tl.int32), axis=-1, keep_dims=True)
            highest = tl.maximum(highest, tl.max(tl.where(nan, float("-inf"), score), axis=-1, keep_dims=True))
        highest = tl.where(nans > 0, float("nan"), highest)
        write(top, core, offs_row[:, None], highest, mask_row[:, None])


@local_kernel(lambda ins, heads, m, n, **_: rows_of(heads * m, n))
@triton.jit
def exp_sum(args, core, P):
    p, z, s, bias, top = args
    for start_row in range(0, P.HEADS * P.M, P.BLOCK_M):
        # [BLOCK_M, BLOCK_N]
        offs_row = start_row + tl.arange(0, P.BLOCK_M)
        mask_row = offs_row < P.HEADS * P.M
        highest = read(top, core, offs_row[:, None], mask_row[:, None])
        highest = tl.maximum(highest, -3e38, propagate_nan=tl.PropagateNan.ALL)
        total = tl.zeros([1, P.CORES, P.BLOCK_M, 1], tl.float32)
        for start_n in range(0, P.N, P.BLOCK_N):
            offs_n = start_n + tl.arange(0, P.BLOCK_N)
            mask = mask_row[:, None] & (offs_n < P.N)[None, :]
            e = tl.exp(_biased(s, bias, core, offs_row, offs_n, mask, P) - highest)
            write(p, core, offs_row[:, None] * P.N + offs_n[None, :], e, mask)
            total += tl.reshape(sum_by_halves(e, P.CORES * P.BLOCK_M, P.BLOCK_N, 1), total.shape)
        write(z, core, offs_row[:, None], total, mask_row[:, None])


@each(lambda m, n, **_: m * n)
@triton.jit
def softmax_dx(args, core, offs, mask, P):
    dx, y, dy, products = args
    around = read(dy, core, offs, mask) - read(products, core, offs // P.N, mask)
    write(dx, core, offs, read(y, core, offs, mask) * around * P.SCALE, mask)


@each(lambda heads, m, n: heads * m * n)
@triton.jit
def normalize(args, core, offs, mask, P):
    out, o, z = args
    # [BLOCK] of [M, HEADS, N]
    row = offs // P.N % P.HEADS * P.M + offs // (P.N * P.HEADS)
    # masked elements have no sum to divide by
    total = tl.where(mask, read(z, core, row, mask), 1.0)
    write(out, core, offs, tl.div_rn(read(o, core, offs, mask), total), mask)
