"""The Triton executor: a program runs again; errors of GPUs.

Run by Triton's interpreter on the CPU; with TRITON_INTERPRET=0 on a machine with CUDA the compiled kernels are judged.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from contextlib import nullcontext

import pytest
import torch
from triton.backends.compiler import GPUTarget

from wafer_triton.algorithms.product import recipe
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate import triton as triton_executor
from wafer_triton.emulate.pool import POOL
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.errors import BackendError
from wafer_triton.kernels import _common
from wafer_triton.ops import run
from wafer_triton.schedule.builder import Builder

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("exchange", ["explicit", "elided"])
def test_a_program_runs_again_on_new_inputs(exchange):
    schedule = recipe("gemm", Mesh(3, 3), "fp32", ((6, 6), (6, 6)), ()).schedule
    given = [{name: torch.randint(-3, 4, (3, 3, 2, 2)).float() for name in "ab"} for _ in range(2)]
    program = TritonExecutor(exchange=exchange, poison=True).bind(schedule, given[0])
    for tiles in (given[0], given[1], given[0]):
        for name, tile in tiles.items():
            program.write(name, tile.to(program.memory[name].device))
        program.run()
        fresh = TorchExecutor().bind(schedule, tiles)
        fresh.run()
        assert torch.equal(program.read("out").cpu(), fresh.read("out"))


def test_a_cpu_needs_the_interpreter(monkeypatch):
    monkeypatch.setattr(triton_executor, "INTERPRET", type("Off", (), {"value": False}))
    with pytest.raises(BackendError, match="runs on a CPU only under TRITON_INTERPRET=1; set it, or use torch"):
        TritonExecutor(device="cpu")
    if not torch.cuda.is_available():
        with pytest.raises(BackendError, match="found no GPU; use backend='torch', or set TRITON_INTERPRET=1"):
            TritonExecutor()


def test_a_gpu_that_is_not_the_current_one_is_entered(monkeypatch):
    entered = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(entered.append(device)))
    with TritonExecutor(device="cuda:1").on_device(), TritonExecutor(device="cuda").on_device():
        assert entered == [torch.device("cuda:1")]
    on = TritonExecutor()
    monkeypatch.setattr(on, "on_device", lambda: nullcontext(entered.append("here")))
    run(recipe("gemm", Mesh(2, 2), "fp32", ((2, 2), (2, 2)), ()), (torch.ones(2, 2),) * 2, on)
    assert entered[1:] == ["here"] * 2, "to plan, and to run"


@pytest.fixture
def small_old_gpu(monkeypatch):
    """Patch a GPU of 2,000 B, half of them free, 200 B more in torch's cache, without bf16."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 700)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 500)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)


def test_a_mesh_beyond_gpu_memory_is_refused_with_both_sizes(small_old_gpu):
    # a, b and their second slots 4 B each, fp32 sums and rounded ones, 4 B each: 24 B on 64 cores
    schedule = recipe("gemm", Mesh(8, 8), "fp32", ((8, 8), (8, 8)), ()).schedule
    words = (
        r"the tiles of 8 x 8 cores take 1,536 B of memory, cuda has 1,200 B free; use a smaller mesh or smaller tiles"
    )
    with pytest.raises(BackendError, match=words):
        TritonExecutor(device="cuda").bind(schedule, {name: torch.zeros(8, 8, 1, 1) for name in "ab"})


def test_programs_at_rest_make_room_for_a_new_one(small_old_gpu, monkeypatch):
    schedule = recipe("gemm", Mesh(8, 8), "fp32", ((8, 8), (8, 8)), ()).schedule
    buffers, cleared = list(schedule.buffers.values()), []
    monkeypatch.setattr(POOL, "clear", lambda: cleared.append(True))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2000 if cleared else 1000, 2000))
    TritonExecutor(device="cuda").check_allocation(schedule, buffers)
    assert cleared == [True]


def test_a_gpu_older_than_its_atomics_is_named(small_old_gpu, monkeypatch):
    monkeypatch.setattr(triton_executor, "target", lambda: GPUTarget("cuda", 61, 32))
    words = r": Tesla V100 has compute capability 6.1, and kernels need 7.0 or later; use backend='torch'"
    with pytest.raises(BackendError, match=words):
        TritonExecutor(device="cuda").check_allocation(
            recipe("gemm", Mesh(2, 2), "fp32", ((2, 2), (2, 2)), ()).schedule, []
        )


def test_without_a_c_compiler_triton_says_what_to_install(small_old_gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(_common, "INTERPRET", False)
    monkeypatch.delenv("CC", raising=False)
    for name, value in {"PATH": "", "TRITON_CACHE_DIR": str(tmp_path), "TRITON_LIBCUDA_PATH": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    words = r"^Triton cannot start .* \(RuntimeError: Failed to find C compiler.*\); install gcc .* backend='torch'$"
    with pytest.raises(BackendError, match=words):
        TritonExecutor(device="cuda").check_allocation(
            recipe("gemm", Mesh(2, 2), "fp32", ((2, 2), (2, 2)), ()).schedule, []
        )


def test_a_gpu_without_bf16_is_named(small_old_gpu):
    schedule = recipe("gemm", Mesh(2, 2), "bf16", ((2, 2), (2, 2)), ()).schedule
    words = "Tesla V100 has no bf16 arithmetic; use fp16 or fp32, or backend='torch'"
    with pytest.raises(BackendError, match=words):
        TritonExecutor(device="cuda").bind(schedule, {name: torch.zeros(2, 2, 1, 1) for name in "ab"})


def test_an_operation_without_a_kernel_is_named_before_anything_runs(monkeypatch):
    monkeypatch.delitem(triton_executor.table.KERNELS, "copy")
    b = Builder(Mesh(1, 1), "lacking")
    b.buffer("a", (1,), "fp32", "input")
    b.buffer("b", (1,), "fp32", "output")
    b.round(b.local("copy", "b", "a", size=1))
    with pytest.raises(BackendError, match="local operation 'copy' has no Triton kernel; known: add, "):
        TritonExecutor().bind(b.build(), {"a": torch.zeros(1, 1, 1)})
