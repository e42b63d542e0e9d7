"""The account of a schedule: counts of its rounds on links, routers, SRAM and multipliers, without any value.

Counts follow from the walk of `wafer_triton.count.traffic` over lines, so a 720 x 720 mesh takes a second and
megabytes. On a rectangular mesh folded to its lcm grid, hops and links are counted between physical cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from operator import itemgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from wafer_triton import local
from wafer_triton.count.counts import Counts
from wafer_triton.count.runs import distinct_runs, stages
from wafer_triton.count.spans import Paths
from wafer_triton.count.traffic import Traffic
from wafer_triton.errors import MOST, ShapeError, check_counts, shown
from wafer_triton.schedule import rules, sram
from wafer_triton.schedule.repeat import Repeat, comings
from wafer_triton.schedule.rounds import Exchange, Local, Round
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.text import notebook
from wafer_triton.text.quantity import Legend, unit

Array = NDArray[np.int64]
Loads = dict[str, Array]
WAYS = {"x": ("east", "west"), "y": ("south", "north")}
_WAYS = (*WAYS["x"], *WAYS["y"])
_BUFFERS = 6  # the text of an account names six buffers and sums the others


def _fuller(own: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return max(own, other, key=lambda held: sum(held.values()))


@dataclass(frozen=True)
class Account(Counts):
    """The counts of a schedule and of its single links; they add up as `Additive` says."""

    messages: int = field(default=0, metadata=unit("messages"))  # tiles sent; a multicast counts once
    # on the directed link that carries most; accounts added up add theirs
    busiest_link_bytes: int = field(default=0, metadata=unit("B", "busiest link"))
    # critical path: the bytes on the busiest link of each round, which pass one by one
    serial_bytes: int = field(default=0, metadata=unit("B"))
    # contention: the most messages on one directed link in one round
    flows: int = field(default=0, metadata=unit("flows", join=max))
    # in the fullest round of the schedule that needs most SRAM; a region holds several blocks
    sram_by_buffer: dict[str, int] = field(default_factory=dict, metadata=unit("B", "SRAM", join=_fuller))
    launches: tuple[str, ...] = ()  # kernel launches of an emulation on a GPU, see `Program.launches`

    def __str__(self) -> str:
        """Return figures of the critical path, of the whole mesh, of its busiest link and of a core, a line each."""
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
            lines["emulation"] = f"launches: {', '.join(self.launches)}"
        return "\n".join(f"{name:<15}{figures}" for name, figures in lines.items())

    def _repr_html_(self) -> str:
        values = {number.name: getattr(self, number.name) for number in fields(Account)}
        return notebook.numbers("Account", values, Legend(Account))

    def __mul__(self, times: float) -> Self:
        if type(times) is not int or not 0 <= times <= MOST:
            raise ShapeError(f"an account {shown(times)} times: give a whole number from 0 to {MOST:,}")
        return super().__mul__(times)


@dataclass(frozen=True)
class LinkDistribution:
    """The spread of bytes over the directed links of one direction in a whole run."""

    links: int
    idle: int
    mean: float
    percentiles: dict[float, float]
    histogram: tuple[Array, NDArray[np.float64]]  # links per bin, and the edges of the bins


def account(schedule: Schedule) -> Account:
    """Count a schedule."""
    with rules.reading(schedule):
        return _account(schedule)


def _account(schedule: Schedule) -> Account:
    totals, held, runs = _Totals(schedule), sram.account(schedule), distinct_runs(schedule)
    distinct = _distinct(schedule)
    added = sum((totals.round(round_, times, turning) * times for round_, times, turning in distinct), Account())
    return replace(
        added,
        stages=sum(stages(run) * times for run, times in runs),
        hops=sum(totals.traffic.hops(run) * times for run, times in runs),
        busiest_link_bytes=max((int(load.max(initial=0)) for load in totals.loads().values()), default=0),
        sram_peak_bytes=held.peak_bytes,
        sram_by_buffer=held.by_buffer,
    )


def round_account(schedule: Schedule, round_: Round) -> Account:
    """Return the counts of one round alone, without its SRAM; its hops are the links of its longest move."""
    return _Totals(schedule).round(round_)


def per_round(schedule: Schedule) -> tuple[Account, ...]:
    """Return the `round_account` of every round in order; equal rounds share it."""
    totals = _Totals(schedule)
    counts = {round_: totals.round(round_) for round_ in set(schedule.rounds)}
    return tuple(counts[round_] for round_ in schedule.rounds)


def link_loads(schedule: Schedule, block: int = 1) -> Loads:
    """Return the bytes over each directed link in the whole run.

    The arrays are [rows, cols] for east, west, south and north, by sending core. With `block` the counts of `block` x
    `block` cores are added up, [rows / block, cols / block] rounded up.
    """
    check_counts(block=block)
    totals = _Totals(schedule)
    for each in _distinct(schedule):
        totals.round(*each)
    return totals.loads(block)


def link_distribution(
    schedule: Schedule, percentiles: Iterable[float] = (0, 25, 50, 75, 90, 99, 100), bins: int = 10
) -> dict[str, LinkDistribution]:
    """Return for each direction in use the spread of the whole run's bytes over its links.

    Raises ShapeError for `bins` that are not a positive whole number, or a percentile outside 0 to 100.
    """
    (bins,) = check_counts(bins=bins)
    percentiles = tuple(percentiles)
    for point in percentiles:
        if not isinstance(point, Real) or not 0 <= point <= 100:
            raise ShapeError(f"link_distribution: percentile {shown(point)} is not a number from 0 to 100")
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
    """Sums of rounds over the whole mesh; moves that lines share are kept once, with the bytes of every line."""

    def __init__(self, schedule: Schedule) -> None:
        self.buffers, self.mesh = schedule.buffers, schedule.mesh
        self.traffic = Traffic(schedule)
        # bytes of shared moves that each line carries in all; link by link where every line has moves of its own
        self.shared: dict[str, dict[Paths, Array]] = {way: {} for way in _WAYS}
        self.dense: Loads = {}

    def round(self, round_: Round, times: int = 1, turning: Repeat | None = None) -> Account:
        """Return the counts of a round, and add them to the totals `times`, on the rows that `turning` has then."""
        hops, messages, link_bytes, busiest, flows = 0, 0, 0, 0, 0
        parts: dict[str, list[tuple[int, Array, Array]]] = {}
        for exchange in round_.exchanges:
            size = self.buffers[exchange.src.buffer].slot_bytes(exchange.src)
            moves = self.traffic.paths(exchange.moves)
            lines = self.traffic.lines(exchange.moves, self.traffic.folds(exchange.axis)[1])
            hops = max(hops, moves.hops)
            messages += moves.messages * (1 if exchange.moves.paired else int(lines.sum()))
            for way, load in zip(WAYS[exchange.axis], self.traffic.loads_of(exchange), strict=True):
                if load.any():
                    parts.setdefault(way, []).append((size, lines, load))
                    if turning is None or exchange.axis == "y" or exchange.moves.lines is None:
                        self.add(way, size * times, moves, lines, load)
                    else:
                        more = size * times // turning.times
                        self.add(way, more, moves, *self.turned(exchange, turning, lines, load))
        for loads in parts.values():
            link_bytes += sum(size * _sum(lines, load) for size, lines, load in loads)
            busiest = max(busiest, _peak(loads))
            flows = max(flows, _peak([(1, lines, load) for _, lines, load in loads]))
        macs = sum(multiply_adds(op) for op in round_.locals) * self.mesh.fold[0] * self.mesh.fold[1]
        return Account(
            rounds=1, stages=stages([round_]), hops=hops, link_bytes=link_bytes, macs=macs, messages=messages,
            busiest_link_bytes=busiest, serial_bytes=busiest, flows=flows,
        )  # fmt: skip

    def add(self, way: str, size: int, moves: Paths, lines: Array, load: Array) -> None:
        """Add messages of `size` bytes to the totals of the links of one direction."""
        if load.ndim == 2:
            self.dense[way] = self.dense.get(way, 0) + load * size
        else:
            self.shared[way][moves] = self.shared[way].get(moves, 0) + lines * size

    def turned(self, exchange: Exchange, turning: Repeat, lines: Array, load: Array) -> tuple[Array, Array]:
        """Return an exchange's lines along x, or its loads on each line, summed over all times of a repetition."""
        if load.ndim == 1:
            return turning.over_all_times(lines), load
        return lines, np.stack([turning.over_all_times(link) for link in load.T], 1)

    def loads(self, block: int = 1) -> Loads:
        """Return bytes over every directed link so far, [rows, cols], or added up over blocks of cores."""
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


