"""MeshGEMM with its exchange elided, on Hopper: one warp loads tiles into a ring, two warp groups multiply them.

A slot of the ring holds BOX values of k: two boxes of A, one for each group, and a row of boxes of B for both. TMA
fills it, and counts its bytes at the slot's barrier `full`. Each group arrives at its barrier `free` once it has read
the slot. Programs are persistent, so that tiles of the next block are loaded while the groups store this one's sums.
It is in Gluon because plain Triton, 3.6.0 and 3.7.1, accepts `warp_specialize` for Hopper but does not specialize.

Each core adds the products that it adds in `elided`, in the same order. A group serves one row of cores, as GROUP_M is
1 or 2. Where cores share a program, their labels start and end at different times, so in the first and last labels some
columns must not multiply: their boxes of B are read from outside the matrix, where TMA fills in zeros. Zero times an
infinity of A is NaN, so sums that have not begun are set to zero after each label, and stored as soon as they have
ended. As those columns differ between the groups, each group then has slots of its own, and skips the other's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from wafer_triton.kernels import _common
from wafer_triton.kernels._common import Operand, block_position, constants, start

BOX = gl.constexpr(_common.BOX)
# Registers of a thread, for BLOCK_N / 2 sums and addresses, and for addresses alone. They are set for the second group
# and the loading warp; the first group gets as many as the second, from the rest of 64 Ki.
MULTIPLY_REGISTERS, FETCH_REGISTERS = gl.constexpr(240), gl.constexpr(24)
RING_BYTES = 192 * 1024  # of shared memory
MIN_PROGRAMS = 64  # else blocks are smaller: an H100 takes 18.2 us with 32 of 128 x 256, 11.5 us with 64 of 128 x 128


@gluon.jit
def _fetch(
    turn, first, end, p, q, begin_m, begin_n, a, b, a_labels, b_labels, ring, P, S,
    EACH: gl.constexpr, EDGE: gl.constexpr,
):  # fmt: skip
    """Load the tiles of labels `first` to `end` into the ring, in EACH slots a step: 2 if each group has its own.

    `turn` counts slots and is returned. At an EDGE the columns of cores that do not have this label are zero.
    """
    ring_a, ring_b, full, free = ring
    STEPS: gl.constexpr = S.K // BOX
    BOXES: gl.constexpr = S.BLOCK_N // BOX
    HALVES: gl.constexpr = 2 // EACH
    for step in range(first * STEPS, end * STEPS):
        label = (p + q + S.SPREAD - step // STEPS + P) % P
        start_k = step % STEPS * BOX
        row_a = gl.load(a_labels.table + p * a_labels.step + label)
        row_b = gl.load(b_labels.table + q * b_labels.step + label)
        for part in gl.static_range(EACH):
            slot = turn % S.DEPTH
            mbarrier.wait(free.index(slot), turn // S.DEPTH % 2 ^ 1)
            mbarrier.expect(full.index(slot), (HALVES + BOXES) * BOX * BOX * 2)
            for half in gl.static_range(part, part + HALVES):
                tile = gl.load(a_labels.first + p + half * (S.GROUP_M - 1)) + row_a
                row = tile * S.M + begin_m + half * (2 - S.GROUP_M) * BOX
                tma.async_copy_global_to_shared(a, [row, start_k], full.index(slot), ring_a.index(slot * 2 + half))
            for box in gl.static_range(BOXES):
                col, core_offset = _column(box, begin_n, S)
                row = (gl.load(b_labels.first + q + core_offset) + row_b) * S.K + start_k
                if EDGE:
                    number = step // STEPS - S.SPREAD + part + core_offset  # the round of the cores of this row
                    row = gl.where((number >= 0) & (number < P), row, -BOX)
                to = ring_b.index(slot).slice(box * BOX, BOX, dim=1)
                tma.async_copy_global_to_shared(b, [row, col], full.index(slot), to)
            turn += 1
    return turn


@gluon.jit
def _column(box: gl.constexpr, begin_n, S):
    """Return the first column of a box in its core's tile, and how many cores further along the row that core is."""
    if S.GROUP_N > 1:
        return box * BOX % S.N, box * BOX // S.N
    else:
        return begin_n + box * BOX, 0


