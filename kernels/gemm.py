"""GEMM on one core, any tile size: C (+)= A B, A B^T and A^T B; MeshGEMM's share its blocks.

One kernel serves all, with constexpr strides and one of three ways to sum a block, `MODE`:
- "dot": blocks of at least 16 on tensor cores (fp32: in full precision on FMA units);
- "rows": for up to four rows of A, where a dot would be mostly padding, for all heads and several cores at once: tiles
  are loaded row by row, and row k of b is added to partial sum k % BLOCK_K;
- "fp16": one k at a time, every multiply-add rounded to fp16, as WSE-2 software does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import (
    INTERPRET,
    Operand,
    block,
    constants,
    load,
    round_to,
    store,
    sum_by_halves,
    tile_ptr,
)  # fmt: skip
from wafer_triton.kernels.fused import KERNELS, FusedOp, LocalKernel

ROWS_SUMS = 4  # of mode "rows": partial sums, BLOCK_K
ROWS_HEADS = 32  # of mode "rows": rows of all heads in a block
ROWS_ELEMENTS = 1024  # of mode "rows": elements of a tile that a program of one warp loads at once


@triton.jit
def load_block(ptrs, mask, EVEN: tl.constexpr):
    """Load a block of a tile. EVEN: blocks divide the tile, so no mask is needed."""
    if EVEN:
        return tl.load(ptrs)
    else:
        return tl.load(ptrs, mask=mask, other=0.0)


@triton.jit
def multiply_add(total, a, b, MODE: tl.constexpr):
    """Return total + a @ b for two blocks, by "dot" or "fp16"."""
    # the interpreter's dot multiplies the raw bits of bf16
    if MODE != "dot" or a.dtype != b.dtype or INTERPRET:
        a, b = a.to(tl.float32), b.to(tl.float32)
    if MODE == "dot":
        return tl.dot(a, b, total, input_precision="ieee")
    else:
        return round_to(total + a * b, tl.float16)


@triton.jit
def add_product(total, a_ptrs, b_ptrs, offs_m, offs_n, offs_k, P):
    """Return total + the product of two blocks, [BLOCK_M, BLOCK_K] of a and [BLOCK_K, BLOCK_N] of b."""
    a = load_block(a_ptrs, (offs_m < P.M)[:, None] & (offs_k < P.K)[None, :], P.EVEN_A)
    b = load_block(b_ptrs, (offs_k < P.K)[:, None] & (offs_n < P.N)[None, :], P.EVEN_B)
    return multiply_add(total, a, b, P.MODE)


@triton.jit
def accumulate(total, a_ptr, b_ptr, start_m, start_n, P):
    """Return total + the sum of a @ b over P.ROUNDS rounds, for the block of C at (start_m, start_n) of one head.

    The one loop is over rounds and blocks of k, so that loads are pipelined over the tiles' ends.
    """
    offs_m, offs_n = tl.arange(0, P.BLOCK_M) + start_m, tl.arange(0, P.BLOCK_N) + start_n
    for step in range(P.ROUNDS * P.STEPS):
        slot, start_k = 0, step * P.BLOCK_K
        if P.ROUNDS > 1:
            slot = step // P.STEPS
            start_k -= slot * P.STEPS * P.BLOCK_K
        offs_k = start_k + tl.arange(0, P.BLOCK_K)
        offs_a = offs_m[:, None] * P.A_ROW + offs_k[None, :] * P.A_K
        offs_b = offs_k[:, None] * P.B_K + offs_n[None, :] * P.B_COL
        a_ptrs, b_ptrs = a_ptr + slot * (P.HEADS * P.M * P.K) + offs_a, b_ptr + slot * (P.K * P.KV_HEADS * P.N) + offs_b
        total = add_product(total, a_ptrs, b_ptrs, offs_m, offs_n, offs_k, P)
    return total


@triton.jit
def row_sums(a_ptr, b_ptr, start_m, start_n, P):
    """Return a block [1, CORES, BLOCK_M, BLOCK_N] of a @ b on P.CORES cores; `head_rows` says which rows it has.

    P.UNROLL blocks of k are loaded before the first is added, which changes no bit.
    """
    EVEN_K: tl.constexpr = P.K % (P.BLOCK_K * P.UNROLL) == 0
    EVEN_B: tl.constexpr = EVEN_K and P.N % P.BLOCK_N == 0 and P.HEADS == 1
    head, offs_m, mask_m = head_rows(start_m, P)
    # [1, 1, 1, BLOCK_N]
    offs_n = tl.expand_dims(tl.arange(0, P.BLOCK_N), (0, 1, 2)) + start_n
    offs_b, mask_b = offs_n * P.B_COL, offs_n < P.N
    if P.HEADS > 1:
        offs_b += head // (P.HEADS // P.KV_HEADS) * P.B_HEAD
        mask_b = mask_b & mask_m
    # k is the first dimension, as Triton spreads a warp over the later ones: each thread sums over k by itself
    products = tl.zeros([P.BLOCK_K, P.CORES, P.BLOCK_M, P.BLOCK_N], tl.float32)
    # [BLOCK_K, 1, 1, 1]
    offs_k = tl.expand_dims(tl.arange(0, P.BLOCK_K), (1, 2, 3))
    for start_k in range(0, P.K, P.BLOCK_K * P.UNROLL):
        x, y = (), ()
        for number in tl.static_range(P.UNROLL):
            at_k = start_k + number * P.BLOCK_K + offs_k
            mask = mask_b if EVEN_K else mask_b & (at_k < P.K)
            y += (load_block(b_ptr + offs_b + at_k * P.B_K, mask, EVEN_B).to(tl.float32),)
            x += (load(a_ptr + head * P.A_HEAD + offs_m * P.A_ROW + at_k * P.A_K, mask_m & (at_k < P.K)),)
        for number in tl.static_range(P.UNROLL):
            products += x[number] * y[number]
    total = sum_by_halves(products, 1, P.BLOCK_K, P.CORES * P.BLOCK_M * P.BLOCK_N)
    return tl.reshape(total, [1, P.CORES, P.BLOCK_M, P.BLOCK_N])


@triton.jit
def head_rows(start_m, P):
    """Return three [1, 1, BLOCK_M, 1] for the rows of a block: the head, the row within the head, whether it exists."""
    rows = tl.expand_dims(tl.arange(0, P.BLOCK_M), (0, 1, 3)) + start_m
    return rows // P.M, rows % P.M, rows < P.HEADS * P.M


@triton.jit
def block_of_c(head, start_m, start_n, P):
    """Return the offsets in C of the block that begins at a row of a head and a column, and whether they are in C.

    In mode "rows" start_m counts the rows of all heads.
    """
    if P.MODE == "rows":
        head, offs_m, mask_m = head_rows(start_m, P)
        offs_n = tl.expand_dims(tl.arange(0, P.BLOCK_N), (0, 1, 2)) + start_n
        return head * P.C_HEAD + offs_m * P.C_ROW + offs_n, mask_m & (offs_n < P.N)
    else:
        offs_m, offs_n = tl.arange(0, P.BLOCK_M) + start_m, tl.arange(0, P.BLOCK_N) + start_n
        # [BLOCK_M, BLOCK_N]
        offs_c = head * P.C_HEAD + offs_m[:, None] * P.C_ROW + offs_n[None, :]
        return offs_c, (offs_m < P.M)[:, None] & (offs_n < P.N)[None, :]


@triton.jit
def block_sums(total, a_ptr, b_ptr, head, start_m, start_n, ADD: tl.constexpr, P):
    """Return that block of (total +) the sum of a @ b. With P.ROUNDS rounds their tiles lie one after another."""
    if P.MODE == "rows":
        sums = row_sums(a_ptr, b_ptr, start_m, start_n, P)
        if ADD:
            sums += total
        for _ in range(1, P.ROUNDS):
            a_ptr += P.HEADS * P.M * P.K
            b_ptr += P.K * P.KV_HEADS * P.N
            sums += row_sums(a_ptr, b_ptr, start_m, start_n, P)
        return sums
    else:
        a_ptr += head * P.A_HEAD
        b_ptr += head // (P.HEADS // P.KV_HEADS) * P.B_HEAD
        # sums start from C, so that a launch for each round adds in the order of one for all
        return accumulate(total, a_ptr, b_ptr, start_m, start_n, P)


@triton.jit
def product_block(c_ptr, out_ptr, a_ptr, b_ptr, head, start_m, start_n, P):
    """Compute the block of out = (c +) the sum of a @ b that begins at a row of a head and a column."""
    offs_c, mask_c = block_of_c(head, start_m, start_n, P)
    total = initial_sums(c_ptr + offs_c, mask_c, P)
    store(out_ptr + offs_c, block_sums(total, a_ptr, b_ptr, head, start_m, start_n, P.ADD, P), mask_c)


@triton.jit
def initial_sums(c_ptrs, mask, P):
    """Return what a block of C is added to: its values in memory with P.ADD, else zeros."""
    if P.ADD:
        return load(c_ptrs, mask)
    else:
        return tl.zeros(mask.shape, tl.float32)


@triton.jit
def _gemm(args, core, P):
    c, a, b = args
    c_ptr, at = tile_ptr(c, core), core * P.TIMES
    dtype: tl.constexpr = c.tensor.dtype.element_ty
    for head in range(P.GRID_HEADS):
        for start_m in range(0, P.GRID_ROWS, P.BLOCK_M):
            for start_n in range(0, P.N, P.BLOCK_N):
                offs_c, mask_c = block_of_c(head, start_m, start_n, P)
                total = initial_sums(c_ptr + offs_c, mask_c, P)
                total = block_sums(total, tile_ptr(a, at), tile_ptr(b, at), head, start_m, start_n, P.ADD, P)
                for number in range(1, P.TIMES):
                    a_ptr, b_ptr = tile_ptr(a, at + number), tile_ptr(b, at + number)
                    total = round_to(total, dtype)
                    total = block_sums(total, a_ptr, b_ptr, head, start_m, start_n, True, P)
                store(c_ptr + offs_c, total, mask_c)


def in_turn(ops: Sequence[FusedOp], cores: int) -> list[FusedOp]:
    """Return the ops of `cores` cores, with products that add to one result in turn as one op, which loops over them.

    That op's operands have index tables [cores, times]. Written out, a product for each of many rounds is much code.
    """
    runs: list[list[FusedOp]] = []
    for op in ops:
        if runs and _adds_to(runs[-1][0], op):
            runs[-1].append(op)
        else:
            runs.append([op])
    return [_looped(run, cores) if len(run) > 1 else run[0] for run in runs]


def _adds_to(first: FusedOp, op: FusedOp) -> bool:
    """Return whether an op adds to the result of `first` a product of the same sizes, of tiles in the same memory."""
    if not first.body is op.body is _gemm or op.sizes != first.sizes._replace(ADD=tl.constexpr(True)):
        return False
    (c, *ins), (other, *others) = first.args, op.args
    apart = all(x.tensor is y.tensor is not c.tensor for x, y in zip(ins, others, strict=True))
    return apart and c.tensor is other.tensor and c[1:3] == other[1:3] and c.index is other.index


def _looped(run: Sequence[FusedOp], cores: int) -> FusedOp:
    p, device = run[0].sizes, run[0].args[0].tensor.device

    def in_table(number: int, numel: int) -> Operand:
        operands = [op.args[number] for op in run]
        tables = (torch.arange(cores, device=device) if one.index is None else one.index.long() for one in operands)
        rows = [(one.offset + table * one.stride) // numel for one, table in zip(operands, tables, strict=True)]
        return Operand(operands[0].tensor, 0, numel, torch.stack(rows, 1).int())

    a = in_table(1, p.HEADS.value * p.M.value * p.K.value)
    b = in_table(2, p.K.value * p.KV_HEADS.value * p.N.value)
    return run[0].with_sizes(TIMES=len(run))._replace(args=(run[0].args[0], a, b))


@triton.jit
def _chains(args, number, P):
    out, a, b, first_ptr, turn_ptr = args
    first, last, turn = tl.load(first_ptr + number), tl.load(first_ptr + number + 1), tl.load(turn_ptr + number)
    out_ptr = tile_ptr(out, number)
    dtype: tl.constexpr = out.tensor.dtype.element_ty
    for head in range(P.GRID_HEADS):
        for start_m in range(0, P.GRID_ROWS, P.BLOCK_M):
            for start_n in range(0, P.N, P.BLOCK_N):
                offs_c, mask_c = block_of_c(head, start_m, start_n, P)
                zeros = tl.zeros(offs_c.shape, tl.float32)
                total, before = zeros, zeros
                for at in range(first, last):
                    part = block_sums(zeros, tile_ptr(a, at), tile_ptr(b, at), head, start_m, start_n, False, P)
                    part = round_to(part, dtype)
                    before = tl.where(at == turn, total, before)
                    alone = (at == first) | (at == turn)
                    total = tl.where(alone, part, round_to(part + total, dtype))
                total = tl.where(turn > first, round_to(total + before, dtype), total)
                store(out_ptr + offs_c, total, mask_c)


def chains(product: FusedOp, out: Operand, a: Operand, b: Operand, first: Tensor, turn: Tensor) -> FusedOp:
    """Return a fused op whose "core" is number i of the sums of a product's parts along a chain of cores.

    Its operands are in rows first[i] to first[i + 1] of the index tables of a and b. Each part is added to the sum so
    far, which is rounded to the dtype of `out`, and the sum of those before turn[i] to the sum of the others. Tables
    are int32, `turn` [sums], and index i of `out` says where sum i goes.
    """
    return product._replace(body=_chains, args=(out, a, b, first, turn), elements=0)


def _dot_block(size: int) -> int:
    """Return a block size of 16 to 64 for a dimension; 32 where 64 leaves a rest, to save padding and registers."""
    return block(size, 64 if size <= 64 or size % 64 == 0 else 32, 16)


def plan(
    a: Operand, b: Operand, *, m: int, k: int, n: int, heads: int = 1, kv_heads: int = 1,
    add: bool = False, accumulate: str = "fp32", transposed: str = "", rounds: int = 1,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Return the sizes P and the launch options of `product_block`; parameters as of `local.gemm_torch`."""
    wide, unroll = torch.float32 in (a.tensor.dtype, b.tensor.dtype), 1
    if accumulate == "fp16":
        mode, blocks = "fp16", (block(m, 32), 1, block(n, 64))
        num_warps = min(4, blocks[0] * blocks[2] // 512)
    elif m <= 4:
        block_m, block_k = block(heads * m, ROWS_HEADS), block(k, ROWS_SUMS)
        elements = ROWS_ELEMENTS // 4 if wide and heads > 1 else ROWS_ELEMENTS  # with heads more fp32 spills
        block_n = block(n, elements // (block_m * ROWS_SUMS))
        unroll = block(k, elements // (block_m * ROWS_SUMS * block_n) * ROWS_SUMS) // block_k
        mode, blocks, num_warps = "rows", (block_m, block_k, block_n), 1
    else:
        # fp32 uses FMA units, with operands in registers: a small BLOCK_K and twice the warps, or it spills
        depth = 16 if not INTERPRET.value else block(k, floor=16)  # interpreted, a large block takes no longer
        mode, blocks = "dot", (_dot_block(m), depth if wide else _dot_block(k), _dot_block(n))
        num_warps = min(8, blocks[0] * blocks[2] // 256) if wide else min(4, blocks[0] * blocks[2] // 512)
    grid = (1, heads * m) if mode == "rows" else (heads, m)  # heads and rows of C over which blocks go
    sizes = {
        "M": m, "K": k, "N": n, "HEADS": heads, "KV_HEADS": kv_heads, "ADD": add,
        "MODE": mode, "BLOCK_M": blocks[0], "BLOCK_K": blocks[1], "BLOCK_N": blocks[2], "UNROLL": unroll, "CORES": 1,
        "ROUNDS": rounds, "STEPS": -(-k // blocks[1]), "GRID_HEADS": grid[0], "GRID_ROWS": grid[1],
        # blocks that divide the tile need no masks
        "EVEN_A": m % blocks[0] == 0 == k % blocks[1], "EVEN_B": n % blocks[2] == 0 == k % blocks[1],
    }  # fmt: skip
    steps = {  # in elements from one head, row or k of a to the next, head, k or column of b, head or row of c
        "": (m * k, k, 1, n, kv_heads * n, 1, n, heads * n),  # a [heads, m, k], b [k, kv_heads, n], c [m, heads, n]
        "a": (m * k, 1, m, n, kv_heads * n, 1, n, heads * n),  # a [k, m]
        "b": (k, heads * k, 1, k, 1, kv_heads * k, m * n, n),  # a [m, heads, k], b [n, kv_heads, k], c [heads, m, n]
    }[transposed]
    sizes |= zip(("A_HEAD", "A_ROW", "A_K", "B_HEAD", "B_K", "B_COL", "C_HEAD", "C_ROW"), steps, strict=True)
    return sizes, {
        "num_warps": max(1, num_warps),
        "num_stages": 1 if wide else 2 if rounds == 1 else 3,
        "enable_fp_fusion": mode != "fp16",  # the definition rounds the fp32 product, which a fused one would not
    }


def _fused(outs: tuple[Operand, ...], ins: tuple[Operand, ...], **params: Any) -> FusedOp:
    chosen, options = plan(*ins, **params)
    few, heads, m = chosen["MODE"] == "rows", chosen["HEADS"], chosen["M"]
    if few and heads == m == 1 and chosen["N"] > chosen["BLOCK_N"]:
        chosen["BLOCK_N"] *= 2  # for one vector it may
    return FusedOp(
        _gemm, (*outs, *ins), constants(chosen | {"TIMES": 1}), options["num_warps"],
        # blocks of 64 rows use other instructions with four warps, which add in another order
        warp_dependent=chosen["MODE"] == "dot" and chosen["BLOCK_M"] >= 64,
        no_fma=not options["enable_fp_fusion"], num_stages=options["num_stages"],
        elements=chosen["BLOCK_M"] * chosen["BLOCK_K"] * chosen["BLOCK_N"] if few and 1 in (heads, m) else 0,
    )  # fmt: skip


KERNELS |= {"gemm": LocalKernel(_fused)}
KERNELS |= {name: LocalKernel(partial(_fused, transposed=by)) for name, by in (("gemm_t", "b"), ("gemm_tn", "a"))}
