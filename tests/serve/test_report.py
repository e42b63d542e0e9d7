"""Figures of a run: percentiles by definition, goodput under an SLO, energy, and a row for each request."""

import csv
import math

import pytest

from serving import Given
from wafer_triton.device import device
from wafer_triton.errors import ConfigError
from wafer_triton.serve.policies import Policy, Split
from wafer_triton.serve.report import Slo, latency, report, weighted, write_csv
from wafer_triton.serve.simulate import simulate
from wafer_triton.serve.workload import Request

CHIP = device("wse2")


def test_a_percentile_is_the_least_value_that_its_share_does_not_exceed():
    assert latency(range(1, 101)) == {"mean": 50.5, "p50": 50, "p90": 90, "p99": 99}
    assert latency([3.0]) == {"mean": 3.0, "p50": 3.0, "p90": 3.0, "p99": 3.0}
    assert weighted([(2.0, 9.0), (5.0, 1.0)]) == {"mean": 2.3, "p50": 2.0, "p90": 2.0, "p99": 5.0}
    assert latency([]) == {"mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0}


@pytest.fixture
def run():
    """Return a run of two requests: one alone from 0 on, one that comes when the first is done."""
    times = Given(fill=(1.0,), step=0.1, depth=1)
    return simulate([Request(0, 0.0, 100, 11), Request(1, 10.0, 150, 1), Request(2, 11.0, 900, 1)], times,
                    Policy(Split()))  # fmt: skip


def test_figures_of_two_requests_are_their_times(run, tmp_path):
    found = report(run, 100, CHIP, slo=Slo(ttft=2.3))
    assert (found.requests, found.finished, found.refused, found.preempted) == (3, 2, 1, 0)
    assert found.ttft["p50"] == pytest.approx(2.0) and found.ttft["p99"] == pytest.approx(2.5)
    assert found.tpot["p99"] == pytest.approx(0.1) and found.itl["p50"] == pytest.approx(0.1)
    assert (
        found.e2e["p50"] == pytest.approx(2.5)
        and found.e2e["p99"] == pytest.approx(3.0)
        and found.seconds == pytest.approx(12.5)
    )
    assert found.tokens_per_second == pytest.approx(12 / 12.5)
    assert (found.goodput, found.good) == pytest.approx((1 / 12.5, 1 / 3)), "the second is slower than the SLO"
    assert found.joules_per_token == pytest.approx(CHIP.power_watts * 12.5 / 12)
    assert found.busy == pytest.approx({"prefill": 4.5 / 12.5, "decode": 1.0 / 12.5, "re-placement": 0})
    assert found.kv_peak == 19 / 100 and 0 < found.kv_mean < found.kv_peak
    # 10 turns, each of 10 B of weights and a byte a token of the cache in the middle of its turn
    wanted = 10 * 10 + sum(100.5 + step for step in range(10))
    assert run.read == pytest.approx(wanted)
    write_csv(run, tmp_path / "run.csv")
    rows = list(csv.DictReader((tmp_path / "run.csv").open()))
    assert [row["number"] for row in rows] == ["0", "1", "2"] and float(rows[0]["end"]) == pytest.approx(3.0)
    assert rows[2]["refused"] == "901 tokens are more than the 200 of the cache" and rows[2]["end"] == ""


def test_the_course_of_a_run_adds_up_to_its_figures(run):
    found = report(run, 100, CHIP)
    each = found.course
    seconds = [one.end - one.start for one in each]
    assert len(each) == 10 and sum(seconds) == pytest.approx(run.samples[-1].time) and each[0].start == 0
    assert sum(one.tokens_per_second * length for one, length in zip(each, seconds, strict=True)) == pytest.approx(12)
    assert sum(one.kv * length for one, length in zip(each, seconds, strict=True)) / sum(seconds) == pytest.approx(
        found.kv_mean
    )
    energy = (one.joules_per_token * one.tokens_per_second for one in each if one.tokens_per_second)
    assert set(map(round, energy)) == {CHIP.power_watts}
    idle = [one for one in each if one.start > 4 and one.end < 9]
    assert idle and all(one.s_mbu == 0 and one.joules_per_token == math.inf for one in idle)
    assert max(one.s_mbu for one in each) >= found.s_mbu


def test_a_run_without_a_served_request_is_refused():
    with pytest.raises(ConfigError, match="no request is served: 901 tokens are more than the 200 of the cache; give"):
        report(simulate([Request(0, 0.0, 900, 1)], Given(), Policy()), 100, CHIP)


def test_an_slo_is_written_with_units():
    found = Slo.of("ttft=200ms,tpot=1.5us")
    assert (found.ttft, found.tpot) == pytest.approx((0.2, 1.5e-6))
    assert Slo.of("tpot=2s") == Slo(math.inf, 2.0)


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=200", "ttft=-1ms", "e2e=1s", "ttft=1s,ttft=2s", "tpot=1m", "tpot=ms"]
)
def test_a_bad_slo_is_refused(text):
    with pytest.raises(ConfigError, match="write ttft=200ms,tpot=1ms, one or both, in us, ms or s"):
        Slo.of(text)
