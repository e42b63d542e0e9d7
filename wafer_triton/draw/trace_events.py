"""Events of the Trace Event format, and the trace of a schedule; `draw.trace_file` writes them.

Times are cycles predicted on the wafer: a microsecond of the viewer stands for one cycle. They are rounded to its
nanoseconds, so that slices of a track never overlap. A trace has at most `MOST` runs of rounds; where a schedule has
more, neighbours are one, so that durations still add up to its price.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import groupby
from operator import add
from typing import Any

from wafer_triton.cost.price import Cost, Interval, intervals
from wafer_triton.count.account import per_round
from wafer_triton.draw.trace import held
from wafer_triton.schedule.schedule import Schedule

MOST = 5000  # runs of rounds, each of some events: a file of a few megabytes
BARS = ("compute", "wait or set up", "busiest link")  # of a run of rounds
TRACKS = ("steps", "runs of rounds", *BARS)

Event = dict[str, Any]


def events(schedule: Schedule, name: str, most: int) -> Iterator[Event]:
    """Yield the events of a schedule's trace, whose process is called `name`."""
    yield _named("process_name", {"name": name})
    yield _named("process_labels", {"labels": f"{schedule.mesh}, predicted"})
    for number, track in enumerate(TRACKS):
        yield _named("thread_name", {"name": track}, number)
        yield _named("thread_sort_index", {"sort_index": number}, number)
    placed, cores = bounded(intervals(schedule), most), schedule.mesh.cores
    for label, alike in groupby(placed, lambda each: each.label):
        same = list(alike)
        whole = reduce(add, (each.cost for each in same))
        about = {"rounds": _rounds(same[0], same[-1]), "cores": cores} | described(whole)
        yield slice_("steps", label, same[0].start, same[-1].end, about)
    sram, counts = held(schedule), per_round(schedule)
    for each in placed:
        about = {"kind": each.kind, "rounds": _rounds(each, each), "cores": cores} | described(each.cost)
        yield slice_("runs of rounds", each.label, each.start, each.end, about)
        for track, (start, cycles) in bars(each).items():
            yield slice_(track, each.label, start, start + cycles, about)
        peak = sram[each.first : each.last + 1]
        fullest = peak[peak.sum(1).argmax()]
        yield counter("SRAM of a core (B)", each.start, dict(zip(schedule.buffers, fullest.tolist(), strict=True)))
        yield counter("SRAM of a core, in all (B)", each.start, {"bytes": int(fullest.sum())})
        busiest = max(counted.busiest_link_bytes for counted in counts[each.first : each.last + 1])
        yield counter("busiest link of a round (B)", each.start, {"bytes": busiest})


def bars(of: Interval) -> dict[str, tuple[float, float]]:
    """Return when each of `BARS` begins and the cycles that it takes, if any; computation follows waiting."""
    cost, waiting = of.cost, of.cost.communication_cycles
    spans = (of.start + waiting, cost.compute_cycles), (of.start, waiting), (of.start, cost.link_cycles)
    return {name: span for name, span in zip(BARS, spans, strict=True) if span[1] > 0}


def bounded(placed: Sequence[Interval], most: int) -> list[Interval]:
    """Return at most `most` intervals: where there are more, neighbours are one, with the sum of their costs."""
    size = -(-len(placed) // most)
    return [_merged(placed[start : start + size]) for start in range(0, len(placed), size)]


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


def described(cost: Cost) -> Event:
    """Return the numbers of a cost, for a click on its slice."""
    bounds = {f"cycles of {name}": cycles for name, cycles in cost.bounds.items()}
    counted = {"hops": cost.hops, "stages": cost.stages, "bytes over links": cost.link_bytes}
    return counted | {"cycles": cost.cycles} | bounds


def _named(kind: str, args: Event, track: int = 0) -> Event:
    return {"ph": "M", "pid": 1, "tid": track, "name": kind, "args": args}


def slice_(track: str, name: str, start: float, end: float, about: Event) -> Event:
    """Return a slice of one of `TRACKS` from one cycle to another."""
    first, last = round(start, 3), round(end, 3)
    return {
        "ph": "X",
        "pid": 1,
        "tid": TRACKS.index(track),
        "name": name or "round",
        "cat": track,
        "ts": first,
        "dur": round(last - first, 3),
        "args": about,
    }


def counter(name: str, cycle: float, values: dict[str, int]) -> Event:
    """Return the values of a counter from a cycle on."""
    return {"ph": "C", "pid": 1, "name": name, "ts": round(cycle, 3), "args": values}
