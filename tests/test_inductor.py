"""Operations in programs that torch's inductor compiles, at sizes that the mesh does not divide."""

import pytest
import torch

from wafer_triton import all_reduce, mesh_gemm, mesh_gemm_t, mesh_gemv, rms_norm, softmax


def with_work_behind(a, b, weight):
    product = mesh_gemm(a, b, mesh="2x3") + 1
    vectors = [mesh_gemv(a[0], b, mesh="2x3"), mesh_gemv(a, b, mesh="2x3")]
    norms = [rms_norm(product, weight, mesh="2x3"), softmax(product, mesh="2x3", scale=0.5)]
    sums = all_reduce(a.view(3, 3, 7), mesh=3, axis="x")
    return [result + 1 for result in (product, mesh_gemm_t(a, b.mT, mesh="2x3"), *vectors, *norms, sums)]


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_compiled_program_has_the_values_of_eager_operations(dynamic):
    torch._dynamo.reset()
    given = torch.randn(9, 7), torch.randn(7, 5), torch.randn(5)
    got = torch.compile(with_work_behind, fullgraph=True, dynamic=dynamic)(*given)
    for one, wanted in zip(got, with_work_behind(*given), strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-6, atol=1e-6)
