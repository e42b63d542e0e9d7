"""Repetition as data: a schedule's steps are rounds, sections of rounds, and steps that come several times.

So the schedule of a 720 x 720 mesh is small, and is counted, priced and checked without all of its rounds. `Rounds` is
the same steps round by round, for those who run, draw or change a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias, overload

import numpy as np

from wafer_triton.schedule.rounds import Exchange, Index, Local, Round, Slot

Step: TypeAlias = "Round | Section | Repeat"
Uses = Mapping[str, tuple[int, int]]  # of buffers, the first and the last round that touches them


@dataclass(frozen=True, eq=False)
class Section:
    """`count` rounds that are one run (see `wafer_triton.count.runs`); `make` makes a round when it is first read.

    `uses` are the uses of its buffers, in an order of their own. Sections with equal `moves` differ only in labels and
    in the names and sizes of buffers. The rounds `works` contain every local operation of the section.
    """

    count: int
    uses: Uses
    make: Callable[[int], Round]
    moves: Hashable
    works: tuple[int, ...] = (0,)
    _made: dict[int, Round] = field(default_factory=dict)

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """All rounds."""
        return tuple(self[number] for number in range(self.count))

    def __len__(self) -> int:
        return self.count

    @overload
    def __getitem__(self, at: int) -> Round: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Round, ...]: ...
    def __getitem__(self, at: int | slice) -> Round | tuple[Round, ...]:
        if isinstance(at, slice):
            return self.rounds[at]
        number = at % self.count
        if number not in self._made:
            self._made[number] = self.make(number)
        return self._made[number]

    def __iter__(self) -> Iterator[Round]:
        return iter(self.rounds)


@dataclass(frozen=True, eq=False)
class Repeat:
    """Steps that come `times` times.

    In each repetition mesh row `rows[i]` takes the place that mesh row i had before (None: rows stay). Exchanges along
    y are the same under this order. A fixed slot of a buffer in `slots` advances by that number in each repetition.
    """

    steps: tuple[Step, ...]
    times: int
    rows: Index | None = None
    slots: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def each(self) -> int:
        """Rounds of one time."""
        return count(self.steps)

    @property
    def count(self) -> int:
        """Rounds in all."""
        return self.each * self.times

    @cached_property
    def uses(self) -> Uses:
        """Return the first and the last round that touches each buffer."""
        more = self.each * (self.times - 1)
        return {name: (first, last + more) for name, (first, last) in uses(self.steps).items()}

    @cached_property
    def flat(self) -> tuple[Round, ...]:
        """All rounds; a round that does not change from time to time is one object."""
        once = flat(self.steps)
        if self.rows is None and not self.slots:
            return once * self.times
        rounds, rows = list(once), np.arange(0) if self.rows is None else np.arange(len(self.rows))
        for time in range(1, self.times):
            rows = rows if self.rows is None else self.rows[rows]
            more = {name: by * time for name, by in self.slots.items()}
            rounds += [_changed(round_, rows if self.rows is not None else None, more) for round_ in once]
        return tuple(rounds)

    def advanced(self, round_: Round, time: int) -> Round:
        """Return a round of the first time with its fixed slots as in another time; rows stay."""
        return _changed(round_, None, {name: by * time for name, by in self.slots.items()})

    @cached_property
    def _circles(self) -> list[Index]:
        """The rows in the order in which they follow one another."""
        assert self.rows is not None
        left, circles = set(range(len(self.rows))), []
        while left:
            circle = [min(left)]
            while (after := int(self.rows[circle[-1]])) != circle[0]:
                circle.append(after)
            left.difference_update(circle)
            circles.append(np.array(circle))
        return circles

    def first_time(self, lines: Index) -> Index:
        """Return the first repetition [rows] in which each row has the place of one of `lines`; else `times`."""
        assert self.rows is not None
        begins = np.zeros(len(self.rows), bool)
        begins[lines] = True
        found = np.full(len(self.rows), self.times)
        for circle in self._circles:
            marked = np.flatnonzero(begins[circle])
            if marked.size:
                place = np.arange(len(circle))
                last = np.searchsorted(marked, place, "right") - 1  # the line before each place, or round the circle
                found[circle] = (place - marked[last]) % len(circle)
        return np.minimum(found, self.times)

    def over_all_times(self, counts: Index) -> Index:
        """[rows]: the sum over all times of the counts of the rows that each row stands for."""
        assert self.rows is not None
        total = np.zeros_like(counts)
        for circle in self._circles:
            whole, rest = divmod(self.times, len(circle))
            own = counts[circle]
            sums = np.concatenate([[0], np.cumsum(np.concatenate([own, own]))])
            place = np.arange(len(circle)) + len(circle) + 1
            total[circle] = whole * own.sum() + sums[place] - sums[place - rest]
        return total


def count(steps: Iterable[Step]) -> int:
    """Return the number of rounds."""
    return sum(step.count if isinstance(step, Section | Repeat) else 1 for step in steps)


def uses(steps: Iterable[Step]) -> dict[str, tuple[int, int]]:
    """Return the first and the last round that touches each buffer."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    number = 0
    for step in steps:
        if isinstance(step, Section | Repeat):
            for name, (begin, end) in step.uses.items():
                first.setdefault(name, number + begin)
                last[name] = number + end
            number += step.count
        else:
            for name in step.touched:
                first.setdefault(name, number)
                last[name] = number
            number += 1
    return {name: (number, last[name]) for name, number in first.items()}


