"""MeshGEMM column by column on a CPU: the bits, and the memory, of one round after the other."""

from dataclasses import replace

import pytest
import torch

from wafer_triton.emulate import sweep
from wafer_triton.emulate.executor import EXCHANGES
from wafer_triton.emulate.program import Program
from wafer_triton.emulate.segments import mailboxes
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.gemm import meshgemm
from wafer_triton.schedule.product import recipe
from wafer_triton.schedule.rounds import Schedule


def ran(schedule: Schedule, exchange: str = "explicit", runs: int = 2) -> Program:
    """Return a program of random operands after `runs` runs; memory without a writer is NaN."""
    generator = torch.Generator().manual_seed(4)
    tiles = {
        buffer.name: torch.randn(*schedule.mesh.shape, *buffer.tile, generator=generator)
        for buffer in schedule.buffers.values()
        if buffer.given
    }
    program = TorchExecutor(exchange=exchange, poison=True).bind(schedule, tiles)
    for _ in range(runs):
        program.run()
    return program


def bits(program: Program) -> dict[str, torch.Tensor]:
    return {name: tensor.view(torch.uint8) for name, tensor in program.memory.items()}


@pytest.fixture
def one_by_one(monkeypatch):
    """Run something with every round a step of its own."""

    def run(*args) -> Program:
        with monkeypatch.context() as patch:
            patch.setattr(TorchExecutor, "segment", lambda *_: None)
            return ran(*args)

    return run


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("side", [1, 2, 3, 4, 7])
def test_explicit_rounds_leave_the_memory_of_rounds_one_by_one(side, transposed, monkeypatch, one_by_one):
    shapes = (9, 10), ((11, 10) if transposed else (10, 11))
    schedule = recipe("gemm", Mesh(side, side), "fp32", shapes, (("transposed", transposed),)).schedule
    wanted = bits(one_by_one(schedule))
    monkeypatch.setattr(sweep, "LARGE", 0)
    got, passing = bits(ran(schedule)), mailboxes(schedule)
    assert bool(passing) == (transposed and side > 1)
    assert [name for name in wanted if name not in passing and not torch.equal(got[name], wanted[name])] == []


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("side", [2, 3, 5, 8])
def test_elided_rounds_give_the_bits_of_explicit_rounds(side, dtype, monkeypatch):
    schedule = recipe("gemm", Mesh(side, side), dtype, ((19, 36), (36, 21)), ()).schedule
    monkeypatch.setattr(sweep, "LARGE", 0)
    explicit, elided = (ran(schedule, exchange, 1) for exchange in EXCHANGES)
    assert len(elided.steps) < 4
    (result,) = (name for name, buffer in schedule.buffers.items() if buffer.role == "output")
    assert torch.equal(bits(explicit)[result], bits(elided)[result])
    assert not explicit.read(result).isnan().any()


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("side", [2, 5])
def test_sums_start_from_the_present_values(side, exchange, monkeypatch, one_by_one):
    b = Builder(Mesh(side, side), "sums go on")
    for name, tile in (("a", (3, 4)), ("b", (4, 6)), ("c", (3, 6))):
        b.buffer(name, tile, "fp32", "state")
    meshgemm(b, "a", "b", "c", m=3, k=4, n=6)
    (product,) = b.rounds[0].locals
    b.steps[0] = replace(b.rounds[0], locals=(replace(product, params={**product.params, "add": True}),))
    schedule = b.build()
    wanted = one_by_one(schedule).read("c")
    monkeypatch.setattr(sweep, "LARGE", 0)
    assert torch.equal(ran(schedule, exchange).read("c"), wanted)


def test_rounds_really_go_together(monkeypatch):
    plain = recipe("gemm", Mesh(6, 6), "fp32", ((6, 6), (6, 6)), ()).schedule
    before = len(ran(plain).steps)
    monkeypatch.setattr(sweep, "LARGE", 0)
    assert len(ran(plain).steps) == before - 6 * 3 + 1, "two moves and a product a round"
    monkeypatch.setattr(sweep, "KEPT", 6 * 36 - 1)
    assert len(ran(plain).steps) == before, "the tiles of all rounds would be too many to keep"
