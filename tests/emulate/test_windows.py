"""Elided MeshGEMM on a CPU: rounds that read windows of one copy of B equal single rounds bit for bit."""

from dataclasses import replace

import pytest
import torch

from schedules import given
from tiles import same_bits
from wafer_triton.algorithms.gemm import meshgemm
from wafer_triton.algorithms.product import recipe
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate import torch as executor
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.emulate.program import Program
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.schedule import Schedule


def ran(schedule: Schedule, exchange: str = "explicit", runs: int = 2) -> Program:
    """Return a program of random operands after `runs` runs; memory without a writer is NaN."""
    torch.manual_seed(4)
    program = TorchExecutor(exchange=exchange, poison=True).bind(schedule, given(schedule))
    for _ in range(runs):
        program.run()
    return program


@pytest.fixture
def one_by_one(monkeypatch):
    """Run something with every round a step of its own."""

    def run(*args) -> Program:
        with monkeypatch.context() as patch:
            patch.setattr(TorchExecutor, "segment", lambda *_: None)
            return ran(*args)

    return run


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("side", [2, 3, 5, 8])
@pytest.mark.parametrize("lines", [True, False], ids=["whole cache lines", "ragged"])
def test_elided_rounds_give_the_bits_of_explicit_rounds(side, dtype, lines):
    schedule = recipe("gemm", Mesh(side, side), dtype, ((19, 36), (36, 16 * side if lines else 21)), ()).schedule
    explicit, elided = (ran(schedule, exchange, 1) for exchange in EXCHANGES)
    if dtype == "fp32" and lines and side % 2 == 0:
        assert len(elided.calls) == 3 + side, "A, B and the sums are copied once, and each round is a product"
    (result,) = (name for name, buffer in schedule.buffers.items() if buffer.role == "output")
    assert same_bits(explicit.memory[result], elided.memory[result])
    assert not explicit.read(result).isnan().any()


@pytest.mark.parametrize(("rounds", "gathers"), [(1, 4), (3, 2), (4, 1)])
def test_a_gather_of_a_serves_several_rounds(rounds, gathers, monkeypatch):
    schedule = recipe("gemm", Mesh(4, 4), "fp32", ((20, 36), (36, 64)), ()).schedule
    monkeypatch.setattr(executor, "GATHERED_ELEMENTS", rounds * 20 * 36)
    explicit, elided = (ran(schedule, exchange, 1) for exchange in EXCHANGES)
    assert len(elided.calls) == gathers + 2 + 4
    assert same_bits(explicit.memory["out"], elided.memory["out"])


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("side", [2, 5])
def test_sums_start_from_the_present_values(side, exchange, one_by_one):
    b = Builder(Mesh(side, side), "sums go on")
    for name, tile in (("a", (3, 4)), ("b", (4, 16)), ("c", (3, 16))):
        b.buffer(name, tile, "fp32", "state")
    meshgemm(b, "a", "b", "c", m=3, k=4, n=16)
    (product,) = b.rounds[0].locals
    b.steps[0] = replace(b.rounds[0], locals=(replace(product, params={**product.params, "add": True}),))
    schedule = b.build()
    wanted = one_by_one(schedule).read("c")
    assert torch.equal(ran(schedule, exchange).read("c"), wanted)
