"""Shared by all kernels: the operand convention, rounding, and the launch shape.

Program `pid` is core `cores[pid]`. It reads and writes only tiles that its operands name for it; addresses are
int64, arithmetic is fp32, and a value is rounded once, to nearest even, when it is stored.
"""

from __future__ import annotations

import ctypes
import warnings
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

BOX = 64  # rows and columns that TMA copies at once: as wide as it swizzles 16-bit values
ONE_CORE_PROGRAMS = 16_384  # programs of a launch, above which a program takes more cores
COOPERATIVE = 95  # CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
MAX_BLOCK = 4096  # elements of a tile that one program copies at once


class Operand(NamedTuple):
    """Where the tiles of one buffer lie: core i's starts at element `offset + row * stride` of `tensor`.

    `row` is i, or `index[i]` where an index table over all cores is given: a tile that is read from where it lies,
    a neighbour's slot, a slot of the core's own. A tile is contiguous.
    """

    tensor: Tensor
    offset: int
    stride: int
    index: Tensor | None = None  # hides tuple.index, which has no use here


COMPILING: ContextVar[bool] = ContextVar("compiling", default=False)  # whether launches only compile


def start(kernel: Any, grid: int | tuple[int, ...], *args: Any, **options: Any) -> Any:
    """Launch a kernel of `grid` programs, or only compile it inside of `compiling`."""
    shape = (grid,) if isinstance(grid, int) else grid
    return kernel.warmup(*args, grid=shape, **options) if COMPILING.get() else kernel[shape](*args, **options)


@contextmanager
def compiling() -> Iterator[None]:
    """Return kernels that are launched inside are compiled, and do not run."""
    token = COMPILING.set(True)
    try:
        yield
    finally:
        COMPILING.reset(token)


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
    ptrs, mask = tl.broadcast(ptrs, mask)
    return tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store(ptrs, value, mask):
    """Round fp32 once to the buffer's dtype and store."""
    ptrs, mask = tl.broadcast(ptrs, mask)
    ptrs, value = tl.broadcast(ptrs, rounded(value, ptrs.dtype.element_ty))
    tl.store(ptrs, value, mask=mask)


@triton.jit
def rounded(value, dtype: tl.constexpr):
    """fp32 to dtype, to nearest even; the interpreter's own conversion to bf16 truncates, so there it is bit work."""
    if INTERPRET and dtype == tl.bfloat16:
        bits = tl.where(value == value, value.to(tl.uint32, bitcast=True), 0x7FC00000)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return value.to(dtype)


@triton.constexpr_function
def _levels(size):
    return size.bit_length() - 1


@triton.jit
def summed(x, BEFORE: tl.constexpr, SIZE: tl.constexpr, AFTER: tl.constexpr):
    """Return the sums [BEFORE, AFTER] over the middle of x, seen as [BEFORE, SIZE, AFTER], by halves.

    A sum of two has one order. So the bits depend neither on warps nor on the rest of a block.
    """
    for level in tl.static_range(_levels(SIZE)):
        x = tl.sum(tl.reshape(x, [BEFORE, 2, (SIZE >> level + 1) * AFTER]), axis=1)
    return tl.reshape(x, [BEFORE, AFTER])


@triton.jit
def placed(pid, P, M, N, BLOCK_M, BLOCK_N, GROUP_M, GROUP_N, SWIZZLE: tl.constexpr):
    """Return the first core (p, q) of block `pid`, its first row and column there; neighbours in time share tiles."""
    # a program is GROUP_M x GROUP_N cores, or a block of one core
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
    """Return the power of two that covers `size`, between `floor` and `cap`."""
    return max(floor, min(cap, triton.next_power_of_2(max(size, 1))))


def warps(elements: int) -> int:
    """Return warps for a block: two for 2,048 elements or more, else one; small programs are faster than large ones."""
    return 2 if elements >= 2048 else 1


def target() -> GPUTarget | None:
    """Return what Triton compiles for on the current GPU, None under the interpreter.

    BackendError if Triton cannot start.
    """
    if INTERPRET:
        return None
    try:
        return triton.runtime.driver.active.get_current_target()
    except Exception as error:  # a kind for each of no compiler, no headers, no libcuda
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
    """Load a compiled kernel on a GPU, for which Triton 3.6 compiles a launcher in C."""
    with torch.cuda.device(gpu):
        kernel._init_handles()


def resident(kernel: Any, device: torch.device) -> int:
    """Return how many programs of a compiled kernel the driver says a GPU holds at once.

    0 without a CUDA driver, and with a UserWarning where it does not launch programs that wait for each other.
    """
    if INTERPRET or device.type != "cuda" or torch.version.cuda is None:
        return 0
    kernel._init_handles()  # loads the binary, and lets it use its shared memory
    has, (gpu, cooperative, programs) = torch.cuda.get_device_properties(device), (ctypes.c_int() for _ in range(3))
    threads = kernel.metadata.num_warps * has.warp_size
    driver = ctypes.CDLL("libcuda.so.1")  # torch's own CUDA calls end there
    failed = (
        driver.cuCtxGetDevice(ctypes.byref(gpu))
        or driver.cuDeviceGetAttribute(ctypes.byref(cooperative), COOPERATIVE, gpu)
        or driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(programs), ctypes.c_void_p(kernel.function), threads, ctypes.c_size_t(kernel.metadata.shared)
        )
    )
    if failed or not cooperative.value:
        why = f"does not say what it holds at once (CUDA error {failed})" if failed else "has no cooperative launches"
        warnings.warn(
            f"the driver of {has.name} {why}: each round of explicit MeshGEMM is a launch of its own, with the same "
            f"results, in more time; exchange='elided' needs neither",
            stacklevel=2,
        )
        return 0
    return int(has.multi_processor_count * programs.value)


def constants(values: Mapping[str, Any]) -> Any:
    """Return values that are constants of a kernel, by name."""
    return _named(tuple(values))(*map(tl.constexpr, values.values()))


@cache
def _named(names: tuple[str, ...]) -> Any:
    return namedtuple("Sizes", names)  # the names are each kernel's own
