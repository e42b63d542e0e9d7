"""Traces in the Trace Event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Times are cycles predicted on the wafer: a microsecond of the viewer stands for one cycle. A trace has at most `MOST`
runs of rounds; where a schedule has more, neighbours are one, so that durations still add up to its price.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby
from operator import add
from pathlib import Path
from typing import Any

from wafer_triton.cost.price import Cost, Interval, intervals, price
from wafer_triton.count.account import per_round
from wafer_triton.draw.figure import path_of
from wafer_triton.draw.trace import held
from wafer_triton.errors import DrawError, check_counts, check_type, writing
from wafer_triton.schedule.rounds import Schedule

MOST = 5000  # runs of rounds, each of some events: a file of a few megabytes
TRACKS = ("steps", "runs of rounds", "compute", "wait or set up", "busiest link")
MEANING = "cycles predicted on the wafer, no measured time; 1 us of the viewer is 1 cycle"

Event = dict[str, Any]


def perfetto(schedules: Schedule | Mapping[str, Schedule], path: str | Path, *, most: int = MOST) -> None:
    """Write the predicted timeline of a schedule, or of several by name, as a trace: one process for each.

    Tracks are the steps of the algorithm, its runs of rounds, compute, waiting and the busiest link; counters are SRAM
    by buffer and in all, and the bytes over the busiest link. Raises DrawError for a schedule without rounds.
    """
    check_counts(most=most)
    named = schedules if isinstance(schedules, Mapping) else {getattr(schedules, "name", ""): schedules}
    for schedule in named.values():
        check_type("perfetto: schedule", schedule, Schedule, DrawError)
        if not schedule.rounds:
            raise DrawError(f"{schedule.name}: a trace of a schedule without rounds has nothing to show; add a round")
    path = path_of(path)
    about = {
        name: {"schedule": each.name, "cycles": price(each).cycles, "device": each.mesh.device.name}
        | {"mesh": str(each.mesh)}
        for name, each in named.items()
    }
    whole = {
        "traceEvents": [
            event | {"pid": number}
            for number, (name, schedule) in enumerate(named.items(), 1)
            for event in events(schedule, name, most)
        ],
        "displayTimeUnit": "ns",
        "otherData": {"times": MEANING, "processes": about},
    }
    with writing(path):
        path.write_text(json.dumps(whole), encoding="utf-8")


def events(schedule: Schedule, name: str, most: int = MOST) -> Iterator[Event]:
    """Yield the events of a schedule's trace, whose process is called `name`."""
    yield _named("process_name", name)
    yield _named("process_labels", f"{schedule.mesh}, predicted", what="labels")
    for number, track in enumerate(TRACKS):
        yield _named("thread_name", track, number)
        yield {"ph": "M", "pid": 1, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}
    placed, cores = bounded(intervals(schedule), most), schedule.mesh.cores
    for label, alike in groupby(placed, lambda each: each.label):
        same = list(alike)
        whole = reduce(add, (each.cost for each in same))
        yield _slice(0, label, same[0].start, same[-1].end - same[0].start, _about(same[0], same[-1], whole, cores))
    sram, counts = held(schedule), per_round(schedule)
    for each in placed:
        cost, waiting = each.cost, each.cost.communication_cycles
        about = {"kind": each.kind} | _about(each, each, cost, cores)
        yield _slice(1, each.label, each.start, cost.cycles, about)
        yield from (
            _slice(track, each.label, start, cycles, about)
            for track, start, cycles in (
                (2, each.start + waiting, cost.compute_cycles),
                (3, each.start, waiting),
                (4, each.start, cost.link_cycles),
            )
            if cycles > 0
        )
        peak = sram[each.first : each.last + 1]
        fullest = peak[peak.sum(1).argmax()]
        yield _counter("SRAM of a core (B)", each.start, dict(zip(schedule.buffers, fullest.tolist(), strict=True)))
        yield _counter("SRAM of a core, in all (B)", each.start, {"bytes": int(fullest.sum())})
        busiest = max(counted.busiest_link_bytes for counted in counts[each.first : each.last + 1])
        yield _counter("busiest link of a round (B)", each.start, {"bytes": busiest})


def bounded(placed: Sequence[Interval], most: int) -> list[Interval]:
    """At most so many intervals: where there are more, neighbours are one, with the sum of their costs."""
    size = -(-len(placed) // most)
    return [_merged(placed[start : start + size]) for start in range(0, len(placed), size)] if placed else []


def _merged(neighbours: Sequence[Interval]) -> Interval:
    first, last = neighbours[0], neighbours[-1]
    if len(neighbours) == 1:
        return first
    label, kind = (
        " / ".join(dict.fromkeys(names)) for names in ([i.label for i in neighbours], [i.kind for i in neighbours])
    )
    cost = reduce(add, (each.cost for each in neighbours))
    return Interval(first.first, last.last, label, kind, first.start, cost, all(each.hidden for each in neighbours))


def _rounds(first: Interval, last: Interval) -> str:
    return f"{first.first}-{last.last}" if last.last > first.first else str(first.first)


def _about(first: Interval, last: Interval, cost: Cost, cores: int) -> Event:
    """Return the numbers of some intervals for a click on their slice."""
    bounds = {f"cycles of {name}": cycles for name, cycles in cost.bounds.items()}
    counted = {"rounds": _rounds(first, last), "cores": cores, "hops": cost.hops, "stages": cost.stages}
    return counted | {"bytes over links": cost.link_bytes, "cycles": cost.cycles} | bounds


def _named(kind: str, name: str, track: int = 0, what: str = "name") -> Event:
    return {"ph": "M", "pid": 1, "tid": track, "name": kind, "args": {what: name}}


def _slice(track: int, name: str, start: float, cycles: float, about: Event) -> Event:
    return {
        "ph": "X",
        "pid": 1,
        "tid": track,
        "name": name or "round",
        "cat": TRACKS[track],
        "ts": start,
        "dur": cycles,
        "args": about,
    }


def _counter(name: str, start: float, values: dict[str, int]) -> Event:
    return {"ph": "C", "pid": 1, "name": name, "ts": start, "args": values}
