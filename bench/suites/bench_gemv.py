"""MeshGEMV: one vector, or a batch, times a matrix that stays on the cores; beside PyTorch and BLAS."""

from cases import CALLS, EXCHANGES, WSE2, Shape, time_product

SHAPES = {
    "cpu": [
        Shape("gemv", 8, 1, 256, 256, "fp32"),
        Shape("gemv", 32, 1, 512, 1024, "fp32"),
        Shape("gemv", 64, 1, 512, 512, "fp32"),
        Shape("gemv", 16, 16, 256, 512, "fp32"),
    ],
    "cuda": [
        Shape("gemv", 64, 1, 4096, 14336, "bf16", priority=0),
        *(Shape("gemv", side, 1, 16384, 16384, "bf16", priority=0) for side in (64, 128)),
        Shape("gemv", 128, 1, 4096, 14336, "bf16", priority=1),
        Shape("gemv", 64, 1, 4096, 14336, "bf16", priority=1, rows=tuple(CALLS)),
        *(Shape("gemv", 64, 16, *size, "bf16", priority=5) for size in ((4096, 14336), (16384, 16384))),
        *(Shape("gemv", side, 1, 4096, 14336, "bf16", priority=6) for side in (16, 32, 256)),
        *(
            Shape("gemv", side, 1, 4096, 14336, "bf16", priority=9, rows=EXCHANGES, emulated=WSE2)
            for side in (660, 720)
        ),
    ],
}


def test_row(benchmark, note, device, shape, row):
    time_product(benchmark, note, shape, row, device)
