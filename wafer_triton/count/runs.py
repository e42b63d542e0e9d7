"""The runs of a schedule: successive rounds of one kind that go on, which are counted and priced together.

Every round is of one kind:

- "local": no exchange.
- "product": tiles move while (or before) cores multiply. Each such round waits for all its tiles, so it is its own run.
- "tiles": cores both send and receive, and none multiplies (alignment, a ring all-reduce). Each sets an exchange of
  whole tiles up and waits for it, as measured in MeshGEMM, whether it then combines the tile or not.
- "stream": no core does both, and arriving elements are combined (a tree). A round that sends on what the round before
  combined continues the stream: elements go on one by one, so the payload of all stages is on the links at once.
- "circuit": routers alone carry the data, as in a multicast. A round that forwards the tiles of the round before (2-D
  broadcast) continues the same circuit.

So elementwise work on what arrives never makes a round cheaper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

from wafer_triton import local
from wafer_triton.schedule.rounds import Round, Value
from wafer_triton.schedule.schedule import Schedule, once
from wafer_triton.schedule.steps import Loop, Ring, Step, Tree, count, flat


@once
def kind(round_: Round) -> str:
    """Return the kind of a round: "local", "product", "tiles", "stream" or "circuit"."""
    if not round_.exchanges:
        return "local"
    if not all(local.find(op.op).elementwise for op in round_.locals):
        return "product"
    if any(exchange.moves.passes_on for exchange in round_.exchanges):
        return "tiles"
    if combines(round_):
        return "stream"
    # a circuit as well; priced as tiles if messages have lines of their own, as in `collectives.transpose`
    return "tiles" if any(exchange.moves.paired for exchange in round_.exchanges) else "circuit"


@dataclass(frozen=True, eq=False)
class RoundRun(Value, Sequence[Round]):
    """The rounds of some steps, which are counted and priced together."""

    steps: tuple[Step, ...]

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """All rounds."""
        return flat(self.steps)

    @property
    def tree(self) -> Tree | None:
        """The tree that the run is, if it is one: all its rounds need not be made."""
        return self.steps[0] if len(self.steps) == 1 and isinstance(self.steps[0], Tree) else None

    @property
    def ends(self) -> tuple[Round, Round]:
        """The first round and the last."""
        return self.steps[0].ends[0], self.steps[-1].ends[1]

    @property
    def touched(self) -> frozenset[str]:
        """Names of the buffers that its rounds read or write."""
        return frozenset[str]().union(*(step.touched if isinstance(step, Round) else step.uses for step in self.steps))

    def __len__(self) -> int:
        return count(self.steps)

    @overload
    def __getitem__(self, at: int) -> Round: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Round, ...]: ...
    def __getitem__(self, at: int | slice) -> Round | tuple[Round, ...]:
        return self.rounds[at]


def runs(schedule: Schedule) -> list[RoundRun]:
    """Return the rounds of a schedule cut into runs, in order of time."""
    return [run for run, _ in _joined((RoundRun((round_,)), 1) for round_ in schedule.rounds)]


def counted_runs(schedule: Schedule) -> list[tuple[RoundRun, int]]:
    """Return the runs of a schedule in order, each with its number of repetitions.

    Of a loop only the first time, the second and the last are listed, and the second is counted for all between. All
    are listed if one run may span them. On a folded mesh whose rows turn, it depends on the time whose tiles share the
    links of a physical row; there the first time stands for all.
    """
    return _joined(_pieces(schedule.rounds.steps))


def distinct_runs(schedule: Schedule) -> list[tuple[RoundRun, int]]:
    """Return the different runs of a schedule, each with its number of repetitions."""
    found = Counter[RoundRun]()
    for run, times in counted_runs(schedule):
        found[run] += times
    return list(found.items())


def _pieces(steps: Iterable[Step]) -> Iterator[tuple[RoundRun, int]]:
    """Yield the runs of each step, not joined with other steps', with their number of repetitions."""
    for step in steps:
        if isinstance(step, Round) or (isinstance(step, Tree) and _is_one_run(step)):
            yield RoundRun((step,)), 1
        elif isinstance(step, Tree):
            yield from ((RoundRun((round_,)), 1) for round_ in step.rounds)
        elif isinstance(step, Ring):
            for number, round_ in enumerate(step.rounds[:3]):
                yield RoundRun((round_,)), 1 if number == 0 else (step.count - number + 1) // 2
        else:
            time = _one_time(step)
            spans = _goes_on(time[-1][0], time[0][0])  # one run may span the repetitions
            turns = step.rows is not None and any("x" in axes(round_) for round_ in flat(step.body))
            if spans and turns:  # whose data does not go on along the same rows
                yield from ((RoundRun((round_,)), 1) for round_ in step.rounds)
            elif step.times <= 3 or spans:
                for _ in range(step.times):
                    yield from time
            else:
                yield from time
                yield from ((run, repeats * (step.times - 2)) for run, repeats in time)
                yield from time


