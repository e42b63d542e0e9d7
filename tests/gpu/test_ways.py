"""Elided MeshGEMM by every launch that this GPU supports: equal bit for bit, in every repetition."""

import pytest
import torch

from wafer_triton.algorithms.ring import ring
from wafer_triton.kernels import Operand
from wafer_triton.kernels.elided import Labels, elided
from wafer_triton.kernels.gemm import plan
from wafer_triton.kernels.untimed import elided_ways, named

SHAPES = {  # side of the mesh, tile: on a GPU, and rehearsed
    "64": ((32, (64, 64, 64)), (4, (64, 16, 64))),
    "64x192x64": ((16, (64, 192, 64)), (4, (32, 16, 32))),
    "128": ((16, (128, 128, 128)), (4, (128, 16, 128))),
    "256": ((9, (256, 256, 256)), (3, (128, 16, 128))),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_every_way_is_the_same_bits(shape, dtype, device, size):
    side, (m, k, n) = size(*SHAPES[shape])
    with torch.device(device):
        order = torch.tensor(ring(side).tolist(), dtype=torch.int32)
        labels = Labels(order * side, order, 0), Labels(order, order * side, 0)
        a, b = (Operand(torch.randn(side * side * one).to(dtype), 0, one) for one in (m * k, k * n))
        out = Operand(torch.empty(side * side * m * n, dtype=dtype), 0, m * n)
    if device == "cpu":  # there a product of blocks adds in an order that depends on the blocks: one term of each
        a.tensor.view(-1, k)[:, 1:] = 0
    first, ways = None, elided_ways(out, a, b, order, order, *labels, plan(a, b, m=m, k=k, n=n)[0])
    for by in sorted(map(named, ways)) * size(5, 1):
        out.tensor.fill_(float("nan"))
        elided(out, out, a, b, order, order, *labels, by=by, m=m, k=k, n=n)
        found = out.tensor.clone()
        first = found if first is None else first
        assert torch.equal(found.view(torch.int16), first.view(torch.int16)), by
    on_hopper = device == "cuda" and torch.cuda.get_device_capability()[0] == 9
    assert ("warps" in {way["by"] for way in ways}) == on_hopper
