"""Decode as a pipeline: groups of sequences that pass the regions of a placement in a circle, one token a turn.

A group of sequences passes all regions for one token each, then begins anew. Group G takes s(r, G) in region r. A
region takes one group at a time, in a fixed order. So a turn takes at least the latency of the slowest group, the sum
of its s over all regions. It takes at least as long as the busiest region needs for all groups. The period is

    max(latency(most sequences, most attention), sum over groups of max over regions s(r, G))

It is exact where groups are alike. Take a circuit in the graph of a cyclic flow shop that goes p times through the
regions and q times through the groups. It weighs at most p times the first term plus q times the second. Its mean, the
weight over p + q, is then at most the larger term, and both terms are means of circuits. Where groups differ, the
period is an upper bound (cycle means: Baccelli et al., "Synchronization and Linearity", 1992).

A period changes when a sequence comes, ends, or takes one more entry in every row of its cache. In between it is
constant, so `Pipeline` counts turns and needs no step for each token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf
from typing import Protocol

import numpy as np

END, GROW, WAKE = range(3)  # events of a turn, in the order in which they are handled at one moment
ROUNDING = 1e-9  # of a turn: events that are less apart are of one moment


class Times(Protocol):
    """Seconds and sizes that a simulation reads; `times.Priced` has them from priced schedules.

    `batch` sequences decode at a time, at most `at_once` of them in a group. All caches together hold `pool` entries a
    row; an entry is one token on each of `rows` rows. A sequence has up to `longest` tokens. Prompts that are not in
    decode yet have up to `held` tokens together.
    """

    batch: int
    at_once: int
    pool: int
    rows: int
    longest: int
    held: float

    def stages(self, tokens: int, past: int, last: bool) -> tuple[float, ...]:
        """Return seconds of each region of prefill for `tokens` tokens of a prompt, after `past` ones.

        With `last` they end the prompt, and the head takes the last one.
        """

    def hand_over(self, tokens: int) -> float:
        """Return seconds of bringing the keys and values of a prompt to the cores of decode."""

    def switch(self) -> float:
        """Return seconds of bringing all weights from one phase's place to the other's."""

    def attend(self, entries: int) -> float:
        """Return seconds by which attention of a layer to `entries` entries a row is longer than to one."""

    def latency(self, count: int, attending: float) -> float:
        """Return seconds of a group of `count` sequences through all regions, `attending` the sum of `attend`."""

    def slowest(self, count: int, attending: float) -> float:
        """Return seconds of such a group in its slowest region."""

    def read(self, count: int) -> float:
        """Return bytes of weights that a token of each of `count` sequences reads."""

    def cached(self, tokens: int) -> float:
        """Return bytes of the keys and values of `tokens` tokens."""


@dataclass(slots=True, eq=False)
class Running:
    """A sequence in decode: its slot, cache entries a row, the turn of its first step, and tokens at that turn.

    `joined` is the number of the mark at which it came, see `Pipeline`.
    """

    number: int
    slot: int
    entries: int
    start: float
    tokens: int
    attending: float  # `Times.attend` of its entries
    joined: int


class Pipeline:
    """The clock of decode: turns done, the period of one, and events by turn.

    `gaps` are arrays of pairs (seconds between two tokens of a sequence, number of such gaps). `read` is the number of
    bytes read, and `busy` the seconds with at least one sequence. Marks are the (turn, time) at which turns become
    longer or shorter, or all wait: in between time is linear, so they have the time of each token.
    """

    def __init__(self, times: Times) -> None:
        self.times = times
        self.now = 0.0
        self.paused = False  # while the weights lie for prefill
        self.turns = 0.0
        self.period = inf
        self.running: dict[int, Running] = {}  # by number
        self.gaps: list[np.ndarray] = []
        self.read = self.busy = 0.0
        groups = -(-times.batch // times.at_once)
        self._free = [list(range(group, times.batch, groups))[::-1] for group in range(groups)]
        self._counts, self._sums, self._slowest = [0] * groups, [0.0] * groups, [0.0] * groups
        self._phase, self._weights = [0.0] * groups, [0.0] * groups
        self._events: list[tuple[float, int, int, Running | None]] = []
        self._serial = count()  # of events, in whose order those of a kind are handled at one moment
        self._marks: list[tuple[float, float]] = []
        self._tokens = 0.0  # in all caches at turn 0, if all had begun then

    def advance(self, to: float) -> None:
        """Let time pass, without an event in between."""
        seconds, count = to - self.now, len(self.running)
        if seconds <= 0 or self.paused:
            return
        if count:
            self.busy += seconds
            self._turn(seconds / self.period)
        self.now = to

    def _turn(self, turns: float) -> None:
        middle = self.turns + turns / 2
        self.read += turns * (sum(self._weights) + self.times.cached(1) * (self._tokens + len(self.running) * middle))
        self.turns += turns

    def hold(self, seconds: float) -> None:
        """Let all sequences wait, while keys and values come in."""
        self._mark()
        self.now += seconds
        self._mark()

    def _mark(self) -> None:
        self._marks.append((self.turns, self.now))

    def resume(self, at: float) -> None:
        """Go on after a pause."""
        self.paused = False
        self.hold(max(0.0, at - self.now))

    def join(self, number: int, tokens: int, steps: int) -> Running:
        """Add a sequence with `tokens` tokens in its cache that ends after `steps` steps, to the smallest group."""
        group = min((g for g in range(len(self._free)) if self._free[g]), key=lambda g: self._counts[g])
        if not self._counts[group]:
            self._phase[group] = round(self.turns % 1 * 2**30) / 2**30  # so that sums of turns do not round
        phase = self._phase[group]
        start = phase + ceil(self.turns - phase - ROUNDING)  # the group's next pass
        entries = -(-(tokens + 1) // self.times.rows)
        slot, joined = self._free[group].pop(), len(self._marks)
        one = self.running[number] = Running(number, slot, entries, start, tokens, self.times.attend(entries), joined)
        self._tokens += tokens - start
        self._counts[group] += 1
        self._sums[group] += one.attending
        self._changed(group)
        self._add(start + steps, END, one)
        self._grows(one)
        return one

    def _grows(self, one: Running) -> None:
        self._add(one.start + one.entries * self.times.rows - one.tokens, GROW, one)

    def grow(self, one: Running) -> None:
        """Give a sequence one more entry a row."""
        one.entries += 1
        attending = self.times.attend(one.entries)
        group = one.slot % len(self._free)
        self._sums[group] += attending - one.attending
        one.attending = attending
        self._changed(group)
        self._grows(one)

    def leave(self, one: Running, newest: float) -> float:
        """Remove a sequence, whose later events are void; return the time of its last token.

        `newest` is the time of the token before its first step.
        """
        del self.running[one.number]
        group = one.slot % len(self._free)
        self._free[group].append(one.slot)
        self._tokens -= one.tokens - one.start
        self._counts[group] -= 1
        self._sums[group] = self._sums[group] - one.attending if self._counts[group] else 0.0
        one.slot = -1
        self._changed(group)
        return self._count_gaps(one, newest) if self.done(one) else newest

    def _count_gaps(self, one: Running, newest: float) -> float:
        """Count the gaps of a sequence that leaves, up to its last token, whose time is returned.

        Between steps with a mark in them all take the same time. A token comes before what waits at its moment.
        """
        turns, times = np.array(self._marks[one.joined :]).T
        marked = np.floor(turns - one.start + ROUNDING)  # steps before each mark
        steps = np.unique(np.clip([marked, marked + 1], 1, self.done(one)))
        ends = np.interp(one.start + steps - ROUNDING, turns, times)
        counts = np.diff(steps, prepend=0)
        self.gaps.append(np.column_stack([np.diff(ends, prepend=newest) / counts, counts]))
        return float(ends[-1])

    def done(self, one: Running) -> int:
        """Return the steps that a sequence has done."""
        return max(0, int(self.turns - one.start + ROUNDING))

    def wake(self, turn: float) -> None:
        """Add an event without a sequence at a turn."""
        self._add(turn, WAKE, None)

    def _add(self, turn: float, kind: int, one: Running | None) -> None:
        heappush(self._events, (turn, kind, next(self._serial), one))

    def _changed(self, group: int) -> None:
        self._mark()
        times, count, attending = self.times, self._counts[group], self._sums[group]
        self._slowest[group] = times.slowest(count, attending) if count else 0.0
        self._weights[group] = times.read(count) if count else 0.0
        longest = times.latency(max(self._counts), max(self._sums)) if self.running else inf
        self.period = max(longest, sum(self._slowest))

    def next(self) -> float:
        """Return the time of the next event, infinity without one."""
        events = self._events
        while events and events[0][3] is not None and events[0][3].slot < 0:
            heappop(events)
        if not events or not self.running or self.paused:
            return inf
        left = events[0][0] - self.turns
        return self.now + (left * self.period if left > ROUNDING else 0.0)

    def pop(self) -> tuple[int, Running | None]:
        """Let time pass to the next event, and return it."""
        self.advance(self.next())
        turn, kind, _, one = heappop(self._events)
        self.turns = max(self.turns, turn)  # rounding off
        return kind, one


def group_sizes(sequences: int, groups: int) -> list[int]:
    """Return how many of some sequences are in each of as many groups, as equal as they can be."""
    return [sequences // groups + (number < sequences % groups) for number in range(groups)]


def period(times: Times, groups: Iterable[Iterable[int]]) -> float:
    """Return the seconds of a turn of groups of sequences, by the cache entries a row of each."""
    held = [(len(list_), sum(map(times.attend, list_))) for list_ in map(list, groups)]
    latency = times.latency(max(count for count, _ in held), max(attending for _, attending in held))
    return max(latency, sum(times.slowest(*each) for each in held))
