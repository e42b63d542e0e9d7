"""The steps of a schedule: rounds, loops of steps, rings and trees. A step defines its rounds.

So the schedule of a 720 x 720 mesh is small, and is counted, priced and checked without all of its rounds. `Rounds` is
the same steps round by round, for those who run, draw or change a schedule.

    Loop(body, 3, [1, 2, 0], "x")  # the body; with row 1 in place of row 0, 2 of 1 and 0 of 2; and once more
    Ring(c += a w, ((a, a.next), (w, w.next)), (one step along x, one along y), 3)  # three products
    Tree("add", parts of x, [0 -> 1 and 2 -> 1])  # both neighbours send their x to core 1, which adds them
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import chain, cycle, islice
from math import prod
from typing import NamedTuple, TypeAlias, overload

import numpy as np

from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ScheduleError, plain, shown
from wafer_triton.schedule.rounds import (
    Exchange,
    Index,
    Local,
    Moves,
    Round,
    Slot,
    Uses,
    Value,
    check_axis,
    frozen,
    positions,
)

Step: TypeAlias = "Round | Loop | Ring | Tree"


@dataclass(frozen=True, eq=False)
class Loop(Value):
    """`times` times the `body`; in each time line lines[i] does what line i did in the time before (None: lines stay).

    Lines of axis "x" are mesh rows, of "y" columns; `lines` names each once. Exchanges along the other axis keep their
    moves under it, but slot numbers by line go with the lines, theirs too. `Loop(body, 1)` is a group of steps, and a
    loop of no times has none.
    """

    body: tuple[Step, ...]
    times: int
    lines: Index | None = None
    axis: str = "x"

    def __post_init__(self) -> None:
        check_axis("Loop", self.axis)
        times = _whole("Loop: times", self.times, 0)
        vars(self).update(body=tuple(self.body) if times else (), times=times)
        if self.lines is not None:
            vars(self)["lines"] = frozen(positions("Loop: lines", self.lines))

    @property
    def each(self) -> int:
        """Rounds of one time."""
        return count(self.body)

    @property
    def count(self) -> int:
        """Rounds in all."""
        return self.each * self.times

    @property
    def uses(self) -> Uses:
        """The first and the last round that touches each buffer."""
        more = self.each * (self.times - 1)
        return {name: (first, last + more) for name, (first, last) in uses(self.body).items()}

    @property
    def rounds(self) -> tuple[Round, ...]:
        """All rounds; a round that does not change from time to time is one object."""
        if self.lines is None:
            return flat(self.body) * self.times
        return tuple(round_ for time in range(self.times) for round_ in flat(self.at(time)))

    @property
    def ends(self) -> tuple[Round, Round]:
        """The first round, and the last."""
        return flat(self.body)[0], flat(self.at(self.times - 1))[-1]

    def at(self, time: int) -> tuple[Step, ...]:
        """Return the steps of one time, from 0 on."""
        if self.lines is None or not time:
            return self.body
        lines = np.arange(len(self.lines))
        for _ in range(time):
            lines = self.lines[lines]
        return tuple(moved(step, lines, self.axis) for step in self.body)


@dataclass(frozen=True, eq=False)
class Ring(Value):
    """`count` times a local `product`, while its operands circle; each time is a round.

    Product t takes slot hands[i][t % 2] in place of hands[i][0], and beside it `shifts[i]` sends that slot to the other
    of the two, in the last round as well. Product 0 adds to the sums if `product` says so, later ones always.
    """

    product: Local
    hands: tuple[tuple[Slot, Slot], ...]
    shifts: tuple[Moves, ...]
    count: int
    label: str = ""

    def __post_init__(self) -> None:
        hands, shifts = tuple((first, second) for first, second in self.hands), tuple(self.shifts)
        if len(hands) != len(shifts):
            raise ScheduleError(f"Ring: {len(shifts)} shifts of {len(hands)} operands; give one for each")
        vars(self).update(hands=hands, shifts=shifts, count=_whole("Ring: count", self.count, 1))

    @property
    def rounds(self) -> tuple[Round, ...]:
        """All rounds, of which at most three differ: the first, later ones of odd and of even number."""
        first, *later = (self._round(number) for number in range(min(self.count, 3)))
        return first, *islice(cycle(later), self.count - 1)

    @property
    def ends(self) -> tuple[Round, Round]:
        """The first round, and the last."""
        return self.rounds[0], self.rounds[-1]

    def _round(self, number: int) -> Round:
        now = {hand[0]: hand[number % 2] for hand in self.hands}
        params = {**self.product.params, "add": number > 0 or bool(self.product.params.get("add"))}
        product = replace(self.product, ins=tuple(now.get(slot, slot) for slot in self.product.ins), params=params)
        ends = (hand[::-1] if number % 2 else hand for hand in self.hands)
        return Round(
            tuple(Exchange(by, *both) for by, both in zip(self.shifts, ends, strict=True)), (product,), self.label
        )

    @property
    def moves(self) -> tuple[Moves, ...]:
        """The moves of its shifts."""
        return self.shifts

    @property
    def uses(self) -> Uses:
        """The first and the last round that touches each buffer."""
        return uses(self.rounds)


@dataclass(frozen=True, eq=False)
class Stages(Value):
    """The stages of trees: the messages of each, upwards (way 0) and downwards (way 1).

    Trees of other buffers share them.
    """

    each: tuple[tuple[tuple[int, Moves], ...], ...]

    def __post_init__(self) -> None:
        for way in (way for stage in self.each for way, _ in stage if way not in (0, 1)):
            raise ScheduleError(f"Stages: way {shown(way)} is neither 0, upwards, nor 1, downwards")

    @cached_property
    def moves(self) -> tuple[Moves, ...]:
        """The different messages."""
        return tuple(dict.fromkeys(moves for stage in self.each for _, moves in stage))

    @cached_property
    def digest(self) -> bytes:
        """16 bytes in place of the content, for keys that outlive the stages."""
        each = [[(way, moves.digest) for way, moves in stage] for stage in self.each]
        return blake2b(repr(each).encode(), digest_size=16).digest()

    @property
    def used(self) -> dict[int, tuple[int, int]]:
        """The first and the last stage with messages of each way."""
        found: dict[int, tuple[int, int]] = {}
        for number, stage in enumerate(self.each):
            for way, _ in stage:
                found[way] = found.get(way, (number, 0))[0], number
        return found

    def moved(self, lines: Index, axis: str) -> Stages:
        """Return the stages with line `lines[i]` of an axis in place of line i."""
        return Stages(tuple(tuple((way, moves.moved(lines, axis)) for way, moves in stage) for stage in self.each))

    def fault(self, mesh: Mesh) -> tuple[int, str] | None:
        """Return a core that sends twice, or receives after it has sent or in the same stage, and that; else None."""
        sent = np.zeros(mesh.cores, np.int64)
        for stage in self.each:
            ends = [moves.ends(mesh) for _, moves in stage]
            for send, _ in ends:
                np.add.at(sent, send, 1)
                if (sent[send] > 1).any():
                    return int(send[sent[send] > 1].min()), "sends twice"
            for _, recv in ends:
                if sent[recv].any():
                    return int(recv[sent[recv] > 0].min()), "receives after it has sent"
        return None


class Part(NamedTuple):
    """A buffer that trees combine: the slot of the sums, a mailbox for messages of each way, and elements of a tile."""

    acc: Slot
    mail: tuple[Slot, Slot]
    size: int


@dataclass(frozen=True, eq=False)
class Tree(Value):
    """Trees that combine tiles by `op`, a local operation as "add" is; each stage is a round.

    In a stage tiles of `acc` go to a mailbox, where the receiver combines them with its own. A core sends once, after
    all that it receives.
    """

    op: str
    parts: tuple[Part, ...]
    stages: Stages
    label: str = ""

    @property
    def count(self) -> int:
        """Rounds in all."""
        return len(self.stages.each)

    @property
    def moves(self) -> tuple[Moves, ...]:
        """Its different moves."""
        return self.stages.moves

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """All rounds."""
        return tuple(map(self._round, self.stages.each))

    @cached_property
    def ends(self) -> tuple[Round, Round]:
        """The first round, and the last."""
        return self._round(self.stages.each[0]), self._round(self.stages.each[-1])

    @property
    def different(self) -> tuple[Round, ...]:
        """A round of each kind of work: with messages upwards, downwards, or both."""
        kinds = {tuple(way for way, _ in stage): stage for stage in reversed(self.stages.each)}
        return tuple(map(self._round, kinds.values()))

    def _round(self, stage: tuple[tuple[int, Moves], ...]) -> Round:
        exchanges, combined = [], []
        for acc, mail, size in self.parts:
            for way, moves in stage:
                exchanges.append(Exchange(moves, acc, mail[way]))
                combined.append(Local(self.op, (acc,), (acc, mail[way]), {"size": size}, moves.receivers))
        return Round(tuple(exchanges), tuple(combined), self.label)

    @cached_property
    def uses(self) -> Uses:
        """The first and the last round that touches each buffer."""
        found = {part.acc.buffer: (0, self.count - 1) for part in self.parts}
        return found | {part.mail[way].buffer: used for part in self.parts for way, used in self.stages.used.items()}


def _whole(what: str, number: object, least: int) -> int:
    number = plain(number)
    if type(number) is not int or number < least:
        raise ScheduleError(f"{what} = {shown(number)} must be a whole number of at least {least}")
    return number


def moved(step: Step, lines: Index, axis: str) -> Step:
    """Return a step with line `lines[i]` of an axis in place of line i; itself if nothing changes."""
    if isinstance(step, Tree):
        return replace(step, stages=step.stages.moved(lines, axis))
    if isinstance(step, Ring):
        return Loop(tuple(moved(round_, lines, axis) for round_ in step.rounds), 1)
    if isinstance(step, Loop):
        turned = step.lines
        if turned is not None and step.axis == axis:
            turned = np.empty_like(lines)
            turned[lines] = lines[step.lines]
        return Loop(tuple(moved(each, lines, axis) for each in step.body), step.times, turned, step.axis)

    def slot(one: Slot) -> Slot:
        if isinstance(one.index, np.ndarray) and one.axis != axis:
            return replace(one, index=one.index[np.argsort(lines)])
        return one

    def local(one: Local) -> Local:
        where = one.where and one.where.moved(lines, axis)
        return replace(one, outs=tuple(map(slot, one.outs)), ins=tuple(map(slot, one.ins)), where=where)

    exchanges = tuple(Exchange(one.moves.moved(lines, axis), slot(one.src), slot(one.dst)) for one in step.exchanges)
    changed = replace(step, exchanges=exchanges, locals=tuple(map(local, step.locals)))
    return step if changed == step else changed


def count(steps: Iterable[Step]) -> int:
    """Return the number of rounds."""
    return sum(step.count for step in steps)


def uses(steps: Iterable[Step]) -> Uses:
    """Return the first and the last round that touches each buffer."""
    found, number = Uses(), 0
    for step in steps:
        for name, (begin, end) in step.uses.items():
            first, _ = found.get(name, (number + begin, 0))
            found[name] = first, number + end
        number += step.count
    return found


def flat(steps: Iterable[Step]) -> tuple[Round, ...]:
    """Return all rounds in order."""
    return tuple(chain.from_iterable(step.rounds for step in steps))


def in_order(steps: Iterable[Step]) -> Iterator[Round | Ring | Tree]:
    """Yield the rounds, rings and trees of all times of loops in order."""
    for step in steps:
        if isinstance(step, Loop):
            for time in range(step.times):
                yield from in_order(step.at(time))
        else:
            yield step


def nth(steps: Iterable[Step], number: int) -> Round:
    """Return the round of a number from 0 without making the others; IndexError if there is none."""
    for step in steps:
        if number >= step.count:
            number -= step.count
        elif isinstance(step, Loop):
            return nth(step.at(number // step.each), number % step.each)
        else:
            return step.rounds[number]
    raise IndexError(number)


class Occurrence(NamedTuple):
    """A round, the number of its first time, and how often it comes."""

    number: int
    round: Round
    times: int


def distinct(steps: Iterable[Step]) -> list[Occurrence]:
    """Return the different rounds in order; a round whose lines a loop moves is the one of the first time."""
    found: dict[Round, tuple[int, int]] = {}
    for number, step, times, turning in occurrences(steps):
        for at, round_ in enumerate(step.rounds, number):
            first, before = found.get(round_, (at, 0))
            found[round_] = first, before + times * prod(loop.times for loop in turning)
    return [Occurrence(number, round_, times) for round_, (number, times) in found.items()]


def occurrences(
    steps: Iterable[Step], number: int = 0, times: int = 1, turning: tuple[Loop, ...] = ()
) -> Iterator[tuple[int, Round | Ring | Tree, int, tuple[Loop, ...]]]:
    """Yield rounds, rings and trees in order, of a loop those of its first time alone.

    Each comes as (number of its first round, step, times, turning): it runs `times` times in each time of the `turning`
    loops, those around it that turn lines, innermost first.
    """
    for step in steps:
        if not isinstance(step, Loop):
            yield number, step, times, turning
        elif step.lines is None:
            yield from occurrences(step.body, number, times * step.times, turning)
        else:
            yield from occurrences(step.body, number, times, (step, *turning))
        number += step.count


class Rounds(Sequence[Round]):
    """The rounds of some `steps` in order; nothing but their number is worked out before they are read.

    A step is a `Round`, or a `Loop`, `Ring` or `Tree`, whose `rounds` are its own in order.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        self.steps = tuple(steps)

    @cached_property
    def flat(self) -> tuple[Round, ...]:
        """All rounds."""
        return flat(self.steps)

    def distinct(self) -> list[Occurrence]:
        """Return the different rounds, each with the number of its first time and how often it comes.

        A product A B^T on 720 x 720 cores has 519,121 rounds, of which 1,443 differ. If a loop moves the lines of
        a round, it is the one of the first time, so only what does not depend on the line (moves along the other axis,
        bytes, and for rows columns) may be multiplied by `times`.
        """
        return distinct(self.steps)

    def __len__(self) -> int:
        return count(self.steps)

    def __iter__(self) -> Iterator[Round]:
        return iter(self.flat)

    @overload
    def __getitem__(self, at: int) -> Round: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Round, ...]: ...
    def __getitem__(self, at: int | slice) -> Round | tuple[Round, ...]:
        return self.flat[at]

    def __eq__(self, other: object) -> bool:
        return self.steps == other.steps if isinstance(other, Rounds) else self.flat == other

    def __hash__(self) -> int:
        return hash(self.steps)
