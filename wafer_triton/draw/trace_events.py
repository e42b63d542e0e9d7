"""Events of the Trace Event format, and the trace of a schedule; `draw.trace_file` writes them.

Times are cycles predicted on the wafer: a microsecond of the viewer stands for one cycle. They are rounded to its
nanoseconds, so that slices of a track never overlap. A trace has at most `MOST` runs of rounds; where a schedule has
more, neighbours are one, so that durations still add up to its price.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import groupby
from operator import add
from typing import Any

from wafer_triton.cost.price import Cost, Interval, intervals
from wafer_triton.count.account import per_round
from wafer_triton.draw.trace import held
from wafer_triton.schedule.schedule import Schedule

MOST = 5000  # runs of rounds, each of some events: a file of a few megabytes
TRACKS = ("steps", "runs of rounds", "compute", "wait or set up", "busiest link")

Event = dict[str, Any]


def events(schedule: Schedule, name: str, most: int) -> Iterator[Event]:
    """Yield the events of a schedule's trace, whose process is called `name`."""
    yield from heads(name, f"{schedule.mesh}, predicted", enumerate(TRACKS))
    placed, cores = bounded(intervals(schedule), most), schedule.mesh.cores
    for label, alike in groupby(placed, lambda each: each.label):
        same = list(alike)
        whole = reduce(add, (each.cost for each in same))
        about = {"rounds": _rounds(same[0], same[-1]), "cores": cores} | described(whole)
        yield slice_(0, TRACKS[0], label, same[0].start, same[-1].end, about)
    sram, counts = held(schedule), per_round(schedule)
    for each in placed:
        cost, waiting = each.cost, each.cost.communication_cycles
        about = {"kind": each.kind, "rounds": _rounds(each, each), "cores": cores}
        about |= described(cost)
        yield slice_(1, TRACKS[1], each.label, each.start, each.end, about)
        yield from (
            slice_(track, TRACKS[track], each.label, start, start + cycles, about)
            for track, start, cycles in (
                (2, each.start + waiting, cost.compute_cycles),
                (3, each.start, waiting),
                (4, each.start, cost.link_cycles),
            )
            if cycles > 0
        )
        peak = sram[each.first : each.last + 1]
        fullest = peak[peak.sum(1).argmax()]
        yield counter("SRAM of a core (B)", each.start, dict(zip(schedule.buffers, fullest.tolist(), strict=True)))
        yield counter("SRAM of a core, in all (B)", each.start, {"bytes": int(fullest.sum())})
        busiest = max(counted.busiest_link_bytes for counted in counts[each.first : each.last + 1])
        yield counter("busiest link of a round (B)", each.start, {"bytes": busiest})


def bounded(placed: Sequence[Interval], most: int) -> list[Interval]:
    """Return at most `most` intervals: where there are more, neighbours are one, with the sum of their costs."""
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


def described(cost: Cost) -> Event:
    """Return the numbers of a cost, for a click on its slice."""
    bounds = {f"cycles of {name}": cycles for name, cycles in cost.bounds.items()}
    counted = {"hops": cost.hops, "stages": cost.stages, "bytes over links": cost.link_bytes}
    return counted | {"cycles": cost.cycles} | bounds


def heads(name: str, label: str, tracks: Iterable[tuple[int, str]]) -> Iterator[Event]:
    """Yield the events that name a process, label it, and name its tracks in order."""
    yield _named("process_name", {"name": name})
    yield _named("process_labels", {"labels": label})
    for number, track in tracks:
        yield _named("thread_name", {"name": track}, number)
        yield _named("thread_sort_index", {"sort_index": number}, number)


def _named(kind: str, args: Event, track: int = 0) -> Event:
    return {"ph": "M", "pid": 1, "tid": track, "name": kind, "args": args}


def slice_(track: int, category: str, name: str, start: float, end: float, about: Event) -> Event:
    """Return a slice of a track from one cycle to another."""
    first, last = round(start, 3), round(end, 3)
    return {
        "ph": "X",
        "pid": 1,
        "tid": track,
        "name": name or "round",
        "cat": category,
        "ts": first,
        "dur": round(last - first, 3),
        "args": about,
    }


def counter(name: str, cycle: float, values: dict[str, int]) -> Event:
    """Return the values of a counter from a cycle on."""
    return {"ph": "C", "pid": 1, "name": name, "ts": round(cycle, 3), "args": values}
