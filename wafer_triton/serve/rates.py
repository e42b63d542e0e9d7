"""The rate that a wafer serves: the highest at which most requests keep an SLO, by bisection with the same draws.

The share of requests that keep it is taken to fall with the rate, but for less than the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from wafer_triton.errors import ConfigError
from wafer_triton.serve.course import Run
from wafer_triton.serve.pipeline import Times
from wafer_triton.serve.policies import Policy
from wafer_triton.serve.report import Report, Slo, finished, tpot, ttft
from wafer_triton.serve.simulate import simulate
from wafer_triton.serve.workload import Request
from wafer_triton.text.progress import Progress, silent
from wafer_triton.text.quantity import digits, quantity, unit

SHARE = 0.9  # of the requests that keep the SLO at a rate that is served
NEAR = 0.01  # of the rate, by which the next one that is not served lies above
LEAST = 2.0**-10  # of the highest rate, below which none is tried


@dataclass(frozen=True)
class Tried:
    """A rate, its goodput, and the shares of requests that keep the SLO, miss one of its bounds, or are refused."""

    units_of = (Report,)

    rate: float = field(metadata=unit("requests/s"))
    goodput: float
    good: float
    over_ttft: float = field(metadata=unit("%", "over TTFT"))
    over_tpot: float = field(metadata=unit("%", "over TPOT"))
    refused: float = field(metadata=unit("%"))

    @classmethod
    def of(cls, rate: float, run: Run, slo: Slo) -> Tried:
        """Return the figures of a run at a rate; a request that is refused keeps no bound."""
        done, count = finished(run), len(run.served)
        late, slow = [ttft(one) > slo.ttft for one in done], [tpot(one) > slo.tpot for one in done]
        good = sum(not (first or later) for first, later in zip(late, slow, strict=True))
        seconds = max(one.end or 0.0 for one in done) - min(one.request.arrival for one in run.served)
        return cls(rate, good / seconds, good / count, sum(late) / count, sum(slow) / count, 1 - len(done) / count)


def most_served(requests: Sequence[Request], times: Times, policy: Policy, progress: Progress = silent) -> float:
    """Return the throughput in requests/s if all requests arrive at time 0; ConfigError if all are refused."""
    run = simulate([replace(one, arrival=0.0) for one in requests], times, policy, progress=progress)
    done = finished(run)
    return len(done) / max(one.end or 0.0 for one in done)


def highest_rate(
    at: Callable[[float], Sequence[Request]], times: Times, policy: Policy, slo: Slo, progress: Progress = silent
) -> tuple[float, str, list[Tried]]:
    """Return the highest rate at which `SHARE` of the requests keep the SLO, what limits it, and all tried rates.

    `at` gives the requests at a rate, the same but for their arrivals. The limit is "TTFT" or "TPOT", whichever more
    requests miss at the next rate, at most `NEAR` above; or "throughput", if the SLO is kept at the highest rate that
    is served at all. Raises ConfigError if the SLO is missed at all rates, and for fewer requests than twice the batch,
    which never wait for each other.
    """
    requests = at(1.0)
    if len(requests) < 2 * times.batch:
        raise ConfigError(f"{len(requests):,} requests for batches of {times.batch}: give {2 * times.batch:,} or more")
    tried: dict[float, Tried] = {}

    def kept(rate: float) -> bool:
        tried[rate] = Tried.of(rate, simulate(at(rate), times, policy), slo)
        progress("rates", len(tried), len(tried))
        return tried[rate].good >= SHARE

    low = most = most_served(requests, times, policy)
    while not kept(low):
        low, high = low / 2, low
        if low < most * LEAST:
            worst = tried[high]
            refused = f", {quantity(worst.refused, '%')} are longer than the cache," * (worst.refused > 0)
            raise ConfigError(
                f"SLO: at {digits(high)} requests a second {quantity(worst.over_ttft, '%')} miss TTFT and "
                f"{quantity(worst.over_tpot, '%')} TPOT{refused or ','} and no rate is served; give longer bounds, or "
                f"shorter requests"
            )
    if low == most:
        return most, "throughput", list(tried.values())
    while high > low * (1 + NEAR):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if kept(middle) else (low, middle)
    limit = "TTFT" if tried[high].over_ttft >= tried[high].over_tpot else "TPOT"
    return low, limit, sorted(tried.values(), key=lambda one: one.rate)