def flat(steps: Iterable[Step]) -> tuple[Round, ...]:
    """Return all rounds in order."""
    rounds: list[Round] = []
    for step in steps:
        if isinstance(step, Section):
            rounds += step.rounds
        elif isinstance(step, Repeat):
            rounds += step.flat
        else:
            rounds.append(step)
    return tuple(rounds)


class Coming(NamedTuple):
    """A round, the number of its first coming, how often it comes, and the `Repeat` in which its rows change."""

    number: int
    round: Round
    times: int
    turning: Repeat | None


def comings(steps: Iterable[Step]) -> Iterator[Coming]:
    """Return every round of the first time of each repetition; a round may come at several places."""
    return _comings(steps, 0, 1, None)


def _comings(steps: Iterable[Step], number: int, times: int, turning: Repeat | None) -> Iterator[Coming]:
    for step in steps:
        if isinstance(step, Section):
            for more, round_ in enumerate(step.rounds):
                yield Coming(number + more, round_, times, turning)
            number += step.count
        elif isinstance(step, Repeat):
            own = turning if step.rows is None else step
            yield from _comings(step.steps, number, times * step.times, own)
            number += step.count
        else:
            yield Coming(number, step, times, turning)
            number += 1


class Rounds(Sequence[Round]):
    """The rounds of some steps in order; nothing but their number is worked out before they are read."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.steps = tuple(steps)

    @cached_property
    def flat(self) -> tuple[Round, ...]:
        """All rounds."""
        return flat(self.steps)

    @cached_property
    def count(self) -> int:  # type: ignore[override]
        """Their number."""
        return count(self.steps)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Round]:
        return iter(self.flat)

    @overload
    def __getitem__(self, at: int) -> Round: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Round, ...]: ...
    def __getitem__(self, at: int | slice) -> Round | tuple[Round, ...]:
        return self.flat[at]

    def __eq__(self, other: object) -> bool:
        return self.flat == (other.flat if isinstance(other, Rounds) else other)

    def __hash__(self) -> int:
        return hash(self.steps)


def _changed(round_: Round, rows: Index | None, slots: Mapping[str, int]) -> Round:
    """Return a round with mesh row `rows[i]` in place of row i, and slots further on; itself if nothing changes."""

    def slot(one: Slot) -> Slot:
        index = one.index
        if isinstance(index, int) and one.buffer in slots:
            return replace(one, index=index + slots[one.buffer])
        if rows is not None and isinstance(index, np.ndarray) and one.axis == "y":
            return replace(one, index=index[np.argsort(rows)])
        return one

    def exchange(one: Exchange) -> Exchange:
        return Exchange(one.moves if rows is None else one.moves.moved(rows), slot(one.src), slot(one.dst))

    def local(one: Local) -> Local:
        where = one.where if one.where is None or rows is None else one.where.moved(rows)
        return replace(one, outs=tuple(map(slot, one.outs)), ins=tuple(map(slot, one.ins)), where=where)

    exchanges, locals_ = tuple(map(exchange, round_.exchanges)), tuple(map(local, round_.locals))
    changed = replace(round_, exchanges=exchanges, locals=locals_)
    return round_ if changed == round_ else changed
