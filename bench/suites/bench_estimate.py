"""How long estimates take on this machine (not on the wafer): `pytest bench/bench_estimate.py`.

Caches are emptied before each round, so that these are the times of a first estimate after import.
"""

import functools
import subprocess
import sys
from time import perf_counter
from types import ModuleType

import pytest

from wafer_triton import estimate
from wafer_triton.cost import layers, programs, search, steps
from wafer_triton.schedule import reduce as reductions

MODULES: tuple[ModuleType, ...] = (layers, programs, steps, reductions)


def forget() -> None:
    for module in MODULES:
        for one in vars(module).values():
            if isinstance(one, functools._lru_cache_wrapper):
                one.cache_clear()


def test_a_request(benchmark: pytest.FixtureRequest) -> None:
    def run() -> estimate.Request:
        return estimate.request(model="llama3-8b", prefill_mesh=660, decode_mesh=360, input=2048, output=128)

    assert run().fits
    benchmark.pedantic(run, setup=forget, rounds=20)
    assert benchmark.stats.stats.median < 0.050


@pytest.mark.parametrize("algorithm", ["mesh", "cannon", "summa"])
def test_a_gemm_on_half_a_million_cores(benchmark: pytest.FixtureRequest, algorithm: str) -> None:
    def run() -> estimate.Kernel:
        return estimate.gemm(device="wse3", mesh=720, m=5760, k=720, n=5760, algorithm=algorithm)

    benchmark.pedantic(run, setup=forget, rounds=3)
    assert benchmark.stats.stats.median < 3


def test_a_plan(benchmark: pytest.FixtureRequest) -> None:
    def run() -> list[search.Plan]:
        return search.plan(model="llama3-8b", input=2048, output=128)

    benchmark.pedantic(run, setup=forget, rounds=2)
    assert benchmark.stats.stats.max < 20


def test_import_and_one_estimate(benchmark: pytest.FixtureRequest) -> None:
    line = "estimate gemm --device wse3 --mesh 720 --m 5760 --k 720 --n 5760"

    def run() -> float:
        begun = perf_counter()
        code = f"import sys; from wafer_triton.cli import main as cli; sys.exit(cli.main({line.split()!r}))"
        subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True)
        return perf_counter() - begun

    benchmark.pedantic(run, rounds=3)
    assert benchmark.stats.stats.max < 3
