"""Programs: a schedule bound to memory, planned once and run many times.

A program also runs round by round and shows the tiles of its cores after each:
`for state in program.rounds(): state["a"].core(3, 7)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import islice
from typing import Any, NoReturn

import torch

from wafer_triton.cost.price import Prediction, price
from wafer_triton.emulate.parts import Call, Cut, Launch, Memory, Tables, Workspace
from wafer_triton.emulate.planner import Key, Planner
from wafer_triton.errors import BackendError, MeshError, ScheduleError, ShapeError, plain, shown
from wafer_triton.schedule import rules
from wafer_triton.schedule.access import fills, written
from wafer_triton.schedule.rounds import Buffer, Slot, once
from wafer_triton.schedule.schedule import Schedule


@dataclass(eq=False, repr=False)
class Program:
    """A schedule bound to memory. `run` executes it; before another run, `write` the inputs that rounds overwrite.

    Weights, caches and states stay on the cores: as on the chip, a run begins with the tiles that the last one left,
    even if its rounds moved a weight to another core.
    """

    schedule: Schedule
    memory: dict[str, torch.Tensor]
    executor: Planner
    workspace: Workspace
    tables: Tables | None = None
    key: Key | None = None  # of a program from the pool
    given: frozenset[str] = frozenset()  # buffers with values of the caller, an output among them
    calls: list[Call] = field(init=False)
    _cut_copies: dict[tuple[str, Cut, bool], Callable[..., Any]] = field(init=False, default_factory=dict)
    _stale: frozenset[str] = field(init=False, default=frozenset())  # inputs that rounds have overwritten
    _state: State | None = field(init=False, default=None)  # what `rounds` gave last, until the program runs on

    def __post_init__(self) -> None:
        self.calls = self.executor.plan(self.schedule, self._memory(self.schedule))

    def __repr__(self) -> str:
        return f"Program of {self.schedule!r}, {self.bytes:,} B of memory"

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise BackendError(f"{self.schedule.name}: a program is not copied; bind the schedule again for another")

    def _memory(self, schedule: Schedule) -> Memory:
        return Memory(schedule.mesh, dict(schedule.buffers), self.memory, self.workspace, self.tables)

    def run(self, until: int | str | None = None) -> None:
        """Execute every round, or with `until` those before a round: its number, or the first with that label.

        Raises ScheduleError if an input that earlier rounds overwrote was not written again.
        """
        if until is not None:
            for _ in islice(self.rounds(), rounds_before(self.schedule, until)):
                pass
            return
        self._begin()
        self.execute()

    def execute(self) -> None:
        """Execute every round on whatever the buffers hold, without the check of `run` for stale inputs."""
        self._state = None
        with self.workspace.exclusive(self.schedule.name), self.executor.on_device():
            for call in self.calls:
                call()

    def rounds(self) -> Iterator[State]:
        """Execute round by round and yield the state after each; this is slower than `run`, as no rounds are fused.

        Raises BackendError with elided exchange, where tiles do not move, and ScheduleError as `run` does.
        """
        if self.executor.exchange != "explicit":
            raise BackendError(
                f"{self.schedule.name}: elided exchange moves no tiles, so no round is shown; use exchange='explicit'"
            )
        self._begin()
        memory = replace(self._memory(self.schedule), tables=None)
        planned = cache(lambda round_: self.executor.fuse_tasks(memory, self.executor.round(memory, round_)))
        for number, round_ in enumerate(self.schedule.rounds):
            with self.workspace.exclusive(self.schedule.name), self.executor.on_device():
                for call in planned(round_):
                    call()
            self._state = State(number, round_.label, self)
            yield self._state

    def _begin(self) -> None:
        """Mark the inputs that a run overwrites as stale; ScheduleError if some are stale already."""
        if self._stale:
            raise ScheduleError(
                f"{self.schedule.name}: rounds that ran before have overwritten {', '.join(sorted(self._stale))}; give "
                f"new values by `write`, or bind the schedule anew"
            )
        self._stale = self._overwritten

    @cached_property
    def _overwritten(self) -> frozenset[str]:
        """The inputs that rounds overwrite, and outputs with values at the start."""
        every = frozenset[str]().union(*(written(one.round) for one in self.schedule.rounds.distinct()))
        inputs = {name for name, buffer in self.schedule.buffers.items() if buffer.role == "input"}
        outputs = {name for name in self.given if not self.schedule.buffers[name].given}
        return every & (inputs | outputs)

    def rebind(self, schedule: Schedule) -> None:
        """Run `schedule` from now on; with `tables` one that differs from the bound one in indices alone.

        With `tables` the recorded CUDA graphs follow, of this program and of all that share the tables. Raises
        ScheduleError for another difference, without tables for another mesh, other buffers and a broken rule.
        """
        if self.tables is None or not self.tables.entries:  # steps hold their indices themselves
            rules.validate(schedule)
            self._demand(_memory_of, schedule, "mesh or buffers")
            vars(self).pop("_overwritten", None)
            self.calls[:] = self.executor.plan(schedule, self._memory(schedule))
        elif self.tables.schedule is not schedule:  # else a program that shares the tables has rewritten them
            self._demand(_without_indices, schedule, "buffers, operations or operands")
            self.executor.plan(schedule, self._memory(schedule))
        self.schedule = schedule

    def _demand(self, common: Callable[[Schedule], object], schedule: Schedule, what: str) -> None:
        """Raise ScheduleError about `what` differs unless `common` of a schedule and of the bound one are equal."""
        if common(schedule) != common(self.schedule):
            raise ScheduleError(
                f"{schedule.name}: its {what} are not those of {self.schedule.name}, which was bound; bind this one "
                "anew"
            )

    @cached_property
    def captured(self) -> Call:
        """`execute` as a function that on a GPU replays one CUDA graph (see `Executor.capture`)."""
        return self.executor.capture(self.execute)

    def refill(self) -> None:
        """Reset buffers to unwritten memory where a run could tell the difference; given ones keep their values."""
        for memory in self._to_refill:
            memory.zero_() if self.executor.unwritten == 0 else memory.fill_(self.executor.unwritten)

    @cached_property
    def _to_refill(self) -> list[torch.Tensor]:
        """The memory that `refill` resets: of buffers that are not given, but those that rounds overwrite unread."""
        buffers, first = self.schedule.buffers, dict[str, bool]()
        for one in self.schedule.rounds.distinct():
            for name in one.round.uses.keys() - first.keys():
                first[name] = fills(self.schedule, one.round, name)
        kept = (name for name, buffer in buffers.items() if not buffer.given)
        return [self.memory[name] for name in kept if self.executor.unwritten != 0 or not first.get(name)]

    @cached_property
    def bytes(self) -> int:
        """Bytes of its memory."""
        return sum(tensor.nbytes for tensor in self.memory.values())

    @property
    def launches(self) -> tuple[str, ...]:
        """The kernel launches of one `run`, as "gemm" or "3 x gemm"; empty if the executor launches no kernels."""
        launches = Counter(call.what for call in self.calls if isinstance(call, Launch) and call.what)
        return tuple(what if number == 1 else f"{number} x {what}" for what, number in launches.items())

    @property
    def rank_bytes(self) -> tuple[int, ...]:
        """The bytes sent between ranks in one `run`, an entry for each round that sends; see `DistributedExecutor`.

        With elided exchange the entry is of the round that reads the tiles.
        """
        return tuple(call.rank_bytes for call in self.calls if isinstance(call, Launch) and call.rank_bytes)

    @property
    def predicted(self) -> Prediction:
        """The predicted time of one `run` on the wafer."""
        return Prediction.of(price(self.schedule), self.schedule.mesh.device)

    def write(self, name: str, tiles: torch.Tensor) -> None:
        """Give a buffer new values, shaped as `read` returns them, rounded to the buffer's dtype."""
        values = self.executor.local_tiles(self.schedule, self._buffer(name), tiles)
        self.memory[name].copy_(values)
        self._stale -= {name}

    def read(self, name: str) -> torch.Tensor:
        """Return the values of a buffer: [rows, cols, *tile], or [rows, cols, slots, *tile] if it has several slots.

        Raises BackendError if a core of a launch waited in vain.
        """
        self.executor.check()
        buffer = self._buffer(name)
        return self.executor.all_gather(self.schedule.mesh, self.memory[name]).clone().unflatten(-1, buffer.dims)

    def held(self, name: str) -> Held:
        """Return the values of `read`, of which `.core(row, col)` is one core's tile."""
        return Held(name, self.read(name))

    def gather(self, name: str, pattern: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the tensor of this shape that a buffer of one slot holds, cut by `pattern`; raises as `read` does.

        Of tiles that several cores hold the first is taken.
        """
        self._buffer(name)
        return self.gather_cut(name, (pattern, shape))

    def scatter_cut(self, name: str, cut: Cut, tensor: torch.Tensor) -> None:
        """Cut a whole tensor into tiles, in a buffer's memory and rounded to its dtype; see `layout.scatter`."""
        copy = self._cut_copies.get((name, cut, True))
        if copy is None:
            copy = self.executor.plan_scatter(self.schedule, name, self.memory[name], cut)
            self._cut_copies[name, cut, True] = copy
        copy(tensor)

    def gather_cut(self, name: str, cut: Cut) -> torch.Tensor:
        """Return what `gather` does, for a cut that is known to be valid."""
        self.executor.check()
        copy = self._cut_copies.get((name, cut, False))
        if copy is None:
            copy = self._cut_copies[name, cut, False] = self.executor.plan_gather(self.schedule, self.memory[name], cut)
        tensor: torch.Tensor = copy()
        return tensor

    def _buffer(self, name: str) -> Buffer:
        of = self.schedule
        if name not in of.buffers:
            raise ShapeError(f"{of.name}: no buffer {shown(name)}; it has {', '.join(of.buffers)}")
        return of.buffers[name]


def _memory_of(schedule: Schedule) -> tuple[object, ...]:
    return schedule.mesh, dict(schedule.buffers)


@once
def _without_indices(schedule: Schedule) -> tuple[object, ...]:
    """Return what the schedules of one set of tables have in common."""

    def operand(slot: Slot) -> tuple[str, bool]:
        return slot.buffer, slot.index is None  # a whole buffer is another view of its memory than a slot

    rounds = [
        (
            [(one.axis, operand(one.src), operand(one.dst)) for one in each.exchanges],
            [(op.work, list(map(operand, op.operands))) for op in each.locals],
        )
        for each in schedule.rounds
    ]
    return *_memory_of(schedule), rounds


@dataclass(frozen=True, eq=False)
class Held:
    """A copy of a buffer's tiles: [rows, cols, *tile], or [rows, cols, slots, *tile] if it has several slots."""

    name: str
    tiles: torch.Tensor

    def core(self, row: int, col: int) -> torch.Tensor:
        """Return the tile of one core; MeshError for a core that is not on the mesh."""
        rows, cols = self.tiles.shape[:2]
        if (type(row), type(col)) != (int, int) or not (0 <= row < rows and 0 <= col < cols):
            raise MeshError(f"core {shown((row, col))} is not on the mesh of {self.name!r}, {rows} x {cols} cores")
        return self.tiles[row, col]


@dataclass(frozen=True, eq=False)
class State:
    """The buffers after a round. `state[name]` copies a buffer, and must be read before the next round."""

    round: int
    label: str
    _of: Program = field(repr=False)

    def __getitem__(self, name: str) -> Held:
        if self._of._state is not self:
            raise ScheduleError(f"{self._of.schedule.name}: read {shown(name)} of round {self.round} before the next")
        return self._of.held(name)


def rounds_before(schedule: Schedule, until: int | str) -> int:
    """Return how many rounds come before round number `until`, or before the first with that label.

    Raises ScheduleError if there is no such round.
    """
    count, until = len(schedule.rounds), plain(until)
    if isinstance(until, str):
        labels = [round_.label for round_ in schedule.rounds]
        if until not in labels:
            known = ", ".join(map(repr, dict.fromkeys(labels)))
            raise ScheduleError(f"{schedule.name}: no round is labelled {until!r}; its labels are {known}")
        return labels.index(until)
    if type(until) is not int or not 0 <= until <= count:
        raise ScheduleError(f"{schedule.name}: until = {shown(until)} is not one of 0 to {count}, its number of rounds")
    return until
