"""The runs of a schedule: successive rounds of one kind that go on, which are counted and priced together.

Every round is of one kind, and goes on from the run before it, if that is of the same kind, on a condition:

- local: no exchange. It is a run of its own.
- product: tiles move while (or before) cores multiply. Each such round waits for all its tiles, so it is its own run.
- tiles: cores both send and receive, and none multiplies (alignment, a ring all-reduce). Each sets an exchange of whole
  tiles up and waits for it, as measured in MeshGEMM, whether it then combines the tile or not. Such rounds go on while
  tiles move along the same axes, and all are combined or none; so the two halves of a ring all-reduce are two runs, as
  in its closed form (HPDC'24).
- stream: no core does both, and arriving elements are combined (a tree). It goes on along one axis, if its senders send
  on what came to them: elements go on one by one, so the payload of all stages is on the links at once.
- circuit: routers alone carry the data, as in a multicast. It goes on, as in a 2-D broadcast, if its senders send on
  what came to them.

Senders send on what came to them if each sends data of the run: what came to its slot, or was computed from that; and
as in a 2-D broadcast some may send what they have sent before, but not all. So elementwise work on what arrives never
makes a round cheaper, and buffers' names are of no account.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wafer_triton import local
from wafer_triton.count.spans import Sides, joined
from wafer_triton.schedule.access import Access, acts, written
from wafer_triton.schedule.rounds import Moves, Round, Slot, Value, once
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Loop, Ring, Stages, Step, Tree, count, flat


@once
def kind(round_: Round) -> str:
    """Return the kind of a round: "local", "product", "tiles", "stream" or "circuit"."""
    if not round_.exchanges:
        return "local"
    if not all(local.find(op.op).elementwise for op in round_.locals):
        return "product"
    if any(moves.passes_on for moves in round_.moves):  # as in an alignment, whose many moves need not be joined
        return "tiles"
    between: dict[tuple[str, Slot, Slot], list[Moves]] = {}
    for one in round_.exchanges:
        if one.moves.send.size:
            between.setdefault((one.axis, one.src, one.dst), []).append(one.moves)
    together = [joined(moves, _named_lines(round_.moves)) for moves in between.values()]
    if any(moves.passes_on for moves in together):
        return "tiles"
    if combines(round_):
        return "stream"
    # a circuit as well; priced as tiles if lines have moves of their own, as in `collectives.transpose`
    return "tiles" if any(moves.paired for moves in together) else "circuit"


@dataclass(frozen=True, eq=False)
class RoundRun(Value):
    """The rounds of some steps, which are counted and priced together."""

    steps: tuple[Round | Ring | Tree, ...]

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
        return frozenset[str]().union(*(step.uses for step in self.steps))

    @property
    def written(self) -> frozenset[str]:
        """Names of the buffers that its rounds write, or of a tree touch."""
        return frozenset[str]().union(*(written(step) if isinstance(step, Round) else step.uses for step in self.steps))

    def __len__(self) -> int:
        return count(self.steps)

    def __iter__(self) -> Iterator[Round]:
        return iter(self.rounds)


def runs(schedule: Schedule) -> list[RoundRun]:
    """Return the rounds of a schedule cut into runs, in order of time."""
    return [run for run, _ in _Cutter(schedule).joined((RoundRun((round_,)), 1) for round_ in schedule.rounds)]


def counted_runs(schedule: Schedule) -> list[tuple[RoundRun, int]]:
    """Return the runs of a schedule in order, each with its number of repetitions.

    Of a loop only the first time, the second and the last are listed, and the second is counted for all between. All
    are listed if one run may span them. On a folded mesh it depends on the time which of a loop's turning lines share a
    physical one: all times are listed of up to `FOLDED_ROUNDS` rounds, of more the first stands for all.
    """
    cutter = _Cutter(schedule)
    return cutter.joined(cutter.pieces(schedule.rounds.steps))


def distinct_runs(schedule: Schedule) -> list[tuple[RoundRun, int]]:
    """Return the different runs of a schedule, each with its number of repetitions."""
    found = Counter[RoundRun]()
    for run, times in counted_runs(schedule):
        found[run] += times
    return list(found.items())


FOLDED_ROUNDS = 512  # take 0.3 s; from 4 x 6 cores on the first time of A B^T has the words of all
SENT, CAME = 1, 2  # a slot's data is that of a run, as it was sent in it, or as it came or was computed from such data
Cells = dict[str, NDArray[np.int8]]  # of buffers, [cores * slots]: 0, `SENT` or `CAME`


@dataclass
class _Joined:
    """Runs that are one, how often it comes, and the data of the first `carried` of them."""

    runs: list[RoundRun]
    repeats: int = 1
    data: Cells = field(default_factory=Cells)
    carried: int = 0


class _Cutter:
    """Cuts the rounds of a schedule into runs."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def pieces(self, steps: Iterable[Step]) -> Iterator[tuple[RoundRun, int]]:
        """Yield the runs of each step, not joined with other steps', with their number of repetitions."""
        for step in steps:
            if isinstance(step, Tree) and _is_one_run(step):
                yield RoundRun((step,)), 1
            elif isinstance(step, Ring) and kind(step.ends[0]) == "product":
                for number, round_ in enumerate(step.rounds[:3]):
                    yield RoundRun((round_,)), 1 if number == 0 else (step.count - number + 1) // 2
            elif not isinstance(step, Loop):
                yield from ((RoundRun((round_,)), 1) for round_ in step.rounds)
            elif step.count:
                fold = 1 if step.lines is None else Sides.of(self.schedule.mesh, step.axis).fold_across
                if fold > 1 and step.count <= FOLDED_ROUNDS:
                    for number in range(step.times):
                        yield from self.pieces(step.at(number))
                    continue
                time = self.joined(self.pieces(step.body))
                spans = self.goes_on(_Joined([time[-1][0]]), time[0][0])  # one run may span the repetitions
                turns = step.lines is not None and any(step.axis in axes(round_) for round_ in flat(step.body))
                if spans and turns:  # whose data does not go on along the same lines
                    yield from ((RoundRun((round_,)), 1) for round_ in step.rounds)
                elif step.times <= 3 or spans:
                    for _ in range(step.times):
                        yield from time
                else:
                    yield from time
                    yield from ((run, repeats * (step.times - 2)) for run, repeats in time)
                    yield from time

    def joined(self, pieces: Iterable[tuple[RoundRun, int]]) -> list[tuple[RoundRun, int]]:
        """Return runs, each joined with the runs that continue it."""
        cut: list[_Joined] = []
        for run, repeats in pieces:
            if cut and cut[-1].repeats == repeats and self.goes_on(cut[-1], run):
                cut[-1].runs.append(run)
            else:
                if cut:
                    cut[-1].data.clear()
                cut.append(_Joined([run], repeats))
        return [
            (
                one.runs[0] if len(one.runs) == 1 else RoundRun(tuple(step for run in one.runs for step in run.steps)),
                one.repeats,
            )
            for one in cut
        ]

    def goes_on(self, before: _Joined, after: RoundRun) -> bool:
        """Return whether a run continues those before it."""
        last, first = before.runs[-1].ends[1], after.ends[0]
        common = kind(last)
        if common != kind(first) or common in ("local", "product"):
            return False
        if common == "tiles":
            return axes(last) == axes(first) and combines(last) == combines(first)
        if common == "stream" and len(axes(last) | axes(first)) > 1:
            return False
        written = frozenset[str]().union(*(run.written for run in before.runs))
        if written.isdisjoint(sources(first)):  # as in an all-gather, whose buffers of many slots need not be followed
            return False
        for run in before.runs[before.carried :]:
            for round_ in run:
                self.carry(before.data, round_)
        before.carried = len(before.runs)
        sent = [self.of(before.data, access).ravel() for access in acts(first)[0].reads]
        held = np.concatenate(sent)
        return bool(held.size and held.min() >= SENT and held.max() == CAME)

    def carry(self, data: Cells, round_: Round) -> None:
        """Add the data of a round to that of a run, and take away what it overwrites."""
        for op, reads, writes in acts(round_):
            of = [self.of(data, access) for access in reads]
            if op is None:
                for access, before in zip(reads, of, strict=True):
                    self.mark(data, access, np.maximum(before, SENT))
                came = np.array(CAME)
            else:
                came = np.max([each.max(1) if each.ndim > 1 else each for each in of], axis=0)
            for access in writes:
                self.mark(data, access, came)

    def of(self, data: Cells, access: Access) -> NDArray[np.int8]:
        """Return what a slot of some cores holds of the run: [cores], or of a whole buffer [cores, slots]."""
        at, name = access.cells(self.schedule), access.slot.buffer
        return data[name][at] if name in data else np.zeros(at.shape, np.int8)

    def mark(self, data: Cells, access: Access, values: NDArray[np.int8]) -> None:
        at, name = access.cells(self.schedule), access.slot.buffer
        if name not in data:
            data[name] = np.zeros(self.schedule.mesh.cores * self.schedule.buffers[name].slots, np.int8)
        data[name][at] = values if values.ndim == at.ndim else np.reshape(values, (-1, *[1] * (at.ndim - 1)))


@once
def _is_one_run(tree: Tree) -> bool:
    """Return whether all stages of a tree are one stream; one with an operation of the user's may be none."""
    one_kind = len({moves.axis for moves in tree.moves}) == 1 and {kind(one) for one in tree.different} == {"stream"}
    return one_kind and _passes_on(tree.stages)


@once  # trees of other buffers share stages
def _passes_on(stages: Stages) -> bool:
    """Return whether every core that sends, but for those of the first stage, has received before."""
    lines = _named_lines(stages.moves)
    positions = 1 + max(int(end.max(initial=-1)) for moves in stages.moves for end in (moves.send, moves.recv))
    received = np.zeros((lines, positions), bool)
    for number, stage in enumerate(stages.each):
        ends = [(moves.line_of_each(lines), moves) for _, moves in stage]
        if number and not all(received[on, moves.send].all() for on, moves in ends):
            return False
        for on, moves in ends:
            received[on, moves.recv] = True
    return True


def _named_lines(every: Sequence[Moves]) -> int:
    """Return the number of lines up to the last that some moves name, and one that stands for all others."""
    return 2 + max((int(moves.lines.max()) for moves in every if moves.lines is not None), default=-1)


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
