"""Triton's own launch path on a stub of the CUDA driver: the arguments of each launch, without a GPU.

Kernels are compiled for sm_90, loaded by Triton's C launcher and launched; libcuda.so.1 is `stub_cuda.c`, so nothing
runs. It takes a C compiler, and a process that interprets no kernels.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.compiler import CompiledKernel
from triton.runtime import driver

SOURCE = Path(__file__).with_name("stub_cuda.c")
HEADERS = Path(nvidia.__file__).parent / "include"
SIZES = {"16": ctypes.c_int16, "32": ctypes.c_int32, "64": ctypes.c_int64}


class Launched(NamedTuple):
    """A launch as the driver gets it, tuples as lists; `known` are the arguments that are declared constexpr."""

    kernel: str
    grid: tuple[int, ...]
    threads: int
    args: dict[str, Any]
    known: dict[str, Any]


class StubDriver(nvidia.CudaDriver):
    """Triton's driver for CUDA, which does not ask torch about a GPU."""

    def __init__(self) -> None:
        self.utils, self.launcher_cls = nvidia.CudaUtils(), nvidia.CudaLauncher

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Stub:
    """The stub, built in `folder` and used for the rest of the process; `launches` has its launches so far."""

    def __init__(self, compiler: str, folder: str) -> None:
        library = f"{folder}/libcuda.so.1"
        # the name marks it as loaded already for the dynamic linker
        options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", f"-I{HEADERS}"]
        subprocess.run([compiler, *options, str(SOURCE), "-o", library], check=True)
        stub = ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        triton.knobs.nvidia.libcuda_path = folder
        self.launches: list[Launched] = []
        self._kernels: dict[int, CompiledKernel] = {}
        arguments = ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_void_p)
        self._recorder = ctypes.CFUNCTYPE(None, *arguments)(self._record)
        stub.stub_record(self._recorder)
        driver.set_active(StubDriver())
        load = CompiledKernel._init_handles

        def loaded(kernel: CompiledKernel) -> None:
            load(kernel)
            self._kernels[kernel.function] = kernel

        CompiledKernel._init_handles = loaded

    def _record(self, function: int, shape: Any, params: Any) -> None:
        kernel = self._kernels[function]
        given = [kind.from_address(params[at]) for at, kind in enumerate(_params(kernel))]
        given = [list(one) if isinstance(one, ctypes.Array) else one.value for one in given]
        # the last two are memory for profilers and for the compiler's own use
        left, args, known = iter(given[:-2]), {}, {}
        for number, (param, kind) in enumerate(zip(kernel.src.fn.params, kernel.src.signature.values(), strict=True)):
            (known if param.is_constexpr else args)[param.name] = _under(kernel, kind, (number,), left)
        if list(left) or any(given[-2:]):
            args["more than the kernel has names for"] = given
        self.launches.append(Launched(kernel.name, tuple(shape[:3]), shape[3], args, known))


def _params(kernel: CompiledKernel) -> list[Any]:
    """Return the types that the compiled kernel reads."""
    entry = re.search(r"\.entry \w+\((.*?)\)", kernel.asm["ptx"], re.DOTALL)
    assert entry is not None
    found = re.findall(r"\.param (?:\.align \d+ )?\.[a-z](\d+)[^\[,]*(?:\[(\d+)\])?", entry[1])
    return [ctypes.c_uint64 * (int(length) // 8) if length else SIZES[bits] for bits, length in found]


def _under(kernel: CompiledKernel, kind: Any, path: tuple[int, ...], left: Iterator[int]) -> Any:
    """Return the kernel's argument at a path: the constant that it was compiled with, or else the next one passed."""
    if isinstance(kind, str) and kind.startswith("tensordesc"):  # the stub's encoding, then shape and strides again
        rank = kind[: kind.index("]")].count(",") + 1  # after the block's shape comes Gluon's layout
        encoded, *again = (next(left) for _ in range(1 + 2 * rank))
        return [*encoded[: len(again) + 1], again]
    if isinstance(kind, tuple):
        return [_under(kernel, one, (*path, number), left) for number, one in enumerate(kind)]
    return kernel.src.constants[path] if kind == "constexpr" else next(left)