def multiply_adds(op: Local) -> int:
    """Return the multiply-adds of the products of a local operation."""
    return int(local.find(op.op).work(**op.params)[0])


def _distinct(schedule: Schedule) -> list[tuple[Round, int, Repeat | None]]:
    """Return the different rounds, how often each comes, and the `Repeat` in which its rows change."""
    times = Counter[tuple[Round, Repeat | None]]()
    # rows share a physical core by their places, and these change
    steps = schedule.rounds.steps if schedule.mesh.fold == (1, 1) else schedule.rounds
    for coming in comings(steps):
        times[coming.round, coming.turning] += coming.times
    return [(round_, count, turning) for (round_, turning), count in times.items()]


def _number(count: int, noun: str, plural: str = "") -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def _blocks(counts: Array, block: int) -> Array:
    """Return the counts, added up over `block` neighbours along every axis."""
    for axis, size in enumerate(counts.shape if block > 1 else ()):
        counts = np.add.reduceat(counts, np.arange(0, size, block), axis)
    return counts


def _outer(lines: list[Array], loads: list[Array]) -> Array:
    """Sum over patterns of lines [across] times loads [along]; in floats, which BLAS is fast at, if that is exact."""
    weights, tiles = np.array(lines), np.array(loads)
    if float(weights.sum(dtype=np.float64)) * float(tiles.max()) < 2**53:
        return (weights.T.astype(np.float64) @ tiles.astype(np.float64)).astype(np.int64)
    return weights.T @ tiles


def _sum(lines: Array, load: Array) -> int:
    return int(load.sum()) if load.ndim == 2 else int(lines.sum()) * int(load.sum())


def _peak(parts: list[tuple[int, Array, Array]]) -> int:
    """Return the largest entry of the sum of size * lines * load; arrays are whole only if parts meet on some lines."""
    if any(load.ndim == 2 for _, _, load in parts):
        whole = [size * (load if load.ndim == 2 else np.outer(lines, load)) for size, lines, load in parts]
        return int(np.sum(whole, axis=0).max())
    if len(parts) == 1 or (np.array([lines > 0 for _, lines, _ in parts]).sum(0) <= 1).all():
        return max(size * int(lines.max()) * int(load.max()) for size, lines, load in parts)
    first = parts[0][1]
    if all((lines == first).all() for _, lines, _ in parts):
        return int(first.max()) * int(np.sum([size * load for size, _, load in parts], axis=0).max())
    return int(_outer([size * lines for size, lines, _ in parts], [load for _, _, load in parts]).max())
