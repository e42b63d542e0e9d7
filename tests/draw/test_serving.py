"""Pictures and traces of serving carry the numbers that they show."""

import json
import re
from itertools import pairwise

import pytest

from serving import Given
from wafer_triton.device import device
from wafer_triton.draw import serving
from wafer_triton.draw.figure import numbers_of
from wafer_triton.errors import DrawError
from wafer_triton.serve.course import course
from wafer_triton.serve.policies import Policy, Split
from wafer_triton.serve.simulate import simulate
from wafer_triton.serve.workload import both, fixed, poisson


def row(rate, latency, tokens=1.0, tpot=1.0):
    shown = dict.fromkeys(("ttft_p50", "ttft_p99", "e2e_p99", "requests_per_second", "goodput"), latency)
    return {"rate": rate, "e2e_p50": latency, "tokens_per_second": tokens, "tpot_p50": tpot} | shown


ROWS = [row(1, 1.0), row(2, 1.5), row(4, 1.9), row(8, 3.0), row(16, 1.0)]


@pytest.mark.slow
def test_the_knee_is_the_last_rate_before_latency_doubles(tmp_path):
    assert serving.knee(ROWS, "rate") == serving.knee(ROWS[::-1], "rate") == 4
    serving.latency(ROWS, "rate", tmp_path / "rates.png")
    shown = numbers_of(tmp_path / "rates.png")
    assert shown["knee"] == [4] and shown["e2e_p50"] == [1.0, 1.5, 1.9, 3.0, 1.0]
    serving.latency(ROWS, "rate", tmp_path / "rates.svg")
    text = re.sub("<[^>]*>|\\s+", " ", (tmp_path / "rates.svg").read_text())
    assert "Up to rate 4 answers take at most 2 times as long as at rate 1" in " ".join(text.split())
    assert "knee: the largest value up to which" in " ".join(text.split())


def test_the_pareto_front_has_the_rows_that_no_other_beats(tmp_path):
    rows = [row(1, 1.0, 5.0, 2.0), row(2, 1.0, 9.0, 4.0), row(3, 1.0, 4.0, 3.0), row(4, 1.0, 1.0, 1.0)]
    assert serving.pareto_front(rows) == [3, 0, 1]
    serving.pareto(rows, "rate", tmp_path / "front.png")
    assert numbers_of(tmp_path / "front.png")["Pareto front"] == [3, 0, 1]
    serving.pareto(rows, "rate", tmp_path / "front.svg")
    text = " ".join(re.sub("<[^>]*>", " ", (tmp_path / "front.svg").read_text()).split())
    assert "3 of 4 points are the Pareto front: none has more tokens/s at a lower TPOT" in text


def test_without_rows_there_is_no_picture(tmp_path):
    for draw in (serving.latency, serving.pareto):
        with pytest.raises(DrawError, match="a sweep without rows: there is (no knee|nothing to draw)"):
            draw([], "rate", tmp_path / "none.png")


@pytest.fixture(scope="module")
def run():
    return simulate(poisson(1.0, 40, both(fixed(20), fixed(8)), seed=2), Given(), Policy(Split()))


@pytest.mark.slow
def test_a_run_over_time_shows_its_samples(run, tmp_path):
    serving.run(run, 100, device("wse2"), tmp_path / "run.png")
    shown = numbers_of(tmp_path / "run.png")
    assert shown["running"] == [sample.running for sample in run.samples] and max(shown["running"]) > 1
    assert max(shown["cache in use (%)"]) == max(sample.entries for sample in run.samples)
    each = course(run, 100, device("wse2"), count=serving.INTERVALS)
    assert shown["S-MBU (%)"] == pytest.approx([100 * one.s_mbu for one in each])
    energy = zip(shown["J a token"], each, strict=True)
    assert all(joules is None or joules == pytest.approx(one.joules_per_token) for joules, one in energy)


def test_a_trace_has_the_steps_of_each_request_on_tracks_without_overlap(run, tmp_path):
    serving.perfetto(run, tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    steps_of_a_request = 3
    assert len(slices) == steps_of_a_request * len(run.served)
    assert sum(event["dur"] for event in slices) == pytest.approx(
        1e6 * sum(one.end - one.request.arrival for one in run.served)
    )
    for track in {event["tid"] for event in slices}:
        own = sorted((event["ts"], event["dur"]) for event in slices if event["tid"] == track)
        assert all(a + long <= b + 1e-3 for (a, long), (b, _) in pairwise(own))
    assert {event["name"] for event in events if event["ph"] == "C"} == {"requests", "cache"}
