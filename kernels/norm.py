"""RMSNorm in two local operations: a core's part of each row's sum of squares; after the all-reduce, the scaling."""

from __future__ import annotations

import triton
import triton.language as tl

from wafer_triton.kernels._common import block, load, store, sum_by_halves, tile_ptr
from wafer_triton.kernels.fused import each, local_kernel


@local_kernel(
    lambda ins, m, n: {"BLOCK_N": block(n, 1024), "BLOCK_M": block(m, 1024 // block(n, 1024)), "multi_core": True}
)
@triton.jit
def sum_squares(args, core, P):
    s, x = args
    x_ptr = tile_ptr(x, core)
    for start_m in range(0, P.M, P.BLOCK_M):
        # [BLOCK_M, BLOCK_N]
        offs_m = start_m + tl.arange(0, P.BLOCK_M)
        squares = tl.zeros([1, P.CORES, P.BLOCK_M, P.BLOCK_N], tl.float32)
        for start_n in range(0, P.N, P.BLOCK_N):
            offs_n = start_n + tl.arange(0, P.BLOCK_N)
            mask = (offs_m < P.M)[:, None] & (offs_n < P.N)[None, :]
            value = load(x_ptr + offs_m[:, None] * P.N + offs_n[None, :], mask)
            squares = tl.fma(value, value, squares)  # else the number of warps decides if the compiler fuses this
        total = sum_by_halves(squares, P.CORES * P.BLOCK_M, P.BLOCK_N, 1)
        total = tl.reshape(total, [1, P.CORES, P.BLOCK_M, 1])
        store(tile_ptr(s, core) + offs_m[:, None], total, (offs_m < P.M)[:, None])


@each(lambda m, groups, n, **_: m * groups * n)
@triton.jit
def rms_scale(args, core, offs, mask, P):
    out, x, s, weight = args
    # [BLOCK] of [M, GROUPS, N]
    offs_w = offs % (P.GROUPS * P.N)
    scaled = mask & (offs_w < (P.GROUPS - P.KEPT) * P.N)
    value = load(tile_ptr(x, core) + offs, mask)
    offs_s = offs // P.N
    if P.FIRST > 0:
        offs_s = offs // (P.GROUPS * P.N) * 2 + (offs_w >= P.FIRST * P.N)
    scale = tl.rsqrt(load(tile_ptr(s, core) + offs_s, scaled) / P.WIDTH + P.EPS)
    normed = value * scale * load(tile_ptr(weight, core) + offs_w, scaled)
    store(tile_ptr(out, core) + offs, tl.where(scaled, normed, value), mask)


@local_kernel(lambda ins, n, heads, **_: {"BLOCK": block(heads * n, 1024)})
@triton.jit
def mean_squares(args, core, P):
    s, x = args
    for row in range(2 * P.M):
        # the query heads of a token, then its key heads
        keys = row % 2
        size = tl.where(keys == 1, P.KV_HEADS * P.N, P.HEADS * P.N)
        x_ptr = tile_ptr(x, core) + row // 2 * (P.HEADS + 2 * P.KV_HEADS) * P.N + keys * P.HEADS * P.N
        squares = tl.zeros([P.BLOCK], tl.float32)
        for start in range(0, size, P.BLOCK):
            # [BLOCK]
            offs = start + tl.arange(0, P.BLOCK)
            value = load(x_ptr + offs, offs < size)
            squares = tl.fma(value, value, squares)  # as in `sum_squares`
        width = tl.where(keys == 1, P.KV_WIDTH, P.WIDTH)
        total = tl.reshape(sum_by_halves(squares, 1, P.BLOCK, 1), [1])
        tl.store(tile_ptr(s, core) + row + tl.arange(0, 1), total / width)
