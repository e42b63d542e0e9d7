"""Exchange: programs copy tiles from senders to receivers.

Senders and receivers are computed from positions along an axis, as an exchange has them, so tables stay small. A
program copies one message, or several if tiles are small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, block, start, tile_ptr, warps


class Copies(NamedTuple):
    """Messages that copy tiles of src to tiles of dst, `number` on each of `count` lines (mesh rows or columns).

    `send` and `recv`, int32, are positions on a line: [number] for all lines and `step` 0, or [count, number] and
    `step` = `number`; -1 is no message. `lines` int32 [count] are the lines, None: all. The core at position i of line
    j is j * `line_step` + i * `position_step`.
    """

    dst: Operand
    src: Operand
    send: Tensor
    recv: Tensor
    lines: Tensor | None
    step: int
    number: int
    count: int
    line_step: int
    position_step: int


@triton.jit
def _carry(moves, pid, SIZE: tl.constexpr, BLOCK: tl.constexpr, MESSAGES: tl.constexpr):
    # [MESSAGES, 1]
    message = (pid * MESSAGES + tl.arange(0, MESSAGES))[:, None]
    valid = message < moves.number * moves.count
    line = message // moves.number
    at = line * moves.step + message % moves.number
    recv, send = tl.load(moves.recv + at, mask=valid, other=-1), tl.load(moves.send + at, mask=valid, other=-1)
    if moves.lines is not None:
        line = tl.load(moves.lines + line, mask=valid, other=0)
    valid = recv >= 0
    dst_ptr = tile_ptr(moves.dst, tl.where(valid, line * moves.line_step + recv * moves.position_step, 0))
    src_ptr = tile_ptr(moves.src, tl.where(valid, line * moves.line_step + send * moves.position_step, 0))
    for begin in range(0, SIZE, BLOCK):
        # [MESSAGES, BLOCK]
        offs = begin + tl.arange(0, BLOCK)[None, :]
        mask = valid & (offs < SIZE)
        tl.store(dst_ptr + offs, tl.load(src_ptr + offs, mask=mask), mask=mask)


@triton.jit
def _exchange_kernel(moves, SIZES: tl.constexpr, BLOCKS: tl.constexpr, MESSAGES: tl.constexpr):
    for kind in tl.static_range(len(SIZES)):
        if tl.program_id(1) == kind:
            _carry(moves[kind], tl.program_id(0), SIZES[kind], BLOCKS[kind], MESSAGES[kind])


def exchange(moves: Sequence[Copies], sizes: Sequence[int]) -> None:
    """Copy all messages of `moves` in one launch; the tiles of moves[i] have sizes[i] elements."""
    assert all(one.dst.tensor.dtype == one.src.tensor.dtype for one in moves), "a message keeps its dtype"
    blocks = [block(size) for size in sizes]
    messages = [max(1, min(64, 1024 // wide)) for wide in blocks]
    programs = [-(-one.number * one.count // many) for one, many in zip(moves, messages, strict=True)]
    elements = max(wide * many for wide, many in zip(blocks, messages, strict=True))
    start(
        _exchange_kernel, (max(programs), len(moves)), tuple(moves), SIZES=tuple(sizes), BLOCKS=tuple(blocks),
        MESSAGES=tuple(messages), num_warps=4 if elements > 2048 else warps(elements),
    )  # fmt: skip
