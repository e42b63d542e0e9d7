"""Circuits: the paths that messages take through routers, and how colours are given to them (see `count.routes`)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wafer_triton.count.numbers import MOST_ALONG, Circuit, Numbers, circuits_of
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.repeat import Repeat, comings
from wafer_triton.schedule.rounds import Exchange, Index, Moves
from wafer_triton.schedule.schedule import Schedule

NEVER = np.iinfo(np.int32).max  # stands for the first round of a route that a line does not have


@dataclass(eq=False)
class Lines:
    """All circuits along one axis, with the round in which each first runs on each line, and its colour there."""

    circuits: dict[Circuit, int] = field(default_factory=dict)
    first: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0), np.int32))  # [circuits, lines]
    colour: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0), np.int32))  # [circuits, lines]

    def of_line(self, line: int) -> list[tuple[Circuit, int]]:
        """Return the circuits of one line and their numbers."""
        return [(circuit, number) for circuit, number in self.circuits.items() if self.first[number, line] != NEVER]


def meeting(moves: Sequence[Exchange], fold: int, along: int) -> int:
    """Return the most circuits of a mesh line that meet at a router: first fit takes this number of colours."""
    pairs, several = [np.zeros((2, 0), np.int64)], set[Circuit]()
    for move in {exchange.moves.line for exchange in moves}:  # no lines are paired
        send, recv = move.send, move.recv
        ends = np.stack([send, recv])
        unicast = np.bincount(ends[0], minlength=1).max() <= 1
        if fold > 1:
            ends //= fold
        if unicast:
            pairs.append(ends[:, ends[0] != ends[1]] if fold > 1 or (ends[0] == ends[1]).any() else ends)
        else:
            several.update(circuits_of(send, recv, fold).values())
    pairs += [np.array([[one.sender], [one.receivers[0]]]) for one in several if len(one.receivers) == 1]
    ends = np.concatenate(pairs, 1)
    codes = ends[0] * along + ends[1]
    if along <= MOST_ALONG:
        met = np.zeros(along * along, bool)
        met[codes] = True
        codes = np.flatnonzero(met)
    else:
        codes = np.unique(codes)
    ends = np.stack(np.divmod(codes, along))
    spans = [(ends.min(0), ends.max(0)), *(one.span for one in several if len(one.receivers) > 1)]
    low, high = (np.concatenate([np.atleast_1d(end) for end in side]) for side in zip(*spans, strict=True))
    begun, ended = np.bincount(low, minlength=along), np.bincount(high + 1, minlength=along + 1)[:along]
    return int((begun - ended).cumsum().max(initial=0))


def groups_of(exchange: Exchange, mesh: Mesh) -> list[tuple[Index, Index, Index]]:
    """Return the moves of an exchange as (logical lines, senders, receivers), lines that share an array together."""
    lines = _all_lines(mesh.length("y" if exchange.axis == "x" else "x")) if exchange.lines is None else exchange.lines
    if exchange.recv.ndim == 1:
        return [(lines, exchange.send, exchange.recv)]
    return [(lines[i : i + 1], exchange.send[i], exchange.recv[i]) for i in range(len(lines))]


@lru_cache(maxsize=64)
def _all_lines(across: int) -> Index:
    return np.arange(across)


@dataclass(eq=False)
class _Pattern:
    """Moves of one line, their circuits, and the lines that have them with the rounds in which they do."""

    moves: tuple[Index, Index]
    lines: list[Index] = field(default_factory=list)
    rounds: list[Index] = field(default_factory=list)
    circuits: Index = field(default_factory=lambda: np.zeros(0, np.int64))

    def first(self, across: int) -> NDArray[np.int32]:
        """Return [across]: the first round of each line that has them."""
        rounds = np.full(across, NEVER, np.int32)
        for lines, own in zip(self.lines, self.rounds, strict=True):
            np.minimum.at(rounds, lines, own)
        return rounds


@dataclass(frozen=True)
class Circuits:
    """All circuits along an axis, with the lines that have each."""

    numbers: Numbers
    patterns: list[_Pattern]
    kinds: list[tuple[Index, Index]]  # lines, and the circuits of each of them by their left ends
    spans: Index  # [circuits, 2]

    def top(self, across: int, along: int) -> Index:
        """Return how many colours suffice each router, [across, along]."""
        tops = np.zeros((across, along), np.int64)
        for members, here in self.kinds:
            tops[members] = _assigned(self.spans[here].tobytes(), along)[2]
        return tops

    def coloured(self, across: int, along: int) -> tuple[Lines, Index, Index]:
        """Return the circuits with their first rounds and colours; how many touch each router, and `top`."""
        first = np.full((len(self.spans), across), NEVER, np.int32)
        for each in self.patterns:
            first[each.circuits] = np.minimum(first[each.circuits], each.first(across))
        colour, load = np.full_like(first, -1), np.zeros((across, along), np.int64)
        for members, here in self.kinds:
            chosen, load[members], _ = _assigned(self.spans[here].tobytes(), along)
            colour[np.ix_(here, members)] = chosen[:, None]
        circuits = {circuit: number for number, circuit in enumerate(self.numbers.circuits)}
        return Lines(circuits, first, colour), load, self.top(across, along)


def collect(schedule: Schedule, axis: str, relayed: bool = False) -> Circuits:
    """Return all circuits along an axis and when they first run, uncoloured."""
    mesh = schedule.mesh
    across, along = (mesh.rows, mesh.cols) if axis == "x" else (mesh.cols, mesh.rows)
    fold, fold_across = mesh.fold[::-1] if axis == "x" else mesh.fold
    numbers = Numbers(along)
    patterns: dict[tuple[bytes, bytes], _Pattern] = {}  # by the moves of a line, which exchanges share
    seen = set[tuple[Moves, Repeat | None]]()  # moves that have come before, in rounds with smaller numbers
    for number, round_, _, turning in comings(schedule.rounds.steps):
        for exchange in round_.exchanges:
            moves = exchange.moves, turning
            if exchange.axis != axis or moves in seen:
                continue
            seen.add(moves)
            for at, send, recv in groups_of(exchange, mesh):
                key = send.tobytes(), recv.tobytes()
                pattern = patterns.get(key)
                if pattern is None:
                    pattern = patterns[key] = _Pattern((send, recv))
                rounds = np.array(number)
                if turning is not None and axis == "x":
                    times = turning.first_time(at)
                    at = np.flatnonzero(times < turning.times)
                    rounds = number + turning.each * times[at]
                pattern.lines.append(at // fold_across if fold_across > 1 else at)
                pattern.rounds.append(rounds)
    every = list(patterns.values())
    for pattern, circuits in zip(every, numbers.of([each.moves for each in every], fold, relayed), strict=True):
        pattern.circuits = circuits
    held, spans = [each for each in every if each.circuits.size], numbers.spans
    return Circuits(numbers, held, _kinds(held, spans, across), spans)


def _kinds(patterns: list[_Pattern], spans: Index, across: int) -> list[tuple[Index, Index]]:
    """Return `Circuits.kinds`; patterns of the same lines are taken together."""
    small = np.min_scalar_type(int(spans.max(initial=0)))  # small numbers are sorted sooner
    order, kinds = np.argsort(spans[:, 0].astype(small), kind="stable"), list[tuple[Index, Index]]()
    together: dict[bytes, list[Index]] = {}
    for each in patterns:
        has = np.zeros(across, bool)
        for lines in each.lines:
            has[lines] = True
        together.setdefault(has.tobytes(), []).append(each.circuits)
    circuits = [np.concatenate(each) for each in together.values()]
    held: list[list[int]] = [[] for _ in range(across)]
    for number, own in enumerate(together):
        for line in np.flatnonzero(np.frombuffer(own, bool)).tolist():
            held[line].append(number)
    alike: dict[tuple[int, ...], list[int]] = {}
    for line, of_line in enumerate(held):
        alike.setdefault(tuple(of_line), []).append(line)
    for numbers, members in alike.items():
        if numbers:
            has = np.zeros(len(spans), bool)
            has[np.concatenate([circuits[number] for number in numbers])] = True
            kinds.append((np.array(members), order[has[order]]))
    return kinds


@lru_cache(maxsize=1024)
def _assigned(circuits: bytes, along: int) -> tuple[NDArray[np.int32], Index, Index]:
    """Return the colours of a line's circuits by first fit, and each router's number of circuits and of colours."""
    spans = np.frombuffer(circuits, np.int64).reshape(-1, 2)
    if len(spans) == 1:
        there = np.zeros(along, np.int64)
        there[spans[0, 0] : spans[0, 1] + 1] = 1
        return np.zeros(1, np.int32), there, there
    chosen, free, busy, used = list[int](), list[int](), list[tuple[int, int]](), 0
    for low, high in spans.tolist():
        while busy and busy[0][0] < low:
            heapq.heappush(free, heapq.heappop(busy)[1])
        number = heapq.heappop(free) if free else used
        used = max(used, number + 1)
        heapq.heappush(busy, (high, number))
        chosen.append(number)
    ends = np.zeros((used, along + 1), np.int32)  # where circuits of each colour, of which none overlap, begin, end
    colour = np.array(chosen, np.int32)
    np.add.at(ends, (colour, spans[:, 0]), 1)
    np.add.at(ends, (colour, spans[:, 1] + 1), -1)
    there = ends[:, :-1].cumsum(1)
    return colour, there.sum(0), (there * np.arange(1, used + 1)[:, None]).max(0, initial=0)
