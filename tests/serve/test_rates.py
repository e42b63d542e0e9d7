"""The highest rate that keeps an SLO is that of a scan by another simulator, and follows its bounds."""

import random
from dataclasses import replace

import pytest

from commands import answer, refused
from serving import Given
from wafer_triton.errors import ConfigError
from wafer_triton.serve import traces
from wafer_triton.serve.policies import Policy, Split
from wafer_triton.serve.rates import NEAR, SHARE, highest_rate
from wafer_triton.serve.report import Slo, tpot, ttft
from wafer_triton.serve.simulate import simulate
from wafer_triton.serve.workload import both, poisson, uniform

pytestmark = pytest.mark.slow

TIMES = Given(batch=1, pool=1000, fill=(0.5,), depth=1, handing=0.01)  # one request after the other
LENGTHS = both(uniform(1, 60), uniform(1, 6))


def at(rate, count=400, seed=3):
    return poisson(rate, count, LENGTHS, seed)


AT_ONE = at(1.0)


def in_turn(rate):
    """Return TTFT and TPOT of requests that are served one by one, by Lindley's recursion; no TPOT of one token."""
    free, found = 0.0, []
    for one in AT_ONE:
        arrival, more = one.arrival / rate, one.output - 1
        first = max(arrival, free) + 0.5 * (1 + one.input / 100)
        free = first + (0.01 * one.input + more if more else 0.0)
        found.append((first - arrival, (free - first) / more if more else 0.0))
    return found


def kept(rate, slo):
    every = in_turn(rate)
    return sum(first <= slo.ttft and later <= slo.tpot for first, later in every) / len(every)


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.35, 3.0])
def test_the_simulation_is_that_of_another_simulator(rate):
    run = simulate(at(rate), TIMES, Policy(Split()))
    every = [(ttft(one), tpot(one)) for one in run.served]
    for one, other in zip(every, in_turn(rate), strict=True):
        assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("slo", [Slo(ttft=3.0), Slo(ttft=12.0, tpot=1.5), Slo(tpot=1.35), Slo(ttft=2.0, tpot=1.6)])
def test_the_rate_is_that_of_a_scan(slo):
    rate, limit, tried = highest_rate(at, TIMES, Policy(Split()), slo)
    most = max(one.rate for one in tried)
    step = 1 + NEAR / 4
    scan = most
    while kept(scan, slo) < SHARE:
        scan /= step
    assert rate <= scan * step and scan <= rate * (1 + NEAR) * step
    by_rate = {one.rate: one for one in tried}
    for one in tried:
        assert one.good == pytest.approx(kept(one.rate, slo))
    assert by_rate[rate].good >= SHARE and (limit == "throughput") == (rate == most)
    following = [one.rate for one in tried if one.rate > rate][:1]
    assert following == [] or following[0] <= rate * (1 + NEAR)


def test_longer_bounds_and_faster_cores_never_serve_less():
    draw = random.Random(5)
    for _ in range(2):
        first, later = draw.uniform(1.5, 8), draw.uniform(1.4, 2)
        cases = (TIMES, 1.0), (TIMES, 1.5), (replace(TIMES, step=0.8), 1.0)
        rates = [highest_rate(at, each, Policy(Split()), Slo(first * by, later * by))[0] for each, by in cases]
        assert min(rates[1:]) >= rates[0] / (1 + NEAR)


def test_bounds_that_no_rate_keeps_and_few_requests_are_refused():
    with pytest.raises(ConfigError, match=r"SLO: at .* requests a second 100 % miss TTFT and 0 % TPOT, and no rate is"):
        highest_rate(at, TIMES, Policy(Split()), Slo(ttft=0.4))
    with pytest.raises(ConfigError, match="1 requests for batches of 1: give 2 or more"):
        highest_rate(lambda rate: at(rate, count=1), TIMES, Policy(Split()), Slo(ttft=0.4))


def test_requests_that_are_refused_are_named_as_the_cause():
    long = [replace(one, input=TIMES.longest) for one in AT_ONE]
    mixed = [*AT_ONE[:300], *long[300:]]

    def arriving(requests):
        return lambda rate: [replace(one, arrival=one.arrival / rate) for one in requests]

    with pytest.raises(ConfigError, match="0 % miss TTFT and 0 % TPOT, 25 % are longer than the cache, and no rate is"):
        highest_rate(arriving(mixed), TIMES, Policy(Split()), Slo(ttft=1e6))
    with pytest.raises(ConfigError, match="no request is served: .* tokens are more than the 200 of the cache; give"):
        highest_rate(arriving(long), TIMES, Policy(Split()), Slo(ttft=1e6))
    _, _, tried = highest_rate(arriving([*AT_ONE[:380], *long[380:]]), TIMES, Policy(Split()), Slo(ttft=1e6))
    assert [one.refused for one in tried] == pytest.approx([0.05] * len(tried))


def test_a_trace_is_read_once(tmp_path, monkeypatch, capsys):
    trace, reads = tmp_path / "trace.csv", []
    trace.write_text("arrival,input,output\n" + "".join(f"{number / 10},{90 + number},9\n" for number in range(20)))
    monkeypatch.setattr(traces, "read_text", lambda path: reads.append(path) or path.read_text())
    asked = f"serve --model smollm2-135m --prefill-mesh 100 --decode-mesh 100 --batch 4 --requests {trace}"
    found, _ = answer(f"{asked} --slo ttft=12ms --find-rate", capsys)
    assert len(found["tried"]) > 1 and reads == [trace]


def test_the_command_gives_the_goodput_that_the_rate_has(capsys):
    asked = "serve --model smollm2-135m --prefill-mesh 100 --decode-mesh 100 --batch 4 --input 50:150 --output 1:40"
    found, shown = answer(f"{asked} --count 60 --slo ttft=20ms,tpot=5ms --find-rate", capsys)
    assert answer(f"{asked} --count 60 --slo ttft=20ms,tpot=5ms --find-rate", capsys)[0] == found, "the same seed"
    assert f"limited by {found['limit']}; 90 % of 60 requests or more keep the SLO" in " ".join(shown.split())
    alone, _ = answer(f"{asked} --count 60 --slo ttft=20ms,tpot=5ms --rate {found['rate']} --overload", capsys)
    (own,) = (one for one in found["tried"] if one["rate"] == found["rate"])
    assert (alone["goodput"], alone["good"]) == pytest.approx((own["goodput"], own["good"]), rel=1e-12)
    assert "give --slo of --find-rate" in refused(f"{asked} --find-rate", capsys)
    assert "--rate: a rate is searched" in refused(f"{asked} --slo ttft=1s --find-rate --rate 3", capsys)
