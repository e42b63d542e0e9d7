"""Pictures and traces of serving: latency against rate, policies against each other, a run over time.

Each picture is a file, `.png`, `.svg` or `.pdf`, and raises the errors of `figure.picture`. All times are predicted on
the wafer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

from wafer_triton.device import Device
from wafer_triton.draw.figure import COLOURS, MARKERS, footnote, path_of, picture
from wafer_triton.draw.trace_events import Event
from wafer_triton.errors import DrawError, writing
from wafer_triton.serve.course import Run, course

MOST = 60  # requests in the picture of a run
INTERVALS = 60  # of energy and S-MBU over time
MOST_TRACED = 5000  # requests in a trace
_TICKS = 10  # values of a sweep, up to which each has a tick
KNEE = 2.0  # times the median latency of the least rate, up to which the knee lies
ACROSS = {"rate": "requests a second that arrive"}
_SAID = (
    f"knee: the largest value up to which the median whole answer takes at most {KNEE:g} times the first's; "
    f"99 %: at most one request in a hundred takes longer; in time: within the bounds of the goal"
)
LABELS = {
    "ttft_p50": "first token, median", "ttft_p99": "first token, 99 %", "e2e_p50": "whole answer, median",
    "e2e_p99": "whole answer, 99 %", "requests_per_second": "finished", "goodput": "finished in time",
}  # fmt: skip
Rows = Sequence[Mapping[str, Any]]


def knee(rows: Rows, name: str) -> float:
    """Return the largest value of `name` up to which the median end-to-end latency is at most `KNEE` times the first.

    Raises DrawError without a row.
    """
    if not rows:
        raise DrawError("a sweep without rows: there is no knee; give values that can be simulated")
    _check_rows(rows, name, "e2e_p50")
    ordered = sorted(rows, key=itemgetter(name))
    least, at = ordered[0]["e2e_p50"], ordered[0][name]
    for row in ordered:
        if row["e2e_p50"] > KNEE * least:
            break
        at = row[name]
    return float(at)


def _check_rows(rows: Rows, *names: str) -> None:
    for number, row in enumerate(rows):
        missing = [name for name in names if name not in row]
        if missing:
            raise DrawError(f"row {number} of a sweep has no {missing[0]!r}; `report.flat` makes a row")


def latency(rows: Rows, name: str, path: str | Path, title: str = "") -> None:
    """Draw latencies and throughput of a sweep over a number, such as the rate, and its knee."""
    at = knee(rows, name)
    _check_rows(rows, "ttft_p50", "ttft_p99", "e2e_p99", "requests_per_second", "goodput")
    across = [row[name] for row in rows]
    good = max(rows, key=itemgetter("goodput"))
    point = f"Up to {name} {at:g} answers take at most {KNEE:g} times as long as at {name} {min(across):g}; "
    point += f"most finish in time at {name} {good[name]:g}"
    with picture(path, 3.6, title, point) as (figure, numbers):
        footnote(figure, _SAID)
        top, bottom = figure.subplots(2, 1, sharex=True)
        numbers |= {name: across, "knee": [at]}
        for axes, shown, factor in (
            (top, ("ttft_p50", "ttft_p99", "e2e_p50", "e2e_p99"), 1.0),
            (bottom, ("requests_per_second", "goodput"), 1.0),
        ):
            for number, field in enumerate(shown):
                values = [row[field] * factor for row in rows]
                numbers[field] = values
                axes.plot(across, values, marker=MARKERS[number], ms=3, color=COLOURS[number], label=LABELS[field])
            axes.axvline(at, color="black", lw=0.8, ls="--", label=f"knee, {name} {at:g}")
            axes.set(xticks=sorted({*across}) if len({*across}) <= _TICKS else axes.get_xticks())
            axes.grid(alpha=0.3)
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1), borderaxespad=0.2)
        top.set(ylabel="seconds, predicted", yscale="log")
        bottom.set(ylabel="requests a second", xlabel=ACROSS.get(name, name), ylim=(0, None))


def pareto_front(rows: Rows) -> list[int]:
    """Return the rows to which no other is better in both tokens a second and TPOT, the lowest TPOT first."""
    order = sorted(range(len(rows)), key=lambda row: (rows[row]["tpot_p50"], -rows[row]["tokens_per_second"]))
    best, kept = 0.0, []
    for row in order:
        if rows[row]["tokens_per_second"] > best:
            best = rows[row]["tokens_per_second"]
            kept.append(row)
    return kept


def pareto(rows: Rows, name: str, path: str | Path, title: str = "") -> None:
    """Draw tokens a second against TPOT for the rows of a sweep, with their Pareto front."""
    if not rows:
        raise DrawError("a sweep without rows: there is nothing to draw; give values that can be simulated")
    _check_rows(rows, name, "tpot_p50", "tokens_per_second")
    kept = pareto_front(rows)
    point = f"{len(kept)} of {len(rows)} points are the Pareto front: none has more tokens/s at a lower TPOT"
    with picture(path, 2.4, title, point) as (figure, numbers):
        axes = figure.subplots()
        across, up = [1e3 * row["tpot_p50"] for row in rows], [row["tokens_per_second"] for row in rows]
        numbers |= {"TPOT (ms)": across, "tokens/s": up, "Pareto front": kept}
        axes.plot([across[row] for row in kept], [up[row] for row in kept], color="black", lw=0.8, label="Pareto front")
        for number, row in enumerate(rows):
            axes.plot(across[number], up[number], "o", ms=5, color=COLOURS[number % len(COLOURS)])
            axes.annotate(f" {name} {row[name]}", (across[number], up[number]), fontsize=7)
        axes.set(xlabel="median time of an output token (TPOT, ms), predicted on the wafer", ylabel="tokens a second")
        axes.legend()
        axes.grid(alpha=0.3)


def run(run: Run, pool: int, device: Device, path: str | Path, title: str = "", dtype: str = "fp16") -> None:
    """Draw a run over time, with the first requests as bars.

    Requests that wait and decode and the cache entries of `pool` are samples. Energy a token and S-MBU are means of
    `INTERVALS` intervals.
    """
    running, waiting, entries = (
        max((getattr(sample, field) for sample in run.samples), default=0)
        for field in ("running", "waiting", "entries")
    )
    point = f"At most {running:,} requests decode and {waiting:,} wait; the cache is {100 * entries / pool:.0f} % full"
    with picture(path, 8.0, title, point) as (figure, numbers):
        top, middle, cost, reads, bottom = figure.subplots(5, 1, height_ratios=(2, 2, 2, 2, 5))
        times = [sample.time for sample in run.samples]
        for number, field in enumerate(("waiting", "running")):
            values = [getattr(sample, field) for sample in run.samples]
            numbers[field] = values
            top.step(times, values, where="post", color=COLOURS[number], lw=0.8, label=field)
        top.set(ylabel="requests")
        top.legend()
        used = [100 * sample.entries / pool for sample in run.samples]
        numbers["cache in use (%)"] = used
        middle.step(times, used, where="post", color=COLOURS[2], lw=0.8)
        middle.set(ylabel="cache (%)", ylim=(0, 105))
        each = course(run, pool, device, dtype, INTERVALS)
        for axes, label, values in (
            (cost, "J a token", [one.joules_per_token for one in each]),
            (reads, "S-MBU (%)", [100 * one.s_mbu for one in each]),
        ):
            numbers[label] = values
            axes.step([one.start for one in each], values, where="post", color=COLOURS[0], lw=0.8)
            axes.set(ylabel=label)
        if any(one.tokens_per_second for one in each):
            cost.set(yscale="log")
        for axes in (middle, cost, reads):
            axes.sharex(top)
        for axes in (top, middle, cost):
            axes.tick_params(labelbottom=False)
        reads.set(xlabel="seconds, predicted on the wafer")
        shown = [one for one in run.served if one.end is not None][:MOST]
        colours = dict(
            zip(("waits", "to the first token", "decode"), (COLOURS[3], COLOURS[1], COLOURS[0]), strict=True)
        )
        for row, one in enumerate(shown):
            ends = [each for each in (one.request.arrival, one.started, one.first, one.end) if each is not None]
            for (start, end), colour in zip(pairwise(ends), colours.values(), strict=True):
                bottom.broken_barh([(start, end - start)], (row - 0.4, 0.8), facecolors=colour)
        for label, colour in colours.items():
            bottom.plot([], [], color=colour, lw=4, label=label)
        bottom.set(xlabel="seconds, predicted on the wafer", ylabel=f"first {len(shown)} requests")
        bottom.invert_yaxis()
        bottom.legend()


def perfetto(run: Run, path: str | Path) -> None:
    """Write a run as a trace for Perfetto: a slice for each step of a request, counters of queue, decode and cache.

    A microsecond of the viewer is one predicted on the wafer. The first `MOST_TRACED` requests have slices.
    """
    path = path_of(path)
    meaning = {"times": "seconds predicted on the wafer, no measured time"}
    with writing(path):
        path.write_text(json.dumps({"traceEvents": list(events(run)), "otherData": meaning}), encoding="utf-8")


def events(run: Run) -> Iterator[Event]:
    """Yield the events of a run's trace; requests that overlap lie on tracks of their own."""
    lanes: list[float] = []
    for one in [one for one in run.served if one.end is not None][:MOST_TRACED]:
        assert one.started is not None and one.first is not None and one.end is not None, "a finished request"
        start = one.request.arrival
        lane = next((lane for lane, end in enumerate(lanes) if end <= start), len(lanes))
        lanes[lane : lane + 1] = [one.end]
        about = {"input": one.request.input, "output": one.request.output, "preempted": one.preempted}
        steps = (("waits", start, one.started), ("to the first token", one.started, one.first),
                 ("decode", one.first, one.end))  # fmt: skip
        for name, begins, ends in steps:
            slice_: Event = {"ph": "X", "pid": 1, "tid": lane, "name": f"{one.request.number} {name}", "cat": name}
            yield slice_ | {"ts": 1e6 * begins, "dur": 1e6 * (ends - begins), "args": about}
    for sample in run.samples:
        values = {
            "requests": {"waiting": sample.waiting, "running": sample.running},
            "cache": {"entries": sample.entries},
        }
        for name, each in values.items():
            yield {"ph": "C", "pid": 1, "name": name, "ts": 1e6 * sample.time, "args": each}
