"""MeshGEMM with its exchange elided: all compute-shift rounds in one launch, each tile read from where it lies.

Count positions along the rings. The tile of A that core (p, q) multiplies in round t started on row p at position
q - t, the tile of B on column q at position p - t. Both have the label p + q - t (mod P), so a core's sums run through
the labels downwards from p + q. A program is a block of one core. Its one loop is over rounds and blocks of k, so that
loads are pipelined over the tiles' ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, block_position, constants, on_hopper, start, store
from wafer_triton.kernels.fused import MAX_PROGRAMS
from wafer_triton.kernels.gemm import add_product, block_of_c, initial_sums, plan, row_sums


class Labels(NamedTuple):
    """Where one operand's tiles lie: position p's with label l is in row `first[p] + table[p * step + l]`; all int32.

    With `step` 0 all positions share one table, as they do if tiles are in place; only then can cores share a program.
    """

    first: Tensor
    table: Tensor
    step: int


@triton.jit
def _tile_ptrs(a, b, a_labels, b_labels, p, q, number, SIDE):
    """Return pointers to the tiles of a and of b that core (p, q) multiplies in round `number`."""
    label = (p + q - number + SIDE) % SIDE
    return _tile_ptr(a, a_labels, p, label), _tile_ptr(b, b_labels, q, label)


@triton.jit
def _tile_ptr(x, labels, position, label):
    """Return a pointer to the tile of operand x with this label for this position."""
    row = tl.load(labels.first + position) + tl.load(labels.table + position * labels.step + label)
    return x.tensor + x.offset + row.to(tl.int64) * x.stride


@triton.jit
def _elided_kernel(
    c, out, a, b, rows_ptr, cols_ptr, a_labels, b_labels, SIDE, programs, P, STEPS: tl.constexpr, LOOPS: tl.constexpr
):
    first = tl.program_id(0) * LOOPS
    for pid in tl.range(first, first + 1 if LOOPS == 1 else min(first + LOOPS, programs), num_stages=1):
        p, q, begin_m, begin_n = block_position(pid, SIDE, P.M, P.N, P.BLOCK_M, P.BLOCK_N, 1, 1, 8)
        core = (tl.load(rows_ptr + p) * SIDE + tl.load(cols_ptr + q)).to(tl.int64)
        offs_c, mask_c = block_of_c(0, begin_m, begin_n, P)
        total = initial_sums(c.tensor + c.offset + core * c.stride + offs_c, mask_c, P)
        if P.MODE == "rows":
            for number in range(SIDE):
                a_ptr, b_ptr = _tile_ptrs(a, b, a_labels, b_labels, p, q, number, SIDE)
                total += row_sums(a_ptr, b_ptr, begin_m, begin_n, P)
        else:
            offs_m, offs_n = begin_m + tl.arange(0, P.BLOCK_M), begin_n + tl.arange(0, P.BLOCK_N)
            a_ptr, b_ptr = _tile_ptrs(a, b, a_labels, b_labels, p, q, 0, SIDE)
            for step in range(SIDE * STEPS):
                offs_k = step % STEPS * P.BLOCK_K + tl.arange(0, P.BLOCK_K)
                a_ptrs = a_ptr + offs_m[:, None] * P.K + offs_k[None, :]
                b_ptrs = b_ptr + offs_k[:, None] * P.N + offs_n[None, :]
                total = add_product(total, a_ptrs, b_ptrs, offs_m, offs_n, offs_k, P)
                # the addresses of the next step, so that its loads do not have to wait for those of the tables
                a_ptr, b_ptr = _tile_ptrs(a, b, a_labels, b_labels, p, q, (step + 1) // STEPS, SIDE)
        store(out.tensor + out.offset + core * out.stride + offs_c, total, mask_c)


def elided(
    c: Operand, out: Operand, a: Operand, b: Operand, rows: Tensor, cols: Tensor, a_labels: Labels, b_labels: Labels,
    **params: Any,
) -> None:  # fmt: skip
    """Compute out = (c +) the sum of a @ b over all rounds, on each core of P x P; `params` are of `local.gemm_torch`.

    `rows`, `cols` int32 [P]: the mesh's rows and columns in ring order. On Hopper `warp_groups` does it for sizes that
    it can, with the same bits.
    """
    chosen, options = plan(a, b, **params)
    side = rows.numel()
    if on_hopper() and chosen["MODE"] == "dot" and not chosen["ADD"]:
        # imported here alone: if a Triton release breaks Gluon, which is experimental, only Hopper notices
        from wafer_triton.kernels.warp_groups import choose_blocks, warp_groups

        if blocks := choose_blocks(out, a, b, side, a_labels.step == b_labels.step == 0, chosen):
            warp_groups(out, a, b, rows, cols, a_labels, b_labels, chosen | blocks)
            return
    programs = side**2 * -(-chosen["M"] // chosen["BLOCK_M"]) * -(-chosen["N"] // chosen["BLOCK_N"])
    loops = -(-programs // MAX_PROGRAMS)
    start(
        _elided_kernel, -(-programs // loops), c, out, a, b, rows, cols, a_labels, b_labels, side, programs,
        constants(chosen), STEPS=chosen["STEPS"], LOOPS=loops, **options,
    )  # fmt: skip
