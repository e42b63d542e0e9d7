"""RMSNorm in two local steps: a core's share of each row's sum of squares, and, after the all-reduce, the scaling."""

from __future__ import annotations

import triton
import triton.language as tl

from wafer_triton.kernels._common import Operand, block, load, store, summed, tile_ptr, warps
from wafer_triton.kernels.fused import FusedOp, LocalKernel, fused_op


@triton.jit
def _sum_squares(args, core, P):
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
            squares += value * value
        total = summed(squares, P.CORES * P.BLOCK_M, P.BLOCK_N, 1)
        total = tl.reshape(total, [1, P.CORES, P.BLOCK_M, 1])
        store(tile_ptr(s, core) + offs_m[:, None], total, (offs_m < P.M)[:, None])


@triton.jit
def _rms_scale(args, core, P):
    out, x, s, weight = args
    for start in range(0, P.M * P.GROUPS * P.N, P.BLOCK):
        # [BLOCK] of [M, GROUPS, N]
        offs = start + tl.arange(0, P.BLOCK)
        mask = offs < P.M * P.GROUPS * P.N
        offs_w = offs % (P.GROUPS * P.N)
        scaled = mask & (offs_w < (P.GROUPS - P.KEPT) * P.N)
        value = load(tile_ptr(x, core) + offs, mask)
        offs_s = offs // P.N
        if P.FIRST > 0:
            offs_s = offs // (P.GROUPS * P.N) * 2 + (offs_w >= P.FIRST * P.N)
        scale = tl.rsqrt(load(tile_ptr(s, core) + offs_s, scaled) / P.WIDTH + P.EPS)
        normed = value * scale * load(tile_ptr(weight, core) + offs_w, scaled)
        store(tile_ptr(out, core) + offs, tl.where(scaled, normed, value), mask)


@LocalKernel
def sum_squares(outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, m: int, n: int) -> FusedOp:
    """s [m] = sum over n of x [m, n] squared."""
    block_n = block(n, 1024)
    block_m = block(m, 1024 // block_n)
    sizes = {"M": m, "N": n, "BLOCK_M": block_m, "BLOCK_N": block_n}
    return fused_op(_sum_squares, (*outs, *ins), sizes, warps(block_m * block_n), elements=block_m * block_n)


@LocalKernel
def rms_scale(
    outs: tuple[Operand, ...],
    ins: tuple[Operand, ...],
    *,
    m: int,
    n: int,
    width: int,
    eps: float,
    groups: int = 1,
    kept: int = 0,
    first: int = 0,
) -> FusedOp:
    """out [m, groups, n] = x / sqrt(s / width + eps) * weight, s [m, groups], weight [groups - kept, n].

    The last `kept` groups of each row are copied. If some groups are `first`, s [m, 2] has one sum for these.
    """
    cap = block(m * groups * n, 1024)
    sizes = {"M": m, "N": n, "GROUPS": groups, "KEPT": kept, "WIDTH": width, "EPS": eps, "FIRST": first}
    sizes["BLOCK"] = cap
    return fused_op(_rms_scale, (*outs, *ins), sizes, warps(cap), elements=cap)


@triton.jit
def _mean_squares(args, core, P):
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
            squares += value * value
        width = tl.where(keys == 1, P.KV_WIDTH, P.WIDTH)
        total = tl.reshape(summed(squares, 1, P.BLOCK, 1), [1])
        tl.store(tile_ptr(s, core) + row + tl.arange(0, 1), total / width)


@LocalKernel
def mean_squares(
    outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, m: int, n: int, heads: int, kv_heads: int, width: int,
    kv_width: int,
) -> FusedOp:  # fmt: skip
    """s [m, 2] = squares of query and of key heads of x [m, heads + 2 kv_heads, n] over their widths, added up."""
    cap = block(heads * n, 1024)
    sizes = {"M": m, "N": n, "HEADS": heads, "KV_HEADS": kv_heads, "WIDTH": width, "KV_WIDTH": kv_width, "BLOCK": cap}
    return fused_op(_mean_squares, (*outs, *ins), sizes, warps(cap))