@once
def _is_one_run(tree: Tree) -> bool:
    """Return whether all stages of a tree are one stream; one with an operation of the user's may be none."""
    return len({moves.axis for moves in tree.moves}) == 1 and {kind(one) for one in tree.different} == {"stream"}


@once  # schedules share loops
def _one_time(loop: Loop) -> list[tuple[RoundRun, int]]:
    """Return the runs of one time of a loop."""
    return _joined(_pieces(loop.body))


def _joined(pieces: Iterable[tuple[RoundRun, int]]) -> list[tuple[RoundRun, int]]:
    """Return runs, each joined with the runs that continue it."""
    cut: list[tuple[list[RoundRun], int]] = []
    for run, repeats in pieces:
        if cut and cut[-1][1] == repeats and _goes_on(cut[-1][0][-1], run):
            cut[-1][0].append(run)
        else:
            cut.append(([run], repeats))
    return [
        (own[0] if len(own) == 1 else RoundRun(tuple(step for run in own for step in run.steps)), repeats)
        for own, repeats in cut
    ]


def _goes_on(before: RoundRun, after: RoundRun) -> bool:
    """Return whether two successive runs are one."""
    last, first = before.ends[1], after.ends[0]
    own = kind(last)
    return own == kind(first) and _follows(own, last, first)


def stages(run: RoundRun) -> int:
    """Return the number of exchanges that a run sets up in turn: one a round, or one for a whole circuit."""
    own = kind(run.ends[0])
    return 0 if own == "local" else 1 if own == "circuit" else len(run)


def axes(round_: Round) -> set[str]:
    """Return the axes along which a round moves tiles; both directions move at the same time, over different links."""
    return {exchange.axis for exchange in round_.exchanges}


def sources(round_: Round) -> set[str]:
    """Return the buffers that a round sends from."""
    return {exchange.src.buffer for exchange in round_.exchanges}


def combines(round_: Round) -> bool:
    """Return whether a local operation reads what arrives in its round."""
    arriving = {exchange.dst.buffer for exchange in round_.exchanges}
    return any(slot.buffer in arriving for op in round_.locals for slot in op.ins)


def _follows(common: str, before: Round, after: Round) -> bool:
    """Return whether two successive rounds of one kind belong to one run, whatever they are called."""
    if common in ("local", "product"):
        return False
    if common == "tiles":
        return axes(before) == axes(after) and combines(before) == combines(after)
    if common == "stream" and len(axes(before) | axes(after)) > 1:
        return False
    return sources(after) <= _brought(before)


def _brought(round_: Round) -> set[str]:
    """Return the buffers that have an arrival of a round after it, or a result of one."""
    brought = {exchange.dst.buffer for exchange in round_.exchanges}
    for op in round_.locals:
        if any(slot.buffer in brought for slot in op.ins):
            brought |= {slot.buffer for slot in op.outs}
    return brought
