"""MeshGEMM with explicit and with elided exchange, in hand-written PyTorch, and as one product by BLAS."""

import pytest
import torch

from cases import CALLS, EXCHANGES, LAUNCH_PER_ROUND, ROWS, TILES, WSE2, Shape, squares, time_product
from wafer_triton import mesh_gemm, mesh_gemv

SHAPES = {
    "cpu": [
        *squares("gemm", "fp32", [(8, 32)], rows=(*ROWS, *CALLS)),
        *squares("gemm", "fp32", [(16, 16), (16, 32), (32, 8)]),
        Shape("gemm", 6, 100, 70, 50, "fp32"),  # ragged
    ],
    "cuda": [
        *squares("gemm", "bf16", [(16, 64), (32, 64), (64, 64)], priority=0),
        *squares("gemm", "bf16", [(16, 64), (32, 64), (64, 64)], priority=1, rows=tuple(CALLS)),
        *squares("gemm", "bf16", [(32, 128), (32, 256), (64, 128)], priority=1),
        *squares("gemm", "bf16", [(32, 128), (64, 64), (32, 256), (64, 128)], priority=2, rows=tuple(TILES)),
        *squares("gemm", "bf16", [(16, 64), (32, 64), (64, 64)], priority=4, rows=(LAUNCH_PER_ROUND,)),
        *squares("gemm", "bf16", [(32, 16), (32, 32), (128, 16), (128, 32)], priority=6),
        Shape("gemm", 48, 2000, 1500, 2500, "bf16", priority=6),  # ragged
        *squares("gemm", "fp16", [(32, 64)], priority=7),
        *squares("gemm", "fp32", [(32, 64)], priority=7),
        *squares("gemm", "bf16", [(660, 2), (720, 2)], priority=9, rows=EXCHANGES, emulated=WSE2),
    ],
}


def test_row(benchmark, note, device, shape, row):
    time_product(benchmark, note, shape, row, device)


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
