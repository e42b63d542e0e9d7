"""Softmax over a row that several cores share: the row's maximum, its exponentials and their sum, the division.

Rows are (head, query) pairs, `row = head * m + query`; a query's bias [n] (-inf where masked) is shared by its heads.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, block, load, store, this_core, tile_ptr, warps


@triton.jit
def _biased(s, bias, core, offs_row, offs_n, mask, SCALE, M: tl.constexpr, N: tl.constexpr):
    """scale * s + bias of the block [rows, n]; -inf where masked off."""
    score = load(tile_ptr(s, core) + offs_row[:, None] * N + offs_n[None, :], mask)
    bias = load(tile_ptr(bias, core) + (offs_row % M)[:, None] * N + offs_n[None, :], mask)
    return tl.where(mask, score * SCALE + bias, float("-inf"))


@triton.jit
def _row_max_kernel(
    top, s, bias, cores_ptr, SCALE,
    HEADS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    core = this_core(cores_ptr)
    for start_row in range(0, HEADS * M, BLOCK_M):
        # [BLOCK_M, BLOCK_N]
        offs_row = start_row + tl.arange(0, BLOCK_M)
        mask_row = offs_row < HEADS * M
        highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
        nans = tl.zeros([BLOCK_M], tl.int32)
        for start_n in range(0, N, BLOCK_N):
            offs_n = start_n + tl.arange(0, BLOCK_N)
            mask = mask_row[:, None] & (offs_n < N)[None, :]
            score = _biased(s, bias, core, offs_row, offs_n, mask, SCALE, M, N)
            # tl.max drops NaN; the definition keeps it
            nan = score != score
            nans += tl.sum(nan.to(tl.int32), axis=1)
            highest = tl.maximum(highest, tl.max(tl.where(nan, float("-inf"), score), axis=1))
        store(tile_ptr(top, core) + offs_row, tl.where(nans > 0, float("nan"), highest), mask_row)


@triton.jit
def _exp_sum_kernel(
    p, z, s, bias, top, cores_ptr, SCALE,
    HEADS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    core = this_core(cores_ptr)
    for start_row in range(0, HEADS * M, BLOCK_M):
        # [BLOCK_M, BLOCK_N]
        offs_row = start_row + tl.arange(0, BLOCK_M)
        mask_row = offs_row < HEADS * M
        highest = load(tile_ptr(top, core) + offs_row, mask_row)
        highest = tl.maximum(highest, -3e38, propagate_nan=tl.PropagateNan.ALL)
        total = tl.zeros([BLOCK_M], tl.float32)
        for start_n in range(0, N, BLOCK_N):
            offs_n = start_n + tl.arange(0, BLOCK_N)
            mask = mask_row[:, None] & (offs_n < N)[None, :]
            e = tl.exp(_biased(s, bias, core, offs_row, offs_n, mask, SCALE, M, N) - highest[:, None])
            store(tile_ptr(p, core) + offs_row[:, None] * N + offs_n[None, :], e, mask)
            total += tl.sum(e, axis=1)
        store(tile_ptr(z, core) + offs_row, total, mask_row)


@triton.jit
def _normalize_kernel(out, o, z, cores_ptr, M: tl.constexpr, HEADS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    core = this_core(cores_ptr)
    for start in range(0, M * HEADS * N, BLOCK):
        # [BLOCK] of [M, HEADS, N]
        offs = start + tl.arange(0, BLOCK)
        mask = offs < M * HEADS * N
        offs_z = offs // N % HEADS * M + offs // (N * HEADS)
        total = tl.load(tile_ptr(z, core) + offs_z, mask=mask, other=1.0).to(tl.float32)
        value = load(tile_ptr(o, core) + offs, mask)
        store(tile_ptr(out, core) + offs, tl.div_rn(value, total), mask)


def _row_blocks(rows: int, n: int) -> dict[str, int]:
    block_n = block(n, 1024)
    block_m = block(rows, 1024 // block_n)
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": warps(block_m * block_n)}


def row_max(
    outs: tuple[Operand, ...], ins: tuple[Operand, ...], cores: Tensor, *, heads: int, m: int, n: int, scale: float
) -> None:
    """top [heads, m] = max over n of scale * s [heads, m, n] + bias [m, n]; a masked entry has bias -inf."""
    _row_max_kernel[(cores.numel(),)](*outs, *ins, cores, scale, HEADS=heads, M=m, N=n, **_row_blocks(heads * m, n))


def exp_sum(
    outs: tuple[Operand, ...], ins: tuple[Operand, ...], cores: Tensor, *, heads: int, m: int, n: int, scale: float
) -> None:
    """p [heads, m, n] = exp(scale * s + bias - top) and z [heads, m] = its sum over n; top [heads, m]."""
    _exp_sum_kernel[(cores.numel(),)](*outs, *ins, cores, scale, HEADS=heads, M=m, N=n, **_row_blocks(heads * m, n))


def normalize(
    outs: tuple[Operand, ...], ins: tuple[Operand, ...], cores: Tensor, *, m: int, heads: int, n: int
) -> None:
    """out [m, heads, n] = o / z with z [heads, m]."""
    cap = block(m * heads * n, 1024)
    _normalize_kernel[(cores.numel(),)](*outs, *ins, cores, M=m, HEADS=heads, N=n, BLOCK=cap, num_warps=warps(cap))
