"""A schedule round by round: the load of its busiest link and the SRAM of its cores, as a table.

All of it is counted from the rounds; nothing is run.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from wafer_triton.count.account import Account, per_round
from wafer_triton.device import Device
from wafer_triton.schedule.access import overlaps
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.sram import spans
from wafer_triton.text.quantity import Legend
from wafer_triton.text.table import Table

EACH = ("hops", "busiest_link_bytes", "flows", "macs")  # counts of a round
ADDED = ("messages", "link_bytes")  # counts that add up over rounds
LEGEND = Legend(Account, {"sram_bytes": Legend(Device).entries["sram_bytes"]})


def rounds(schedule: Schedule) -> Table:
    """Return the rounds as a table: successive rounds alike in one row, their messages and bytes added up."""
    mesh = schedule.mesh
    counted = zip(schedule.rounds, per_round(schedule), held(schedule).sum(1).tolist(), strict=True)
    each = []  # round by round: the texts and counts by which rounds are alike, and those that add up
    for number, (round_, counts, sram) in enumerate(counted):
        axes = "".join(sorted({exchange.axis for exchange in round_.exchanges}))
        alike = round_.label, axes, *(getattr(counts, name) for name in EACH), sram
        beside = bool(round_.exchanges) and bool(round_.locals) and overlaps(round_)
        each.append((alike, number, beside, [getattr(counts, name) for name in ADDED]))
    rows = []
    for (step, axes, *values), same in groupby(each, key=itemgetter(0)):
        _, numbers, beside, added = zip(*same, strict=True)
        texts = {
            "rounds": f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0]),
            "step": step or "-",
            "moves_along": axes + " beside compute" * all(beside) or "-",
        }
        sums = map(sum, zip(*added, strict=True))
        rows.append(texts | dict(zip((*EACH, "sram_bytes", *ADDED), (*values, *sums), strict=True)))
    return Table(rows, LEGEND, title=f"{schedule.name} on mesh {mesh} of {mesh.device.name}")


def held(schedule: Schedule) -> NDArray[np.int64]:
    """Return bytes of every buffer in every round, [rounds, buffers]."""
    each, living = np.zeros((len(schedule.rounds), len(schedule.buffers)), np.int64), spans(schedule)
    for column, name in enumerate(schedule.buffers):
        if name in living:
            each[living[name].start : living[name].end + 1, column] = living[name].bytes
    return each
