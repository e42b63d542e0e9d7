"""MeshGEMV: values against fp64 over meshes, axes, trees and dtypes; one stage a link of the tree."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from local_cases import DTYPES
from pairs import pairs
from wafer_triton import ops
from wafer_triton.algorithms.trees import default_groups, ktree
from wafer_triton.device.layout import scatter
from wafer_triton.device.mesh import as_mesh
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.errors import MeshError, ShapeError
from wafer_triton.ops.testing import assert_close

axes = pytest.mark.parametrize("axis", ["y", "x"])
ALGORITHMS = ("ktree", "pipeline", "two-phase", "star", "ring")
sizes = st.integers(1, 17)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=25)
@given(
    m=st.integers(1, 4),
    k=sizes,
    n=sizes,
    mesh=st.tuples(st.integers(1, 13), st.integers(1, 13)),
    axis=st.sampled_from("xy"),
    dtype=st.sampled_from(list(DTYPES.values())),
    exchange=st.sampled_from(EXCHANGES),
)
def test_any_shape_on_any_mesh_is_exact_on_integers(algorithm, m, k, n, mesh, axis, dtype, exchange):
    x, w = torch.randint(-3, 4, (m, k)).to(dtype), torch.randint(-3, 4, (k, n)).to(dtype)
    got = ops.mesh_gemv(x, w, mesh=mesh, axis=axis, algorithm=algorithm, exchange=exchange)
    assert torch.equal(got, (x.double() @ w.double()).to(dtype))


@axes
@pytest.mark.parametrize(
    ("algorithm", "dtype", "mesh"), pairs(ALGORITHMS, tuple(DTYPES.values()), ("3", "6x2", "7")), ids=str
)
def test_values_are_as_good_as_plain_torch(mesh, algorithm, dtype, axis):
    x, w = torch.randn(1, 61, dtype=dtype), torch.randn(61, 29, dtype=dtype)
    got = ops.mesh_gemv(x, w, mesh=mesh, axis=axis, algorithm=algorithm)
    assert_close(got, x.double() @ w.double(), dtype, x @ w)
    assert torch.equal(got, ops.mesh_gemv(x, w, mesh=mesh, axis=axis, algorithm=algorithm, exchange="elided"))


def test_a_vector_is_a_batch_of_one():
    x, w = torch.randn(9), torch.randn(9, 5)
    got, record = ops.mesh_gemv(x, w, mesh=3, record=True)
    assert got.shape == (5,) and record.rounds > 0
    assert torch.equal(got, ops.mesh_gemv(x[None], w, mesh=3)[0])


@axes
@pytest.mark.parametrize("groups", [(), (8, 4, 2)], ids=str)
def test_any_tree_gives_the_sum(groups, axis):
    x, w = torch.randint(-3, 4, (1, 30)).float(), torch.randint(-3, 4, (30, 10)).float()
    assert torch.equal(ops.mesh_gemv(x, w, mesh="13x13", axis=axis, groups=groups), x @ w)


def test_groups_that_no_tree_has():
    for groups in ("5", (2.5,)):
        with pytest.raises(MeshError, match=r"groups = .*: give the number of groups of each level but"):
            ops.mesh_gemv(torch.ones(5), torch.ones(5, 5), mesh=5, groups=groups)
    with pytest.raises(MeshError, match="'tree': choose one of ktree, pipeline, two-phase, star, ring"):
        ops.mesh_gemv(torch.ones(5), torch.ones(5, 5), mesh=5, algorithm="tree")


@pytest.mark.parametrize("size", [1, 2, 5, 16, 25])
def test_the_stages_are_a_tree_and_one_broadcast(size):
    stages, _ = ktree(size, default_groups(size))
    _, record = ops.mesh_gemv(torch.ones(50), torch.ones(50, 4), mesh=(size, 1), record=True)
    assert record.stages == len(stages) + (size > 1)
    assert record.macs == -(-50 // size) * 4


def test_fp16_accumulation_rounds_sums_at_each_level_of_the_tree():
    # 2048 + 1 is not an fp16 number, so the 1 is lost at a level
    x, w = torch.ones(3).half(), torch.tensor([[2048.0], [1.0], [-2048.0]]).half()
    assert ops.mesh_gemv(x, w, mesh="3x1", groups=(), accumulate="fp16").item() == 0
    assert ops.mesh_gemv(x, w, mesh="1", accumulate="fp16").item() == 0
    assert ops.mesh_gemv(x, w, mesh="1").item() == 1


@axes
def test_consecutive_products_alternate_axes_without_a_transpose(axis):
    other = "x" if axis == "y" else "y"
    mesh = as_mesh("3x5")
    x, first, second = torch.randn(1, 14), torch.randn(14, 22), torch.randn(22, 6)
    cut = scatter(x, mesh, f"m ({axis} k)")
    middle = ops.mesh_gemv(cut, scatter(first, mesh, f"({axis} k) ({other} n)"), axis=axis)
    assert middle.pattern == f"m ({other} n)"
    with pytest.raises(ShapeError, match="must be cut as"):
        ops.mesh_gemv(middle, scatter(second, mesh, f"({axis} k) ({other} n)"), axis=axis)
