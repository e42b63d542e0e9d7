"""The cost of a schedule on a wafer of dies: seconds and joules, from the counts of every round.

A round takes the longer of its transfers and its products, if the products read no tile that arrives in the round;
otherwise the sum of both. Products run at the die's rate. Other local operations take no time but for the HBM bytes of
their operands and results. HBM is read and written during the rounds (slices are double-buffered). So a schedule takes
the longer of its rounds and its HBM bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wafer_triton.count.account import multiply_adds, per_round
from wafer_triton.count.runs import combines
from wafer_triton.schedule.rounds import Round
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.train.dies import Wafer


@dataclass(frozen=True)
class DieCost:
    """Seconds of the slowest die, joules and bytes of the whole mesh."""

    seconds: float
    compute: float  # seconds in products
    link: float  # seconds of transfers, hidden or not
    hbm: float  # seconds of HBM traffic, hidden or not
    joules: float
    link_bytes: float  # bytes times links
    hbm_bytes: float
    flops: float


def die_cost(schedule: Schedule, on: Wafer) -> DieCost:
    """Return the cost of one run of a schedule on a mesh of dies."""
    seconds = compute = link = flops = link_bytes = 0.0
    for round_, counts in zip(schedule.rounds, per_round(schedule), strict=True):
        macs = on_dies(schedule, round_)
        products = 2 * float(macs.max()) / on.flops
        transfer = on.transfer_seconds(counts.hops, counts.busiest_link_bytes)
        seconds += products + transfer if combines(round_) else max(products, transfer)
        compute += products
        link += transfer
        flops += 2 * float(macs.sum())
        link_bytes += counts.link_bytes
    moved = sum(buffer.bytes for buffer in schedule.buffers.values() if buffer.role in ("input", "output"))
    hbm = moved / on.hbm_bytes_per_second
    hbm_bytes = moved * schedule.mesh.cores
    joules = (
        flops / on.flops_per_joule + link_bytes * on.link_joules_per_byte + hbm_bytes * on.hbm_joules_per_byte
    )  # fmt: skip
    return DieCost(max(seconds, hbm), compute, link, hbm, joules, link_bytes, hbm_bytes, flops)


def on_dies(schedule: Schedule, round_: Round) -> np.ndarray:
    """Return multiply-adds [dies] of every die in a round; some dies may run other operations than others."""
    macs = np.zeros(schedule.mesh.cores)
    for op in round_.locals:
        dies = slice(None) if op.where is None else op.where.flat(schedule.mesh)
        macs[dies] += multiply_adds(op)
    return macs
