"""Exchange: every message of a round is one program, which copies a tile into its receiver's mailbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, block, tile_ptr, warps


class Moves(NamedTuple):
    """Copy core send[i]'s tile of src, bit for bit, to core recv[i]'s tile of dst; where recv[i] is -1 nothing."""

    dst: Operand
    src: Operand
    recv: Tensor
    send: Tensor


@triton.jit
def _exchange_kernel(moves, SIZES: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    for kind in tl.static_range(len(SIZES)):
        if tl.program_id(1) == kind:
            dst, src, recv_ptr, send_ptr = moves[kind]
            recv, send = tl.load(recv_ptr + pid), tl.load(send_ptr + pid)
            dst_ptr, src_ptr = tile_ptr(dst, tl.maximum(recv, 0)), tile_ptr(src, tl.maximum(send, 0))
            for start in range(0, SIZES[kind], BLOCK):
                # [BLOCK]
                offs = start + tl.arange(0, BLOCK)
                mask = (offs < SIZES[kind]) & (recv >= 0)
                tl.store(dst_ptr + offs, tl.load(src_ptr + offs, mask=mask), mask=mask)


def exchange(moves: Sequence[Moves], sizes: Sequence[int]) -> None:
    """All moves of a round, in one launch: tiles of sizes[i] elements by moves[i]; int32 tables, all equally long."""
    count = {len(one.recv) for one in moves}
    assert len(count) == 1, "the shorter tables end with -1"
    assert all(one.dst.tensor.dtype == one.src.tensor.dtype for one in moves), "a message keeps its dtype"
    size = block(max(sizes))
    _exchange_kernel[(*count, len(moves))](tuple(moves), SIZES=tuple(sizes), BLOCK=size, num_warps=warps(size))
