"""Every algorithm on any shape and mesh, on both executors, against fp64."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wafer_triton import ops
from wafer_triton.algorithms import gemm, trees

sizes = st.integers(1, 17)
sides = st.integers(1, 5)
# Rectangles run on the grid of their least common multiple; these grids have at most 4 x 4 cores, for the interpreter.
SMALL = ((1, 1), (1, 2), (2, 2), (3, 1), (1, 4), (2, 4))


def exact(a, b, transposed):
    return a.double() @ (b.double().T if transposed else b.double())


def integers(*shape):
    return torch.randint(-3, 4, shape).float()


def close(got, reference):
    """fp32 sums of at most 17 products of numbers around one."""
    assert (got.double() - reference).abs().max() <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", gemm.ALGORITHMS)
@given(m=sizes, k=sizes, n=sizes, rows=sides, cols=sides, transposed=st.booleans())
def test_products_on_the_torch_executor(algorithm, m, k, n, rows, cols, transposed):
    a, b = torch.randn(m, k), torch.randn(*((n, k) if transposed else (k, n)))
    product = ops.mesh_gemm_t if transposed else ops.mesh_gemm
    close(product(a, b, mesh=(rows, cols), algorithm=algorithm), exact(a, b, transposed))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", trees.ALGORITHMS)
@given(m=st.integers(1, 4), k=sizes, n=sizes, rows=sides, cols=sides, axis=st.sampled_from("xy"))
def test_vector_products_on_the_torch_executor(algorithm, m, k, n, rows, cols, axis):
    x, w = torch.randn(m, k), torch.randn(k, n)
    close(ops.mesh_gemv(x, w, mesh=(rows, cols), axis=axis, algorithm=algorithm), exact(x, w, False))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", gemm.ALGORITHMS)
@settings(max_examples=3)
@given(m=sizes, k=sizes, n=sizes, mesh=st.sampled_from(SMALL), transposed=st.booleans())
@example(m=13, k=7, n=17, mesh=(2, 4), transposed=False)
def test_products_on_the_triton_executor(algorithm, m, k, n, mesh, transposed):
    a, b = integers(m, k), integers(*((n, k) if transposed else (k, n)))
    product = ops.mesh_gemm_t if transposed else ops.mesh_gemm
    got = product(a, b, mesh=mesh, algorithm=algorithm, backend="triton")
    assert torch.equal(got.double(), exact(a, b, transposed))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", trees.ALGORITHMS)
@settings(max_examples=4)
@given(k=sizes, n=sizes, rows=sides, cols=st.integers(1, 3), axis=st.sampled_from("xy"))
def test_vector_products_on_the_triton_executor(algorithm, k, n, rows, cols, axis):
    x, w = integers(1, k), integers(k, n)
    got = ops.mesh_gemv(x, w, mesh=(rows, cols), axis=axis, algorithm=algorithm, backend="triton")
    assert torch.equal(got.double(), exact(x, w, False))
