"""Circuits of mesh lines, and their numbers: the paths that messages take through routers (see `count.circuits`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np

from wafer_triton.schedule.rounds import Index

MOST_ALONG = 2048  # cores of a line whose pairs are numbered by a table
TOGETHER = 128  # lines that are numbered in one step: more take more memory and no less time
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


def circuits_of(send: Index, recv: Index, fold: int) -> dict[int, Circuit]:
    """Return the circuit of each logical sender of one line's moves; a tile that stays in its core needs none."""
    return _circuits_of(send.astype(np.int64).tobytes(), recv.astype(np.int64).tobytes(), fold)


@lru_cache(maxsize=1024)
def _circuits_of(send: bytes, recv: bytes, fold: int) -> dict[int, Circuit]:
    receivers: dict[int, set[int]] = {}
    senders, ends = np.frombuffer(send, np.int64), np.frombuffer(recv, np.int64) // fold
    crosses = (senders >= 0) & (senders // fold != ends)
    senders, ends = senders[crosses], ends[crosses]
    if senders.size and (senders == senders[0]).all():  # one multicast
        one = int(senders[0])
        return {one: Circuit(one // fold, tuple(np.flatnonzero(np.bincount(ends)).tolist()))}
    for sender, end in zip(senders.tolist(), ends.tolist(), strict=True):
        receivers.setdefault(sender, set()).add(end)
    return {sender: Circuit(sender // fold, tuple(sorted(held))) for sender, held in receivers.items()}


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
        if relayed:
            return [self._of_line(*own, fold, relayed) for own in moves]
        parts = (moves[start : start + TOGETHER] for start in range(0, len(moves), TOGETHER))
        return [numbers for part in parts for numbers in self._of_lines(part, fold)]

    def _of_lines(self, moves: Sequence[tuple[Index, Index]], fold: int) -> list[Index]:
        line = np.repeat(np.arange(len(moves)), [send.size for send, _ in moves])
        send, recv = (np.concatenate(side) for side in zip(*moves, strict=True))
        line, send, end = line[send >= 0], send[send >= 0], recv[send >= 0] // fold
        start, senders = send // fold, np.sort(line * self.along * fold + send)
        multicast = np.zeros(len(moves), bool)
        multicast[senders[1:][np.diff(senders) == 0] // (self.along * fold)] = True
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
        circuits = list(circuits_of(send, recv, fold).values())
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
            place = np.arange(fresh.size)
            self._alone[fresh[::-1]] = place[::-1]  # of equal pairs the first stays
            fresh = fresh[self._alone[fresh] == place]
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
