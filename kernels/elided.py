"""MeshGEMM with its exchange elided: all compute-shift rounds in one launch, each tile read from where it lies.

Follow the tile of A that core (p, q) multiplies in round t, positions counted along the rings. It began p rows down at
position q - t. So all tiles that meet there, of A and of B, carry one label, p + q - t (mod P). A core's sums
run through the labels downwards from p + q. A program is a block of one core. Its loop runs over the rounds and the
blocks of k at once, so that tiles are fetched ahead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, constants, on_hopper, placed, start, store
from wafer_triton.kernels.fused import MAX_PROGRAMS
from wafer_triton.kernels.gemm import begun, multiplied, plan, read, row_sums


class Labels(NamedTuple):
    """The rows of one operand's tiles: label l of position p is in row `first[p] + table[p * step + l]`; all int32.

    `step` 0: one table serves all positions, as where tiles are in place; only then can cores share a program.
    """

    first: Tensor
    table: Tensor
    step: int


@triton.jit
def _tile_of(x, labels, position, label):
    """Pointer to the tile of operand x that a position multiplies under a label."""
    row = tl.load(labels.first + position) + tl.load(labels.table + position * labels.step + label)
    return x.tensor + x.offset + row.to(tl.int64) * x.stride


@triton.jit
def _elided_kernel(
    c, out, a, b, rows_ptr, cols_ptr, a_labels, b_labels, SIDE, programs, P, STEPS: tl.constexpr, LOOPS: tl.constexpr
):
    EVEN_A: tl.constexpr = P.M % P.BLOCK_M == 0 and P.K % P.BLOCK_K == 0
    EVEN_B: tl.constexpr = P.K % P.BLOCK_K == 0 and P.N % P.BLOCK_N == 0
    first = tl.program_id(0) * LOOPS
    for pid in tl.range(first, first + 1 if LOOPS == 1 else min(first + LOOPS, programs), num_stages=1):
        p, q, begin_m, begin_n = placed(pid, SIDE, P.M, P.N, P.BLOCK_M, P.BLOCK_N, 1, 1, 8)
        offs_m, offs_n = begin_m + tl.arange(0, P.BLOCK_M), begin_n + tl.arange(0, P.BLOCK_N)
        offs_k = tl.arange(0, P.BLOCK_K)
        core = (tl.load(rows_ptr + p) * SIDE + tl.load(cols_ptr + q)).to(tl.int64)
        # [BLOCK_M, BLOCK_N]
        offs_c = offs_m[:, None] * P.N + offs_n[None, :]
        mask_c = (offs_m < P.M)[:, None] & (offs_n < P.N)[None, :]
        total = begun(c.tensor + c.offset + core * c.stride + offs_c, mask_c, P)
        if P.MODE == "rows":
            for number in range(SIDE):
                label = (p + q - number + SIDE) % SIDE
                a_ptr, b_ptr = _tile_of(a, a_labels, p, label), _tile_of(b, b_labels, q, label)
                total += tl.reshape(row_sums(a_ptr, b_ptr, begin_m, begin_n, P), [P.BLOCK_M, P.BLOCK_N])
        else:
            label = (p + q) % SIDE
            a_ptr, b_ptr = _tile_of(a, a_labels, p, label), _tile_of(b, b_labels, q, label)
            for step in range(SIDE * STEPS):
                start_k = step % STEPS * P.BLOCK_K
                mask_k = start_k + offs_k < P.K
                a_ptrs = a_ptr + offs_m[:, None] * P.K + (start_k + offs_k)[None, :]
                b_ptrs = b_ptr + (start_k + offs_k)[:, None] * P.N + offs_n[None, :]
                x = read(a_ptrs, (offs_m < P.M)[:, None] & mask_k[None, :], EVEN_A, "")
                y = read(b_ptrs, mask_k[:, None] & (offs_n < P.N)[None, :], EVEN_B, "")
                total = multiplied(total, x, y, P.MODE)
                # a step finds the tiles of the next: an address that waited for a load would come too late
                label = (p + q - (step + 1) // STEPS + SIDE) % SIDE
                a_ptr, b_ptr = _tile_of(a, a_labels, p, label), _tile_of(b, b_labels, q, label)
        store(out.tensor + out.offset + core * out.stride + offs_c, total, mask_c)


def elided(
    c: Operand, out: Operand, a: Operand, b: Operand, rows: Tensor, cols: Tensor, a_labels: Labels, b_labels: Labels,
    **params: Any,
) -> None:  # fmt: skip
    """out = (c +) the sum over all rounds of a @ b, on every core of a square mesh; parameters of `local.gemm_torch`.

    `rows`, `cols` int32 [P]: the mesh's rows and columns in ring order. On Hopper warp groups multiply what they can,
    to the same bits.
    """
    chosen, options = plan(a, b, **params)
    side = rows.numel()
    if on_hopper() and chosen["MODE"] == "dot" and not chosen["ADD"]:
        from wafer_triton.kernels.warp_groups import cut, warp_groups  # Gluon is experimental: nobody else imports it

        if blocks := cut(out, a, b, side, a_labels.step == b_labels.step == 0, chosen):
            warp_groups(out, a, b, rows, cols, a_labels, b_labels, chosen | blocks)
            return
    programs = side**2 * -(-chosen["M"] // chosen["BLOCK_M"]) * -(-chosen["N"] // chosen["BLOCK_N"])
    loops = -(-programs // MAX_PROGRAMS)
    start(
        _elided_kernel, -(-programs // loops), c, out, a, b, rows, cols, a_labels, b_labels, side, programs,
        constants(chosen), STEPS=-(-chosen["K"] // chosen["BLOCK_K"]), LOOPS=loops, **options,
    )  # fmt: skip
