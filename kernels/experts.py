"""Mixtures of experts on one core: the choice of each token's experts, and products with the chosen experts' tiles.

A kernel loops over tokens, as each has other experts, so a product runs at the speed at which weights are loaded.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from wafer_triton.kernels._common import Operand, block, load, round_to, store, sum_by_halves, tile_ptr, write
from wafer_triton.kernels.fused import local_kernel
from wafer_triton.kernels.gemm import initial_sums


@local_kernel(
    lambda ins, experts, shared, **_: {"WIDTH": experts + min(shared, 1), "BLOCK": triton.next_power_of_2(experts)}
)
@triton.jit
def top_k(args, core, P):
    expert_ids, shares, logits = args
    # [BLOCK]
    offs_e = tl.arange(0, P.BLOCK)
    mask_e = offs_e < P.EXPERTS
    for token in range(P.M):
        logits_ptr = tile_ptr(logits, core) + token * P.WIDTH
        logit = tl.load(logits_ptr + offs_e, mask=mask_e, other=float("-inf"))
        ahead = tl.zeros([P.BLOCK], tl.int32)
        for other in range(P.EXPERTS):
            other_logit = tl.load(logits_ptr + other)
            ahead += ((other_logit > logit) | ((other_logit == logit) & (other < offs_e))).to(tl.int32)
        picked = mask_e & (ahead < P.K)
        powers = tl.exp(logit - tl.max(logit, axis=0))
        over = tl.where(picked if P.NORMALIZED else mask_e, powers, 0.0)
        share = powers / tl.reshape(sum_by_halves(over, 1, P.BLOCK, 1), [1])
        offs = token * (P.K + P.SHARED) + tl.cumsum(picked.to(tl.int32), axis=0) - 1
        picked = picked & (offs < token * (P.K + P.SHARED) + P.K)  # NaN is ahead of nothing, so there may be more
        write(expert_ids, core, offs, offs_e.to(tl.float32), picked)
        write(shares, core, offs, share, picked)
        for number in range(P.SHARED):
            at = token * (P.K + P.SHARED) + P.K + number
            tl.store(tile_ptr(expert_ids, core) + at, (number + P.EXPERTS) * 1.0)
            tl.store(tile_ptr(shares, core) + at, tl.sigmoid(tl.load(logits_ptr + P.EXPERTS)))


def _blocks(
    ins: tuple[Operand, ...], *, m: int, per_token: int, k: int, n: int, accumulate: str, **_: Any
) -> dict[str, Any]:  # fmt: skip
    summed, fp16 = len(ins) == 4, accumulate == "fp16"  # expert_sum has the shares as a fourth input
    block_n = block(n, 256)
    most = 1024 if ins[1].tensor.dtype == torch.float32 else 2048  # products in registers
    # rows of c, choices that are summed in each, and choices that multiply each row of a
    rows, of_c, of_a = (m, per_token, 1) if summed else (m * per_token, 1, per_token)
    return {
        "ROWS": rows, "C_CHOICES": of_c, "A_CHOICES": of_a, "SUMMED": summed, "FP16": fp16, "no_fma": fp16,
        "BLOCK_K": 1 if fp16 else block(k, max(1, most // block_n)), "BLOCK_N": block_n,
    }  # fmt: skip


@local_kernel(_blocks, "expert_gemm", "expert_sum")
@triton.jit
def _expert_product(args, core, P):
    c, a, w, expert_ids = args[:4]
    # a row of c is the product of one choice, or the sum of a token's
    for row in range(P.ROWS):
        for start_n in range(0, P.N, P.BLOCK_N):
            # [BLOCK_N]
            offs_n = start_n + tl.arange(0, P.BLOCK_N)
            mask_n = offs_n < P.N
            c_ptrs = tile_ptr(c, core) + row * P.N + offs_n
            total = initial_sums(c_ptrs, mask_n, P)
            for number in range(P.C_CHOICES):
                choice = row * P.C_CHOICES + number
                expert = tl.load(tile_ptr(expert_ids, core) + choice).to(tl.int32)
                a_ptr = tile_ptr(a, core) + choice // P.A_CHOICES * P.K
                w_ptr = tile_ptr(w, core) + expert * P.K * P.N
                products = tl.zeros([P.BLOCK_K, P.BLOCK_N], tl.float32)
                for start_k in range(0, P.K, P.BLOCK_K):
                    # [BLOCK_K, BLOCK_N]
                    offs_k = start_k + tl.arange(0, P.BLOCK_K)
                    mask_k = offs_k < P.K
                    vector = load(a_ptr + offs_k, mask_k)
                    if P.SUMMED:
                        vector = vector * tl.load(tile_ptr(args[4], core) + choice)
                    mask = mask_k[:, None] & mask_n[None, :]
                    product = vector[:, None] * load(w_ptr + offs_k[:, None] * P.N + offs_n[None, :], mask)
                    if P.FP16:
                        total = round_to(total + tl.sum(product, axis=0), tl.float16)
                    else:
                        products += product
                if not P.FP16:
                    total += tl.reshape(sum_by_halves(products, 1, P.BLOCK_K, P.BLOCK_N), [P.BLOCK_N])
            store(c_ptrs, total, mask_n)
