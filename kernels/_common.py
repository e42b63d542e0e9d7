"""Shared by all kernels: how operands find a core's tile, rounding, and launching.

Program `pid` is core `cores[pid]`. It reads and writes only the tiles that its operands give it. Addresses are int64,
arithmetic is fp32, and a value is rounded once, to nearest even, when it is stored.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.backends.compiler import GPUTarget

from wafer_triton.errors import BackendError

INTERPRET = tl.constexpr(triton.knobs.runtime.interpret)

BOX = 64  # rows and columns of one TMA copy: the width of its 128-byte swizzle in 16-bit values
ONE_CORE_PROGRAMS = 16_384  # a launch for more cores gives a program several of them
MAX_BLOCK = 4096  # elements of a block


class Operand(NamedTuple):
    """Where cores find their tiles of a buffer: core i's starts at element `offset + row * stride` of `tensor`.

    `row` is i, or `index[i]` if there is an index table int32 [cores], for tiles in other cores' memory or in a slot
    that differs from core to core. A tile is contiguous.
    """

    tensor: Tensor
    offset: int
    stride: int
    index: Tensor | None = None  # hides tuple.index, which has no use here


COMPILING: ContextVar[bool] = ContextVar("compiling", default=False)  # whether `start` compiles and launches nothing


def start(kernel: Any, grid: int | tuple[int, ...], *args: Any, **options: Any) -> Any:
    """Launch `grid` programs of a kernel; inside of `compiling` only compile it. Returns the compiled kernel."""
    shape = (grid,) if isinstance(grid, int) else grid
    return kernel.warmup(*args, grid=shape, **options) if COMPILING.get() else kernel[shape](*args, **options)


@contextmanager
def compiling() -> Iterator[None]:
    """Compile the kernels that are launched inside, without running them."""
    token = COMPILING.set(True)
    try:
        yield
    finally:
        COMPILING.reset(token)


@triton.jit
def tile_ptr(x, core):
    """Return a pointer to the first element of the core's tile of operand x."""
    row = core
    if x.index is not None:
        row = tl.load(x.index + core)
    return x.tensor + x.offset + row.to(tl.int64) * x.stride


@triton.jit
def load(ptrs, mask):
    """Return the values at ptrs as fp32, zero where masked off."""
    ptrs, mask = tl.broadcast(ptrs, mask)
    return tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store(ptrs, value, mask):
    """Round fp32 values to the dtype of the pointers and store them."""
    ptrs, mask = tl.broadcast(ptrs, mask)
    ptrs, value = tl.broadcast(ptrs, rounded(value, ptrs.dtype.element_ty))
    tl.store(ptrs, value, mask=mask)


@triton.jit
def read(x, core, offs, mask):
    """Return elements `offs` of the core's tile of operand x as fp32, zero where masked off."""
    return load(tile_ptr(x, core) + offs, mask)


@triton.jit
def write(x, core, offs, value, mask):
    """Round fp32 values to the dtype of operand x and store them as elements `offs` of the core's tile."""
    store(tile_ptr(x, core) + offs, value, mask)


@triton.jit
def rounded(value, dtype: tl.constexpr):
    """Return fp32 values rounded to dtype, to nearest even; the interpreter truncates to bf16, so bits are computed."""
    if INTERPRET and dtype == tl.bfloat16:
        bits = tl.where(value == value, value.to(tl.uint32, bitcast=True), 0x7FC00000)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return value.to(dtype)


@triton.jit
def round_to(value, dtype: tl.constexpr):
    """Return fp32 values as memory of dtype holds them, as fp32."""
    return rounded(value, dtype).to(tl.float32)


@triton.constexpr_function
def _levels(size):
    return size.bit_length() - 1


@triton.jit
def sum_by_halves(x, BEFORE: tl.constexpr, SIZE: tl.constexpr, AFTER: tl.constexpr):
    """Return x, viewed as [BEFORE, SIZE, AFTER], summed over SIZE: the first half plus the second, and so on.

    Such a tree has one order of additions, so the bits depend neither on warps nor on the rest of a block.
    """
    for level in tl.static_range(_levels(SIZE)):
        x = tl.sum(tl.reshape(x, [BEFORE, 2, (SIZE >> level + 1) * AFTER]), axis=1)
    return tl.reshape(x, [BEFORE, AFTER])


@triton.jit
def block_position(pid, P, M, N, BLOCK_M, BLOCK_N, GROUP_M, GROUP_N, SWIZZLE: tl.constexpr):
    """Return the first core (p, q) of block `pid` of a product, and the block's first row and column in its tile.

    The grid of blocks is swizzled, SWIZZLE rows at a time, so that programs which run at the same time share tiles.
    """
    # a block covers GROUP_M x GROUP_N cores, or a part of one core
    blocks_m = (M + BLOCK_M - 1) // BLOCK_M if GROUP_M == 1 else 1
    blocks_n = (N + BLOCK_N - 1) // BLOCK_N if GROUP_N == 1 else 1
    all_m, all_n = P // GROUP_M * blocks_m, P // GROUP_N * blocks_n
    first_m = pid // (SWIZZLE * all_n) * SWIZZLE
    size_m = min(all_m - first_m, SWIZZLE)
    pid_m = first_m + pid % (SWIZZLE * all_n) % size_m
    pid_n = pid % (SWIZZLE * all_n) // size_m
    p, q = pid_m // blocks_m * GROUP_M, pid_n // blocks_n * GROUP_N
    return p, q, pid_m % blocks_m * BLOCK_M, pid_n % blocks_n * BLOCK_N


def block(size: int, cap: int = MAX_BLOCK, floor: int = 1) -> int:
    """Return the smallest power of two that is at least `size`, limited to `floor` from below and `cap` from above."""
    return max(floor, min(cap, triton.next_power_of_2(max(size, 1))))


def warps(elements: int) -> int:
    """Return the number of warps for a block: two from 2,048 elements on, else one; small programs are faster."""
    return 2 if elements >= 2048 else 1


def target() -> GPUTarget | None:
    """Return Triton's target on the current GPU; None under the interpreter, BackendError if Triton cannot start."""
    if INTERPRET:
        return None
    try:
        return triton.runtime.driver.active.get_current_target()
    except Exception as error:  # of another type for a missing compiler, header or libcuda
        reason = " ".join(str(error).split())[:200]
        raise BackendError(
            f"Triton cannot start on this GPU ({type(error).__name__}: {reason}); install gcc and Python's headers, or "
            f"use backend='torch'"
        ) from None


def on_hopper() -> bool:
    """Return whether kernels are compiled for NVIDIA's Hopper."""
    on = target()
    return on is not None and on.backend == "cuda" and 90 <= on.arch < 100


def load_kernel(kernel: Any, gpu: int) -> None:
    """Load a compiled kernel on a GPU, for which Triton also compiles a launcher in C."""
    with torch.cuda.device(gpu):
        kernel._init_handles()


def constants(values: Mapping[str, Any]) -> Any:
    """Return values as one constexpr argument of a kernel, P, whose fields they are by name: P.BLOCK_M."""
    return _named(tuple(values))(*map(tl.constexpr, values.values()))


@cache
def _named(names: tuple[str, ...]) -> Any:
    return namedtuple("Sizes", names)  # other fields for each kernel
