"""The account of a schedule: what its rounds do to links, routers, SRAM and multipliers, without any value.

Counts follow from the walk of `wafer_triton.count.traffic` over lines, so a 720 x 720 mesh takes a second and
megabytes. On a rectangular mesh folded to its lcm grid, hops and links are those of the physical cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafer_triton import local, notebook
from wafer_triton.count.runs import distinct_runs
from wafer_triton.count.traffic import Moves, Traffic
from wafer_triton.errors import ShapeError, check_counts, check_type
from wafer_triton.schedule import sram
from wafer_triton.schedule.rounds import Exchange, Local, Round, Schedule

Counts = NDArray[np.int64]
Loads = dict[str, Counts]
WAYS = {"x": ("east", "west"), "y": ("south", "north")}
_WAYS = (*WAYS["x"], *WAYS["y"])
_LARGEST = ("flows", "sram_peak_bytes")  # of runs one after another the larger counts, not the sum
_BUFFERS = 6  # that the text of an account names; the others are summed
_FACTS = ("sram_by_buffer", "launches")  # what is not a number


@dataclass(frozen=True)
class Account:
    """Totals over rounds; `+` adds runs one after another (of flows and SRAM the larger counts)."""

    rounds: int = 0
    stages: int = 0  # rounds with an exchange: routing stages on the critical path
    hops: int = 0  # critical path: the longest paths of data through the runs, see `wafer_triton.count.traffic`
    messages: int = 0  # tiles sent; a multicast counts once
    link_bytes: int = 0  # bytes times links crossed
    busiest_link_bytes: int = 0  # on the directed link that carries most; of runs added up, the sum
    serial_bytes: int = 0  # critical path: the bytes on the busiest link of each round, which pass one by one
    flows: int = 0  # contention: the most messages on one directed link in one round
    macs: int = 0  # multiply-adds of a core's products, see `multiply_adds`
    sram_peak_bytes: int = 0  # per physical core, of the schedule that needs most; a region holds several blocks
    sram_by_buffer: dict[str, int] = field(default_factory=dict)
    launches: tuple[str, ...] = ()  # of an emulation on a GPU: its kernel launches, see `Program.launches`

    def __add__(self, other: Account) -> Account:
        if not isinstance(other, Account):
            return NotImplemented
        fuller = max(self, other, key=attrgetter("sram_peak_bytes"))
        numbers = [number.name for number in fields(Account) if number.name not in _FACTS]
        summed = {
            name: (max if name in _LARGEST else int.__add__)(getattr(self, name), getattr(other, name))
            for name in numbers
        }
        launches = self.launches + other.launches
        return Account(**summed, sram_by_buffer=fuller.sram_by_buffer, launches=launches)

    def __str__(self) -> str:
        """Figures of the critical path, of the whole mesh, of its busiest link and of a core, a line each."""
        buffers = sorted(self.sram_by_buffer.items(), key=itemgetter(1), reverse=True)
        held = [f"{name} {size:,} B" for name, size in buffers[:_BUFFERS]]
        if buffers[_BUFFERS:]:
            rest = sum(size for _, size in buffers[_BUFFERS:])
            held.append(f"{_number(len(buffers) - _BUFFERS, 'smaller buffer')} {rest:,} B")
        lines = {
            "critical path": f"{_number(self.rounds, 'round')}, {_number(self.stages, 'routing stage')}, "
            f"{_number(self.hops, 'hop')}, {self.serial_bytes:,} B over the busiest link of each round",
            "whole mesh": f"{_number(self.messages, 'message')}, {self.link_bytes:,} B summed over all links",
            "busiest link": f"{self.busiest_link_bytes:,} B, at most {_number(self.flows, 'message')} in a round",
            "busiest core": f"{_number(self.macs, 'multiply-add')}, SRAM peak {self.sram_peak_bytes:,} B"
            + (f": {', '.join(held)}" if held else ""),
        }
        if self.launches:
            lines["emulation"] = _number(len(self.launches), "GPU launch", "GPU launches")
        return "\n".join(f"{name:<15}{figures}" for name, figures in lines.items())

    def _repr_html_(self) -> str:
        return notebook.numbers("Account", {number.name: getattr(self, number.name) for number in fields(Account)})

    def __mul__(self, times: int) -> Account:
        if type(times) is not int or times < 0:
            raise ShapeError(f"an account {times!r} times: give a whole number of at least 0")
        kept = {name: getattr(self, name) for name in (*_LARGEST, *_FACTS)}
        scaled = {each.name: getattr(self, each.name) * times for each in fields(Account) if each.name not in kept}
        return Account(**scaled, **kept)


@dataclass(frozen=True)
class RoundAccount:
    """One round: hops of its longest move, messages, bytes on links, messages that share one, macs of a core."""

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
    check_type("account: schedule", schedule, Schedule)
    held = sram.account(schedule)
    totals = _Totals(schedule)
    total = Account(
        hops=sum(totals.traffic.hops(run) * times for run, times in distinct_runs(schedule)),
        sram_peak_bytes=held.peak_bytes,
        sram_by_buffer=held.by_buffer,
    )
    for round_, times in _distinct(schedule.rounds):
        counts = totals.round(round_, times)
        total += Account(
            rounds=1,
            stages=int(bool(round_.exchanges)),
            messages=counts.messages,
            link_bytes=counts.link_bytes,
            serial_bytes=counts.busiest_link_bytes,
            flows=counts.flows,
            macs=counts.macs,
        ) * times  # fmt: skip
    busiest = max((int(load.max(initial=0)) for load in totals.loads().values()), default=0)
    return total + Account(busiest_link_bytes=busiest)


def round_account(schedule: Schedule, round_: Round) -> RoundAccount:
    """The counts of one round."""
    return _Totals(schedule).round(round_)


def per_round(schedule: Schedule) -> tuple[RoundAccount, ...]:
    """The counts of every round in order; rounds that are one object share theirs."""
    totals = _Totals(schedule)
    counts = {id(round_): totals.round(round_) for round_, _ in _distinct(schedule.rounds)}
    return tuple(counts[id(round_)] for round_ in schedule.rounds)


def link_loads(schedule: Schedule, block: int = 1) -> Loads:
    """Bytes over every directed link in the whole run: [rows, cols] for east, west, south, north, by sending core.

    With `block` those of `block` x `block` cores are added up, [rows / block, cols / block] rounded up.
    """
    check_type("link_loads: schedule", schedule, Schedule)
    check_counts(block=block)
    totals = _Totals(schedule)
    for round_, times in _distinct(schedule.rounds):
        totals.round(round_, times)
    return totals.loads(block)


def link_distribution(
    schedule: Schedule, percentiles: Iterable[float] = (0, 25, 50, 75, 90, 99, 100), bins: int = 10
) -> dict[str, LinkDistribution]:
    """For each direction that is used, how the bytes of the whole run spread over its links."""
    inside: dict[str, Any] = {"east": np.s_[:, :-1], "west": np.s_[:, 1:], "south": np.s_[:-1], "north": np.s_[1:]}
    distribution = {}
    for way, load in link_loads(schedule).items():
        links = load[inside[way]]  # the last core of a line has no link outwards
        points = {float(point): float(np.percentile(links, point)) for point in percentiles}
        histogram = np.histogram(links, bins=bins, range=(0, max(1, int(links.max()))))
        idle = int((links == 0).sum())
        distribution[way] = LinkDistribution(links.size, idle, float(links.mean()), points, histogram)
    return distribution


class _Totals:
    """Adds up rounds over the whole mesh; moves that lines share are kept once, with the bytes of every line."""

    def __init__(self, schedule: Schedule) -> None:
        self.buffers, self.mesh = schedule.buffers, schedule.mesh
        self.traffic = Traffic(schedule)
        # bytes of shared moves that each line carries in all; link by link where every line has moves of its own
        self.shared: dict[str, dict[Moves, Counts]] = {way: {} for way in _WAYS}
        self.dense: Loads = {}

    def round(self, round_: Round, times: int = 1) -> RoundAccount:
        """The counts of a round; `times` as many go into the totals."""
        hops, messages, link_bytes, busiest, flows = 0, 0, 0, 0, 0
        parts: dict[str, list[tuple[int, Counts, Counts]]] = {}
        for exchange in round_.exchanges:
            size = self.buffers[exchange.src.buffer].slot_bytes(exchange.src)
            moves, lines = self.traffic.moves(exchange), self.lines(exchange)
            hops = max(hops, moves.hops)
            messages += moves.messages * (int(lines.sum()) if exchange.send.ndim == 1 else 1)
            for way, load in zip(WAYS[exchange.axis], self.loads_of(exchange, moves), strict=True):
                if load.any():
                    parts.setdefault(way, []).append((size, lines, load))
                    self.add(way, size * times, moves, lines, load)
        for loads in parts.values():
            link_bytes += sum(size * _sum(lines, load) for size, lines, load in loads)
            busiest = max(busiest, _peak(loads))
            flows = max(flows, _peak([(1, lines, load) for _, lines, load in loads]))
        macs = sum(multiply_adds(op) for op in round_.locals) * self.mesh.fold[0] * self.mesh.fold[1]
        return RoundAccount(hops, messages, link_bytes, busiest, flows, macs)

    def add(self, way: str, size: int, moves: Moves, lines: Counts, load: Counts) -> None:
        """Add messages of `size` bytes to the totals of the links of one direction."""
        if load.ndim == 2:
            self.dense[way] = self.dense.get(way, 0) + load * size
        else:
            self.shared[way][moves] = self.shared[way].get(moves, 0) + lines * size

    def loads(self, block: int = 1) -> Loads:
        """Bytes over every directed link so far, [rows, cols], or added up over blocks of cores."""
        loads: Loads = {}
        for axis, ways in WAYS.items():
            for number, way in enumerate(ways):
                weights = self.shared[way]
                total = _blocks(self.dense[way], block) if way in self.dense else None
                if weights:
                    lines = [_blocks(line, block) for line in weights.values()]
                    alike = _outer(lines, [_blocks(moves.loads[number, 0], block) for moves in weights])
                    total = alike if total is None else total + alike
                if total is not None:
                    loads[way] = total if axis == "x" else total.T
        return loads

    def lines(self, exchange: Exchange) -> Counts:
        """How many of an exchange's lines each physical line carries."""
        axis = exchange.axis
        across, fold = self.mesh.rows if axis == "x" else self.mesh.cols, self.traffic.folds(axis)[1]
        if exchange.lines is None:
            return np.full(across, fold)
        return np.bincount(exchange.lines // fold, minlength=across)

    def loads_of(self, exchange: Exchange, moves: Moves) -> Counts:
        """Tiles over links in either direction: [2, along] of each line, or [2, across, along] of the whole mesh."""
        if exchange.send.ndim == 1:
            return moves.loads[:, 0]
        axis = exchange.axis
        across, fold = self.mesh.rows if axis == "x" else self.mesh.cols, self.traffic.folds(axis)[1]
        lines = np.arange(len(exchange.send)) if exchange.lines is None else exchange.lines
        whole = np.zeros((2, across, moves.loads.shape[-1]), np.int64)
        for total, loads in zip(whole, moves.loads, strict=True):
            np.add.at(total, lines // fold, loads)
        return whole


def multiply_adds(op: Local) -> int:
    """The multiply-adds of a local operation: those of a product; a vector operation has elements, and none."""
    definition = local.find(op.op)
    return int(definition.work(**op.params)[0]) if definition.product is not None else 0


def _distinct(rounds: Sequence[Round]) -> list[tuple[Round, int]]:
    """Rounds that are one object once, and how often each comes."""
    times = Counter(map(id, rounds))
    return [(round_, times[id(round_)]) for round_ in {id(round_): round_ for round_ in rounds}.values()]


def _number(count: int, noun: str, plural: str = "") -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def _blocks(counts: Counts, block: int) -> Counts:
    """The counts, added up over so many neighbours along every axis."""
    for axis, size in enumerate(counts.shape if block > 1 else ()):
        counts = np.add.reduceat(counts, np.arange(0, size, block), axis)
    return counts


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
