"""Circuits: the paths that messages take through routers, and how colours are given to them (see `count.routes`)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.repeat import comings
from wafer_triton.schedule.rounds import Exchange, Index
from wafer_triton.schedule.schedule import Schedule

NEVER = np.iinfo(np.int32).max  # stands for the first round of a route that a line does not have
MOST_ALONG = 2048  # cores of a line whose pairs are numbered by a table
# a router's sides, as bits: the core itself and the four links
CORE, EAST, WEST, SOUTH, NORTH = 1, 2, 4, 8, 16
SIDES = {"x": (EAST, WEST), "y": (SOUTH, NORTH)}


class Circuit(NamedTuple):
    """From physical position `sender` of a line to its ascending `receivers`."""

    sender: int
    receivers: tuple[int, ...]

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last router that it touches."""
        return min(self.sender, self.receivers[0]), max(self.sender, self.receivers[-1])

    def at(self, router: int, axis: str) -> tuple[int, int]:
        """Return the router's configuration: the side that words come from, and the sides that they go to."""
        up, down = SIDES[axis]
        come = CORE if router == self.sender else (down if router > self.sender else up)
        go = CORE * (router in self.receivers)
        go |= up * (router >= self.sender and router < self.receivers[-1])
        go |= down * (router <= self.sender and router > self.receivers[0])
        return come, go


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
    for send, recv in {(id(move.send), id(move.recv)): (move.send, move.recv) for move in moves}.values():
        ends = np.stack([send, recv])
        if send.min(initial=0) < 0:
            ends = ends[:, send >= 0]
        if fold > 1:
            ends //= fold
        if np.bincount(ends[0], minlength=1).max() <= 1:
            pairs.append(ends[:, ends[0] != ends[1]] if fold > 1 or (ends[0] == ends[1]).any() else ends)
        else:
            several.update(circuits_of(send, recv, fold))
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
    across = mesh.length("y" if exchange.axis == "x" else "x")
    lines = np.arange(across) if exchange.lines is None else exchange.lines
    if exchange.recv.ndim == 1:
        return [(lines, exchange.send, exchange.recv)]
    return [(lines[i : i + 1], exchange.send[i], exchange.recv[i]) for i in range(len(lines))]


def circuits_of(send: Index, recv: Index, fold: int) -> list[Circuit]:
    """Return the circuits of one line's moves; a tile that stays in its physical core needs none."""
    return _circuits_of(send.astype(np.int64).tobytes(), recv.astype(np.int64).tobytes(), fold)


