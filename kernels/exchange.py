"""Exchange: every message is one program, which copies a tile into its receiver's mailbox.

A launch carries the messages of one round, or of several (`relay`): a message then waits until the tile that it carries
is there and the slot where it goes is free. Both are the work of messages of earlier rounds, which begin before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, block, tile_ptr, warps
from wafer_triton.kernels.waiting import Alarm, wait

FIELDS = tl.constexpr(8)  # of a message of a relay


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


@triton.jit
def _carry(dst, src, recv, send, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    dst_ptr, src_ptr = tile_ptr(dst, recv), tile_ptr(src, send)
    for start in range(0, SIZE, BLOCK):
        # [BLOCK]; from L2, as another SM may have written it
        offs = start + tl.arange(0, BLOCK)
        mask = offs < SIZE
        tl.store(dst_ptr + offs, tl.load(src_ptr + offs, mask=mask, cache_modifier=".cg"), mask=mask)


@triton.jit(do_not_specialize=["launch"])
def _relay_kernel(kinds, messages_ptr, counters_ptr, alarm_ptr, launch, SIZES: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    message_ptr = messages_ptr + pid * FIELDS
    recv, send, kind, awaited = (tl.load(message_ptr), tl.load(message_ptr + 1), tl.load(message_ptr + 2),
                                 tl.load(message_ptr + 3))  # fmt: skip
    if awaited > 0:
        wait(counters_ptr + pid, awaited, alarm_ptr, launch, recv, tl.load(message_ptr + 4))
    for number in tl.static_range(len(SIZES)):
        if kind == number:
            _carry(kinds[number][0], kinds[number][1], recv, send, SIZES[number], BLOCK)
    # [2]: the message that carries this tile on, and the one that comes where it lay
    following = tl.load(message_ptr + 6 + tl.arange(0, 2))
    tl.debug_barrier()
    tl.atomic_add(counters_ptr + following, 1, mask=following >= 0, sem="release", scope="gpu")


def relay(
    kinds: Sequence[tuple[Operand, Operand]], sizes: Sequence[int], messages: Tensor, counters: Tensor, alarm: Alarm
) -> None:
    """The messages of several rounds in one launch, in the order of their rounds, bit for bit.

    `messages` int32 [n, 8]: receiver, sender, the index in `kinds` of (dst, src), for how many earlier messages this
    one waits, its round, nothing, and the two later messages that wait for this one (-1: none). A message of kind i is
    sizes[i] elements. `counters` int32 [n] is zero before and after.
    """
    size = block(max(sizes))
    _relay_kernel[(len(messages),)](
        tuple(kinds),
        messages,
        counters,
        alarm.word,
        alarm.launch,
        SIZES=tuple(sizes),
        BLOCK=size,
        num_warps=warps(size),
    )
