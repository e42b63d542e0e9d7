"""Elementwise operations: `elementwise` makes a launcher of any Triton device function of one to three values.

@triton.jit
def halved(x, half):
    return tl.where(x > half, x * 0.5, x)

KERNELS["halved"] = elementwise(halved)
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from wafer_triton.kernels._common import Operand, block, load, store, tile_ptr, warps
from wafer_triton.kernels.fused import FusedOp, LocalKernel, fused_op


@triton.jit
def add_values(a, b):
    return a + b


@triton.jit
def max_values(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


COMBINE = {"add": add_values, "maximum": max_values}  # what a reduce tree can do with its messages


@triton.jit
def same_value(a):
    return a


@triton.jit
def _elementwise(args, core, P):
    out, a = args[0], args[1]
    for start in range(0, P.SIZE, P.BLOCK):
        # [BLOCK]
        offs = start + tl.arange(0, P.BLOCK)
        mask = offs < P.SIZE
        x = load(tile_ptr(a, core) + offs, mask)
        if P.INPUTS == 1:
            y = P.FN(x)
        elif P.INPUTS == 2:
            y = P.FN(x, load(tile_ptr(args[2], core) + offs, mask))
        else:
            y = P.FN(x, load(tile_ptr(args[2], core) + offs, mask), load(tile_ptr(args[3], core) + offs, mask))
        store(tile_ptr(out, core) + offs, y, mask)


def elementwise(fn: Any) -> LocalKernel:
    """A launcher of out [size] = fn(in0, in1, in2); `fn` is a `@triton.jit` function of one to three fp32 blocks."""

    def make(outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, size: int) -> FusedOp:
        cap = block(size, 2048)
        sizes = {"FN": fn, "INPUTS": len(ins), "SIZE": size, "BLOCK": cap}
        return fused_op(_elementwise, (*outs, *ins), sizes, warps(cap), elements=cap)

    return LocalKernel(make)


add = elementwise(add_values)
maximum = elementwise(max_values)
copy = elementwise(same_value)


@triton.jit
def _silu_mul(args, core, P):
    out, gate_up = args
    gate_ptr = tile_ptr(gate_up, core)
    for start in range(0, P.M * P.N, P.BLOCK):
        # [BLOCK] of [M, N]
        offs = start + tl.arange(0, P.BLOCK)
        mask = offs < P.M * P.N
        offs_gate = offs + offs // P.N * P.N
        gate = load(gate_ptr + offs_gate, mask)
        up = load(gate_ptr + offs_gate + P.N, mask)
        store(tile_ptr(out, core) + offs, gate * tl.sigmoid(gate) * up, mask)


@LocalKernel
def silu_mul(outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, m: int, n: int) -> FusedOp:
    """out [m, n] = silu(gate) * up, gate_up [m, 2, n]."""
    cap = block(m * n, 1024)
    return fused_op(_silu_mul, (*outs, *ins), {"M": m, "N": n, "BLOCK": cap}, warps(cap), elements=cap)


@triton.jit
def _clip(args, core, P):
    out, a = args
    for start in range(0, P.SIZE, P.BLOCK):
        # [BLOCK]
        offs = start + tl.arange(0, P.BLOCK)
        mask = offs < P.SIZE
        value = load(tile_ptr(a, core) + offs, mask)
        low = tl.minimum(value, P.LIMIT, propagate_nan=tl.PropagateNan.ALL)
        store(tile_ptr(out, core) + offs, tl.maximum(low, -P.LIMIT, propagate_nan=tl.PropagateNan.ALL), mask)


@LocalKernel
def clip(outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, size: int, limit: float) -> FusedOp:
    """out [size] = a, no further from 0 than `limit`."""
    cap = block(size, 2048)
    return fused_op(_clip, (*outs, *ins), {"SIZE": size, "LIMIT": float(limit), "BLOCK": cap}, warps(cap), elements=cap)


@triton.jit
def _swap(args, core, P):
    out, a = args
    for start in range(0, P.ROWS * P.COLS * P.SIZE, P.BLOCK):
        # [BLOCK] of [COLS, ROWS, SIZE]
        offs = start + tl.arange(0, P.BLOCK)
        mask = offs < P.ROWS * P.COLS * P.SIZE
        row, col = offs // P.SIZE % P.ROWS, offs // (P.SIZE * P.ROWS)
        value = load(tile_ptr(a, core) + (row * P.COLS + col) * P.SIZE + offs % P.SIZE, mask)
        store(tile_ptr(out, core) + offs, value, mask)


@LocalKernel
def swap(outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, rows: int, cols: int, size: int) -> FusedOp:
    """out [cols, rows, size] = a [rows, cols, size] with both dimensions exchanged."""
    cap = block(rows * cols * size, 1024)
    sizes = {"ROWS": rows, "COLS": cols, "SIZE": size, "BLOCK": cap}
    return fused_op(_swap, (*outs, *ins), sizes, warps(cap), elements=cap)
