"""MeshGEMM with its exchange elided: all compute-shift rounds in one launch, each tile read from where it lies.

Follow the tile of A that core (p, q) multiplies in round t, positions counted along the rings. It began p rows down at
position q - t. So all tiles that meet there, of A and of B, carry one label, p + q - t (mod P). A core's sums
run through the labels downwards from p + q. A program is a block of one core. Its loop runs over the rounds and the
blocks of k at once, so that tiles are fetched ahead. On Hopper `warp_groups` serves several cores.

A way to cut the work into programs has GROUP_M x GROUP_N cores a program, and tiles `by`
- "loads": each warp loads its own operands, on any GPU and in the interpreter; a program is a block of one core;
- "warps": Hopper's unit for tensors (TMA) copies blocks for a warp of its own (see `warp_groups`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.errors import BackendError
from wafer_triton.kernels import tuning
from wafer_triton.kernels._common import BOX, Operand, on_hopper, placed, start, store
from wafer_triton.kernels.fused import PROGRAMS, constants
from wafer_triton.kernels.gemm import begun, multiplied, plan, read, row_sums

RING = 192 * 1024  # bytes of shared memory for tiles that wait to be multiplied there


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


def number_of(side: int, chosen: dict[str, Any], way: dict[str, Any]) -> int:
    """Return the number of blocks."""
    blocks = 1
    for size in "MN":
        group = way[f"GROUP_{size}"]
        blocks *= side // group * (-(-chosen[size] // way[f"BLOCK_{size}"]) if group == 1 else 1)
    return blocks


def candidates(
    a: Operand, b: Operand, out: Operand, chosen: dict[str, Any], side: int, shared: bool
) -> list[dict[str, Any]]:
    """Return ways to cut the work into programs, the likeliest first; the last is by loads.

    `chosen` are the sizes and blocks of `gemm.plan`; `shared`: one table of labels serves all positions.
    """
    single = {"GROUP_M": 1, "GROUP_N": 1, "BLOCK_M": chosen["BLOCK_M"], "BLOCK_N": chosen["BLOCK_N"], "by": "loads"}
    m, k, n = (chosen[size] for size in "MKN")
    ways, dtypes = [single], {x.tensor.dtype for x in (a, b, out)}
    boxed = m % BOX == n % BOX == k % BOX == 0 and len(dtypes) == 1 and torch.float32 not in dtypes
    boxed = boxed and chosen["MODE"] == "dot" and not chosen["ADD"]
    if not boxed or not on_hopper() or not all(map(_copied, (a, b, out), (m * k, k * n, m * n))):
        return ways
    for block_m, block_n in ((128, 128), (128, 256)):
        group = max(1, block_m // m), max(1, block_n // n)
        whole = all(
            (one > 1 and one * size == block_size and side % one == 0) or (one == 1 and size % block_size == 0)
            for one, size, block_size in zip(group, (m, n), (block_m, block_n), strict=True)
        )
        if whole and (shared or group == (1, 1)) and sum(group) - 2 < side:
            depth = RING // (BOX * (block_m + block_n) * a.tensor.itemsize)
            way = {"GROUP_M": group[0], "GROUP_N": group[1], "BLOCK_M": block_m, "BLOCK_N": block_n, "by": "warps"}
            ways.insert(0, way | {"DEPTH": depth, "SWIZZLE": 8})
    return ways


def _copied(x: Operand, numel: int) -> bool:
    """Return whether the tiles of an operand lie one after another, on 16 bytes, as TMA asks."""
    return x.stride == numel and x.tensor[x.offset :].data_ptr() % 16 == 0


def elided(
    c: Operand, out: Operand, a: Operand, b: Operand, rows: Tensor, cols: Tensor, a_labels: Labels, b_labels: Labels,
    *, group: tuple[int, int] | None = None, by: str | None = None, **params: Any,
) -> None:  # fmt: skip
    """out = (c +) the sum over all rounds of a @ b, on every core of a square mesh; parameters of `local.gemm_torch`.

    `rows`, `cols` int32 [P]: the mesh's rows and columns in ring order. A trial finds the fastest of
    the `candidates` (see `tuning`) with `group` cores a program and tiles `by` loads or warps. BackendError if no
    way is as asked.
    """
    chosen, options = plan(a, b, **params)
    where = (rows, cols, a_labels, b_labels, rows.numel())

    def launch(way: dict[str, Any]) -> None:
        programs = number_of(rows.numel(), chosen, way)
        if way["by"] == "warps":  # Gluon is experimental: a launch without it may not fail for it
            from wafer_triton.kernels.warp_groups import warp_groups

            warp_groups(out, a, b, *where, programs, chosen | way)
            return
        loops = -(-programs // PROGRAMS)
        start(
            _elided_kernel, -(-programs // loops), c, out, a, b, *where, programs, constants(chosen),
            STEPS=-(-chosen["K"] // chosen["BLOCK_K"]), LOOPS=loops, **options,
        )  # fmt: skip

    ways = candidates(a, b, out, chosen, rows.numel(), a_labels.step == b_labels.step == 0)
    asked = [way for way in ways if group in (None, (way["GROUP_M"], way["GROUP_N"])) and by in (None, way["by"])]
    if not asked:
        can = ", ".join(f"{way['GROUP_M']} x {way['GROUP_N']} by {way['by']}" for way in ways)
        raise BackendError(
            f"elided MeshGEMM cannot serve {group or 'any'} cores a program by {by or 'any way'}; here it can {can}"
        )
    key = ("elided", rows.numel(), *(chosen[size] for size in "MKN"), str(a.tensor.dtype), str(b.tensor.dtype))
    key += tuple(one for one in (group, by) if one is not None)
    launch(asked[0] if len(asked) == 1 else tuning.best(key, asked, launch, a.tensor.device))
