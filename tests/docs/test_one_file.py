"""MeshGEMM in one file: its values are those of `mesh_gemm`, its messages those of the schedule, and it compiles."""

import importlib.util
from pathlib import Path

import pytest
import torch
import triton

from wafer_triton import Mesh, mesh_gemm
from wafer_triton.algorithms.product import recipe

ROOT = Path(__file__).resolve().parents[2]


def load():
    spec = importlib.util.spec_from_file_location("one_file", ROOT / "docs" / "examples" / "one_file.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("side", [1, 2, 3, 4])
def test_values_are_those_of_torch_and_of_mesh_gemm(side):
    device = "cpu" if triton.knobs.runtime.interpret else "cuda"
    a, b = torch.randn(side * 16, side * 32, device=device), torch.randn(side * 32, side * 16, device=device)
    torch.testing.assert_close(load().mesh_gemm(a, b, side), a @ b, rtol=1e-4, atol=1e-4)
    a, b = a.mul(8).round(), b.mul(8).round()  # whole numbers, of which no sum is rounded
    c = load().mesh_gemm(a, b, side)
    assert torch.equal(c, a @ b) and torch.equal(c, mesh_gemm(a, b, mesh=side))


@pytest.mark.parametrize("side", [2, 3, 4, 5, 8, 9, 24])
def test_each_round_has_the_messages_of_the_schedule(side):
    one_file, mesh, launched = load(), Mesh(side, side), []
    one_file.one_round = {(side * side,): lambda *args: launched.append([*map(messages, args[5:7])])}

    def messages(receivers):
        return {(core, to) for core, to in enumerate(receivers.tolist()) if core != to}

    def planned(one, axis):
        ends = [move.moves.ends(mesh) for move in one.exchanges if move.axis == axis]
        return {pair for cores in ends for pair in zip(*(some.tolist() for some in cores), strict=True)}

    one_file.mesh_gemm(torch.ones(side, side), torch.ones(side, side), side)
    rounds = recipe("gemm", mesh, "fp32", ((side, side), (side, side)), ()).schedule.rounds
    expected = [[planned(one, "x"), planned(one, "y")] for one in rounds if one.exchanges]
    assert launched == expected


COMPILE = """
import sys
sys.path[:0] = sys.argv[1:]
import torch
import one_file
assert not [name for name in sys.modules if name.startswith("wafer_triton")]
from ahead import recorder
compiled = recorder("cuda", "90", "32")
sram, cores = torch.empty(4 * 64 * 64), torch.zeros(4, dtype=torch.int64)
for tile, multiply in (((32, 32, 32), True), ((16, 32, 16), True), ((16, 32, 16), False)):
    seen = compiled(one_file.one_round[(4,)], *[sram] * 5, cores, cores, *tile, multiply)
    print(*tile, multiply, seen["spills"])
"""


def test_it_compiles_for_a_gpu_and_needs_nothing_of_this_library(compiling):
    printed = compiling("-c", COMPILE, ROOT / "bench" / "harness", ROOT / "docs" / "examples")
    assert printed.splitlines() == ["32 32 32 True 0", "16 32 16 True 0", "16 32 16 False 0"]
