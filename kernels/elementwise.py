"""Elementwise operations: `elementwise` makes a launcher of any Triton device function of one to three values.

@triton.jit
def clip(x, limit):
    return tl.minimum(x, limit)

KERNELS["clip"] = elementwise(clip)
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Launcher, Operand, block, load, store, this_core, tile_ptr, warps


@triton.jit
def add_values(a, b):
    return a + b


@triton.jit
def max_values(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def same_value(a):
    return a


@triton.jit
def _elementwise_kernel(
    out, a, b, c, cores_ptr, FN: tl.constexpr, INPUTS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    core = this_core(cores_ptr)
    for start in range(0, SIZE, BLOCK):
        # [BLOCK]
        offs = start + tl.arange(0, BLOCK)
        mask = offs < SIZE
        x = load(tile_ptr(a, core) + offs, mask)
        if INPUTS == 1:
            y = FN(x)
        elif INPUTS == 2:
            y = FN(x, load(tile_ptr(b, core) + offs, mask))
        else:
            y = FN(x, load(tile_ptr(b, core) + offs, mask), load(tile_ptr(c, core) + offs, mask))
        store(tile_ptr(out, core) + offs, y, mask)


def elementwise(fn: Any) -> Launcher:
    """A launcher of out [size] = fn(in0, in1, in2); `fn` is a `@triton.jit` function of one to three fp32 blocks."""

    def launch(outs: tuple[Operand, ...], ins: tuple[Operand, ...], cores: Tensor, *, size: int) -> None:
        (out,) = outs
        a, b, c = (*ins, None, None)[:3]
        cap = block(size)
        _elementwise_kernel[(cores.numel(),)](
            out, a, b, c, cores, FN=fn, INPUTS=len(ins), SIZE=size, BLOCK=cap, num_warps=warps(cap)
        )  # fmt: skip

    return launch


add = elementwise(add_values)
maximum = elementwise(max_values)
copy = elementwise(same_value)


@triton.jit
def _silu_mul_kernel(out, gate_up, cores_ptr, M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    core = this_core(cores_ptr)
    gate_ptr = tile_ptr(gate_up, core)
    for start in range(0, M * N, BLOCK):
        # [BLOCK] of [M, N]
        offs = start + tl.arange(0, BLOCK)
        mask = offs < M * N
        offs_gate = offs + offs // N * N
        gate = load(gate_ptr + offs_gate, mask)
        up = load(gate_ptr + offs_gate + N, mask)
        store(tile_ptr(out, core) + offs, gate * tl.sigmoid(gate) * up, mask)


def silu_mul(outs: tuple[Operand, ...], ins: tuple[Operand, ...], cores: Tensor, *, m: int, n: int) -> None:
    """out [m, n] = silu(gate) * up, gate_up [m, 2, n]."""
    cap = block(m * n, 1024)
    _silu_mul_kernel[(cores.numel(),)](*outs, *ins, cores, M=m, N=n, BLOCK=cap, num_warps=warps(cap))
