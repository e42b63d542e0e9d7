"""The account of a schedule: what its rounds do to links, routers, SRAM and multipliers, without any value.

Counts follow from index arrays per line: exchanges that move alike share one pattern, so a 720 x 720 mesh takes a
second and megabytes. On a rectangular mesh folded to its lcm grid, hops and links are those of the physical cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wafer_triton import local
from wafer_triton.schedule import sram
from wafer_triton.schedule.rounds import Exchange, Round, Schedule

Counts = NDArray[np.int64]
Loads = dict[str, Counts]
WAYS = {"x": ("east", "west"), "y": ("south", "north")}
_LARGEST = ("flows", "sram_peak_bytes")  # of runs one after another the larger counts, not the sum
_FACTS = ("sram_by_buffer", "launches")  # what is not a number


@dataclass(frozen=True)
class Account:
    """Totals over rounds; `+` adds runs one after another (of flows and SRAM the larger counts)."""

    rounds: int = 0
    stages: int = 0  # rounds with an exchange: routing stages on the critical path
    hops: int = 0  # critical path: the longest move of each round
    messages: int = 0  # tiles sent; a multicast counts once
    link_bytes: int = 0  # bytes times links crossed
    busiest_link_bytes: int = 0  # on the directed link that carries most; of runs added up, the sum
    serial_bytes: int = 0  # critical path: the bytes on the busiest link of each round, which pass one by one
    flows: int = 0  # contention: the most messages on one directed link in one round
    macs: int = 0  # multiply-adds of the busiest core
    sram_peak_bytes: int = 0  # per physical core, of the schedule that needs most; a region holds several blocks
    sram_by_buffer: dict[str, int] = field(default_factory=dict)
    launches: tuple[str, ...] = ()  # of an emulation on a GPU: its kernel launches, see `Program.launches`

    def __add__(self, other: Account) -> Account:
        fuller = max(self, other, key=lambda one: one.sram_peak_bytes)
        summed = {
            one.name: (max if one.name in _LARGEST else int.__add__)(getattr(self, one.name), getattr(other, one.name))
            for one in fields(self)
            if one.name not in _FACTS
        }
        launches = self.launches + other.launches
        return Account(**summed, sram_by_buffer=fuller.sram_by_buffer, launches=launches)

    def __mul__(self, times: int) -> Account:
        kept = {name: getattr(self, name) for name in (*_LARGEST, *_FACTS)}
        scaled = {one.name: getattr(self, one.name) * times for one in fields(self) if one.name not in kept}
        return Account(**scaled, **kept)


@dataclass(frozen=True)
class RoundAccount:
    """One round: critical hops, messages, bytes on its links, messages that share one, macs of its busiest core."""

    hops: int
    messages: int
    link_bytes: int
    busiest_link_bytes: int
    flows: int
    macs: int


@dataclass(frozen=True)
class LinkDistribution:
    """How evenly the directed links of one direction are loaded over a run, in bytes."""

    links: int
    idle: int
    mean: float
    percentiles: dict[float, float]
    histogram: tuple[Counts, NDArray[np.float64]]  # links per bin, and the edges of the bins


def account(schedule: Schedule) -> Account:
    """The totals of a schedule."""
    held = sram.account(schedule)
    total = Account(sram_peak_bytes=held.peak_bytes, sram_by_buffer=held.by_buffer)
    traffic = _Traffic(schedule)
    for round_, times in _distinct(schedule):
        one = traffic.round(round_, times)
        busy = int(bool(round_.exchanges))
        total += Account(
            1, busy, one.hops, one.messages, one.link_bytes, 0, one.busiest_link_bytes, one.flows, one.macs
        ) * times  # fmt: skip
    busiest = max((int(load.max(initial=0)) for load in traffic.loads().values()), default=0)
    return total + Account(busiest_link_bytes=busiest)


def round_account(schedule: Schedule, round_: Round) -> RoundAccount:
    """The counts of one round."""
    return _Traffic(schedule).round(round_)


def per_round(schedule: Schedule) -> tuple[RoundAccount, ...]:
    """The counts of every round in order; rounds that are one object share theirs."""
    traffic = _Traffic(schedule)
    made = {id(round_): traffic.round(round_) for round_, _ in _distinct(schedule)}
    return tuple(made[id(round_)] for round_ in schedule.rounds)


def link_loads(schedule: Schedule) -> Loads:
    """Bytes over every directed link in the whole run: [rows, cols] for east, west, south, north, by sending core."""
    traffic = _Traffic(schedule)
    for round_, times in _distinct(schedule):
        traffic.round(round_, times)
    return traffic.loads()


def link_distribution(
    schedule: Schedule, percentiles: Iterable[float] = (0, 25, 50, 75, 90, 99, 100), bins: int = 10
) -> dict[str, LinkDistribution]:
    """For each direction that is used, how the bytes of the whole run spread over its links."""
    inside: dict[str, Any] = {"east": np.s_[:, :-1], "west": np.s_[:, 1:], "south": np.s_[:-1], "north": np.s_[1:]}
    found = {}
    for way, load in link_loads(schedule).items():
        links = load[inside[way]]  # the last core of a line has no link outwards
        points = {float(one): float(np.percentile(links, one)) for one in percentiles}
        counts, edges = np.histogram(links, bins=bins, range=(0, max(1, int(links.max()))))
        found[way] = LinkDistribution(links.size, int((links == 0).sum()), float(links.mean()), points, (counts, edges))
    return found


def _distinct(schedule: Schedule) -> list[tuple[Round, int]]:
    times = Counter(map(id, schedule.rounds))
    return [(round_, times[id(round_)]) for round_ in {id(one): one for one in schedule.rounds}.values()]


class _Pattern(NamedTuple):
    """What one line of an exchange does: hops of the longest move, messages, tiles on its links up and down."""

    hops: int
    messages: int
    tiles: tuple[Counts, Counts]  # each [along]


class _Traffic:
    """Adds up rounds; the moves that all lines share are worked out once for each pattern."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.mesh = schedule.mesh
        self.patterns: dict[tuple[str, bytes, bytes], _Pattern] = {}
        # bytes of a pattern that each line carries in all, and the lines themselves where every line is different
        self.weights: dict[tuple[str, int], tuple[Counts, Counts]] = {}
        self.dense: Loads = {}

    def round(self, round_: Round, times: int = 1) -> RoundAccount:
        """The counts of a round; `times` as many go into the total."""
        hops, messages, link_bytes, busiest, flows = 0, 0, 0, 0, 0
        parts: dict[str, list[tuple[int, Counts, Counts]]] = {}
        for exchange in round_.exchanges:
            size = self.schedule.buffers[exchange.src.buffer].tile_bytes
            if exchange.recv.ndim == 1:
                pattern, lines = self.pattern(exchange), self.lines(exchange)
                hops, messages = max(hops, pattern.hops), messages + pattern.messages * int(lines.sum())
            else:
                moves, tiles = self.moves(exchange)
                hops, messages, pattern, lines = max(hops, moves.hops), messages + moves.messages, moves, tiles[0]
            for number, way in enumerate(WAYS[exchange.axis]):
                load = pattern.tiles[number] if exchange.recv.ndim == 1 else tiles[number]
                if load.any():
                    parts.setdefault(way, []).append((size, lines, load))
                    self.add(way, size * times, lines, load)
        for some in parts.values():
            link_bytes += sum(size * _sum(lines, load) for size, lines, load in some)
            busiest = max(busiest, _peak(some))
            flows = max(flows, _peak([(1, lines, load) for _, lines, load in some]))
        macs = sum(local.find(op.op).work(**op.params)[0] for op in round_.locals) * self.mesh.fold[0]
        return RoundAccount(hops, messages, link_bytes, busiest, flows, macs * self.mesh.fold[1])

    def add(self, way: str, size: int, lines: Counts, load: Counts) -> None:
        if load.ndim == 2:
            total = self.dense.setdefault(way, np.zeros_like(load))
            total += load * size
            return
        key = (way, id(load))  # loads live as long as their patterns
        if key not in self.weights:
            self.weights[key] = (np.zeros_like(lines), load)
        total = self.weights[key][0]
        total += lines * size

    def loads(self) -> Loads:
        """Bytes over every directed link so far, [rows, cols]."""
        found: Loads = {}
        for axis, ways in WAYS.items():
            for way in ways:
                some = [pair for (one, _), pair in self.weights.items() if one == way]
                total = _outer([lines for lines, _ in some], [load for _, load in some]) if some else None
                if way in self.dense:
                    total = self.dense[way] if total is None else total + self.dense[way]
                if total is not None:
                    found[way] = total if axis == "x" else total.T
        return found

    def folds(self, axis: str) -> tuple[int, int]:
        """Logical positions of a physical core along and across an axis."""
        return self.mesh.fold[::-1] if axis == "x" else self.mesh.fold

    def sides(self, axis: str) -> tuple[int, int]:
        """Physical cores along and across an axis."""
        return (self.mesh.cols, self.mesh.rows) if axis == "x" else (self.mesh.rows, self.mesh.cols)

    def lines(self, exchange: Exchange) -> Counts:
        """How many of an exchange's lines each physical line carries."""
        across, fold = self.sides(exchange.axis)[1], self.folds(exchange.axis)[1]
        if exchange.lines is None:
            return np.full(across, fold)
        return np.bincount(exchange.lines // fold, minlength=across)

    def pattern(self, exchange: Exchange) -> _Pattern:
        key = (exchange.axis, exchange.send.tobytes(), exchange.recv.tobytes())
        if key not in self.patterns:
            moves, tiles = self.moves(exchange)
            self.patterns[key] = _Pattern(moves.hops, moves.messages, (tiles[0][0], tiles[1][0]))
        return self.patterns[key]

    def moves(self, exchange: Exchange) -> tuple[_Pattern, tuple[Counts, Counts]]:
        """Hops and messages, and tiles on the links up and down: [1, along], or of each line [across, along]."""
        (along, across), (fold, fold_across) = self.sides(exchange.axis), self.folds(exchange.axis)
        send, recv = np.atleast_2d(exchange.send), np.atleast_2d(exchange.recv)
        live = send >= 0
        hops = int(np.abs(recv // fold - send // fold)[live].max(initial=0))
        senders = np.unique(np.nonzero(live)[0] * along * fold + send[live])
        tiles = []
        for way in (1, -1):
            crossing = live & (((recv // fold) - (send // fold)) * way > 0)
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
            np.add.at(steps, (line, low), 1)
            np.add.at(steps, (line, high), -1)
            load = steps[:, :along].cumsum(1)
            if exchange.recv.ndim == 2:
                whole = np.zeros((across, along), np.int64)
                lines = np.arange(len(load)) if exchange.lines is None else exchange.lines
                np.add.at(whole, lines // fold_across, load)
                load = whole
            tiles.append(load)
        return _Pattern(hops, senders.size, (tiles[0], tiles[1])), (tiles[0], tiles[1])


def _outer(lines: list[Counts], loads: list[Counts]) -> Counts:
    """Sum over patterns of lines [across] times loads [along]; in floats, which BLAS is fast at, if that is exact."""
    weights, tiles = np.array(lines), np.array(loads)
    if float(weights.sum(dtype=np.float64)) * float(tiles.max()) < 2**53:
        return (weights.T.astype(np.float64) @ tiles.astype(np.float64)).astype(np.int64)
    return weights.T @ tiles


def _sum(lines: Counts, load: Counts) -> int:
    return int(load.sum()) if load.ndim == 2 else int(lines.sum()) * int(load.sum())


def _peak(parts: list[tuple[int, Counts, Counts]]) -> int:
    """The largest entry of the sum of size * lines * load; whole arrays are made only if parts meet on some lines."""
    if any(load.ndim == 2 for _, _, load in parts):
        whole = [size * (load if load.ndim == 2 else np.outer(lines, load)) for size, lines, load in parts]
        return int(np.sum(whole, axis=0).max())
    if len(parts) == 1 or (np.array([lines > 0 for _, lines, _ in parts]).sum(0) <= 1).all():
        return max(size * int(lines.max()) * int(load.max()) for size, lines, load in parts)
    first = parts[0][1]
    if all((lines == first).all() for _, lines, _ in parts):
        return int(first.max()) * int(np.sum([size * load for size, _, load in parts], axis=0).max())
    return int(_outer([size * lines for size, lines, _ in parts], [load for _, _, load in parts]).max())
