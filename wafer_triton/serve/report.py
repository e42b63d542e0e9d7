"""The figures of a simulation: latencies by percentile, throughput, goodput under an SLO, energy, S-MBU.

TTFT is the time from arrival to the first token, TPOT the mean time between later tokens of one answer. ITL is each
time between two tokens of an answer, and E2E the time from arrival to the last token (as vLLM's serving benchmark).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wafer_triton.cost.cap import Cap, peaks
from wafer_triton.cost.price import Prediction
from wafer_triton.device import Device
from wafer_triton.device.dtype import dtype_name
from wafer_triton.errors import ConfigError, ShapeError, check_counts, shown
from wafer_triton.serve.course import MeanInterval, Run, Served, course
from wafer_triton.text.quantity import unit
from wafer_triton.text.table import Result, Table

PERCENTILES = (50, 90, 99)
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
Latency = dict[str, float]  # by "mean", "p50" and so on, seconds


@dataclass(frozen=True)
class Slo:
    """The most seconds of TTFT and of TPOT that a request may take to count as good; infinity for no bound."""

    ttft: float = math.inf
    tpot: float = math.inf

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot"):
            value = getattr(self, name)
            if not value > 0:
                raise ShapeError(f"SLO: {name} = {shown(value)} must be a positive number of seconds")

    @classmethod
    def of(cls, text: str) -> Slo:
        """Return the SLO of a text such as "ttft=200ms,tpot=1ms"; ConfigError for another."""
        bounds: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            unit = value.lstrip("0123456789.")
            try:
                seconds = float(value.removesuffix(unit)) * UNITS[unit]
            except (ValueError, KeyError):
                seconds = 0.0
            fault = f"{value!r} is no time above 0" if not seconds > 0 else f"{name} stands twice" * (name in bounds)
            if name not in ("ttft", "tpot"):
                fault = f"{name!r} is no bound"
            if fault:
                raise ConfigError(f"SLO {text!r}: {fault}; write ttft=200ms,tpot=1ms, one or both, in us, ms or s")
            bounds[name] = seconds
        return cls(**bounds)


@dataclass(frozen=True, repr=False)
class Report(Result):
    """The figures of a run, times in seconds and predicted on the wafer.

    `goodput` is in requests a second that keep the SLO, `good` their share of all requests. `busy` has the share of the
    time in which a resource worked. `s_mbu` is over the time in which decode worked.
    """

    main = ("requests_per_second", "tokens_per_second", "goodput", "good", "finished", "refused", "seconds")
    units_of = (Prediction, Cap)

    requests_per_second: float = field(metadata=unit("requests/s", "throughput"))
    tokens_per_second: float = field(metadata=unit("tokens/s", "tokens of answers"))
    goodput: float = field(metadata=unit("requests/s"))
    good: float = field(metadata=unit("%", "requests that keep the SLO"))
    requests: int = field(metadata=unit("requests"))
    finished: int = field(metadata=unit("requests", "served"))
    refused: int = field(metadata=unit("requests"))
    preempted: int = field(metadata=unit("times"))
    seconds: float  # from the first arrival to the last token
    ttft: Latency = field(metadata=unit("s", "TTFT"))
    tpot: Latency = field(metadata=unit("s", "TPOT"))
    itl: Latency = field(metadata=unit("s", "ITL"))
    e2e: Latency = field(metadata=unit("s", "end to end"))
    most_waiting: int = field(metadata=unit("requests", "most that wait"))
    kv_peak: float = field(metadata=unit("%", "cache in use at most"))  # share of the cache's entries
    kv_mean: float = field(metadata=unit("%", "cache in use on average"))
    busy: dict[str, float] = field(metadata=unit("%"))
    joules: float = field(metadata=unit("J", "energy"))
    joules_per_token: float
    s_mbu: float
    course: list[MeanInterval]  # ten of equal length


def ttft(served: Served) -> float:
    """Return the seconds from arrival to the first token of a finished request."""
    assert served.first is not None, "a finished request"
    return served.first - served.request.arrival


def tpot(served: Served) -> float:
    """Return the mean seconds between tokens after the first; 0 for an answer of one token."""
    assert served.first is not None and served.end is not None, "a finished request"
    return (served.end - served.first) / max(1, served.request.output - 1)


def e2e(served: Served) -> float:
    """Return the seconds from arrival to the last token of a finished request."""
    assert served.end is not None, "a finished request"
    return served.end - served.request.arrival


def finished(run: Run) -> list[Served]:
    """Return the requests that were served; ConfigError if all are refused."""
    done = [one for one in run.served if one.end is not None]
    if not done:
        raise ConfigError(f"no request is served: {run.served[0].refused}; give shorter requests, or a larger context")
    return done


def report(run: Run, pool: int, device: Device, dtype: str = "fp16", slo: Slo = Slo()) -> Report:
    """Return the figures of a run; the caches hold `pool` entries a row. ConfigError if all requests are refused."""
    check_counts(pool=pool)
    dtype = dtype_name(dtype)
    done = finished(run)
    start, end = min(one.request.arrival for one in run.served), max(one.end or 0.0 for one in done)
    seconds, tokens = end - start, sum(one.request.output for one in done)
    good = sum(ttft(one) <= slo.ttft and tpot(one) <= slo.tpot for one in done)
    samples = run.samples
    held = samples[-1].sums[2] - samples[0].sums[2]
    joules, decode = device.power_watts * seconds, run.busy["decode"]
    return Report(
        requests=len(run.served),
        finished=len(done),
        refused=len(run.served) - len(done),
        preempted=sum(one.preempted for one in done),
        seconds=seconds,
        requests_per_second=len(done) / seconds,
        tokens_per_second=tokens / seconds,
        goodput=good / seconds,
        good=good / len(run.served),
        ttft=latency([ttft(one) for one in done]),
        tpot=latency([tpot(one) for one in done if one.request.output > 1]),
        itl=weighted(run.gaps),
        e2e=latency([e2e(one) for one in done]),
        most_waiting=run.peak_waiting,
        kv_peak=run.peak_entries / pool,
        kv_mean=held / (samples[-1].time - samples[0].time or 1.0) / pool,
        busy={name: busy / seconds for name, busy in run.busy.items()},
        joules=joules,
        joules_per_token=joules / tokens,
        s_mbu=run.read / decode / peaks(device, dtype)[0] if decode else 0.0,
        course=course(run, pool, device, dtype),
    )


def latency(values: Sequence[float]) -> Latency:
    """Return the mean and the percentiles of seconds: the least value that the share of all does not exceed."""
    return weighted(np.column_stack([values, np.ones(len(values))]))


def weighted(values: ArrayLike) -> Latency:
    """Return `latency` of pairs (seconds, number of times); zeros without a pair."""
    pairs = np.asarray(values, dtype=float)
    if not len(pairs):
        return dict.fromkeys(("mean", *(f"p{share}" for share in PERCENTILES)), 0.0)
    seconds, counts = pairs[np.argsort(pairs[:, 0])].T
    sums = np.cumsum(counts)
    found = {"mean": float(seconds @ counts / sums[-1])}
    for share in PERCENTILES:
        found[f"p{share}"] = float(seconds[np.searchsorted(sums, sums[-1] * share / 100 * (1 - 1e-12))])
    return found


COLUMNS = ("number", "arrival", "input", "output", "started", "first", "end", "preempted", "refused")


def write_csv(run: Run, path: str | Path) -> None:
    """Write a row for each request: its sizes, the seconds of its steps, how often it was preempted, why refused."""
    Table.rows(COLUMNS, map(_row, run.served)).csv(Path(path))


def _row(one: Served) -> tuple[Any, ...]:
    request = one.request
    sizes = request.number, request.arrival, request.input, request.output
    return *sizes, one.started, one.first, one.end, one.preempted, one.refused
