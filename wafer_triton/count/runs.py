"""The runs of a schedule: successive rounds of one kind that go on, which are counted and priced together.

Every round is of one kind, and goes on from the run before it, if that is of the same kind, on a condition:

- local: no exchange. It is a run of its own.
- product: tiles move while (or before) cores multiply. Each such round waits for all its tiles, so it is its own run.
- tiles: cores both send and receive, and none multiplies (alignment, a ring all-reduce). Each sets an exchange of whole
  tiles up and waits for it, as measured in MeshGEMM, whether it then combines the tile or not. So the words on the
  busiest link of each round add up, line by line. Such rounds go on while tiles move along the same axes, and all are
  combined or none; so the two halves of a ring all-reduce are two runs, as in its closed form (HPDC'24).
- stream: no core does both, and arriving elements are combined (a tree). It goes on along one axis, if its senders send
  on what came to them: elements go on one by one, so the payload of all stages is on the links at once.
- circuit: routers alone carry the data, as in a multicast. It goes on, as in a 2-D broadcast, if its senders send on
  what came to them.

Rounds that move tiles along both axes go on while no buffer has tiles of both, as in an alignment: what turns from one
axis to the other waits for the round before.

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
from wafer_triton.schedule.rounds import Index, Moves, Round, Slot, Value, once
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
    def axes(self) -> set[str]:
        """Mesh axes, "x" or "y", along which its rounds send tiles."""
        return {moves.axis for step in self.steps for moves in step.moves}

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
    return [run for run, _ in _joined(schedule, ((RoundRun((round_,)), 1) for round_ in schedule.rounds))]


def counted_runs(schedule: Schedule) -> list[tuple[RoundRun, int]]:
    """Return the runs of a schedule in order, each with its number of repetitions.

    Of a loop only the first time, the second and the last are listed, and the second is counted for all between. All
    are listed if one run may span them. On a folded mesh it depends on the time which of a loop's turning lines share a
    physical one: all times are listed of up to `FOLDED_ROUNDS` rounds, of more the first stands for all.
    """
    return _joined(schedule, _pieces(schedule, schedule.rounds.steps))


def distinct_runs(schedule: Schedule) -> list[tuple[RoundRun, int]]:
    """Return the different runs of a schedule, each with its number of repetitions."""
    found = Counter[RoundRun]()
    for run, times in counted_runs(schedule):
        found[run] += times
    return list(found.items())


FOLDED_ROUNDS = 512  # take 0.3 s; from 4 x 6 cores on the first time of A B^T has the words of all
SENT, CAME = 1, 2  # a slot's data is that of a run, as it was sent in it, or as it came or was computed from such data


def _pieces(schedule: Schedule, steps: Iterable[Step]) -> Iterator[tuple[RoundRun, int]]:
    """Yield the runs of each step by itself, each with how often it comes."""
    for step in steps:
        if isinstance(step, Tree) and _is_one_run(step):
            yield RoundRun((step,)), 1
        elif isinstance(step, Ring) and kind(step.ends[0]) == "product":
            for number, round_ in enumerate(step.rounds[:3]):
                yield RoundRun((round_,)), 1 if number == 0 else (step.count - number + 1) // 2
        elif isinstance(step, Loop) and step.count:
            yield from _pieces_of_loop(schedule, step)
        else:
            yield from ((RoundRun((round_,)), 1) for round_ in step.rounds)


def _pieces_of_loop(schedule: Schedule, loop: Loop) -> Iterator[tuple[RoundRun, int]]:
    """Yield the runs of all times of a loop, each time's joined with one another (see `counted_runs`)."""
    turns = loop.lines is not None
    if turns and loop.count <= FOLDED_ROUNDS and Sides.of(schedule.mesh, loop.axis).fold_across > 1:
        for number in range(loop.times):
            yield from _pieces(schedule, loop.at(number))
        return
    time = _joined(schedule, _pieces(schedule, loop.body))
    spans = _Joined(schedule, [time[-1][0]]).goes_on(time[0][0])  # one run may span the repetitions
    if spans and turns and any(loop.axis in axes(round_) for round_ in flat(loop.body)):
        # its data does not go on along the same lines
        yield from ((RoundRun((round_,)), 1) for round_ in loop.rounds)
    elif loop.times < 3 or spans:
        yield from time * loop.times
    else:
        yield from time
        yield from ((run, repeats * (loop.times - 2)) for run, repeats in time)
        yield from time


