"""Traces as files, which Perfetto (ui.perfetto.dev) and chrome://tracing open, of schedules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wafer_triton.cost.price import price
from wafer_triton.draw.figure import path_of
from wafer_triton.draw.trace_events import MOST, Event, events
from wafer_triton.errors import DrawError, check_counts, writing
from wafer_triton.schedule.schedule import Schedule

MEANING = "cycles predicted on the wafer, no measured time; 1 us of the viewer is 1 cycle"


def perfetto(subject: Schedule | Mapping[str, Schedule], path: str | Path, *, most: int = MOST) -> None:
    """Write the predicted timeline of a schedule, or of several by name, as a trace.

    A schedule is a process. Its tracks are the steps of the algorithm, its runs of rounds, compute, waiting and the
    busiest link; counters are SRAM by buffer and in all, and the bytes over the busiest link. At most `most` runs of
    rounds are shown.
    Raises DrawError for a schedule without rounds.
    """
    check_counts(most=most)
    path = path_of(path)
    named = subject if isinstance(subject, Mapping) else {subject.name: subject}
    if not named:
        raise DrawError("perfetto: no schedule is given, and a trace of none shows nothing; give one or more")
    about: dict[str, Any] = {}
    every: list[Event] = []
    for number, (name, schedule) in enumerate(named.items(), 1):
        if not schedule.rounds:
            raise DrawError(f"{schedule.name}: a trace of a schedule without rounds has nothing to show; add a round")
        mesh = schedule.mesh
        cost = price(schedule)
        about[name] = {
            "schedule": schedule.name, "cycles": cost.cycles, "tuned_cycles": cost.tuned_cycles,
            "device": mesh.device.name, "mesh": str(mesh),
        }  # fmt: skip
        every += (event | {"pid": number} for event in events(schedule, name, most))
    whole = {
        "traceEvents": every,
        "displayTimeUnit": "ns",
        "otherData": {"times": MEANING, "processes": about},
    }
    with writing(path):
        path.write_text(json.dumps(whole), encoding="utf-8")
