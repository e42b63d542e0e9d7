"""A schedule round by round: the load of its busiest link and the SRAM of its cores, as arrays and as a table.

All of it is counted from the rounds; nothing is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from wafer_triton.count.account import Account, per_round
from wafer_triton.device import Device
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.sram import spans
from wafer_triton.text.quantity import Legend, as_in
from wafer_triton.text.table import Table

EACH = ("hops", "busiest_link_bytes", "flows", "macs")  # counts of a round
ADDED = ("messages", "link_bytes")  # counts that add up over rounds
LEGEND = Legend(Account, {"sram_bytes": as_in(Device, "sram_bytes")})


@dataclass(frozen=True, eq=False)
class Trace:
    """The counts of every round of a schedule as arrays [rounds]."""

    labels: tuple[str, ...]
    axes: tuple[str, ...]  # the axes along which tiles move: "", "x", "y" or "xy"
    overlaps: NDArray[np.bool_]  # whether compute runs beside the exchanges
    counts: dict[str, NDArray[np.int64]]  # of `EACH` and `ADDED`
    sram: NDArray[np.int64]  # [rounds, buffers] bytes of a physical core; all cores hold the same


def trace(schedule: Schedule) -> Trace:
    """Return the trace of a schedule."""
    accounts = per_round(schedule)
    return Trace(
        tuple(round_.label for round_ in schedule.rounds),
        tuple("".join(sorted({exchange.axis for exchange in round_.exchanges})) for round_ in schedule.rounds),
        np.array(
            [bool(round_.exchanges) and bool(round_.locals) and round_.overlaps for round_ in schedule.rounds], bool
        ),
        {name: np.array([getattr(account, name) for account in accounts], np.int64) for name in EACH + ADDED},
        held(schedule),
    )


def rounds(schedule: Schedule) -> Table:
    """Return the rounds as a table: successive rounds alike in one row, their messages and bytes added up."""
    traced, mesh = trace(schedule), schedule.mesh
    counts = traced.counts | {"sram_bytes": traced.sram.sum(1)}
    of_a_round = (*EACH, "sram_bytes")
    alike = list(zip(traced.labels, traced.axes, *(counts[name] for name in of_a_round), strict=True))
    rows = []
    for (step, axes, *each), same in groupby(range(len(alike)), key=alike.__getitem__):
        numbers = list(same)
        span = f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
        beside = " beside compute" if traced.overlaps[numbers].all() else ""
        values = dict(zip(of_a_round, each, strict=True)) | {name: counts[name][numbers].sum() for name in ADDED}
        texts = {"rounds": span, "step": step or "-", "moves_along": axes + beside or "-"}
        rows.append(texts | {name: int(value) for name, value in values.items()})
    return Table(rows, LEGEND, title=f"{schedule.name} on mesh {mesh} of {mesh.device.name}")


def held(schedule: Schedule) -> NDArray[np.int64]:
    """Return bytes of every buffer in every round, [rounds, buffers]."""
    each, living = np.zeros((len(schedule.rounds), len(schedule.buffers)), np.int64), spans(schedule)
    for column, name in enumerate(schedule.buffers):
        if name in living:
            each[living[name].start : living[name].end + 1, column] = living[name].bytes
    return each
