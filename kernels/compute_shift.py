"""The products of MeshGEMM's compute-shift rounds (WaferLLM, OSDI'25, section 5), with explicit exchange.

The tiles of several rounds, a window, are carried first (see `exchange`), hop by hop and each core's into slots of its
own. Then one launch multiplies what arrived there, round after round in the schedule's order, with sums in registers. A
program is a block of one core.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, constants, start, tile_ptr
from wafer_triton.kernels.fused import MAX_PROGRAMS
from wafer_triton.kernels.gemm import plan, product_block


@triton.jit
def _products_kernel(
    c, out, a, b, cores_ptr, programs, P, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LOOPS: tl.constexpr
):
    BLOCKS: tl.constexpr = P.GRID_HEADS * ROWS * COLUMNS
    first = tl.program_id(0) * LOOPS
    for number in tl.range(first, first + 1 if LOOPS == 1 else min(first + LOOPS, programs), num_stages=1):
        at = number // BLOCKS
        core = tl.load(cores_ptr + at)
        head = (number - at * BLOCKS) // (ROWS * COLUMNS) if P.HEADS > 1 else 0
        product_block(
            tile_ptr(c, core), tile_ptr(out, core), tile_ptr(a, core), tile_ptr(b, core),
            head, number // COLUMNS % ROWS * P.BLOCK_M, number % COLUMNS * P.BLOCK_N, P,
        )  # fmt: skip


def products(c: Operand, out: Operand, a: Operand, b: Operand, cores: Tensor, *, rounds: int, **params: Any) -> None:
    """Compute out = (c +) the sum of a @ b over `rounds` rounds on every core; `params` are of `local.gemm_torch`.

    A core's tiles of a and of b are in its slots from 0 on, which lie one after another.
    """
    sizes, options = plan(a, b, rounds=rounds, **params)
    rows, columns = -(-sizes["GRID_ROWS"] // sizes["BLOCK_M"]), -(-sizes["N"] // sizes["BLOCK_N"])
    programs = cores.numel() * sizes["GRID_HEADS"] * rows * columns
    loops = -(-programs // MAX_PROGRAMS)
    start(
        _products_kernel, -(-programs // loops), c, out, a, b, cores, programs, constants(sizes), ROWS=rows,
        COLUMNS=columns, LOOPS=loops, **options,
    )  # fmt: skip
