"""MeshGEMM with its exchange elided: all compute-shift rounds in one launch, each tile read from where it lies.

Follow the tile of A that core (p, q) multiplies in round t, positions counted along the rings: it began p rows down at
position q - t, so all that meets there carries one label, p + q - t (mod P), and so does the tile of B. A core's sums
run through the labels downwards from p + q. Cores whose positions are neighbours begin one label apart; a program that
serves GROUP_M x GROUP_N of them lets the later ones start first, so that in every step all need the tiles of a single
label, and only at both ends some have not begun or are done: these add zeros. Every core adds what it would add alone,
in that order; only infinity, times such a zero, may show as NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.errors import BackendError
from wafer_triton.kernels import tuning
from wafer_triton.kernels._common import INTERPRET, Operand, load, start, store
from wafer_triton.kernels.blocks import candidates, number_of, placed
from wafer_triton.kernels.fused import PROGRAMS
from wafer_triton.kernels.gemm import accumulate, plan


class Labels(NamedTuple):
    """Where the tiles of one operand lie: that of label l for position p in row `first[p] + table[p * step + l]`.

    `step` 0: one table serves all positions, as when tiles lie where they were cut; only then can cores share a
    program. All int32.
    """

    first: Tensor
    table: Tensor
    step: int


@triton.jit
def _phase(
    total, first, end, p, q, begin_m, begin_n, a, b, a_labels, b_labels, P,
    M: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr, GROUP_N: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """total + the products of labels `first` to `end`; at an EDGE of those cores alone whose round it is.

    There each row of cores has a product of its own, other rows masked, as each masks other columns.
    """
    SPREAD: tl.constexpr = GROUP_M + GROUP_N - 2
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    PARTS: tl.constexpr = GROUP_M if EDGE else 1
    MASK_M: tl.constexpr = PARTS > 1 or (GROUP_M == 1 and M % BLOCK_M > 0) or K % BLOCK_K > 0
    MASK_N: tl.constexpr = EDGE or (GROUP_N == 1 and N % BLOCK_N > 0) or K % BLOCK_K > 0
    offs_m, offs_k, offs_n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_N)
    # of each row or column of the block its core's place in the group, and its place in that core's tile
    row_group, in_m = (offs_m // M, offs_m % M) if GROUP_M > 1 else (offs_m * 0, begin_m + offs_m)
    col_group, in_n = (offs_n // N, offs_n % N) if GROUP_N > 1 else (offs_n * 0, begin_n + offs_n)
    first_a = tl.load(a_labels.first + p + row_group).to(tl.int64) * a.stride
    first_b = tl.load(b_labels.first + q + col_group).to(tl.int64) * b.stride
    # [BLOCK_M, BLOCK_K], [BLOCK_K, BLOCK_N]
    a_ptrs = a.tensor + a.offset + first_a[:, None] + in_m[:, None] * K + offs_k[None, :]
    b_ptrs = b.tensor + b.offset + first_b[None, :] + offs_k[:, None] * N + in_n[None, :]

    a_labels_ptr = a_labels.table + p * a_labels.step
    b_labels_ptr = b_labels.table + q * b_labels.step
    # a step loads the rows of the next: tiles whose address waited for a load would come too late
    label = (p + q + SPREAD - first + P) % P
    row_a, row_b = tl.load(a_labels_ptr + label), tl.load(b_labels_ptr + label)
    # masked blocks, some for each row of cores, take room for fewer steps ahead
    for step in tl.range(first * STEPS, end * STEPS, num_stages=None if PARTS == 1 else 2 if PARTS == 2 else 1):
        start_k = step % STEPS * BLOCK_K
        mask_k = start_k + offs_k < K
        x_ptrs = a_ptrs + row_a.to(tl.int64) * a.stride + start_k
        y_ptrs = b_ptrs + row_b.to(tl.int64) * b.stride + start_k * N
        for part in tl.static_range(PARTS):
            mask_m, mask_n = in_m < M, in_n < N
            if EDGE:
                number = step // STEPS - SPREAD + part + col_group  # the round of the cores of this row
                mask_m, mask_n = mask_m & (row_group == part), mask_n & (number >= 0) & (number < P)
            x = tl.load(x_ptrs, mask=mask_m[:, None] & mask_k[None, :], other=0.0) if MASK_M else tl.load(x_ptrs)
            y = tl.load(y_ptrs, mask=mask_k[:, None] & mask_n[None, :], other=0.0) if MASK_N else tl.load(y_ptrs)
            # the interpreter's dot multiplies the raw bits of bf16
            if x.dtype != y.dtype or INTERPRET:
                x, y = x.to(tl.float32), y.to(tl.float32)
            total = tl.dot(x, y, total, input_precision="ieee")
        label = (p + q + SPREAD - (step + 1) // STEPS + P) % P
        row_a, row_b = tl.load(a_labels_ptr + label), tl.load(b_labels_ptr + label)
    return total


@triton.jit
def _dot_kernel(
    c, out, a, b, rows_ptr, cols_ptr, a_labels, b_labels, P,
    M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, ADD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr, GROUP_N: tl.constexpr, SWIZZLE: tl.constexpr,
):  # fmt: skip
    p, q, begin_m, begin_n = placed(tl.program_id(0), P, M, N, BLOCK_M, BLOCK_N, GROUP_M, GROUP_N, SWIZZLE)

    # [BLOCK_M]: of each row of the block its core's place in the group, and its row in that core's tile
    offs_m, offs_n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    row_group, in_m = (offs_m // M, offs_m % M) if GROUP_M > 1 else (offs_m * 0, begin_m + offs_m)
    col_group, in_n = (offs_n // N, offs_n % N) if GROUP_N > 1 else (offs_n * 0, begin_n + offs_n)
    # [BLOCK_M, BLOCK_N]
    core = tl.load(rows_ptr + p + row_group)[:, None] * P + tl.load(cols_ptr + q + col_group)[None, :]
    in_c = in_m[:, None] * N + in_n[None, :]
    mask_c = (in_m < M)[:, None] & (in_n < N)[None, :]
    if ADD:
        total = load(c.tensor + c.offset + core.to(tl.int64) * c.stride + in_c, mask_c)
    else:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)

    SPREAD: tl.constexpr = GROUP_M + GROUP_N - 2  # labels between the first core of the group and the last
    # not all cores have begun; all are on their way; not all are on their way any more
    for phase in tl.static_range(3):
        if phase == 1 or SPREAD > 0:
            total = _phase(
                total, (0, SPREAD, P)[phase], (SPREAD, P, P + SPREAD)[phase], p, q, begin_m, begin_n, a, b,
                a_labels, b_labels, P, M, K, N, BLOCK_M, BLOCK_K, BLOCK_N, GROUP_M, GROUP_N, phase != 1,
            )  # fmt: skip
    store(out.tensor + out.offset + core.to(tl.int64) * out.stride + in_c, total, mask_c)


@triton.jit
def _core_block(
    c, out, a, b, rows_ptr, cols_ptr, a_labels, b_labels, P, pid,
    M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, ADD: tl.constexpr, MODE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    p, q, part = pid // blocks // P, pid // blocks % P, pid % blocks
    offs_m = part // tl.cdiv(N, BLOCK_N) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = part % tl.cdiv(N, BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    core = (tl.load(rows_ptr + p) * P + tl.load(cols_ptr + q)).to(tl.int64)
    # [BLOCK_M, BLOCK_N]
    offs_c = offs_m[:, None] * N + offs_n[None, :]
    mask_c = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    if ADD:
        total = load(c.tensor + c.offset + core * c.stride + offs_c, mask_c)
    else:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    first_a, first_b = tl.load(a_labels.first + p), tl.load(b_labels.first + q)
    for number in range(P):
        label = (p + q - number + P) % P
        row_a = (first_a + tl.load(a_labels.table + p * a_labels.step + label)).to(tl.int64)
        row_b = (first_b + tl.load(b_labels.table + q * b_labels.step + label)).to(tl.int64)
        total = accumulate(
            total, a.tensor + a.offset + row_a * a.stride, b.tensor + b.offset + row_b * b.stride, None, None,
            None, 0, offs_m, offs_n, K, N, 1, False, False, M, K, N, MODE, "", BLOCK_M, BLOCK_K, BLOCK_N,
        )  # fmt: skip
    store(out.tensor + out.offset + core * out.stride + offs_c, total, mask_c)


@triton.jit
def _core_kernel(
    c, out, a, b, rows_ptr, cols_ptr, a_labels, b_labels, P, programs,
    M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, ADD: tl.constexpr, MODE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, LOOPS: tl.constexpr,
):  # fmt: skip
    """Sums that are not dots: a program is a block of one core, or a few such blocks one after another."""
    first = tl.program_id(0) * LOOPS
    for pid in range(first, first + 1 if LOOPS == 1 else min(first + LOOPS, programs)):
        _core_block(
            c, out, a, b, rows_ptr, cols_ptr, a_labels, b_labels, P, pid, M, K, N, ADD, MODE, BLOCK_M, BLOCK_K, BLOCK_N,
        )  # fmt: skip


def elided(
    c: Operand, out: Operand, a: Operand, b: Operand, rows: Tensor, cols: Tensor, a_labels: Labels, b_labels: Labels,
    *, group: tuple[int, int] | None = None, by: str | None = None, **params: Any,
) -> None:  # fmt: skip
    """out = (c +) the sum over all rounds of a @ b, on every core of a square mesh; parameters of `local.gemm_torch`.

    `rows`, `cols` int32 [P]: the mesh's rows and columns in ring order. `group`: how many cores share a program, `by`:
    how tiles come (see `blocks`); by default what suits the GPU, found by trial unless tuning is off (see `tuning`).
    BackendError if no way is as asked.
    """
    chosen = plan(a, b, **params)
    for name in ("HEADS", "KV_HEADS", "TRANSPOSED"):
        del chosen[name]
    side, mode = rows.numel(), chosen.pop("MODE")
    where = (rows, cols, a_labels, b_labels, side)

    def launch(way: dict[str, Any]) -> None:
        blocks = {name: value for name, value in way.items() if name != "by"}
        programs = number_of(side, chosen, way)
        if mode != "dot":
            loops = -(-programs // PROGRAMS)
            many = -(-programs // loops)
            start(_core_kernel, many, c, out, a, b, *where, programs, MODE=mode, LOOPS=loops, **chosen)
            return
        if way["by"] == "warps":  # Gluon is experimental: what does without it may not fail for it
            from wafer_triton.kernels.warp_groups import warp_groups

            warp_groups(out, a, b, *where, programs, chosen | blocks)
            return
        start(_dot_kernel, programs, c, out, a, b, *where, **(chosen | blocks))

    ways = candidates(a, b, out, chosen, side, a_labels.step == b_labels.step == 0)
    if mode != "dot":
        ways = ways[-1:]
    asked = [way for way in ways if group in (None, (way["GROUP_M"], way["GROUP_N"])) and by in (None, way["by"])]
    if not asked:
        can = ", ".join(f"{way['GROUP_M']} x {way['GROUP_N']} by {way['by']}" for way in ways)
        raise BackendError(
            f"elided MeshGEMM cannot serve {group or 'any'} cores a program by {by or 'any way'}; here it can {can}"
        )
    if chosen["ADD"]:  # a trial would add, too
        asked = asked[-1:]
    key = ("elided", side, *(chosen[size] for size in "MKN"), str(a.tensor.dtype), str(b.tensor.dtype))
    key += tuple(one for one in (group, by) if one is not None)
    launch(asked[0] if len(asked) == 1 else tuning.best(key, asked, launch, a.tensor.device))
