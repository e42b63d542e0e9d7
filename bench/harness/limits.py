"""The best rates of the machine, measured in the same run: copy bandwidth at a footprint, and matrix rate.

Bandwidth counts bytes read and bytes written. A buffer that fits the L2 is copied over and over by one launch: with
a launch for each, copies of a few microseconds would measure launches.
"""

from functools import cache, partial

import torch
import triton
import triton.language as tl

from timing import captured, elapsed, is_cuda

LARGEST = 4 * 2**30  # bytes that a copy touches at most.
COPIED = 2**30  # bytes read and written by one launch, or by one graph of copies.
MATRIX = {"cuda": 8192, "cpu": 1024}  # side of the product that shows the matrix rate


@triton.jit
def _copy_kernel(x_ptr, y_ptr, times, size, steps, BLOCK: tl.constexpr):
    # a program copies blocks of its own to and fro, so that no program need wait for another; .cg: past the L1
    first = tl.program_id(0).to(tl.int64) * BLOCK
    stride = tl.num_programs(0).to(tl.int64) * BLOCK
    for _ in range(times):
        for step in range(steps):
            offs = first + step * stride + tl.arange(0, BLOCK)
            mask = offs < size
            tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=mask, cache_modifier=".cg"), mask=mask)
        tl.debug_barrier()
        for step in range(steps):
            offs = first + step * stride + tl.arange(0, BLOCK)
            mask = offs < size
            tl.store(x_ptr + offs, tl.load(y_ptr + offs, mask=mask, cache_modifier=".cg"), mask=mask)
        tl.debug_barrier()


def copy_to_and_fro(x: torch.Tensor, y: torch.Tensor, times: int, programs: int, block: int) -> None:
    """y = x, then x = y, and again, `times` times in one launch; x and y are one size of int32."""
    steps = -(-x.numel() // (programs * block))
    _copy_kernel[(programs,)](x, y, times, x.numel(), steps, BLOCK=block, num_warps=8)


@cache
def bandwidth(device: str, footprint: int) -> float:
    """Return bytes read and written per second by copies that touch `footprint` bytes in all, over and over."""
    numel = max(1, min(footprint, LARGEST) // (8 * 4096)) * 4096  # whole blocks, so that accesses are 16 bytes wide
    x = torch.randint(0, 2**31 - 1, (numel,), dtype=torch.int32, device=device)
    y = torch.empty_like(x)
    moved = 2 * x.numel() * x.element_size()
    times = max(4, min(256, COPIED // moved))
    ways = [(captured(device, lambda: [y.copy_(x) for _ in range(times)])[0], times)]
    if is_cuda(device):
        programs = 8 * torch.cuda.get_device_properties(device).multi_processor_count
        ways += [(partial(copy_to_and_fro, x, y, times, programs, block), 2 * times) for block in (1024, 4096)]
    best = 0.0
    for run, copies in ways:
        run()
        best = max(best, copies * moved / min(elapsed(device, run) for _ in range(5)))
    return best


@cache
def matrix_rate(device: str, dtype: torch.dtype) -> float:
    """Return operations a second (a multiply-add is two) of a large random product by the vendor's library."""
    side, times = MATRIX[torch.device(device).type], 4
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    c = torch.empty_like(a)
    replay, _ = captured(device, lambda: [torch.matmul(a, b, out=c) for _ in range(times)])
    replay()
    return times * 2 * side**3 / min(elapsed(device, replay) for _ in range(5))