@gluon.jit
def _multiply(total, turn, labels, ring, S, GROUP: gl.constexpr, EACH: gl.constexpr):
    """Return total + the products of `labels` labels, and `turn`; EACH as in `_fetch`."""
    ring_a, ring_b, full, free = ring
    pending = gl.to_tensor(-1)  # the slot that the last product, still running, reads
    for _ in range(labels * (S.K // BOX)):
        for part in gl.static_range(EACH):
            slot = turn % S.DEPTH
            mbarrier.wait(full.index(slot), turn // S.DEPTH % 2)
            if EACH == 1 or part == GROUP:
                a, b = ring_a.index(slot * 2 + GROUP), ring_b.index(slot)
                # this product runs on while the slot of the last one is released
                total = hopper.warpgroup_mma_wait(1, deps=[hopper.warpgroup_mma(a, b, total, is_async=True)])
                mbarrier.arrive(free.index(gl.maximum(pending, 0)), pred=pending >= 0)
                pending = slot
            else:
                mbarrier.arrive(free.index(slot))
            turn += 1
    total = hopper.warpgroup_mma_wait(0, deps=[total])
    mbarrier.arrive(free.index(pending))
    return total, turn


@gluon.jit
def _column_blocks(block, NUMBER: gl.constexpr):
    """Return a tuple of the NUMBER equal parts into which the columns of a block are cut."""
    if NUMBER == 1:
        return (block,)
    else:
        halves = gl.reshape(block, (block.shape[0], 2, block.shape[1] // 2))
        low, high = gl.split(gl.permute(halves, (0, 2, 1)))
        return _column_blocks(low, NUMBER // 2) + _column_blocks(high, NUMBER // 2)


@gluon.jit
def _fetch_worker(a, b, a_labels, b_labels, ring, P, programs, S):
    """Load the tiles of all blocks of a program; the code of one warp."""
    turn = gl.to_tensor(0)
    for pid in range(gl.program_id(0), programs, gl.num_programs(0)):
        p, q, begin_m, begin_n = block_position(pid, P, S.M, S.N, 2 * BOX, S.BLOCK_N, S.GROUP_M, S.GROUP_N, S.SWIZZLE)
        for phase in gl.static_range(3):  # as in `elided`
            turn = _fetch(
                turn, (0, S.SPREAD, P)[phase], (S.SPREAD, P, P + S.SPREAD)[phase], p, q, begin_m, begin_n, a, b,
                a_labels, b_labels, ring, P, S, 1 if phase == 1 else S.GROUP_M, phase != 1,
            )  # fmt: skip


@gluon.jit
def _without(total, number):
    """Return the sums with zeros in columns of negative `number`.

    The asm clears registers in place. With `gl.where` ptxas runs out of registers and serialises all wgmma (C7511).
    """
    clear: gl.constexpr = "{.reg .pred p; setp.lt.s32 p, $2, 0; @p mov.b32 $0, 0;}"
    return gl.inline_asm_elementwise(clear, "=f,0,r", [total, number], gl.float32, is_pure=True, pack=1)


@gluon.jit
def _multiply_worker(out, rows_ptr, cols_ptr, ring, staged, P, programs, S, GROUP: gl.constexpr):
    """Multiply and store all blocks of a program; the code of warp group GROUP.

    `staged` is shared memory from which sums are stored, two boxes for each group.
    """
    BOXES: gl.constexpr = S.BLOCK_N // BOX
    ROW: gl.constexpr = GROUP * (S.GROUP_M - 1)  # of the group's cores in the program
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, S.BLOCK_N, 16])
    cols = gl.arange(0, S.BLOCK_N, layout=gl.SliceLayout(0, layout))[None, :]
    turn = gl.to_tensor(0)
    for pid in range(gl.program_id(0), programs, gl.num_programs(0)):
        p, q, begin_m, begin_n = block_position(pid, P, S.M, S.N, 2 * BOX, S.BLOCK_N, S.GROUP_M, S.GROUP_N, S.SWIZZLE)
        row_core = gl.load(rows_ptr + p + ROW) * P
        total = gl.full([BOX, S.BLOCK_N], 0.0, gl.float32, layout)
        for label in range(S.SPREAD):
            total, turn = _multiply(total, turn, 1, ring, S, GROUP, S.GROUP_M)
            total = _without(total, cols // S.N - (S.SPREAD - label - ROW))
        total, turn = _multiply(total, turn, P - S.SPREAD, ring, S, GROUP, 1)
        for label in range(S.SPREAD + 1):
            sums = _column_blocks(total, BOXES)
            for box in gl.static_range(BOXES):
                col, core_offset = _column(box, begin_n, S)
                if label + ROW + core_offset == S.SPREAD:
                    tma.store_wait(1)  # until the copy before the last has read its box
                    at = staged.index(GROUP * 2 + box % 2)
                    at.store(sums[box].to(out.dtype))
                    hopper.fence_async_shared()
                    row = (row_core + gl.load(cols_ptr + q + core_offset)) * S.M + begin_m
                    tma.async_copy_shared_to_global(out, [row + GROUP * (2 - S.GROUP_M) * BOX, col], at)
            if label < S.SPREAD:
                total, turn = _multiply(total, turn, 1, ring, S, GROUP, S.GROUP_M)
    tma.store_wait(0)


@gluon.jit
def _groups_kernel(out, a, b, rows_ptr, cols_ptr, a_labels, b_labels, P, programs, S):
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    ring_a = gl.allocate_shared_memory(a.dtype, [S.DEPTH * 2, BOX, BOX], layout)
    ring_b = gl.allocate_shared_memory(b.dtype, [S.DEPTH, BOX, S.BLOCK_N], layout)
    staged = gl.allocate_shared_memory(out.dtype, [4, BOX, BOX], layout)
    full = gl.allocate_shared_memory(gl.int64, [S.DEPTH, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [S.DEPTH, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(S.DEPTH):
        mbarrier.init(full.index(slot), count=1)  # the warp that fetches
        mbarrier.init(free.index(slot), count=2)  # both groups
    hopper.fence_async_shared()  # TMA reads the barriers that were just made
    ring = (ring_a, ring_b, full, free)
    gl.warp_specialize(
        [
            (_multiply_worker, (out, rows_ptr, cols_ptr, ring, staged, P, programs, S, 0)),
            (_multiply_worker, (out, rows_ptr, cols_ptr, ring, staged, P, programs, S, 1)),
            (_fetch_worker, (a, b, a_labels, b_labels, ring, P, programs, S)),
        ],
        [4, 1],
        [MULTIPLY_REGISTERS, FETCH_REGISTERS],
    )


def choose_blocks(
    out: Operand, a: Operand, b: Operand, side: int, shared: bool, sizes: dict[str, Any]
) -> dict[str, int] | None:
    """Return block sizes for a product of `sizes`, as of `gemm.plan`, on side x side cores; None if it cannot run here.

    A program computes 128 x 256 of C, or 128 x 128 if that leaves few programs. If tiles are smaller, these are of
    GROUP_M x GROUP_N cores, which requires one table of labels `shared` by all positions.
    """
    m, k, n = (sizes[size] for size in "MKN")
    dtypes = {x.tensor.dtype for x in (a, b, out)}
    boxes = not any(size % _common.BOX for size in (m, k, n)) and len(dtypes) == 1 and torch.float32 not in dtypes
    if not boxes or not all(map(_tma_ready, (a, b, out), (m * k, k * n, m * n))):
        return None
    found = None
    for block_n in (256, 128):
        group = max(1, 128 // m), max(1, block_n // n)
        spread = sum(group) - 2  # labels between the cores of a program
        whole = all(
            one * size % block == 0 == side % one
            for one, size, block in zip(group, (m, n), (128, block_n), strict=True)
        )
        if whole and (shared or group == (1, 1)) and spread < side:
            found = {
                "GROUP_M": group[0], "GROUP_N": group[1], "BLOCK_M": 128, "BLOCK_N": block_n, "SWIZZLE": 8,
                "DEPTH": RING_BYTES // (_common.BOX * (128 + block_n) * a.tensor.itemsize), "SPREAD": spread,
                "PROGRAMS": side**2 * m * n // (128 * block_n),
            }  # fmt: skip
            if found["PROGRAMS"] >= MIN_PROGRAMS:
                break
    return found


def _tma_ready(x: Operand, numel: int) -> bool:
    """Return whether an operand's tiles lie one after another and start at 16 bytes, as TMA requires."""
    return x.stride == numel and x.tensor[x.offset :].data_ptr() % 16 == 0


def warp_groups(
    out: Operand, a: Operand, b: Operand, rows: Tensor, cols: Tensor, a_labels: Any, b_labels: Any,
    chosen: dict[str, Any],
) -> None:  # fmt: skip
    """Compute out = the sum of a @ b over all rounds, as `elided` does; `chosen` are its sizes and `choose_blocks`."""
    layout = gl.NVMMASharedLayout(128, 16, 2)

    def boxes(x: Operand, cols: int) -> TensorDescriptor:
        rows = (x.tensor.numel() - x.offset) // cols
        return TensorDescriptor(x.tensor[x.offset :], [rows, cols], [cols, 1], [_common.BOX] * 2, layout)

    stay = programs = chosen.pop("PROGRAMS")
    if a.tensor.device.type == "cuda":  # one program a multiprocessor, as the ring leaves no room for two
        stay = min(programs, torch.cuda.get_device_properties(a.tensor.device).multi_processor_count)
    start(
        _groups_kernel, stay, boxes(out, chosen["N"]), boxes(a, chosen["K"]), boxes(b, chosen["N"]), rows, cols,
        a_labels, b_labels, rows.numel(), programs, constants(chosen), num_warps=4,
    )  # fmt: skip
