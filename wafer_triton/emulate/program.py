"""Programs: a schedule bound to memory, planned once, and run many times.

Programs at rest wait in a `Pool`, so that a second call plans nothing. A program also runs round by round, and shows
the tiles of its cores after each: `for state in program.rounds(): state["a"].core(3, 7)`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from threading import Lock
from typing import Any, NoReturn

import torch

from wafer_triton.cost.price import Prediction, price
from wafer_triton.device.layout import check_cut
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.parts import Cut, Launch, Memory, Step, Tables, Workspace
from wafer_triton.emulate.plan import Planner
from wafer_triton.errors import BackendError, MeshError, ScheduleError, ShapeError, shown
from wafer_triton.local import find
from wafer_triton.schedule.rounds import Buffer, Round
from wafer_triton.schedule.schedule import Schedule


@dataclass(eq=False)
class Program:
    """A schedule bound to memory; `run` executes it, and again once `write` renews inputs that rounds overwrite.

    Weights, caches and states stay on the cores: a further run begins with the tiles that the last one left, as the
    chip would, also where rounds have moved a weight and not brought it home.
    """

    schedule: Schedule
    memory: dict[str, torch.Tensor]
    executor: Planner
    workspace: Workspace
    tables: Tables | None = None
    stream: torch.cuda.Stream | None = None  # of a borrowed program on a GPU: the stream of all its calls
    steps: list[Step] = field(init=False)
    _doors: dict[tuple[str, Cut, bool], Callable[..., Any]] = field(init=False, default_factory=dict)
    _stale: frozenset[str] = field(init=False, default=frozenset())  # inputs that rounds have overwritten
    _shown: State | None = field(init=False, default=None)  # the state after the last round, until the program goes on

    def __post_init__(self) -> None:
        self.steps = self.executor.plan(self.schedule, self._memory(self.schedule))

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise BackendError(f"{self.schedule.name}: a program is not copied; bind the schedule again for another")

    def _memory(self, schedule: Schedule) -> Memory:
        return Memory(schedule.mesh, dict(schedule.buffers), self.memory, self.workspace, self.tables)

    def run(self, until: int | str | None = None) -> None:
        """Execute every round; with `until` the rounds before one, given by number or as the first with a label.

        Raises ScheduleError if rounds ran before and an input that they overwrote was not renewed by `write`.
        """
        if until is not None:
            for _ in islice(self.rounds(), number_of(self.schedule, until)):
                pass
            return
        self._begin()
        self.execute()

    def execute(self) -> None:
        """Execute every round on the present values of all buffers, as timings do."""
        self._shown = None
        with self.workspace.alone(self.schedule.name), self.executor.on_device():
            for step in self.steps:
                step()

    def rounds(self) -> Iterator[State]:
        """Execute round by round, and give the state after each; rounds are not fused, which takes longer than `run`.

        Raises BackendError with elided exchange, where tiles do not move, and ScheduleError as `run`.
        """
        if self.executor.exchange != "explicit":
            raise BackendError(
                f"{self.schedule.name}: elided exchange moves no tiles, so no round is shown; use exchange='explicit'"
            )
        self._begin()
        memory, planned = replace(self._memory(self.schedule), tables=None), dict[Round, list[Step]]()
        for number, round_ in enumerate(self.schedule.rounds):
            with self.workspace.alone(self.schedule.name), self.executor.on_device():
                if round_ not in planned:
                    planned[round_] = self.executor.joined(memory, self.executor.round(memory, round_))
                for step in planned[round_]:
                    step()
            self._shown = State(number, round_.label, self)
            yield self._shown

    def _begin(self) -> None:
        """Let a run begin, after which the inputs that its rounds overwrite are stale."""
        if self._stale:
            raise ScheduleError(
                f"{self.schedule.name}: rounds that ran before have overwritten {', '.join(sorted(self._stale))}; give "
                f"new values by `write`, or bind the schedule anew"
            )
        self._stale = self._overwritten

    @cached_property
    def _overwritten(self) -> frozenset[str]:
        """The inputs that rounds overwrite."""
        written = {name for one in self.schedule.rounds.distinct() for name in one.round.written}
        return frozenset(name for name in written if self.schedule.buffers[name].role == "input")

    def rebind(self, schedule: Schedule) -> None:
        """Run `schedule` from now on, which differs in its indices alone from the one that was bound.

        With `tables`, every record of this program, and of all that share them, is rebound too.
        """
        if self.tables is None or not self.tables.held:  # no step reads them
            self.steps[:] = self.executor.plan(schedule, self._memory(schedule))
        elif self.tables.schedule is not schedule:  # another program that shares them may have been here first
            self.executor.plan(schedule, self._memory(schedule))
        self.schedule = schedule

    @cached_property
    def captured(self) -> Step:
        """A function that does the same as `execute`, with Triton by one CUDA graph (see `Executor.capture`)."""
        return self.executor.capture(self.execute)

    def refill(self) -> None:
        """Make all buffers but those given at the start as in fresh memory, as far as a run can tell."""
        for memory in self._left:
            memory.fill_(self.executor.unwritten)

    @cached_property
    def _left(self) -> list[torch.Tensor]:
        """Memory that is not given, and of which rounds may leave a value of the last run, or read it."""
        buffers, first = self.schedule.buffers, dict[str, bool]()
        for one in self.schedule.rounds.distinct():
            for name in one.round.touched - first.keys():
                first[name] = _fills(one.round, buffers[name], self.schedule.mesh)
        kept = (name for name, buffer in buffers.items() if not buffer.given)
        return [self.memory[name] for name in kept if self.executor.unwritten != 0 or not first.get(name)]

    def give_back(self) -> None:
        """Put a program that was borrowed into the pool."""
        POOL.give((self.executor, self.schedule, self.stream), self)

    @cached_property
    def bytes(self) -> int:
        """Bytes of its memory."""
        return sum(tensor.nbytes for tensor in self.memory.values())

    @property
    def launches(self) -> tuple[str, ...]:
        """The launches of one `run`, each kind once with its number; empty where the executor launches no kernels."""
        launches = Counter(step.what for step in self.steps if isinstance(step, Launch) and step.what)
        return tuple(what if number == 1 else f"{number} x {what}" for what, number in launches.items())

    @property
    def rank_bytes(self) -> tuple[int, ...]:
        """The bytes that one `run` sends between ranks, an entry for each round that does; see `DistributedExecutor`.

        With elided exchange a round that reads tiles of other ranks has the entry.
        """
        return tuple(step.crossed for step in self.steps if isinstance(step, Launch) and step.crossed)

    @property
    def predicted(self) -> Prediction:
        """The predicted time of one `run` on the wafer, by the price of the schedule."""
        return Prediction.of(price(self.schedule), self.schedule.mesh.device)

    def write(self, name: str, tiles: torch.Tensor) -> None:
        """Give an input buffer new values, [rows, cols, *tile], rounded to the buffer's dtype."""
        values = self.executor.part(self.schedule, self._buffer(name), tiles)
        self.memory[name].copy_(values)
        self._stale -= {name}

    def read(self, name: str) -> torch.Tensor:
        """Return the values of a buffer: [rows, cols, *tile], or [rows, cols, slots, *tile] if it has several slots.

        BackendError if a core gave up.
        """
        self.executor.check()
        buffer = self._buffer(name)
        dims = (*buffer.tile,) if buffer.slots == 1 else (buffer.slots, *buffer.tile)
        return self.executor.together(self.schedule.mesh, self.memory[name]).clone().unflatten(-1, dims)

    def held(self, name: str) -> Held:
        """Return the tiles of a buffer, as `read` gives them, to read single cores."""
        return Held(name, self.read(name))

    def gather(self, name: str, pattern: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the tensor of a shape whose tiles a buffer of one slot holds, cut by `pattern`; raises as `read` does.

        Of tiles that are repeated one copy is made.
        """
        self._buffer(name)
        check_cut(pattern, shape)
        return self.leave(name, (pattern, shape))

    def enter(self, name: str, cut: Cut, tensor: torch.Tensor) -> None:
        """Cut a whole tensor into the memory of a buffer, rounded to its dtype; see `layout.scatter`."""
        door = self._doors.get((name, cut, True))
        if door is None:
            door = self.executor.entry(self.schedule, name, self.memory[name], cut)
            self._doors[name, cut, True] = door
        door(tensor)

    def leave(self, name: str, cut: Cut) -> torch.Tensor:
        """Return what `gather` does."""
        self.executor.check()
        door = self._doors.get((name, cut, False))
        if door is None:
            door = self._doors[name, cut, False] = self.executor.exit(self.schedule, self.memory[name], cut)
        found: torch.Tensor = door()
        return found

    def _buffer(self, name: str) -> Buffer:
        of = self.schedule
        if name not in of.buffers:
            raise ShapeError(f"{of.name}: no buffer {shown(name)}; it has {', '.join(of.buffers)}")
        return of.buffers[name]


def _fills(round_: Round, buffer: Buffer, mesh: Mesh) -> bool:
    """Return whether a round writes all of a buffer of every core, and reads nothing of what was there."""
    name, came = buffer.name, [one.moves.ends(mesh)[1] for one in round_.exchanges if one.dst.buffer == buffer.name]
    if buffer.slots > 1 or any(one.src.buffer == name for one in round_.exchanges):
        return False
    if came:
        return sum(map(len, came)) == mesh.cores  # a core receives one tile a round in a slot
    op = next(op for op in round_.locals if any(slot.buffer == name for slot in (*op.outs, *op.ins)))
    if op.where is not None or any(slot.buffer == name for slot in op.ins):
        return False
    return not find(op.op).keeps(op.params, buffer.numel, [slot.buffer for slot in op.outs].index(name))


Key = tuple[Planner, Schedule, torch.cuda.Stream | None]


class Pool:
    """Programs by executor, schedule and CUDA stream; past `most` bytes the least recently used go. Safe for threads.

    Work of the last call may still run on the GPU, so only a later call on the same stream may take the program.
    """

    def __init__(self, most: int = 2**31) -> None:
        self.most, self.bytes = most, 0
        self._programs: OrderedDict[Key, list[Program]] = OrderedDict()
        self._lock = Lock()

    def take(self, key: Key) -> Program | None:
        """Return a program that no call runs now, which leaves the pool; None if there is none."""
        with self._lock:
            programs = self._programs.get(key)
            if not programs:
                return None
            program = programs.pop()
            self.bytes -= program.bytes
            return program

    def give(self, key: Key, program: Program) -> None:
        """Take a program in; the least recently used leave for it."""
        with self._lock:
            self._programs.setdefault(key, []).append(program)
            self._programs.move_to_end(key)
            self.bytes += program.bytes
            while self.bytes > self.most:
                oldest, programs = next(iter(self._programs.items()))
                self.bytes -= sum(one.bytes for one in programs)
                del self._programs[oldest]

    def clear(self) -> None:
        """Let all programs go."""
        with self._lock:
            self._programs.clear()
            self.bytes = 0


POOL = Pool()


@dataclass(frozen=True, eq=False)
class Held:
    """A copy of the tiles of a buffer: [rows, cols, *tile], or [rows, cols, slots, *tile] of several slots."""

    name: str
    tiles: torch.Tensor

    def core(self, row: int, col: int) -> torch.Tensor:
        """Return the tile of one core; MeshError for a core that is not there."""
        rows, cols = self.tiles.shape[:2]
        if (type(row), type(col)) != (int, int) or not (0 <= row < rows and 0 <= col < cols):
            raise MeshError(f"core {shown((row, col))} is not on the mesh of {self.name!r}, {rows} x {cols} cores")
        return self.tiles[row, col]


@dataclass(frozen=True, eq=False)
class State:
    """The moment after a round. Its values are copied when they are read, which must be before the next round."""

    round: int
    label: str
    _of: Program

    def __getitem__(self, name: str) -> Held:
        if self._of._shown is not self:
            raise ScheduleError(f"{self._of.schedule.name}: read {shown(name)} of round {self.round} before the next")
        return self._of.held(name)


def number_of(schedule: Schedule, until: int | str) -> int:
    """Return how many rounds come before a round, given by number, or before the first with a label.

    Raises ScheduleError if there is none.
    """
    count = len(schedule.rounds)
    if isinstance(until, str):
        labels = [round_.label for round_ in schedule.rounds]
        if until not in labels:
            known = ", ".join(map(repr, dict.fromkeys(labels)))
            raise ScheduleError(f"{schedule.name}: no round is labelled {until!r}; its labels are {known}")
        return labels.index(until)
    if type(until) is not int or not 0 <= until <= count:
        raise ScheduleError(f"{schedule.name}: until = {shown(until)} is not one of 0 to {count}, its number of rounds")
    return until
