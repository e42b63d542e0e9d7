"""How often each round of a schedule comes, and on which lines in the later times of loops that turn lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import reduce
from math import prod
from operator import add
from typing import NamedTuple

import numpy as np

from wafer_triton.schedule import steps
from wafer_triton.schedule.rounds import Index, Round
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Loop


class Turn(NamedTuple):
    """In each of `times` times line lines[i] of an axis does what line i did in the time before.

    `lines` are bytes, to compare.
    """

    lines: bytes
    times: int
    axis: str

    @staticmethod
    def of(loop: Loop) -> Turn:
        """Return the turn of a loop that has lines."""
        lines = loop.content[2]
        assert isinstance(lines, bytes)
        return Turn(lines, loop.times, loop.axis)

    @property
    def before(self) -> Index:
        """[lines]: the line that did in the time before what each line does."""
        return np.argsort(np.frombuffer(self.lines, np.int64))

    def all(self) -> Index:
        """Return for each time the line of the first time that did the same as each line, [times, lines]."""
        before = self.before
        found = [np.arange(len(before))]
        for _ in range(self.times - 1):
            found.append(found[-1][before])
        return np.array(found)


Turns = tuple[Turn, ...]  # of the loops around a round, from the inside outwards


def occurrences(schedule: Schedule) -> Counter[tuple[Round, Turns]]:
    """Return the different rounds of the first time of all loops, in order, and how often each comes in every turn."""
    found = Counter[tuple[Round, Turns]]()
    for _, step, times, turning in steps.occurrences(schedule.rounds.steps):
        turns = tuple(map(Turn.of, turning))
        for round_ in step.rounds:
            found[round_, turns] += times
    return found


def all_times(turns: Iterable[Turn]) -> int:
    """Return how often a round comes in its turns."""
    return prod(turn.times for turn in turns)


def along(axis: str, turns: Turns) -> tuple[Turns, int]:
    """Return the turns that move the lines of an axis, and how often a round comes in the others."""
    own = tuple([turn for turn in turns if turn.axis == axis])
    return own, all_times(turn for turn in turns if turn.axis != axis)


def spread(in_turn: Mapping[Turns, Index]) -> Index:
    """Return the sum over all times of weights [lines, ...] that move in their turns, by doubling the times."""
    sums = list[Index]()
    for turns, weights in in_turn.items():
        for turn in turns:
            before, back, first = turn.before, np.arange(len(weights)), weights
            weights = np.zeros_like(weights)
            for bit in f"{turn.times:b}":
                weights, back = weights + weights[back], back[back]
                if bit == "1":
                    weights, back = first + weights[before], back[before]
        sums.append(weights)
    return reduce(add, sums)