@lru_cache(maxsize=1024)
def _circuits_of(send: bytes, recv: bytes, fold: int) -> list[Circuit]:
    receivers: dict[int, set[int]] = {}
    starts, ends = (np.frombuffer(each, np.int64) // fold for each in (send, recv))
    if starts.size and starts[0] >= 0 and (starts == starts[0]).all():  # one multicast
        ends = np.flatnonzero(np.bincount(ends[ends != starts[0]]))
        return [Circuit(int(starts[0]), tuple(ends.tolist()))] if ends.size else []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if start >= 0 and start != end:
            receivers.setdefault(start, set()).add(end)
    return [Circuit(start, tuple(sorted(held))) for start, held in receivers.items()]


def _steps(circuit: Circuit) -> list[Circuit]:
    """Return the circuit core by core."""
    low, high = circuit.span
    up = [Circuit(at, (at + 1,)) for at in range(circuit.sender, high)]
    return up + [Circuit(at, (at - 1,)) for at in range(circuit.sender, low, -1)]


class Numbers:
    """The numbers of circuits along lines of `along` cores, in the order of first use."""

    def __init__(self, along: int) -> None:
        self.along = along
        self.keys: list[Circuit | int] = []  # of a circuit to one receiver, sender * `along` + receiver
        self._several: dict[Circuit, int] = {}
        self._alone = np.full(min(along, MOST_ALONG) ** 2, -1, np.int64)
        self._far: dict[int, int] = {}

    def of(self, moves: Sequence[tuple[Index, Index]], fold: int, relayed: bool) -> list[Index]:
        """Return the numbers of the circuits of each line's moves; `relayed`, of every step from core to core."""
        if relayed or not moves:
            return [self._of_line(*own, fold, relayed) for own in moves]
        line = np.repeat(np.arange(len(moves)), [send.size for send, _ in moves])
        send, recv = (np.concatenate(side) for side in zip(*moves, strict=True))
        line, start, end = line[send >= 0], send[send >= 0] // fold, recv[send >= 0] // fold
        senders = np.sort(line * self.along + start)
        multicast = np.zeros(len(moves), bool)
        multicast[senders[1:][np.diff(senders) == 0] // self.along] = True
        found = list[Index]()
        for several, group in groupby(range(len(moves)), multicast.__getitem__):
            lines = list(group)
            if several:
                found += [self._of_line(*moves[own], fold) for own in lines]
                continue
            here = slice(*np.searchsorted(line, (lines[0], lines[-1] + 1)))
            pairs, goes = (start * self.along + end)[here], (start != end)[here]
            edges = np.bincount(line[here][goes] - lines[0], minlength=len(lines)).cumsum()
            found += np.split(self._of_pairs(pairs[goes]), edges[:-1])
        return found

    def _of_line(self, send: Index, recv: Index, fold: int, relayed: bool = False) -> Index:
        circuits = circuits_of(send, recv, fold)
        if relayed:
            circuits = [step for circuit in circuits for step in _steps(circuit)]
        return np.array([self._of(circuit) for circuit in circuits], np.int64)

    def _of(self, circuit: Circuit) -> int:
        if len(circuit.receivers) == 1:
            return int(self._of_pairs(np.array([circuit.sender * self.along + circuit.receivers[0]]))[0])
        if circuit not in self._several:
            self._several[circuit] = len(self.keys)
            self.keys.append(circuit)
        return self._several[circuit]

    def _of_pairs(self, pairs: Index) -> Index:
        """Return the numbers of circuits to one receiver each."""
        if self.along > MOST_ALONG:
            new = [pair for pair in dict.fromkeys(pairs.tolist()) if pair not in self._far]
            self._far.update(zip(new, range(len(self.keys), len(self.keys) + len(new)), strict=True))
            self.keys += new
            return np.array([self._far[pair] for pair in pairs.tolist()], np.int64)
        fresh = pairs[self._alone[pairs] < 0]
        if fresh.size:
            fresh = fresh[np.sort(np.unique(fresh, return_index=True)[1])]  # in the order of first use
            self._alone[fresh] = len(self.keys) + np.arange(fresh.size)
            self.keys += fresh.tolist()
        return self._alone[pairs]

    @property
    def circuits(self) -> list[Circuit]:
        """All circuits, by number."""
        return [
            key if isinstance(key, Circuit) else Circuit(key // self.along, (key % self.along,)) for key in self.keys
        ]

    @property
    def spans(self) -> Index:
        """[circuits, 2]: the first and the last router of each."""
        alone = np.array([key if isinstance(key, int) else 0 for key in self.keys], np.int64)
        spans = np.sort(np.stack(np.divmod(alone, self.along), 1), 1)
        for circuit, number in self._several.items():
            spans[number] = circuit.span
        return spans


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
    seen: set[tuple[int, ...]] = set()  # moves that have come before, in rounds with smaller numbers
    for number, round_, _, turning in comings(schedule.rounds.steps):
        for exchange in round_.exchanges:
            moves = id(exchange.send), id(exchange.recv), id(exchange.lines), id(turning)
            if exchange.axis != axis or moves in seen:
                continue
            seen.add(moves)
            for at, send, recv in groups_of(exchange, mesh):
                pattern = patterns.setdefault((send.tobytes(), recv.tobytes()), _Pattern((send, recv)))
                rounds = np.array(number)
                if turning is not None and axis == "x":
                    times = turning.first_time(at)
                    at = np.flatnonzero(times < turning.times)
                    rounds = number + turning.each * times[at]
                pattern.lines.append(at // fold_across)
                pattern.rounds.append(rounds)
    every = list(patterns.values())
    for pattern, circuits in zip(every, numbers.of([each.moves for each in every], fold, relayed), strict=True):
        pattern.circuits = circuits
    held, spans = [each for each in every if each.circuits.size], numbers.spans
    return Circuits(numbers, held, _kinds(held, spans, across), spans)


def _kinds(patterns: list[_Pattern], spans: Index, across: int) -> list[tuple[Index, Index]]:
    """Return `Circuits.kinds`; patterns of the same lines are taken together."""
    order, kinds = np.argsort(spans[:, 0], kind="stable"), list[tuple[Index, Index]]()
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
