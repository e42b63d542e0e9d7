"""RMSNorm in two local steps: a core's share of each row's sum of squares, and, after the all-reduce, the scaling."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, block, load, store, this_core, tile_ptr, warps


@triton.jit
def _sum_squares_kernel(
    s, x, cores_ptr, M: tl.constexpr, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    core = this_core(cores_ptr)
    x_ptr = tile_ptr(x, core)
    for start_m in range(0, M, BLOCK_M):
        # [BLOCK_M, BLOCK_N]
        offs_m = start_m + tl.arange(0, BLOCK_M)
        squares = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start_n in range(0, N, BLOCK_N):
            offs_n = start_n + tl.arange(0, BLOCK_N)
            mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
            value = load(x_ptr + offs_m[:, None] * N + offs_n[None, :], mask)
            squares += value * value
        store(tile_ptr(s, core) + offs_m, tl.sum(squares, axis=1), offs_m < M)


@triton.jit
def _rms_scale_kernel(
    out, x, s, weight, cores_ptr, EPS,
    WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    core = this_core(cores_ptr)
    for start in range(0, M * GROUPS * N, BLOCK):
        # [BLOCK] of [M, GROUPS, N]
        offs = start + tl.arange(0, BLOCK)
        mask = offs < M * GROUPS * N
        offs_w = offs % (GROUPS * N)
        scaled = mask & (offs_w < (GROUPS - KEPT) * N)
        value = load(tile_ptr(x, core) + offs, mask)
        scale = tl.rsqrt(load(tile_ptr(s, core) + offs // N, scaled) / WIDTH + EPS)
        normed = value * scale * load(tile_ptr(weight, core) + offs_w, scaled)
        store(tile_ptr(out, core) + offs, tl.where(scaled, normed, value), mask)


def sum_squares(outs: tuple[Operand, ...], ins: tuple[Operand, ...], cores: Tensor, *, m: int, n: int) -> None:
    """s [m] = sum over n of x [m, n] squared."""
    block_n = block(n, 1024)
    block_m = block(m, 1024 // block_n)
    _sum_squares_kernel[(cores.numel(),)](
        *outs, *ins, cores, M=m, N=n, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=warps(block_m * block_n)
    )  # fmt: skip


def rms_scale(
    outs: tuple[Operand, ...],
    ins: tuple[Operand, ...],
    cores: Tensor,
    *,
    m: int,
    n: int,
    width: int,
    eps: float,
    groups: int = 1,
    kept: int = 0,
) -> None:
    """out [m, groups, n] = x / sqrt(s / width + eps) * weight, s [m, groups], weight [groups - kept, n].

    The last `kept` groups of each row are copied.
    """
    cap = block(m * groups * n, 1024)
    _rms_scale_kernel[(cores.numel(),)](
        *outs, *ins, cores, eps, WIDTH=width, M=m, N=n, GROUPS=groups, KEPT=kept, BLOCK=cap, num_warps=warps(cap)
    )  # fmt: skip
