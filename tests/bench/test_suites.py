"""The suites of bench/: a small case of each, on a device where every run takes a second, and their workers' log."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from statistics import median
from types import SimpleNamespace

import pytest

import bench_decode
import bench_estimate
import bench_exchange
import bench_gemm
import bench_gemv
import bench_generate
import bench_hops
import cases
import limits
import supervise
import timing

SMALLEST = (
    (bench_gemm, bench_gemm.SHAPES["cpu"][-1]), (bench_gemv, bench_gemv.SHAPES["cpu"][0]),
    (bench_exchange, bench_exchange.SHAPES["cpu"][0]), (bench_decode, bench_decode.SHAPES["cpu"][0]),
    (bench_decode, bench_decode.SHAPES["cpu"][-1]), (bench_hops, bench_hops.SHAPES["cpu"][0]),
    (bench_gemm, replace(bench_gemm.SHAPES["cpu"][-1], rows=tuple(cases.CALLS))),
)  # fmt: skip


class Benchmark:
    """Stands in for pytest-benchmark: the seconds of each round by the clock of the suites."""

    def pedantic(self, timed, rounds, warmup_rounds):
        seconds = []
        for _ in range(rounds):
            before = timing.CLOCK()
            timed()
            seconds.append(timing.CLOCK() - before)
        self.stats = SimpleNamespace(stats=SimpleNamespace(median=median(seconds)))


@pytest.fixture
def steady(monkeypatch):
    """Patch a device on which every run takes a second, and whose limits are measured by small copies."""
    for module in (timing, limits, bench_decode):
        monkeypatch.setattr(module, "elapsed", lambda device, run: (run(), 1.0)[1])
    monkeypatch.setattr(limits, "COPIED", 0)
    monkeypatch.setitem(limits.MATRIX, "cpu", 64)
    limits.bandwidth.cache_clear()
    limits.matrix_rate.cache_clear()
    yield
    limits.bandwidth.cache_clear()
    limits.matrix_rate.cache_clear()


def test_a_first_estimate_is_timed_without_kept_results():
    bench_estimate.decode_layer()
    assert all(bench_estimate.KEPT)
    bench_estimate.forget()
    assert not any(bench_estimate.KEPT)


@pytest.mark.parametrize(("suite", "shape", "row"), [
    pytest.param(suite, shape, row, id=f"{shape.slug}-{row}") for suite, shape in SMALLEST for row in shape.rows
])  # fmt: skip
@pytest.mark.slow
def test_a_case_of_each_suite(suite, shape, row, steady):
    facts, benchmark = {}, Benchmark()
    suite.test_row(benchmark, lambda **more: facts.update(more), "cpu", shape, row)
    assert (
        facts["exchange"] == row and facts["checked"] and facts["timed"] == ("calls" if row in cases.CALLS else "run")
    )
    seconds = 1 / facts["sets"]
    assert benchmark.stats.stats.median == pytest.approx(seconds), "a turn over all inputs takes a second"
    must = facts["exchanged_bytes"] / facts.get("limit_exchange_bytes_per_second", 1)
    must += facts["other_bytes"] / facts["limit_copy_bytes_per_second"]
    assert facts["fraction_of_bandwidth"] == pytest.approx(must / seconds) and must > 0
    assert (facts["exchanged_bytes"] > 0) == (row in ("explicit", "emulation", "copy", "public call, explicit"))


@pytest.mark.parametrize(("shape", "row"), [
    pytest.param(shape, row, id=f"{shape.slug}-{row}") for shape in bench_generate.SHAPES["cpu"] for row in shape.rows
])  # fmt: skip
@pytest.mark.slow
def test_a_whole_model_is_timed(shape, row, steady):
    facts, benchmark = {}, Benchmark()
    before = timing.CLOCK()
    bench_generate.test_row(benchmark, lambda **more: facts.update(more), "cpu", shape, row)
    assert facts["what"] == shape.name and facts["exchange"] == row
    if shape.kind == "first":
        assert facts["timed"] == "a process" and timing.CLOCK() - before > 0 and facts["placing_seconds"] > 0
    else:
        assert facts["timed"] == "calls" and benchmark.stats.stats.median == pytest.approx(1), "a run takes a second"


@pytest.mark.slow
def test_a_worker_logs_its_cases_and_skips_logged_ones(tmp_path):
    log = tmp_path / "log.jsonl"
    suite = supervise.ROOT / "bench" / "suites" / "bench_gemv.py"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [
        sys.executable, "-P", "-m", "pytest", str(suite), "-q", "-p", "no:cacheprovider", f"--bench-log={log}",
        "-k", "gemv-1x256x256-on8-fp32 and (explicit or elided)",
    ]  # fmt: skip
    case = "gemv-1x256x256-on8-fp32-explicit"
    log.write_text(json.dumps({"begun": f"bench/suites/bench_gemv.py::test_row[{case}]"}) + "\n")
    subprocess.run(command, check=True, cwd=supervise.ROOT, env=environment, capture_output=True)
    _, begun, ended = supervise.read(log)
    assert begun["begun"] == ended["ended"] == "bench/suites/bench_gemv.py::test_row[gemv-1x256x256-on8-fp32-elided]"
    assert begun["patience"] == float("inf"), "on a CPU a case may take as long as it does"
    assert ended["benchmark"]["stats"].keys() == {"min", "median", "max", "rounds"}
    assert ended["benchmark"]["extra_info"]["exchange"] == "elided" and "options" not in ended["benchmark"]
