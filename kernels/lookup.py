"""Looking rows up in a core's share of a table."""

from __future__ import annotations

import triton
import triton.language as tl

from wafer_triton.kernels._common import Operand, block, load, store, tile_ptr, warps
from wafer_triton.kernels.fused import FusedOp, LocalKernel, fused_op


@triton.jit
def _lookup(args, core, P):
    out, table, ids = args
    for start in range(0, P.M * P.D, P.BLOCK):
        # [BLOCK] of [M, D]
        offs = start + tl.arange(0, P.BLOCK)
        mask = offs < P.M * P.D
        number = load(tile_ptr(ids, core) + offs // P.D, mask)
        inside = (number >= 0) & (number < P.V)
        value = load(tile_ptr(table, core) + offs % P.D * P.V + number.to(tl.int32), mask & inside)
        store(tile_ptr(out, core) + offs, value, mask)


@LocalKernel
def lookup(outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, m: int, d: int, v: int) -> FusedOp:
    """out [m, d] = the columns ids [m] of table [d, v], zeros for an id outside it."""
    cap = block(m * d, 1024)
    return fused_op(_lookup, (*outs, *ins), {"M": m, "D": d, "V": v, "BLOCK": cap}, warps(cap), elements=cap)
