"""Kernels of local operations that compute each element of a tile alone; `local/elementwise.py` defines them.

A body `f(args, core, offs, mask, P)` computes the elements `offs` of the tile of one `core`. `args` are the operands,
outputs first. P has the operation's parameters as constexpr, such as P.LIMIT, and the block size (`kernels/fused.py`).
`elementwise` makes a launcher of any device function of one to three values.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from wafer_triton.errors import ScheduleError
from wafer_triton.kernels._common import Operand, load, read, store, tile_ptr, write
from wafer_triton.kernels.fused import KERNELS, FusedOp, LocalKernel, _each, each, flat, make_op


@triton.jit
def add_values(a, b):
    return a + b


@triton.jit
def max_values(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


COMBINE = {"add": add_values, "maximum": max_values}  # the operations that a reduce tree can combine messages by


@triton.jit
def same_value(a):
    return a


@triton.jit
def _elementwise(args, core, offs, mask, P):
    values = ()
    for number in tl.static_range(P.INPUTS):
        values += (read(args[number + 1], core, offs, mask),)
    write(args[0], core, offs, P.FN(*values), mask)


def elementwise(fn: triton.KernelInterface) -> LocalKernel:
    """Return a launcher of out [size] = fn(in0, in1, in2), for a `@triton.jit` function of one to three fp32 blocks."""
    if not isinstance(fn, triton.KernelInterface):
        raise ScheduleError(f"elementwise: fn is of type {type(fn).__name__}; give a function under @triton.jit")

    def fused(outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, size: int, **others: Any) -> FusedOp:
        if others:
            raise ScheduleError(
                f"elementwise: {fn.__name__} gets {', '.join(others)} beside size; a kernel with parameters is a body "
                f"under `@each(lambda size, {', '.join(others)}: size)` of wafer_triton.kernels"
            )
        sizes = {"BODY": _elementwise, "FN": fn, "INPUTS": len(ins), **flat(size, 2048)}
        return make_op(_each, (*outs, *ins), {}, sizes)

    return LocalKernel(fused)


KERNELS |= {"copy": elementwise(same_value)} | {name: elementwise(fn) for name, fn in COMBINE.items()}


@each(lambda size, **_: size, most=2048)
@triton.jit
def clip(args, core, offs, mask, P):
    out, a = args
    value = read(a, core, offs, mask)
    low = tl.minimum(value, P.LIMIT * 1.0, propagate_nan=tl.PropagateNan.ALL)
    write(out, core, offs, tl.maximum(low, -P.LIMIT * 1.0, propagate_nan=tl.PropagateNan.ALL), mask)


@each(lambda m, n: m * n)
@triton.jit
def silu_mul(args, core, offs, mask, P):
    out, gate_up = args
    gate_ptr = tile_ptr(gate_up, core) + offs + offs // P.N * P.N
    gate, up = load(gate_ptr, mask), load(gate_ptr + P.N, mask)
    write(out, core, offs, gate * tl.sigmoid(gate) * up, mask)


@each(lambda rows, cols, size: rows * cols * size)
@triton.jit
def swap(args, core, offs, mask, P):
    out, a = args
    row, col = offs // P.SIZE % P.ROWS, offs // (P.SIZE * P.ROWS)
    value = read(a, core, (row * P.COLS + col) * P.SIZE + offs % P.SIZE, mask)
    write(out, core, offs, value, mask)


@each(lambda m, d, v, add: m * d)
@triton.jit
def lookup(args, core, offs, mask, P):
    out, table, ids, first = args
    number = read(ids, core, offs // P.D, mask) - read(first, core, offs * 0, mask)
    inside = (number >= 0) & (number < P.V)
    value = read(table, core, offs % P.D * P.V + number.to(tl.int32), mask & inside)
    write(out, core, offs, value, mask & inside if P.ADD else mask)


@each(lambda m, heads, kv_heads, n: m * (heads + 2 * kv_heads) * (n // 2), most=512)
@triton.jit
def rope(args, core, offs, mask, P):
    q, k, v, qkv, cos, sin = args
    ALL: tl.constexpr = P.HEADS + 2 * P.KV_HEADS
    HALF: tl.constexpr = P.N // 2
    # [BLOCK] of [M, ALL, HALF]: one pair each
    row, head, pair = offs // (ALL * HALF), offs // HALF % ALL, offs % HALF
    in_ptr = tile_ptr(qkv, core) + (row * ALL + head) * P.N + pair
    low, high = load(in_ptr, mask), load(in_ptr + HALF, mask)
    c, s = read(cos, core, row * HALF + pair, mask), read(sin, core, row * HALF + pair, mask)
    turned_low, turned_high = low * c - high * s, high * c + low * s
    is_q, is_v = head < P.HEADS, head >= P.HEADS + P.KV_HEADS
    _put_pair(q, core, row * P.HEADS + head, pair, turned_low, turned_high, mask & is_q, P)
    _put_pair(k, core, row * P.KV_HEADS + head - P.HEADS, pair, turned_low, turned_high, mask & ~is_q & ~is_v, P)
    _put_pair(v, core, row * P.KV_HEADS + head - P.HEADS - P.KV_HEADS, pair, low, high, mask & is_v, P)


@triton.jit
def _put_pair(x, core, row, pair, low, high, mask, P):
    ptr = tile_ptr(x, core) + row * P.N + pair
    store(ptr, low, mask)
    store(ptr + P.N // 2, high, mask)
