"""One launch for all rounds of MeshGEMM, with elided exchange, gives the bits of the rounds one by one."""

import pytest
import torch

from pairs import pairs
from schedules import results
from tiles import DEVICE, ring_labels
from wafer_triton.algorithms.product import recipe
from wafer_triton.device.layout import scatter
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.kernels import Operand
from wafer_triton.kernels.elided import elided

SIDE = 4


def ring_product(a: torch.Tensor, b: torch.Tensor, shared: bool = True) -> torch.Tensor:
    """Return the product [4, 4, m, n] of tiles a [4, 4, m, k] and b [4, 4, k, n] on a 4 x 4 mesh."""
    (m, k), n = a.shape[2:], b.shape[-1]
    with torch.device(DEVICE):
        out = Operand(torch.full((SIDE * SIDE * m * n,), float("nan")), 0, m * n)
        labels = ring_labels(SIDE, shared)
    operands = Operand(a.flatten().to(DEVICE), 0, m * k), Operand(b.flatten().to(DEVICE), 0, k * n)
    elided(out, out, *operands, *labels, m=m, k=k, n=n)
    return out.tensor.view(SIDE, SIDE, m, n).cpu()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "dtype", "shared"),
    pairs([(2, 3, 5), (33, 20, 70), (64, 80, 128)], [torch.float32, torch.bfloat16], [True, False]),
)
def test_tiles_of_any_size_wherever_they_lie(sizes, dtype, shared):
    m, k, n = sizes
    a, b = (torch.randint(-3, 4, (SIDE, SIDE, *size)).to(dtype) for size in ((m, k), (k, n)))
    want = torch.einsum("ipmk,pjkn->ijmn", a.double(), b.double())
    assert torch.equal(ring_product(a, b, shared).double(), want)


def test_infinity_stays_in_its_row():
    """Check that infinity in row 5 of a tile of mesh row 2 reaches row 5 of the products of that mesh row alone."""
    a, b = (torch.ones(SIDE, SIDE, *size, dtype=torch.bfloat16) for size in ((64, 16), (16, 64)))
    a[2, 3, 5, 0] = float("inf")
    want = torch.full((SIDE, SIDE, 64, 64), SIDE * 16.0)
    want[2, :, 5] = float("inf")
    assert torch.equal(ring_product(a, b), want)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "shapes"), [("mesh", ((8, 12), (12, 20))), ("cannon", ((66, 72), (72, 68)))])
def test_elided_is_explicit_to_the_bit(algorithm, shapes):
    made = recipe("gemm", Mesh(4, 4), "bf16", shapes, (("algorithm", algorithm),))
    tiles = {
        name: scatter(torch.randn(shape), made.schedule.mesh, pattern).tiles
        for (name, pattern), shape in zip(made.inputs, shapes, strict=True)
    }
    found = []
    for exchange in ("explicit", "elided"):
        program = TritonExecutor(exchange=exchange, poison=True).bind(made.schedule, tiles)
        found.append(results(program)["out"])
    assert torch.equal(*found)
    assert program.launches == ("MeshGEMM, 4 rounds in a launch",)
