"""Kernels compiled for a GPU that this machine need not have, and the registers, spills and instructions of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from sass import cuobjdump, loads_in_flight

# a ring of shared buffers that a loop fills ahead of time; barriers are i64
RING = re.compile(r"local_alloc :.*memdesc<(\d+)x\d+x\d+x(?!i64).*mutable")


def recorder(backend: str, arch: str, warp_size: str, machine_code: bool = False) -> Callable[..., dict[str, Any]]:
    """Return a function that calls a launcher, and compiles and describes its kernel in place of the launch.

    For the rest of the process: no kernel launches any more. A target is three names, such as "cuda", "90", "32".
    With `machine_code` that is read as well, which takes as long as compiling.
    """
    driver.set_active(NoDevice(backend, arch, warp_size))
    run, seen = JITFunction.run, []

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        seen.append(run(self, *args, grid=grid, warmup=True, **kwargs))

    JITFunction.run = compile_only

    def compiled(call: Callable[..., object], *args: Any, **params: Any) -> dict[str, Any]:
        seen.clear()
        call(*args, **params)
        (kernel,) = seen
        return describe(kernel) | (of_machine_code(kernel) if machine_code else {})

    return compiled


def of_machine_code(kernel: Any) -> dict[str, Any]:
    """16-byte loads that a compiled kernel has in flight, and whether some of its warps have other registers.

    Such warps are not specialised if ptxas lets each product wait for the last, as with too few registers.
    """
    sass = cuobjdump(kernel.asm["cubin"], "-sass")
    runs_on = any("gsb" not in product for product in re.findall("HGMMA.*", sass))
    return {"loads_in_flight": loads_in_flight(sass), "specialised": "USETMAXREG" in sass and runs_on}


def describe(kernel: Any) -> dict[str, Any]:
    """Return registers, spills and instructions of a compiled kernel."""
    if "amdgcn" in kernel.asm:
        code = kernel.asm["amdgcn"]
        number = lambda key: int(re.search(rf"\.{key}:\s+(\d+)", code)[1])  # noqa: E731
        registers, matrix = number("vgpr_count"), r"v_mfma\w+"
        # scalars that find no scalar register stay in lanes of vector registers, which costs no memory access
        spills = number("vgpr_spill_count") + number("private_segment_fixed_size")
    else:
        code = kernel.asm["ptx"]
        sizes = re.findall(r"(REG|STACK|LOCAL):(\d+)", cuobjdump(kernel.asm["cubin"], "--dump-resource-usage"))
        usage = {key: int(value) for key, value in sizes}
        registers, spills, matrix = usage["REG"], usage["STACK"] + usage["LOCAL"], r"(?:wgmma|mma)\.[\w.]+"
    widths = [int(v or 1) * int(b) for v, b in re.findall(r"(?:ld|st)\.global\S*?(?:\.v(\d))?\.b(\d+)", code)]
    return {
        "registers": registers,
        "spills": spills,
        "shared": kernel.metadata.shared,
        "num_warps": kernel.metadata.num_warps,
        "matrix_instructions": " ".join(sorted(set(re.findall(matrix, code)))),
        # the cost of the products in the code: each has 64 rows and 16 of k
        "wgmma_columns": sum(map(int, re.findall(r"wgmma\.mma_async\S+?m64n(\d+)k16", code))),
        "free_products": len(re.findall(r"\bmul\.(?:ftz\.)?f32", code)),
        "tma": "cp.async.bulk.tensor" in code,
        "widest_access_bytes": max(widths, default=0) // 8,
        "buffers": min((int(depth) for depth in RING.findall(kernel.asm["ttgir"])), default=None),
        "pendings": max(map(int, re.findall(r"pendings = (\d+)", kernel.asm["ttgir"])), default=0),
        "iterations_ahead": iterations_ahead(kernel.asm["ttgir"]),
    }


def iterations_ahead(ttgir: str) -> int:
    """Return how many iterations ahead a loop copies: the asynchronous copies in flight that a wait leaves.

    A wait names groups of copies, of which each ring of buffers has one an iteration.
    """
    left = max(map(int, re.findall(r"async_wait .*\{num = (\d+)", ttgir)), default=0)
    return -(-left // max(len(RING.findall(ttgir)), 1))


class NoDevice:
    """A substitute of a GPU driver that answers the compiler's questions."""

    def __init__(self, backend: str, arch: str, warp_size: str) -> None:
        self.target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, int(warp_size))

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0
