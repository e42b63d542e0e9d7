"""The time of the checker on this machine (not on the wafer): `pytest bench/suites/bench_check.py`.

`check` of a product with its intent reads rules, slots and values; without one it reads rules and slots.
The values of the largest tiles are sampled. The time of importing torch counts for no case.
"""

import pytest
import torch  # noqa: F401

from wafer_triton.algorithms.product import recipe
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.verify.faults import Intent, check

CASES = [
    pytest.param(64, 64, True, 3, id="64x64 all readings"),
    pytest.param(64, 1024, True, 3, id="64x64 all readings, tiles 16x16"),
    pytest.param(64, 4096, True, None, id="64x64 all readings, tiles 64x64"),
    pytest.param(720, 720, False, 20, id="720x720 structural readings"),
]


@pytest.mark.parametrize("side, size, intended, most", CASES)
def test_a_meshgemm(benchmark: pytest.FixtureRequest, side: int, size: int, intended: bool, most: float | None) -> None:
    mesh = Mesh(side, side, device("wse2").unbounded())
    product = recipe("gemm", mesh, "fp16", ((size, size), (size, size)), ())
    intent = Intent.of(product) if intended else None
    benchmark.pedantic(lambda: check(product.schedule, intent).demand(), rounds=2)
    assert most is None or benchmark.stats.stats.max < most
