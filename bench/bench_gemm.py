"""MeshGEMM and MeshGEMV on the torch executor: a planned program, and the operation on ordinary tensors."""

import pytest
import torch

from wafer_triton import mesh_gemm, mesh_gemv
from wafer_triton.mesh import as_mesh
from wafer_triton.recipes import recipe
from wafer_triton.torch_executor import TorchExecutor

OPS = {"gemm": mesh_gemm, "gemv": mesh_gemv}
PAPER = {"gemm": "MeshGEMM", "gemv": "MeshGEMV"}


def operands(name, side, tile):
    size = side * tile
    return torch.randn(1 if name == "gemv" else size, size), torch.randn(size, size)


@pytest.mark.parametrize("exchange", ["explicit", "elided"])
@pytest.mark.parametrize(("name", "side", "tile"), [("gemm", 8, 32), ("gemm", 32, 8), ("gemv", 8, 32), ("gemv", 64, 8)])
def test_program(benchmark, note, name, side, tile, exchange):
    """Every round of one product; the operands already lie on the cores."""
    a, b = operands(name, side, tile)
    result, account = OPS[name](a, b, mesh=side, exchange=exchange, record=True)
    torch.testing.assert_close(result, a @ b, rtol=1e-4, atol=1e-3)

    made = recipe(name, as_mesh(side), "fp32", (tuple(a.shape), tuple(b.shape)), ())
    shapes = {buffer: made.schedule.buffers[buffer] for buffer, _ in made.inputs}
    tiles = {buffer: torch.randn(side, side, *one.tile) for buffer, one in shapes.items()}
    program = TorchExecutor(exchange=exchange).bind(made.schedule, tiles)
    facts = {"mesh": f"{side}x{side}", "tile": f"{tile}x{tile}", "dtype": "fp32", "exchange": exchange}
    note(what=f"{PAPER[name]}, planned", rounds=account.rounds, **facts)
    benchmark(program.run)


@pytest.mark.parametrize("name", OPS)
def test_operation(benchmark, note, name):
    """Cutting, running and gathering, as a caller of the public operation has it."""
    a, b = operands(name, 8, 32)
    torch.testing.assert_close(OPS[name](a, b, mesh=8), a @ b, rtol=1e-4, atol=1e-3)
    _, account = OPS[name](a, b, mesh=8, record=True)
    facts = {"mesh": "8x8", "tile": "32x32", "dtype": "fp32", "exchange": "explicit"}
    note(what=f"mesh_{name}, from torch tensors", rounds=account.rounds, **facts)
    benchmark(lambda: OPS[name](a, b, mesh=8))
