"""What all kernels share: the operand convention, rounding, and the launch shape.

Program `pid` is core `cores[pid]`. It reads and writes only tiles that its operands name for it; addresses are
int64, arithmetic is fp32, and a value is rounded once, to nearest even, when it is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRET = tl.constexpr(triton.knobs.runtime.interpret)

MAX_BLOCK = 4096  # elements that one program holds at once


class Operand(NamedTuple):
    """Where the tiles of one buffer lie: core i's starts at element `offset + row * stride` of `tensor`.

    `row` is i, or `index[i]` where an index table over all cores is given: a tile that is read from where it lies,
    a neighbour's slot, a slot of the core's own. A tile is contiguous.
    """

    tensor: Tensor
    offset: int
    stride: int
    index: Tensor | None = None  # type: ignore[assignment]  # hides tuple.index, which nobody wants here


# launch(outs, ins, cores, **params): runs a local operation on every core that the int32 tensor `cores` lists, with
# operands and parameters in the order and by the names of its torch definition.
Launcher = Callable[..., None]


@triton.jit
def this_core(cores_ptr):
    """The core that this program is."""
    return tl.load(cores_ptr + tl.program_id(0))


@triton.jit
def tile_ptr(x, core):
    """Pointer to the first element of the core's tile of operand x."""
    row = core
    if x.index is not None:
        row = tl.load(x.index + core)
    return x.tensor + x.offset + row.to(tl.int64) * x.stride


@triton.jit
def load(ptrs, mask):
    """Load as fp32, zero where masked off."""
    return tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store(ptrs, value, mask):
    """Round fp32 once to the buffer's dtype and store."""
    tl.store(ptrs, rounded(value, ptrs.dtype.element_ty), mask=mask)


@triton.jit
def rounded(value, dtype: tl.constexpr):
    """fp32 to dtype, to nearest even; the interpreter's own conversion to bf16 truncates, so there it is bit work."""
    if INTERPRET and dtype == tl.bfloat16:
        bits = tl.where(value == value, value.to(tl.uint32, bitcast=True), 0x7FC00000)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return value.to(dtype)


def block(size: int, cap: int = MAX_BLOCK, floor: int = 1) -> int:
    """The power of two that covers `size`, between `floor` and `cap`."""
    return max(floor, min(cap, triton.next_power_of_2(max(size, 1))))


def warps(elements: int) -> int:
    """Warps for a block: eight elements (16 B of bf16) per thread, at most four warps."""
    return max(1, min(4, elements // 256))


def registers(a_thread: int) -> dict[str, int]:
    """The launch option that lets a kernel have so many registers; where there is no such option, none.

    Left to itself, NVIDIA's assembler parks values on the stack sooner than use the registers there are.
    """
    if INTERPRET or triton.runtime.driver.active.get_current_target().backend != "cuda":
        return {}
    return {"maxnreg": a_thread}


def resident(kernel: Any, device: torch.device) -> int:
    """How many programs of a compiled kernel a GPU holds at once: by its registers, shared memory and threads.

    0 where the driver does not tell what a multiprocessor has, and under the interpreter.
    """
    if INTERPRET or device.type != "cuda":
        return 0
    kernel._init_handles()  # loads the binary, which tells the registers
    has = torch.cuda.get_device_properties(device)
    if not hasattr(has, "regs_per_multiprocessor"):
        return 0
    threads = kernel.metadata.num_warps * has.warp_size
    return has.multi_processor_count * programs_per_multiprocessor(
        threads=threads,
        registers=kernel.n_regs,
        shared_bytes=kernel.metadata.shared,
        has_threads=has.max_threads_per_multi_processor,
        has_registers=has.regs_per_multiprocessor,
        has_shared_bytes=has.shared_memory_per_multiprocessor,
    )


def programs_per_multiprocessor(
    *, threads: int, registers: int, shared_bytes: int, has_threads: int, has_registers: int, has_shared_bytes: int
) -> int:
    """Programs of so many threads, registers a thread and bytes that fit; each figure as the hardware hands it out.

    A warp gets registers in units of 8 a thread, from one of the four parts of a multiprocessor, so warps count by
    fours; a program gets 1 KiB of shared memory beside its own, in units of 128 B (CUDA's occupancy rules for compute
    capability 8.0 and up). Never more than 16 programs are counted, half of what fits at best.
    """
    a_thread = -(-max(registers, 1) // 8) * 8
    warps = has_registers // (a_thread * 32) // 4 * 4
    return min(
        has_threads // threads,
        warps * 32 // threads,
        has_shared_bytes // (-(-shared_bytes // 128) * 128 + 1024),
        16,
    )
