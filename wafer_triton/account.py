"""The account of a schedule: what its rounds do to links, routers, SRAM and multipliers, without any value.

Counts follow from index arrays per line, so a 720 x 720 mesh takes seconds and megabytes. On a rectangular mesh folded
to its lcm grid, hops and links are those of the physical cores.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from wafer_triton import local, sram
from wafer_triton.schedule.rounds import Exchange, Round, Schedule

Loads = dict[str, NDArray[np.int64]]
WAYS = {"x": ("east", "west"), "y": ("south", "north")}


@dataclass(frozen=True)
class Account:
    """Totals over rounds; `+` adds runs one after another (SRAM takes the larger)."""

    rounds: int = 0
    stages: int = 0  # rounds with an exchange: routing stages on the critical path
    hops: int = 0  # critical path: the longest move of each round
    messages: int = 0  # tiles sent; a multicast counts once
    link_bytes: int = 0  # bytes times links crossed
    busiest_link_bytes: int = 0  # on the directed link that carries most; of runs added up, the sum
    macs: int = 0  # multiply-adds of the busiest core
    sram_peak_bytes: int = 0  # per physical core
    sram_by_buffer: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: Account) -> Account:
        fuller = max(self, other, key=lambda one: one.sram_peak_bytes)
        summed = {
            one.name: getattr(self, one.name) + getattr(other, one.name)
            for one in fields(self)
            if not one.name.startswith("sram")
        }
        return Account(**summed, sram_peak_bytes=fuller.sram_peak_bytes, sram_by_buffer=fuller.sram_by_buffer)

    def __mul__(self, times: int) -> Account:
        scaled = {one.name: getattr(self, one.name) * times for one in fields(self) if not one.name.startswith("sram")}
        return Account(**scaled, sram_peak_bytes=self.sram_peak_bytes, sram_by_buffer=self.sram_by_buffer)


@dataclass(frozen=True)
class RoundAccount:
    """One round: critical hops, messages, bytes on its links and multiply-adds of its busiest core."""

    hops: int
    messages: int
    link_bytes: int
    busiest_link_bytes: int
    macs: int


def account(schedule: Schedule) -> Account:
    """The totals of a schedule."""
    held = sram.account(schedule)
    total = Account(sram_peak_bytes=held.peak_bytes, sram_by_buffer=held.by_buffer)
    for round_, times in _distinct(schedule):
        one = round_account(schedule, round_)
        total += Account(1, int(bool(round_.exchanges)), one.hops, one.messages, one.link_bytes, 0, one.macs) * times
    busiest = max((int(load.max()) for load in link_loads(schedule).values()), default=0)
    return total + Account(busiest_link_bytes=busiest)


def round_account(schedule: Schedule, round_: Round) -> RoundAccount:
    """The counts of one round."""
    mesh = schedule.mesh
    hops, messages = 0, 0
    for exchange in round_.exchanges:
        fold = mesh.fold[1 if exchange.axis == "x" else 0]
        live = exchange.send >= 0
        hops = max(hops, int(np.abs(exchange.recv // fold - exchange.send // fold)[live].max(initial=0)))
        messages += _messages(exchange, mesh.length("y" if exchange.axis == "x" else "x"))
    loads = _round_loads(schedule, round_)
    fold_work = mesh.fold[0] * mesh.fold[1]
    macs = sum(local.find(op.op).work(**op.params)[0] for op in round_.locals) * fold_work
    return RoundAccount(
        hops,
        messages,
        sum(int(np.broadcast_to(load, _links(schedule)).sum()) for load in loads.values()),
        max((int(load.max()) for load in loads.values()), default=0),
        macs,
    )


def link_loads(schedule: Schedule) -> Loads:
    """Bytes over every directed link in the whole run: [rows, cols] for east, west, south, north, by sending core."""
    total: Loads = {}
    for round_, times in _distinct(schedule):
        for way, load in _round_loads(schedule, round_).items():
            if way not in total:
                total[way] = np.zeros(_links(schedule), np.int64)
            total[way] += load * times
    return total


def _distinct(schedule: Schedule) -> list[tuple[Round, int]]:
    times = Counter(map(id, schedule.rounds))
    return [(round_, times[id(round_)]) for round_ in {id(one): one for one in schedule.rounds}.values()]


def _links(schedule: Schedule) -> tuple[int, int]:
    return schedule.mesh.rows, schedule.mesh.cols


def _messages(exchange: Exchange, across: int) -> int:
    lines = across if exchange.lines is None else len(exchange.lines)
    if exchange.send.ndim == 1:
        return len(np.unique(exchange.send)) * lines
    return sum(len(np.unique(line[line >= 0])) for line in exchange.send)


def _round_loads(schedule: Schedule, round_: Round) -> Loads:
    """Bytes on the links in one round; an axis that all lines share is kept as one line, [1, cols] or [rows, 1]."""
    loads: Loads = {}
    for exchange in round_.exchanges:
        for way, load in zip(WAYS[exchange.axis], _line_loads(schedule, exchange), strict=True):
            if load.any():
                loads[way] = loads[way] + load if way in loads else load
    return loads


def _line_loads(schedule: Schedule, exchange: Exchange) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bytes on the upward and downward links of an exchange's lines."""
    mesh, x = schedule.mesh, exchange.axis == "x"
    along, across = (mesh.cols, mesh.rows) if x else (mesh.rows, mesh.cols)
    fold, fold_across = mesh.fold[::-1] if x else mesh.fold
    size = schedule.buffers[exchange.src.buffer].tile_bytes
    send, recv = np.atleast_2d(exchange.send), np.atleast_2d(exchange.recv)
    loads = []
    for way in (1, -1):
        crossing = (send >= 0) & (((recv // fold) - (send // fold)) * way > 0)
        line, _ = np.nonzero(crossing)
        start, end = send[crossing], recv[crossing] // fold
        # a multicast crosses each link once: of every sender only the farthest receiver counts
        order = np.lexsort((end * way, start, line))
        line, start, end = line[order], start[order], end[order]
        last = np.ones(len(line), bool)
        last[:-1] = (line[1:] != line[:-1]) | (start[1:] != start[:-1])
        line, start, end = line[last], start[last] // fold, end[last]
        steps = np.zeros((len(send), along + 1), np.int64)
        low, high = (start, end) if way > 0 else (end + 1, start + 1)
        np.add.at(steps, (line, low), size)
        np.add.at(steps, (line, high), -size)
        load = steps[:, :along].cumsum(1)
        if exchange.lines is not None or len(send) > 1 or fold_across > 1:
            lines = np.arange(across * fold_across) if exchange.lines is None else exchange.lines
            whole = np.zeros((across, along), np.int64)
            np.add.at(whole, lines // fold_across, np.broadcast_to(load, (len(lines), along)))
            load = whole
        loads.append(load if x else load.T)
    return loads[0], loads[1]
