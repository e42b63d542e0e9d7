"""RoPE: split a core's fused projection into q, k, v and rotate q and k by the angles of the pairs it holds."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, block, load, store, this_core, tile_ptr, warps


@triton.jit
def _rope_kernel(
    q, k, v, qkv, cos, sin, cores_ptr,
    M: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    core = this_core(cores_ptr)
    ALL: tl.constexpr = HEADS + 2 * KV_HEADS
    HALF: tl.constexpr = N // 2
    for start in range(0, M * ALL * HALF, BLOCK):
        # [BLOCK] of [M, ALL, HALF]: one pair each
        offs = start + tl.arange(0, BLOCK)
        mask = offs < M * ALL * HALF
        row, head, pair = offs // (ALL * HALF), offs // HALF % ALL, offs % HALF
        in_ptr = tile_ptr(qkv, core) + (row * ALL + head) * N + pair
        low, high = load(in_ptr, mask), load(in_ptr + HALF, mask)
        c = load(tile_ptr(cos, core) + row * HALF + pair, mask)
        s = load(tile_ptr(sin, core) + row * HALF + pair, mask)
        turned_low, turned_high = low * c - high * s, high * c + low * s

        q_ptr = tile_ptr(q, core) + (row * HEADS + head) * N + pair
        mask_q = mask & (head < HEADS)
        store(q_ptr, turned_low, mask_q)
        store(q_ptr + HALF, turned_high, mask_q)

        k_ptr = tile_ptr(k, core) + (row * KV_HEADS + head - HEADS) * N + pair
        mask_k = mask & (head >= HEADS) & (head < HEADS + KV_HEADS)
        store(k_ptr, turned_low, mask_k)
        store(k_ptr + HALF, turned_high, mask_k)

        v_ptr = tile_ptr(v, core) + (row * KV_HEADS + head - HEADS - KV_HEADS) * N + pair
        mask_v = mask & (head >= HEADS + KV_HEADS)
        store(v_ptr, low, mask_v)
        store(v_ptr + HALF, high, mask_v)


def rope(
    outs: tuple[Operand, ...],
    ins: tuple[Operand, ...],
    cores: Tensor,
    *,
    m: int,
    heads: int,
    kv_heads: int,
    n: int,
) -> None:
    """q, k [m, heads or kv_heads, n] rotated and v from qkv [m, heads + 2 kv_heads, n]; cos and sin [m, n/2]."""
    cap = block(m * (heads + 2 * kv_heads) * (n // 2), 512)
    _rope_kernel[(cores.numel(),)](
        *outs, *ins, cores, M=m, HEADS=heads, KV_HEADS=kv_heads, N=n, BLOCK=cap, num_warps=warps(cap)
    )  # fmt: skip
