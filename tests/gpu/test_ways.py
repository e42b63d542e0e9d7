"""Elided MeshGEMM by warp groups, where the GPU has them, and by plain loads: equal bit for bit, again and again."""

import pytest
import torch

from tiles import ring_labels
from wafer_triton.kernels import Operand
from wafer_triton.kernels import elided as elided_
from wafer_triton.kernels.elided import elided

SHAPES = {  # side of the mesh, tile
    "64": (32, (64, 64, 64)),
    "64x192x64": (16, (64, 192, 64)),
    "128": (16, (128, 128, 128)),
    "256": (9, (256, 256, 256)),
}
REHEARSED = {"64": (4, (64, 16, 64)), "256": (3, (128, 16, 128))}


@pytest.mark.parametrize(
    "shape", [pytest.param(name, marks=[] if name in REHEARSED else [pytest.mark.gpu_alone]) for name in SHAPES]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_both_launches_have_the_same_bits(shape, dtype, device, size, monkeypatch):
    side, (m, k, n) = size(SHAPES[shape], REHEARSED.get(shape))
    with torch.device(device):
        labels = ring_labels(side)
        a, b = (Operand(torch.randn(side * side * one).to(dtype), 0, one) for one in (m * k, k * n))
        out = Operand(torch.empty(side * side * m * n, dtype=dtype), 0, m * n)
    a.tensor[5] = float("inf")  # and infinite, not NaN, is its row of all cores of the mesh row
    first, hopper = None, elided_.on_hopper()
    assert hopper == (device == "cuda" and torch.cuda.get_device_capability()[0] == 9)
    for by_groups in (False, *[hopper] * size(20, 1)):
        monkeypatch.setattr(elided_, "on_hopper", lambda by_groups=by_groups: by_groups)
        out.tensor.fill_(float("nan"))
        elided(out, out, a, b, *labels, m=m, k=k, n=n)
        found = out.tensor.clone()
        first = found if first is None else first
        assert torch.equal(found.view(torch.int16), first.view(torch.int16))
