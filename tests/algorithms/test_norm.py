"""RMSNorm and softmax over rows that are cut along x."""

import pytest
import torch

from local_cases import DTYPES
from pairs import pairs
from wafer_triton import ops
from wafer_triton.algorithms.norm import softmax_parts
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.ops.testing import assert_close
from wafer_triton.schedule.builder import Builder

MESHES = ("1", "2", "3", "7", "1x5", "5x1", "2x3", "4x7")
cases = pytest.mark.parametrize(
    ("mesh", "shape", "dtype"),
    pairs(
        MESHES,
        [(1, 1), (5, 7), (3, 40), (8, 3), (1, 16)],
        tuple(DTYPES.values()),
    ),
    ids=str,
)
exchanges = pytest.mark.parametrize("exchange", ["explicit", "elided"])
INF = float("inf")


def rms_norm_torch(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


@cases
def test_rms_norm(mesh, shape, dtype):
    m, n = shape
    x, weight = torch.randn(m, n, dtype=dtype), torch.randn(n, dtype=dtype)
    got = ops.rms_norm(x, weight, eps=1e-5, mesh=mesh)
    assert got.dtype == dtype
    assert_close(got, rms_norm_torch(x.double(), weight.double()), dtype, rms_norm_torch(x, weight))
    assert torch.equal(got, ops.rms_norm(x, weight, eps=1e-5, mesh=mesh, exchange="elided"))


def test_rms_norm_divides_by_the_width_and_not_by_the_padded_one():
    x = torch.full((2, 5), 3.0)
    got = ops.rms_norm(x, torch.ones(5), eps=1e-30, mesh=4)  # padded to 8 columns
    torch.testing.assert_close(got, torch.ones(2, 5))


def test_eps_counts():
    x = torch.full((1, 4), 1e-3)
    got = ops.rms_norm(x, torch.ones(4), eps=3e-6, mesh=2)
    torch.testing.assert_close(got, torch.full((1, 4), 0.5))
    assert ops.rms_norm(torch.zeros(1, 4), torch.ones(4), mesh=2).eq(0).all()


@pytest.mark.slow
@cases
def test_softmax(mesh, shape, dtype):
    x = 3 * torch.randn(*shape, dtype=dtype)
    got = ops.softmax(x, scale=0.375, mesh=mesh)
    assert got.dtype == dtype
    assert_close(got, (x.double() * 0.375).softmax(-1), dtype, (x * 0.375).softmax(-1))
    assert torch.equal(got, ops.softmax(x, scale=0.375, mesh=mesh, exchange="elided"))


@pytest.mark.parametrize("mesh", MESHES)
def test_padded_columns_do_not_count(mesh):
    # were the zeros of the padding to count, they would dwarf these
    x = torch.full((3, 5), -200.0)
    assert torch.equal(ops.softmax(x, mesh=mesh), torch.full((3, 5), 0.2))


@exchanges
def test_large_values_do_not_overflow(exchange):
    x = torch.tensor([[3e38, -3e38, 3e38], [-3e38, -3e38, -3e38], [1000.0, 0.0, 999.0]])
    got = ops.softmax(x, mesh="1x3", exchange=exchange)
    torch.testing.assert_close(got, x.softmax(-1))
    half = torch.tensor([[65504.0, -65504.0, 65504.0]]).half()
    torch.testing.assert_close(ops.softmax(half, mesh="1x3"), half.softmax(-1))


def test_masked_entries_and_rows_equal_torch():
    x = torch.randn(4, 6)
    x[0, 2:5], x[1, :5], x[2] = -INF, -INF, -INF
    x[3, 1] = float("nan")
    got = ops.softmax(x, mesh=3)
    torch.testing.assert_close(got, x.softmax(-1), equal_nan=True)


def parts(bias: torch.Tensor, s: torch.Tensor, exchange: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Run softmax_parts on s [heads, m, n] and bias [m, n], a column of n a core: p [heads, m, n], sums [heads, m]."""
    heads, m, n = s.shape
    b = Builder(Mesh(1, n), "parts")
    b.buffer("s", (heads, m, 1), "fp32", "input")
    b.buffer("bias", (m, 1), "fp32", "input")
    b.buffer("p", (heads, m, 1), "fp32", "output")
    z = softmax_parts(b, "s", "bias", "p", "x", scale=0.5)
    b.buffer("sums", b.buffers[z].tile, b.buffers[z].dtype, "output")
    b.round(b.local("copy", "sums", z, size=b.buffers[z].numel))
    given = {"s": s.movedim(-1, 0)[None, ..., None], "bias": bias.movedim(-1, 0)[None, ..., None]}
    program = TorchExecutor(exchange=exchange, poison=True).bind(b.build(), given)
    program.run()
    sums = program.read("sums")[0]
    assert torch.equal(sums, sums[:1].expand_as(sums)), "every core of the line has the sum"
    return program.read("p")[0, ..., 0].movedim(0, -1), sums[0]


@exchanges
def test_heads_share_a_bias_and_keep_their_own_sums(exchange):
    s, bias = torch.randn(3, 2, 5), torch.zeros(2, 5)
    bias[0, 3:] = -INF
    p, z = parts(bias, s, exchange)
    torch.testing.assert_close(p / z[..., None], (s * 0.5 + bias).softmax(-1))
    assert p.amax(-1).eq(1).all(), "the largest exponential is 1"


@exchanges
def test_a_row_that_is_masked_everywhere_gives_zeros(exchange):
    bias = torch.zeros(2, 5)
    bias[1] = -INF
    p, z = parts(bias, torch.randn(3, 2, 5), exchange)
    assert p[:, 1].eq(0).all() and z[:, 1].eq(0).all()
    assert z[:, 0].ge(1).all()
