"""MeshGEMV: one vector, or a batch, times a matrix that stays on the cores; beside PyTorch and BLAS."""

from cases import Shape, time_product

SHAPES = [
    Shape("gemv", 8, 1, 256, 256, "fp32"),
    Shape("gemv", 32, 1, 512, 1024, "fp32"),
    Shape("gemv", 64, 1, 512, 512, "fp32"),
    Shape("gemv", 16, 16, 256, 512, "fp32"),
]


def test_group(records, shape):
    records(time_product, shape)
