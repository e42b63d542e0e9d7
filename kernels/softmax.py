"""Softmax over a row that several cores share: the row's maximum, its exponentials and their sum, the division.

Rows are (head, query) pairs, `row = head * m + query`; a query's bias [n] (-inf where masked) is shared by its heads.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from wafer_triton.kernels._common import Operand, block, load, store, tile_ptr, warps
from wafer_triton.kernels.parts import LocalKernel, Part, part


@triton.jit
def _biased(s, bias, core, offs_row, offs_n, mask, SCALE, M: tl.constexpr, N: tl.constexpr):
    """scale * s + bias of the block [rows, n]; -inf where masked off."""
    score = load(tile_ptr(s, core) + offs_row[:, None] * N + offs_n[None, :], mask)
    bias = load(tile_ptr(bias, core) + (offs_row % M)[:, None] * N + offs_n[None, :], mask)
    return tl.where(mask, score * SCALE + bias, float("-inf"))


@triton.jit
def _row_max(args, core, P):
    top, s, bias = args
    for start_row in range(0, P.HEADS * P.M, P.BLOCK_M):
        # [BLOCK_M, BLOCK_N]
        offs_row = start_row + tl.arange(0, P.BLOCK_M)
        mask_row = offs_row < P.HEADS * P.M
        highest = tl.full([P.BLOCK_M], float("-inf"), tl.float32)
        nans = tl.zeros([P.BLOCK_M], tl.int32)
        for start_n in range(0, P.N, P.BLOCK_N):
            offs_n = start_n + tl.arange(0, P.BLOCK_N)
            mask = mask_row[:, None] & (offs_n < P.N)[None, :]
            score = _biased(s, bias, core, offs_row, offs_n, mask, P.SCALE, P.M, P.N)
            # tl.max drops NaN; the definition keeps it
            nan = score != score
            nans += tl.sum(nan.to(tl.int32), axis=1)
            highest = tl.maximum(highest, tl.max(tl.where(nan, float("-inf"), score), axis=1))
        store(tile_ptr(top, core) + offs_row, tl.where(nans > 0, float("nan"), highest), mask_row)


@triton.jit
def _exp_sum(args, core, P):
    p, z, s, bias, top = args
    for start_row in range(0, P.HEADS * P.M, P.BLOCK_M):
        # [BLOCK_M, BLOCK_N]
        offs_row = start_row + tl.arange(0, P.BLOCK_M)
        mask_row = offs_row < P.HEADS * P.M
        highest = load(tile_ptr(top, core) + offs_row, mask_row)
        highest = tl.maximum(highest, -3e38, propagate_nan=tl.PropagateNan.ALL)
        total = tl.zeros([P.BLOCK_M], tl.float32)
        for start_n in range(0, P.N, P.BLOCK_N):
            offs_n = start_n + tl.arange(0, P.BLOCK_N)
            mask = mask_row[:, None] & (offs_n < P.N)[None, :]
            e = tl.exp(_biased(s, bias, core, offs_row, offs_n, mask, P.SCALE, P.M, P.N) - highest[:, None])
            store(tile_ptr(p, core) + offs_row[:, None] * P.N + offs_n[None, :], e, mask)
            total += tl.sum(e, axis=1)
        store(tile_ptr(z, core) + offs_row, total, mask_row)


@triton.jit
def _normalize(args, core, P):
    out, o, z = args
    for start in range(0, P.M * P.HEADS * P.N, P.BLOCK):
        # [BLOCK] of [M, HEADS, N]
        offs = start + tl.arange(0, P.BLOCK)
        mask = offs < P.M * P.HEADS * P.N
        offs_z = offs // P.N % P.HEADS * P.M + offs // (P.N * P.HEADS)
        total = tl.load(tile_ptr(z, core) + offs_z, mask=mask, other=1.0).to(tl.float32)
        value = load(tile_ptr(o, core) + offs, mask)
        store(tile_ptr(out, core) + offs, tl.div_rn(value, total), mask)


def _row_sizes(heads: int, m: int, n: int, scale: float) -> tuple[dict[str, Any], int]:
    """Sizes and warps of an operation that goes over rows [heads, m] of n."""
    block_n = block(n, 1024)
    block_m = block(heads * m, 1024 // block_n)
    sizes = {"HEADS": heads, "M": m, "N": n, "SCALE": scale, "BLOCK_M": block_m, "BLOCK_N": block_n}
    return sizes, warps(block_m * block_n)


@LocalKernel
def row_max(outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, heads: int, m: int, n: int, scale: float) -> Part:
    """top [heads, m] = max over n of scale * s [heads, m, n] + bias [m, n]; a masked entry has bias -inf."""
    return part(_row_max, (*outs, *ins), *_row_sizes(heads, m, n, scale))


@LocalKernel
def exp_sum(outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, heads: int, m: int, n: int, scale: float) -> Part:
    """p [heads, m, n] = exp(scale * s + bias - top) and z [heads, m] = its sum over n; top [heads, m]."""
    return part(_exp_sum, (*outs, *ins), *_row_sizes(heads, m, n, scale), sums=True)


@LocalKernel
def normalize(outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, m: int, heads: int, n: int) -> Part:
    """out [m, heads, n] = o / z with z [heads, m]."""
    cap = block(m * heads * n, 1024)
    return part(_normalize, (*outs, *ins), {"M": m, "HEADS": heads, "N": n, "BLOCK": cap}, warps(cap))
