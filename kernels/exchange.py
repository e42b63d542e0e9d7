"""Exchange: every message of a round is one program, which copies a tile into its receiver's mailbox."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, block, tile_ptr, warps


@triton.jit
def _exchange_kernel(dst, src, recv_ptr, send_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    recv, send = tl.load(recv_ptr + pid), tl.load(send_ptr + pid)
    dst_ptr, src_ptr = tile_ptr(dst, tl.maximum(recv, 0)), tile_ptr(src, tl.maximum(send, 0))
    for start in range(0, SIZE, BLOCK):
        # [BLOCK]
        offs = start + tl.arange(0, BLOCK)
        mask = (offs < SIZE) & (recv >= 0)
        tl.store(dst_ptr + offs, tl.load(src_ptr + offs, mask=mask), mask=mask)


def exchange(dst: Operand, src: Operand, recv: Tensor, send: Tensor, numel: int) -> None:
    """Copy core send[i]'s tile of src, bit for bit, to core recv[i]'s tile of dst; where recv[i] is -1 nothing."""
    assert dst.tensor.dtype == src.tensor.dtype, "a message keeps its dtype"
    size = block(numel)
    _exchange_kernel[(recv.numel(),)](dst, src, recv, send, SIZE=numel, BLOCK=size, num_warps=warps(size))
