"""Wafers with real values on a CPU by the torch executor: 660 x 660 and 720 x 720 cores, products on 360 x 360."""

from dataclasses import replace

import pytest
import torch

import bench_decode
import cases
from wafer_triton import check
from wafer_triton.algorithms.product import recipe
from wafer_triton.compare.algorithms import compare_gemv
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.models.random import config_of
from wafer_triton.ops import run
from wafer_triton.ops.testing import assert_close


def product(
    op: str, shapes, side: int, exchange: str, integers: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b = (torch.randint(-3, 4, shape).float() if integers else torch.randn(shape) for shape in shapes)
    made = recipe(op, Mesh(side, side), "fp32", tuple(shapes), ())
    return run(made, (a, b), TorchExecutor(exchange=exchange)).gather(), a, b


def test_gemm():
    """More rounds than a small mesh has; a matrix that leaves some cores with padding alone."""
    size = 357
    got, a, b = product("gemm", ((size, size), (size, size)), 360, "explicit", integers=True)
    assert torch.equal(got, a @ b)


@pytest.mark.parametrize(
    ("side", "exchange", "batch"), [(660, "explicit", 1), (660, "elided", 3), (720, "explicit", 3), (720, "elided", 1)]
)
def test_gemv(side, exchange, batch):
    got, a, b = product("gemv", ((batch, 1000), (1000, 1500)), side, exchange, integers=False)
    assert_close(got, a.double() @ b.double(), "fp32", plain=a @ b)
    got, a, b = product("gemv", ((batch, 1000), (1000, 1500)), side, exchange, integers=True)
    assert torch.equal(got, a @ b)


def test_a_decode_layer_of_the_shape_of_llama3_2_1b():
    """2000 tokens in the cache, bf16, against the layer in fp64."""
    layer = replace(config_of("llama3.2-1b"), num_hidden_layers=1)
    step = bench_decode.DecodeStep(layer, 660, 2000, "bf16", emulated=cases.WSE2)
    given = bench_decode.Inputs(step, "cpu")
    got = bench_decode.OnMesh(given, TorchExecutor()).whole()
    cases.close(got, given.plain(torch.float64), given.plain(torch.bfloat16), str(step))


def test_a_schedule_is_checked():
    assert check(recipe("gemm", Mesh(360, 360), "fp16", ((360, 360), (360, 360)), ()).schedule).ok


def test_all_reductions_are_compared():
    rows = {row.algorithm: row for row in compare_gemv(720, 5760, 5760)}
    assert rows["ktree"].verdict == dict.fromkeys("PLMR", True)
