"""Kernels of planned steps compiled side by side ahead of the first run, for a GPU that need not be there.

Run as a script, `python test_precompile.py`, it plans a small program, compiles its kernels, and prints its
observations: a process that interprets kernels cannot compile them.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from threading import Barrier, get_ident
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="module")
def seen(tmp_path_factory, compiling) -> dict:
    empty = str(tmp_path_factory.mktemp("kernels"))  # or there is nothing to compile
    return json.loads(compiling(__file__, TRITON_CACHE_DIR=empty))


@pytest.mark.slow
def test_kernels_are_compiled_side_by_side_and_nothing_runs(seen):
    assert sorted(seen["compiled"]) == ["_exchange_kernel", "_ops_kernel", "_ops_kernel"], "each once"
    assert seen["threads"] == 2, "two of them wait for each other"
    assert seen["number"] == 3 and seen["progress"] == [[1, 3], [2, 3], [3, 3]]
    assert seen["unwritten"], "the outputs are NaN still"


@pytest.mark.slow
def test_kernels_that_are_compiled_are_not_compiled_again(seen):
    assert seen["again"] == 0 and len(seen["compiled"]) == 3


@pytest.mark.slow
def test_kernels_are_loaded_on_the_gpu_by_the_threads_that_compile(seen):
    assert sorted(seen["loaded"]) == sorted(seen["compiled"]), "one of which does not fit"
    assert seen["gpus"] == [3] * 3 and not seen["loaded by the caller"]


@pytest.mark.slow
def test_a_kernel_that_does_not_compile_raises_where_it_is_launched(seen):
    assert seen["broken"] == [1, "CompileTimeAssertionFailure"]


def test_the_interpreter_has_nothing_to_compile():
    from wafer_triton.emulate.triton import TritonExecutor

    assert TritonExecutor(device="cpu").precompile([lambda: pytest.fail("it ran")]) == 0


def child() -> dict:
    import torch
    import triton
    import triton.language as tl
    from triton.compiler import CompiledKernel
    from triton.runtime import OutOfResources, driver

    from ahead import NoDevice
    from wafer_triton.device.mesh import Mesh
    from wafer_triton.emulate import triton as executor
    from wafer_triton.emulate.parts import Launch
    from wafer_triton.kernels._common import start
    from wafer_triton.schedule.builder import Builder

    driver.set_active(NoDevice("cuda", "90", "32"))
    b = Builder(Mesh(2, 2), "a sum, sent and doubled")
    for name in "xyz":
        b.buffer(name, (8,), "fp32", "state" if name == "x" else "output")
    b.round(b.local("add", "y", ("x", "x"), size=8))
    b.round(b.exchange("x", "y", "z", [0], [1]))
    b.round(b.local("maximum", "z", ("y", "x"), size=8))
    executor.INTERPRET = SimpleNamespace(value=True)  # plans on the memory of the CPU
    on = executor.TritonExecutor(poison=True)
    program = on.bind(b.build(), {"x": torch.ones(2, 2, 8)})
    executor.INTERPRET = SimpleNamespace(value=False)

    compiled, threads, both, progress = [], set(), Barrier(2), []

    def listen(*, src, **_) -> None:  # called by the thread that compiles
        compiled.append(src.name)
        if len(compiled) <= 2:
            both.wait(timeout=300)
            threads.add(get_ident())

    loaded, loaders, gpus = [], set(), []

    def load(kernel) -> None:
        loaded.append(kernel.name)
        loaders.add(get_ident())
        if len(loaded) == 1:
            raise OutOfResources(300_000, 232_448, "shared memory")

    CompiledKernel._init_handles = load
    torch.cuda.current_device, torch.cuda.device = lambda: 3, lambda gpu: nullcontext(gpus.append(gpu))
    on.graphs = True
    triton.knobs.compilation.listener = listen
    os.cpu_count = lambda: 2
    number = on.precompile(program.calls, lambda done, of: progress.append((done, of)))
    again = on.precompile(program.calls)
    unwritten = all(bool(program.memory[name].isnan().all()) for name in "yz")
    seen = loaded.copy(), gpus.copy()

    @triton.jit
    def broken(x):
        tl.static_assert(False)

    launch = Launch("broken", lambda: start(broken, 1, torch.ones(1)))
    failed = [on.precompile([launch])]
    try:
        launch()
    except triton.CompilationError as error:
        failed.append(type(error).__name__)
    return {
        "loaded": seen[0], "gpus": seen[1], "loaded by the caller": get_ident() in loaders, "broken": failed,
        "number": number, "again": again, "progress": progress, "compiled": compiled, "threads": len(threads),
        "unwritten": unwritten,
    }  # fmt: skip


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "harness"))
    json.dump(child(), sys.stdout)
