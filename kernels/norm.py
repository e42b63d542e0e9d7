"""RMSNorm in two local operations: a core's part of each row's sum of squares; after the all-reduce, the scaling.

Its gradients take a sum of products of each row as well, and one step on what both sums say.
"""

from __future__ import annotations

import triton
import triton.language as tl

from wafer_triton.kernels._common import block, load, read, sum_by_halves, tile_ptr, write
from wafer_triton.kernels.fused import each, local_kernel, rows_of


@local_kernel(lambda ins, m, n: {"INPUTS": len(ins), **rows_of(m, n)}, "sum_squares", "sum_products")
@triton.jit
def _sum_products(args, core, P):
    # a square is the product of an only input with itself
    s, a_ptr, b_ptr = args[0], tile_ptr(args[1], core), tile_ptr(args[P.INPUTS], core)
    for start_m in range(0, P.M, P.BLOCK_M):
        # [BLOCK_M, BLOCK_N]
        offs_m = start_m + tl.arange(0, P.BLOCK_M)
        products = tl.zeros([1, P.CORES, P.BLOCK_M, P.BLOCK_N], tl.float32)
        for start_n in range(0, P.N, P.BLOCK_N):
            offs_n = start_n + tl.arange(0, P.BLOCK_N)
            mask = (offs_m < P.M)[:, None] & (offs_n < P.N)[None, :]
            offs = offs_m[:, None] * P.N + offs_n[None, :]
            # without fma the number of warps decides if the compiler fuses this
            products = tl.fma(load(a_ptr + offs, mask), load(b_ptr + offs, mask), products)
        total = sum_by_halves(products, P.CORES * P.BLOCK_M, P.BLOCK_N, 1)
        total = tl.reshape(total, [1, P.CORES, P.BLOCK_M, 1])
        write(s, core, offs_m[:, None], total, (offs_m < P.M)[:, None])


@each(lambda m, n, **_: m * n)
@triton.jit
def rms_dx(args, core, offs, mask, P):
    dx, dy, x, weight, squares, products = args
    row = offs // P.N
    scale = tl.rsqrt(read(squares, core, row, mask) / P.WIDTH + P.EPS)
    along = read(dy, core, offs, mask) * read(weight, core, offs % P.N, mask) * scale
    share = read(products, core, row, mask) / P.WIDTH * scale * scale
    write(dx, core, offs, along - read(x, core, offs, mask) * share, mask)


@each(lambda n, **_: n)
@triton.jit
def rms_dw(args, core, offs, mask, P):
    dw, dy, x, squares = args
    total = tl.zeros_like(offs).to(tl.float32)
    for row in range(P.M):
        square = read(squares, core, row + offs * 0, mask)
        scale = tl.where(square == 0, 0.0, tl.rsqrt(square / P.WIDTH + P.EPS))  # rows of padding, for eps = 0
        at = row * P.N + offs
        total += read(dy, core, at, mask) * (read(x, core, at, mask) * scale)
    write(dw, core, offs, total, mask)


@each(lambda m, groups, n, **_: m * groups * n)
@triton.jit
def rms_scale(args, core, offs, mask, P):
    out, x, s, weight = args
    # [BLOCK] of [M, GROUPS, N]
    offs_w = offs % (P.GROUPS * P.N)
    scaled = mask & (offs_w < (P.GROUPS - P.KEPT) * P.N)
    value = read(x, core, offs, mask)
    offs_s = offs // P.N
    if P.FIRST > 0:
        offs_s = offs // (P.GROUPS * P.N) * 2 + (offs_w >= P.FIRST * P.N)
    scale = tl.rsqrt(read(s, core, offs_s, scaled) / P.WIDTH + P.EPS)
    normed = value * scale * read(weight, core, offs_w, scaled)
    write(out, core, offs, tl.where(scaled, normed, value), mask)


@local_kernel(lambda ins, n, heads, **_: {"BLOCK": block(heads * n, 1024)})
@triton.jit
def mean_squares(args, core, P):
    s, x = args
    for row in range(2 * P.M):
        keys = row % 2  # the query heads of a token, then its key heads
        size = tl.where(keys == 1, P.KV_HEADS, P.HEADS) * P.N
        x_ptr = tile_ptr(x, core) + row // 2 * (P.HEADS + 2 * P.KV_HEADS) * P.N + keys * P.HEADS * P.N
        squares = tl.zeros([P.BLOCK], tl.float32)
        for start in range(0, size, P.BLOCK):
            # [BLOCK]
            offs = start + tl.arange(0, P.BLOCK)
            value = load(x_ptr + offs, offs < size)
            squares = tl.fma(value, value, squares)  # as in `_sum_products`
        width = tl.where(keys == 1, P.KV_WIDTH, P.WIDTH)
        total = tl.reshape(sum_by_halves(squares, 1, P.BLOCK, 1), [1])
        tl.store(tile_ptr(s, core) + row + tl.arange(0, 1), total / width)