def _joined(schedule: Schedule, pieces: Iterable[tuple[RoundRun, int]]) -> list[tuple[RoundRun, int]]:
    """Return runs, each joined with the runs that continue it."""
    cut: list[_Joined] = []
    for run, repeats in pieces:
        if cut and cut[-1].repeats == repeats and cut[-1].goes_on(run):
            cut[-1].runs.append(run)
        else:
            if cut:
                cut[-1].data.clear()
            cut.append(_Joined(schedule, [run], repeats))
    return [(RoundRun(tuple(step for run in one.runs for step in run.steps)), one.repeats) for one in cut]


@dataclass
class _Joined:
    """Runs that are one, how often it comes, and what slots hold of the data of the first `carried` of them."""

    schedule: Schedule
    runs: list[RoundRun]
    repeats: int = 1
    data: dict[str, NDArray[np.int8]] = field(default_factory=dict)  # of buffers, [cores * slots]: 0, `SENT` or `CAME`
    carried: int = 0
    along: dict[str, set[str]] = field(default_factory=lambda: {"x": set(), "y": set()})  # buffers, see `apart`
    followed: int = 0

    def goes_on(self, after: RoundRun) -> bool:
        """Return whether a run continues these."""
        last, first = self.runs[-1].ends[1], after.ends[0]
        common = kind(last)
        if common != kind(first) or common in ("local", "product"):
            return False
        if len(axes(last) & axes(first)) > 1 and not self.apart(after):
            return False
        if common == "tiles":
            return axes(last) == axes(first) and combines(last) == combines(first)
        if common == "stream" and len(axes(last) | axes(first)) > 1:
            return False
        written = frozenset[str]().union(*(run.written for run in self.runs))
        if written.isdisjoint(sources(first)):  # as in an all-gather, whose buffers of many slots need not be followed
            return False
        for run in self.runs[self.carried :]:
            for round_ in run:
                self.carry(round_)
        self.carried = len(self.runs)
        sent = np.concatenate([cells[at].ravel() for cells, at in map(self.held, acts(first)[0].reads)])
        return bool(sent.size and sent.min() >= SENT and sent.max() == CAME)

    def apart(self, after: RoundRun) -> bool:
        """Return whether no buffer has tiles of both axes, or data computed with them, up to a run after these."""
        for round_ in flat(step for run in (*self.runs[self.followed :], after) for step in run.steps):
            for one in round_.exchanges:
                self.along[one.axis] |= {one.src.buffer, one.dst.buffer}
            for operands in ({slot.buffer for slot in op.operands} for op in round_.locals):
                for buffers in self.along.values():
                    if not buffers.isdisjoint(operands):
                        buffers |= operands
        self.followed = len(self.runs) + 1
        return self.along["x"].isdisjoint(self.along["y"])

    def carry(self, round_: Round) -> None:
        """Add the data of a round, and take away what it overwrites."""
        for op, reads, writes in acts(round_):
            read = [*map(self.held, reads)]
            if op is None:
                for cells, at in read:
                    cells[at] = np.maximum(cells[at], SENT)
                came = np.array(CAME, np.int8)
            else:
                came = np.max([cells[at].max(1) if at.ndim > 1 else cells[at] for cells, at in read], axis=0)
            for cells, at in map(self.held, writes):
                cells[at.T] = came  # in all slots of a whole buffer

    def held(self, access: Access) -> tuple[NDArray[np.int8], Index]:
        """Return the data of a buffer, and where in it the cells of an access are."""
        name = access.slot.buffer
        if name not in self.data:
            self.data[name] = np.zeros(self.schedule.mesh.cores * self.schedule.buffers[name].slots, np.int8)
        return self.data[name], access.cells(self.schedule)


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
