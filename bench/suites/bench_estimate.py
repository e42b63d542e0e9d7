"""The time of estimates on this machine (not on the wafer): `pytest bench/suites/bench_estimate.py`.

A first estimate of a mesh walks its trees and rings and keeps the results. So the bounds are for later estimates on the
mesh, of new sizes; the first estimates are timed beside them, without a bound.
"""

import functools
import subprocess
import sys
from itertools import count
from time import perf_counter

import pytest

from wafer_triton import estimate
from wafer_triton.algorithms import align, gemm, product, reduce, trees
from wafer_triton.cost import constants, inference, layers, search
from wafer_triton.count import routes, traffic
from wafer_triton.decoder import block, decode
from wafer_triton.place import need, regions

MODULES = (
    constants, inference, layers, need, regions, align, block, decode, gemm, product, reduce, trees,
)  # fmt: skip
KEPT = (routes._COLOURS, traffic._UNITS)
SIZES = count(2048, 97)  # so far apart that tiles differ on most meshes
PROMPTS = count(480, 97)  # as short as a plan takes them at once


def forget() -> None:
    for module in MODULES:
        for one in vars(module).values():
            if isinstance(one, functools._lru_cache_wrapper):
                one.cache_clear()
    for kept in KEPT:
        kept.clear()


def decode_layer() -> estimate.Layered:
    return estimate.decode(model="llama3-8b", mesh=720, context=next(SIZES))


def request() -> estimate.RequestCost:
    sizes = {"input": next(SIZES), "output": 128}
    return estimate.request(model="llama3-8b", prefill_mesh=720, decode_mesh=360, **sizes)


def plan() -> list[search.Plan]:
    return search.plan(model="llama3-8b", input=next(PROMPTS), output=128)


CASES = [pytest.param(decode_layer, 0.050, id="decode layer"), pytest.param(request, 0.100, id="request"),
         pytest.param(plan, 2.0, id="plan")]  # fmt: skip


@pytest.mark.parametrize("run, most", CASES)
def test_after_the_first(benchmark: pytest.FixtureRequest, run, most: float) -> None:
    run()
    benchmark.pedantic(run, rounds=3 if run is plan else 20)
    assert benchmark.stats.stats.median < most


@pytest.mark.parametrize("run", [case.values[0] for case in CASES], ids=[case.id for case in CASES])
def test_the_first(benchmark: pytest.FixtureRequest, run) -> None:
    benchmark.pedantic(run, setup=forget, rounds=2)


@pytest.mark.parametrize("algorithm", ["mesh", "cannon", "summa"])
def test_a_gemm_on_half_a_million_cores(benchmark: pytest.FixtureRequest, algorithm: str) -> None:
    def run() -> estimate.Kernel:
        return estimate.gemm(device="wse3", mesh=720, m=5760, k=720, n=5760, algorithm=algorithm)

    benchmark.pedantic(run, setup=forget, rounds=3)
    assert benchmark.stats.stats.median < 3


def test_import_and_one_estimate(benchmark: pytest.FixtureRequest) -> None:
    line = "estimate product --device wse3 --mesh 720 --m 5760 --k 720 --n 5760"

    def run() -> float:
        begun = perf_counter()
        code = f"import sys; from wafer_triton.cli import main as cli; sys.exit(cli.main({line.split()!r}))"
        subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True)
        return perf_counter() - begun

    benchmark.pedantic(run, rounds=3)
    assert benchmark.stats.stats.max < 3
