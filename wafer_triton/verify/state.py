"""The buffers that a schedule is given, and findings about its cores."""

from __future__ import annotations

from collections.abc import Iterable

from wafer_triton.schedule.access import walk
from wafer_triton.schedule.rounds import Exchange
from wafer_triton.schedule.rules import Finding, title
from wafer_triton.schedule.schedule import Schedule


def core_finding(schedule: Schedule, verdict: str, number: int, core: tuple[int, int], message: str) -> Finding:
    """Return a finding about a core in round `number`; of a schedule without rounds it names none."""
    if not schedule.rounds:
        return Finding(verdict, f"{schedule.name}: core {core} {message}", None, core)
    return Finding(verdict, f"{title(schedule, number)}: core {core} {message}", number, core)


def given_buffers(schedule: Schedule, named: Iterable[str] | None) -> set[str]:
    """Return the buffers with values at the start: inputs, residents and the buffers that an intent has `named`.

    Without an intent (None) they are the outputs that are read first.
    """
    given = {name for name, buffer in schedule.buffers.items() if buffer.given}
    return given | (_read_first(schedule) if named is None else set(named))


def tiles_shape(schedule: Schedule, name: str) -> tuple[int, ...]:
    """Return the shape of a buffer on all cores: [rows, cols, *tile], with slots [rows, cols, slots, *tile]."""
    return (*schedule.mesh.shape, *schedule.buffers[name].dims)


def _read_first(schedule: Schedule) -> set[str]:
    """Return outputs that are read before they are written: they are given as well, as for an all-reduce in place."""
    written, first = set[str](), set[str]()
    for _, access in walk(schedule):
        if access.writes:
            written.add(access.slot.buffer)
        elif isinstance(access.by, Exchange) or access.slot in access.by.ins:  # not an output that is added to
            first |= {access.slot.buffer} - written
    return {name for name in first if name in schedule.buffers and schedule.buffers[name].role == "output"}
