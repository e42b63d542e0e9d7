"""RoPE: split a core's fused projection into q, k, v and rotate q and k by the angles of the pairs it holds."""

from __future__ import annotations

import triton
import triton.language as tl

from wafer_triton.kernels._common import Operand, block, load, store, tile_ptr, warps
from wafer_triton.kernels.fused import FusedOp, LocalKernel, fused_op


@triton.jit
def _rope(args, core, P):
    q, k, v, qkv, cos, sin = args
    HEADS: tl.constexpr = P.HEADS
    KV_HEADS: tl.constexpr = P.KV_HEADS
    N: tl.constexpr = P.N
    ALL: tl.constexpr = P.ALL
    HALF: tl.constexpr = P.HALF
    for start in range(0, P.M * ALL * HALF, P.BLOCK):
        # [BLOCK] of [M, ALL, HALF]: one pair each
        offs = start + tl.arange(0, P.BLOCK)
        mask = offs < P.M * ALL * HALF
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


@LocalKernel
def rope(outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, m: int, heads: int, kv_heads: int, n: int) -> FusedOp:
    """q, k [m, heads or kv_heads, n] rotated and v from qkv [m, heads + 2 kv_heads, n]; cos and sin [m, n/2]."""
    every, half = heads + 2 * kv_heads, n // 2
    cap = block(m * every * half, 512)
    sizes = {"M": m, "HEADS": heads, "KV_HEADS": kv_heads, "N": n, "ALL": every, "HALF": half, "BLOCK": cap}
    return fused_op(_rope, (*outs, *ins), sizes, warps(cap), elements=cap)
