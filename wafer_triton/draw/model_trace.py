"""The trace of a model's token or request: a process for all of it, one for each region, tracks of blocks and steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wafer_triton.draw.times import TRACKS, WHOLE, Timeline, TrackSpan
from wafer_triton.draw.trace_events import Event, counter, described, heads, slice_
from wafer_triton.errors import DrawError

MOST_EVENTS = 100_000  # a file of some tens of megabytes


def processes(line: Timeline) -> dict[str, dict[str, Any]]:
    """Return facts on the processes of a trace, by name."""
    facts: dict[str, dict[str, Any]] = {WHOLE: {"cycles": max(span.end for span in line.spans)}}
    for name, region in line.regions.items():
        mesh = region.mesh
        facts[name] = {"mesh": str(mesh), "origin": mesh.origin, "device": mesh.device.name, "blocks": region.blocks}
    return facts


def of_timeline(line: Timeline) -> list[Event]:
    """Return the events of a timeline; DrawError for more than `MOST_EVENTS`."""
    made = [
        event | {"pid": number}
        for number, name in enumerate([WHOLE, *line.regions], 1)
        for event in _process(line, name, [span for span in line.spans if span.place == name])
    ]
    if len(made) > MOST_EVENTS:
        raise DrawError(
            f"a trace of {len(made):,} events is more than the {MOST_EVENTS:,} that viewers take; "
            f"give a smaller number of tokens to show in blocks (most)"
        )
    return made


def _process(line: Timeline, name: str, spans: list[TrackSpan]) -> Iterator[Event]:
    """Yield the events of a place; a region has counters of its SRAM, which stays the same."""
    used, region = {span.track for span in spans}, line.regions.get(name)
    label = "predicted" if region is None else f"{region.mesh}, {region.blocks[0]} to {region.blocks[-1]}, predicted"
    yield from heads(name, label, ((number, track) for number, track in enumerate(TRACKS) if track in used))
    if region is not None:
        held = {"stays": region.resident_bytes, "passes": region.sram_peak_bytes - region.resident_bytes}
        yield counter("SRAM of a core (B)", 0.0, held)
        yield counter("SRAM of a core, in all (B)", 0.0, {"bytes": region.sram_peak_bytes})
    for span in sorted(spans, key=lambda each: (TRACKS.index(each.track), each.start)):
        about = {"cores": span.origin.cores, "runs": span.times, "cycles of a run": span.cost.cycles / span.times}
        about |= described(span.cost, span.origin.source)
        yield slice_(TRACKS.index(span.track), span.track, span.name, span.start, span.end, about)
        if span.context is not None:
            yield counter("tokens in the cache", span.end, {"tokens": span.context})
