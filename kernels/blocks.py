"""How MeshGEMM with elided exchange is cut into programs: which cores share one, their order, and how tiles come.

`by` says how a program gets its tiles:
- "loads": each warp loads its own operands, on any GPU and in the interpreter; a program is a block of one core;
- "warps": Hopper's unit for tensors (TMA) copies blocks for a warp of its own (see `warp_groups`).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from wafer_triton.kernels._common import Operand, on_hopper

BOX = 64  # rows and columns that TMA copies at once for `warp_groups`: as wide as it swizzles 16-bit values
RING = 192 * 1024  # bytes of shared memory for tiles that wait to be multiplied there


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


def number_of(side: int, chosen: dict[str, Any], way: dict[str, Any]) -> int:
    """Return the number of blocks."""
    blocks = 1
    for size in "MN":
        group = way[f"GROUP_{size}"]
        blocks *= side // group * (-(-chosen[size] // way[f"BLOCK_{size}"]) if group == 1 else 1)
    return blocks


def candidates(
    a: Operand, b: Operand, out: Operand, chosen: dict[str, Any], side: int, shared: bool
) -> list[dict[str, Any]]:
    """Return ways to cut the work into programs, the likeliest first; the last is by loads.

    `chosen` are the sizes and blocks of `gemm.plan`; `shared`: one table of labels serves all positions.
    """
    single = {"GROUP_M": 1, "GROUP_N": 1, "BLOCK_M": chosen["BLOCK_M"], "BLOCK_N": chosen["BLOCK_N"], "by": "loads"}
    m, k, n = (chosen[size] for size in "MKN")
    ways, dtypes = [single], {x.tensor.dtype for x in (a, b, out)}
    boxed = m % BOX == n % BOX == k % BOX == 0 and len(dtypes) == 1 and torch.float32 not in dtypes
    boxed = boxed and chosen["MODE"] == "dot" and not chosen["ADD"]
    if not boxed or not on_hopper() or not all(map(_copied, (a, b, out), (m * k, k * n, m * n))):
        return ways
    for block_m, block_n in ((128, 128), (128, 256)):
        group = max(1, block_m // m), max(1, block_n // n)
        whole = all(
            (one > 1 and one * size == block_size and side % one == 0) or (one == 1 and size % block_size == 0)
            for one, size, block_size in zip(group, (m, n), (block_m, block_n), strict=True)
        )
        if whole and (shared or group == (1, 1)) and sum(group) - 2 < side:
            depth = RING // (BOX * (block_m + block_n) * a.tensor.itemsize)
            way = {"GROUP_M": group[0], "GROUP_N": group[1], "BLOCK_M": block_m, "BLOCK_N": block_n, "by": "warps"}
            ways.insert(0, way | {"DEPTH": depth, "SWIZZLE": 8})
    return ways


def _copied(x: Operand, numel: int) -> bool:
    """Return whether the tiles of an operand lie one after another, on 16 bytes, as TMA asks."""
    return x.stride == numel and x.tensor[x.offset :].data_ptr() % 16 == 0
