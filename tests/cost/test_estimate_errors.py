"""Estimates of bad input end in an error that names the remedy."""

import pytest

from wafer_triton import estimate
from wafer_triton.errors import ConfigError, DeviceError, MeshError, ShapeError, SramError, WaferError


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: estimate.decode(model="llama3-9b", mesh=540, context=1), ConfigError, "did you mean 'llama3-8b'"),
        (lambda: estimate.gemm(mesh=8, m=-1, k=8, n=8), ShapeError, "m = -1 must be a whole number of at least 1"),
        (
            lambda: estimate.gemv(mesh=8, k=8, n=8, groups=0),
            ShapeError,
            "groups = 0 must be a whole number",
        ),
        (
            lambda: estimate.prefill(model="llama3-8b", mesh="349x353", tokens=128),
            MeshError,
            "mesh 349x353: products of matrices fold it to the grid of the least common multiple, 123,197 x 123,197",
        ),
        (
            lambda: estimate.prefill(model="qwen2.5-0.5b", mesh="20x30", tokens=16),
            SramError,
            "B over the 49,152 B of SRAM on wse2; the largest buffer is ",
        ),
        (
            lambda: estimate.training(model="mixtral-8x7b", mesh=40, tokens=8),
            ShapeError,
            "training of mixtral-8x7b: its experts take tokens by a router",
        ),
        (
            lambda: estimate.training(model="smollm2-135m", mesh=40, tokens=1),
            ShapeError,
            "runs the products of one token as GEMVs, which have no price here",
        ),
        (lambda: estimate.decode(model="llama3-8b", mesh=40, context=1), SramError, "the largest buffer is wqkv"),
        (
            lambda: estimate.prefill(model="smollm2-135m", mesh=20, tokens=200_000, device="wse2,rows=40,cols=40"),
            MeshError,
            "smollm2-135m, prefill of 200,000 tokens on mesh ",
        ),
        (
            lambda: estimate.prefill(model="smollm2-135m", mesh=2, tokens=1),
            SramError,
            "smollm2-135m, prefill of 1 token, ",
        ),
        (
            lambda: estimate.kv(model="llama2-13b", mesh=100, program="paper-benchmark"),
            SramError,
            "llama2-13b, 1 layer on each of ",
        ),
        (lambda: estimate.energy(seconds=0, against_seconds=1), ShapeError, "seconds = 0 must be a number from"),
        (lambda: estimate.energy(seconds=1, against="a10", against_seconds=1), DeviceError, "known: a100"),
    ],
)
@pytest.mark.slow
def test_bad_input(call, error: type[WaferError], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
