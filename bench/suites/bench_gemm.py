"""MeshGEMM with explicit and with elided exchange, in hand-written PyTorch, and as one product by BLAS."""

import pytest
import torch

from cases import CALLS, ROWS, Shape, squares, time_product
from wafer_triton import mesh_gemm, mesh_gemv

SHAPES = [
    *squares("gemm", "fp32", [(8, 32)], rows=(*ROWS, *CALLS)),
    *squares("gemm", "fp32", [(16, 16), (16, 32), (32, 8)]),
    Shape("gemm", 6, 100, 70, 50, "fp32"),  # ragged
]


def test_group(records, shape):
    records(time_product, shape)


@pytest.mark.parametrize("name", ["gemm", "gemv"])
def test_operation(benchmark, note, name):
    """Time a whole public operation: its operands are cut, the schedule runs, the result is gathered."""
    op = {"gemm": mesh_gemm, "gemv": mesh_gemv}[name]
    a, b = torch.randn(1 if name == "gemv" else 256, 256), torch.randn(256, 256)
    result, account = op(a, b, mesh=8, record=True)
    torch.testing.assert_close(result, a @ b, rtol=1e-4, atol=1e-3)
    facts = {"mesh": "8x8", "tile": "32x32", "dtype": "fp32", "exchange": "explicit"}
    note(what=f"mesh_{name}, from torch tensors", rounds=account.rounds, **facts)
    benchmark(lambda: op(a, b, mesh=8))
