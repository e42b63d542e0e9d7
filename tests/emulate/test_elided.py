"""One launch for all rounds of MeshGEMM, with elided exchange, gives the bits of the rounds one by one."""

import pytest
import torch

from pairs import pairs
from tiles import DEVICE
from wafer_triton.algorithms.product import recipe
from wafer_triton.algorithms.ring import ring
from wafer_triton.device.layout import scatter
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.kernels import Operand
from wafer_triton.kernels.elided import Labels, elided

SIDE = 4


def ring_product(m: int, k: int, n: int, dtype: torch.dtype, shared: bool = True):
    """Return the product of random integers from -3 to 3 on a 4 x 4 mesh, and its exact value: both [4, 4, m, n]."""
    with torch.device(DEVICE):
        return _ring_product(m, k, n, dtype, shared)


def _ring_product(m, k, n, dtype, shared):
    order = torch.tensor(ring(SIDE).tolist(), dtype=torch.int32)
    a, b = torch.randint(-3, 4, (SIDE, SIDE, m, k)).to(dtype), torch.randint(-3, 4, (SIDE, SIDE, k, n)).to(dtype)
    none, rows = torch.zeros(SIDE, dtype=torch.int32), order * SIDE
    if shared:
        labels = Labels(rows, order, 0), Labels(order, rows, 0)
    else:
        along, down = rows[:, None] + order, rows[None, :] + order[:, None]
        labels = Labels(none, along.flatten(), SIDE), Labels(none, down.flatten(), SIDE)
    out = Operand(torch.full((SIDE * SIDE * m * n,), float("nan")), 0, m * n)
    operands = Operand(a.flatten(), 0, m * k), Operand(b.flatten(), 0, k * n)
    elided(out, out, *operands, order, order, *labels, m=m, k=k, n=n)
    want = torch.einsum("ipmk,pjkn->ijmn", a.double(), b.double())
    return out.tensor.view(SIDE, SIDE, m, n).double(), want


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "dtype", "shared"),
    pairs([(2, 3, 5), (33, 20, 70), (64, 80, 128)], [torch.float32, torch.bfloat16], [True, False]),
)
def test_tiles_of_any_size_wherever_they_lie(sizes, dtype, shared):
    got, want = ring_product(*sizes, dtype, shared)
    assert torch.equal(got, want)


def test_infinity_stays_in_its_row():
    """Check that infinity in row 5 of a tile of mesh row 2 reaches row 5 of the products of that mesh row alone."""
    with torch.device(DEVICE):
        order = torch.tensor(ring(SIDE).tolist(), dtype=torch.int32)
        a = torch.ones(SIDE, SIDE, 64, 16, dtype=torch.bfloat16)
        a[2, 3, 5, 0] = float("inf")
        b = torch.ones(SIDE, SIDE, 16, 64, dtype=torch.bfloat16)
        out = Operand(torch.zeros(SIDE * SIDE * 64 * 64), 0, 64 * 64)
        operands = Operand(a.flatten(), 0, 64 * 16), Operand(b.flatten(), 0, 16 * 64)
        labels = Labels(order * SIDE, order, 0), Labels(order, order * SIDE, 0)
    elided(out, out, *operands, order, order, *labels, m=64, k=16, n=64)
    got = out.tensor.view(SIDE, SIDE, 64, 64)
    want = torch.full_like(got, SIDE * 16.0)
    want[2, :, 5] = float("inf")
    assert torch.equal(got, want)


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
        program.run()
        found.append(program.read("out").view(torch.int16))
    assert torch.equal(*found)
    assert program.launches == ("MeshGEMM, 4 rounds in a launch",)
