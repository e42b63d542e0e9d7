"""Exchange: programs copy tiles from senders to receivers, through one round of a schedule or through many.

Along an axis an element of a tile never meets another element, and lines of the mesh never meet. So a program carries
one slice of all tiles of a line from step to step, and no other program touches what it writes: its own threads wait
for each other between two steps, and nothing else waits. The messages of a single step are independent, so that several
programs share a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, block, constants, start
from wafer_triton.kernels.fused import MAX_PROGRAMS

SLICE_BYTES = 2048  # of a tile
BYTES_AT_ONCE = 16_384  # that a program of four warps loads before it stores; an eighth if no access has 16 bytes
# Programs of a launch of several steps, two on a multiprocessor of an H100. They take slice after slice, so that what a
# step wrote may still be in the L2 when the next one reads it; not measured yet.
CARRIERS = 264


class Copies(NamedTuple):
    """Messages along one axis in `steps` steps; core i of line j is j * `line_step` + i * `position_step`.

    Tables are int32. `places` [steps, 4]: the number of the operand that a step reads, and the slot, then those that it
    writes; the slots of a core lie one after another. `ends` [rows, 2, number]: positions that send, and that receive;
    -1 is no message. `routes` [steps, lines]: the row of `ends` for a line; -1 is none.
    """

    operands: tuple[Operand, ...]
    places: Tensor
    routes: Tensor
    ends: Tensor
    steps: int
    number: int
    lines: int
    line_step: int
    position_step: int


@triton.jit
def _slot_ptr(moves, place_ptr, line, position, P):
    """Return pointers to the tiles of cores of a line, in the operand and the slot at place_ptr; -1 is no position."""
    operand, slot = tl.load(place_ptr), tl.load(place_ptr + 1)
    core = tl.where(position < 0, 0, line * moves.line_step + position * moves.position_step)
    first_ptr, stride, row = moves.operands[0].tensor, moves.operands[0].stride, core
    for number in tl.static_range(P.OPERANDS):
        # the operand has no name of its own, as Triton 3.6 finds no type for an index None
        chosen = operand == number
        first_ptr = tl.where(chosen, moves.operands[number].tensor + moves.operands[number].offset, first_ptr)
        stride = tl.where(chosen, moves.operands[number].stride, stride)
        if moves.operands[number].index is not None:
            row = tl.where(chosen, tl.load(moves.operands[number].index + core), row)
    return first_ptr + slot.to(tl.int64) * P.SIZE + row.to(tl.int64) * stride


@triton.jit
def _carry(moves, P):
    """Copy slices of lines step by step; in a single step a program has one of `parts` parts of the messages."""
    SLICES: tl.constexpr = (P.SIZE + P.BLOCK - 1) // P.BLOCK
    parts = tl.cdiv(moves.number, P.MESSAGES) if P.SINGLE else 1
    for item in range(tl.program_id(0), moves.lines * SLICES * parts, tl.num_programs(0)):
        line = item // (SLICES * parts)
        # [1, BLOCK]
        offs = tl.arange(0, P.BLOCK)[None, :] + item // parts % SLICES * P.BLOCK
        for step in range(moves.steps):
            route, place_ptr = tl.load(moves.routes + step * moves.lines + line), moves.places + step * 4
            for begin in range(item % parts * P.MESSAGES, moves.number, parts * P.MESSAGES):
                # [MESSAGES, 1]
                message = begin + tl.arange(0, P.MESSAGES)[:, None]
                ends_ptr, valid = (
                    moves.ends + route * 2 * moves.number + message,
                    (message < moves.number) & (route >= 0),
                )
                send = tl.load(ends_ptr, mask=valid, other=-1)
                recv = tl.load(ends_ptr + moves.number, mask=valid, other=-1)
                src_ptr = _slot_ptr(moves, place_ptr, line, send, P) + offs
                dst_ptr = _slot_ptr(moves, place_ptr + 2, line, recv, P) + offs
                mask = (recv >= 0) & (offs < P.SIZE)
                tl.store(dst_ptr, tl.load(src_ptr, mask=mask), mask=mask)
            tl.debug_barrier()  # what a thread wrote, others of this program read in the next step


@triton.jit
def _exchange_kernel(moves, sizes, KINDS: tl.constexpr):
    for kind in tl.static_range(KINDS):
        if tl.program_id(1) == kind:
            _carry(moves[kind], sizes[kind])


def exchange(moves: Sequence[Copies], sizes: Sequence[int]) -> None:
    """Copy all messages of `moves`, which are independent, in one launch; tiles of moves[i] have sizes[i] elements."""
    plans, programs = [], 1
    for one, size in zip(moves, sizes, strict=True):
        assert len({each.tensor.dtype for each in one.operands}) == 1, "a message keeps its dtype"
        itemsize, single = one.operands[0].tensor.itemsize, one.steps == 1
        wide, share = block(size, SLICE_BYTES // itemsize), 8 if size * itemsize % 16 else 1
        messages = block(one.number, BYTES_AT_ONCE // share // itemsize // wide)
        items = one.lines * -(-size // wide) * (-(-one.number // messages) if single else 1)
        programs = max(programs, min(items, (MAX_PROGRAMS if single else CARRIERS) // len(moves)))
        sizes_of = {"SIZE": size, "BLOCK": wide, "MESSAGES": messages, "SINGLE": single, "OPERANDS": len(one.operands)}
        plans.append(constants(sizes_of))
    start(
        _exchange_kernel, (programs, len(moves)), tuple(moves), tuple(plans), KINDS=len(moves),
        num_warps=4, num_stages=1,
    )  # fmt: skip
