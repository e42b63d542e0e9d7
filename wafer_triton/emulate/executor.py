"""What both executors share: binding a schedule to tensors, and planning it once into steps that run many times.

Exchange is `explicit` (tiles really move, round by round) or `elided` (a core reads the tile that it would hold from
where it lies). Elision follows from the schedule alone: an exchange in which every core receives one tile is a
renaming, so it becomes an index map on the buffer that still holds the tiles. The operations and their order stay the
same, and so do the bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch

from wafer_triton.dtype import torch_dtype
from wafer_triton.emulate.launches import ComputeShifts, Tree
from wafer_triton.errors import BackendError, ScheduleError, ShapeError
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.rounds import Buffer, Exchange, Index, Local, Round, Schedule, Slot

EXCHANGES = ("explicit", "elided")
Step = Callable[[], object]


@dataclass(frozen=True, eq=False)
class Launch:
    """A step with words for what it launches, which a run's record shows."""

    what: str
    run: Step

    def __call__(self) -> None:
        """Do it."""
        self.run()


class Tables:
    """The index tables of programs that are planned alike and so share them.

    Planning asks for tables in an order. When it is done again, for a schedule that differs in indices alone, the
    tables are written anew where they lie, and whatever was recorded of those programs follows.
    """

    def __init__(self) -> None:
        self.held: list[torch.Tensor] = []
        self.schedule: Schedule | None = None  # that the tables are of; None while they are being written
        self._name, self._next = "", 0

    def begin(self, name: str) -> None:
        """The next table is the first one of the schedule `name`."""
        self.schedule, self._name, self._next = None, name, 0

    def put(self, values: torch.Tensor, device: str) -> torch.Tensor:
        """The next table, with these values; ScheduleError if the one planned first had another size."""
        if self._next == len(self.held):
            self.held.append(torch.empty_like(values, device=device))
        table = self.held[self._next]
        if table.shape != values.shape:
            raise ScheduleError(
                f"{self._name}: table {self._next} has {values.numel()} entries, and {table.numel()} in the "
                f"schedule that was bound; bind this one anew, it differs in more than its indices"
            )
        self._next += 1
        return table.copy_(values)


@dataclass(frozen=True, eq=False)
class Place:
    """Where the cores' tiles of a slot lie: core (i, j)'s in the slot of core `base[row[i], col[j]]`; None: the same.

    `base` is flat, over all cores; -1 stands for a tile that lies in the core's own memory of the buffer itself, when
    only some were renamed.
    """

    slot: Slot
    row: Index | None = None
    col: Index | None = None
    base: Index | None = None

    @property
    def is_own(self) -> bool:
        """Whether every core's tile lies with the core itself."""
        return self.row is None and self.col is None and self.base is None

    def lies_in(self, slot: Slot) -> bool:
        """Whether every core's tile lies with the core itself, in the buffer of `slot`."""
        return self.is_own and self.slot.buffer == slot.buffer

    def flat(self, shape: tuple[int, int]) -> Index:
        """The core that holds the tile of each core."""
        if self.base is not None and self.row is None and self.col is None:
            return self.base
        row = np.arange(shape[0]) if self.row is None else self.row
        col = np.arange(shape[1]) if self.col is None else self.col
        cores = (row[:, None] * shape[1] + col).ravel()
        return cores if self.base is None else self.base[cores]

    def moved(self, axis: str, source: Index) -> Place:
        """This place after an exchange in which position i of `axis` receives from position source[i]."""
        if axis == "x":
            return replace(self, col=_compose(self.col, source))
        return replace(self, row=_compose(self.row, source))


def _compose(before: Index | None, source: Index) -> Index | None:
    index = source if before is None else before[source]
    return None if (index == np.arange(len(index))).all() else index


class Executor(ABC):
    """Runs schedules. `exchange` is "explicit" or "elided"; `poison` fills all memory that is not given with NaN."""

    def __init__(self, *, exchange: str = "explicit", poison: bool = False) -> None:
        if exchange not in EXCHANGES:
            raise BackendError(f"exchange {exchange!r}: choose one of {', '.join(EXCHANGES)}")
        self.exchange = exchange
        self.poison = poison

    def bind(
        self,
        schedule: Schedule,
        tensors: Mapping[str, torch.Tensor],
        shared: Mapping[str, torch.Tensor] | None = None,
        scratch: dict[Buffer, torch.Tensor] | None = None,
        tables: Tables | None = None,
    ) -> Program:
        """Plan a schedule over memory; `tensors`, [rows, cols, *tile] each, are copied in.

        `shared` holds memory of other programs that this one uses in place, `scratch` a pool that programs of one
        schedule take their scratch buffers from and add to, `tables` index tables that a program which is to `follow`
        others needs. Raises ShapeError for a missing or misshapen tensor.
        """
        if unknown := [name for name in tensors if name not in schedule.buffers]:
            raise ShapeError(
                f"{schedule.name}: no buffer {unknown[0]!r} to give a tensor to; it has {', '.join(schedule.buffers)}"
            )
        memory = dict(shared or {})
        pool = {} if scratch is None else scratch
        fresh = [
            one for name, one in schedule.buffers.items() if name in tensors or (name not in memory and one not in pool)
        ]
        self.admit(schedule, fresh)
        for name, buffer in schedule.buffers.items():
            if name in tensors:
                memory[name] = self.store(schedule, buffer, tensors[name])
            elif name in memory:
                continue
            elif buffer.role in ("input", "resident"):
                raise ShapeError(f"{schedule.name}: no tensor given for {buffer.role} buffer {name!r}")
            else:
                if buffer not in pool:
                    pool[buffer] = self.allocate(schedule, buffer)
                memory[name] = pool[buffer]
        with self.on_device():
            steps = self._plan(schedule, memory, tables)
        if tables is not None:
            tables.schedule = schedule
        return Program(schedule, memory, steps, self, tables)

    def follow(self, program: Program, schedule: Schedule) -> None:
        """See `Program.follow`."""
        program.steps[:] = self._plan(schedule, program.memory, program.tables)
        program.schedule = schedule

    def admit(self, schedule: Schedule, fresh: list[Buffer]) -> None:
        """BackendError if buffers that this executor is about to make do not fit into its device's memory."""
        if torch.device(self.device).type != "cuda":
            return
        need = schedule.mesh.cores * sum(one.slots * one.numel * self.storage(one).itemsize for one in fresh)
        free = torch.cuda.mem_get_info(self.device)[0]
        free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        rows, cols = schedule.mesh.shape
        if need > free:
            raise BackendError(
                f"{schedule.name}: the tiles of {rows} x {cols} cores take {need:,} B of memory, "
                f"{self.device} has {free:,} B free; use a smaller mesh or smaller tiles"
            )

    def store(self, schedule: Schedule, buffer: Buffer, given: torch.Tensor) -> torch.Tensor:
        """Fresh storage [rows, cols, slots * numel] of a buffer with the given values, rounded to its dtype."""
        shape = (*schedule.mesh.shape, buffer.slots * buffer.numel)
        if given.shape[:2] != shape[:2] or given[0, 0].numel() != shape[2]:
            raise ShapeError(
                f"{schedule.name}: buffer {buffer.name!r} is {list(buffer.tile)} x {buffer.slots} on "
                f"{shape[0]} x {shape[1]} cores, the tensor given is {list(given.shape)}"
            )
        rounded = given.to(self.device, torch_dtype(buffer.dtype)).reshape(shape)
        return rounded.to(self.storage(buffer), copy=True, memory_format=torch.contiguous_format)

    def allocate(self, schedule: Schedule, buffer: Buffer) -> torch.Tensor:
        """Fresh storage of a buffer: zeros, or NaN under `poison`."""
        shape = (*schedule.mesh.shape, buffer.slots * buffer.numel)
        fill = float("nan") if self.poison else 0.0
        return torch.full(shape, fill, dtype=self.storage(buffer), device=self.device)

    @property
    def device(self) -> str:
        """The torch device of fresh storage."""
        return "cpu"

    def on_device(self) -> AbstractContextManager[object]:
        """What to be in while kernels are compiled and launched, so that they go to this executor's device."""
        return nullcontext()

    def capture(self, run: Step) -> Step:
        """`run` itself, or what replays a record of its launches from its second call on.

        A record holds the launches, not what is written to memory between them.
        """
        return run

    @abstractmethod
    def storage(self, buffer: Buffer) -> torch.dtype:
        """The dtype that a buffer is stored in."""

    @abstractmethod
    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: Place) -> Step:
        """A step that copies the senders' tiles into the receivers' slots; all exchanges are from one slot to one."""

    @abstractmethod
    def compute(self, memory: Memory, op: Local, ins: tuple[Place, ...]) -> Step:
        """A step that runs a local operation on its cores."""

    def _plan(self, schedule: Schedule, tensors: dict[str, torch.Tensor], tables: Tables | None) -> list[Step]:
        memory = Memory(schedule.mesh, dict(schedule.buffers), tensors, tables)
        if tables is not None:
            tables.begin(schedule.name)
        if self.exchange == "elided":
            from wafer_triton.emulate.elision import Elision  # it plans with what is defined here

            return Elision(self, schedule, memory).plan()
        made: dict[int, list[Step]] = {}
        steps: list[Step] = []
        rounds = schedule.rounds
        while rounds:
            fused = self.fuse(memory, schedule, rounds)
            if fused is not None:
                steps += fused[1]
                rounds = rounds[fused[0] :]
                continue
            if id(rounds[0]) not in made:
                made[id(rounds[0])] = self.round(memory, rounds[0])
            steps += made[id(rounds[0])]
            rounds = rounds[1:]
        return steps

    def fuse(self, memory: Memory, schedule: Schedule, rounds: tuple[Round, ...]) -> tuple[int, list[Step]] | None:
        """How many of the rounds left go together in this executor, if any do, and their steps."""
        return None

    def products(self, memory: Memory, found: ComputeShifts, a: Place, b: Place) -> Step | None:
        """One step for all products of a run of compute-shift rounds, on tiles as they lie, where there is one."""
        return None

    @property
    def tree(self) -> TreePlanner | None:
        """What plans a reduce tree and the operations before it, on operands as they lie, where executors have it."""
        return None

    def round(self, memory: Memory, round_: Round) -> list[Step]:
        """The steps of one round: its moves, then its local operations."""
        moves = [self.move(memory, some, Place(some[0].src)) for some in together(round_)]
        return moves + [self.compute(memory, op, tuple(map(Place, op.ins))) for op in round_.locals]


@dataclass(frozen=True, eq=False)
class Memory:
    """Buffers of a mesh as tensors [rows, cols, slots * numel]; `tables` are what planning writes, if they are kept."""

    mesh: Mesh
    buffers: dict[str, Buffer]
    tensors: dict[str, torch.Tensor]
    tables: Tables | None = None


def together(round_: Round) -> list[list[Exchange]]:
    """The exchanges of a round, those from one slot to one slot together."""
    found: dict[object, list[Exchange]] = {}
    for one in round_.exchanges:
        fixed = one.src.is_fixed and one.dst.is_fixed
        found.setdefault((str(one.src), str(one.dst)) if fixed else id(one), []).append(one)
    return list(found.values())


# memory, the tree, the operations before it, and where their operands lie
TreePlanner = Callable[[Memory, Tree, tuple[Local, ...], Sequence[tuple[Place, ...]]], list[Step]]


@dataclass(eq=False)
class Program:
    """A schedule bound to memory; `run` executes it, and may be called again after inputs changed in place."""

    schedule: Schedule
    memory: dict[str, torch.Tensor]
    steps: list[Step]
    executor: Executor
    tables: Tables | None = None

    def run(self) -> None:
        """Execute every round."""
        with self.executor.on_device():
            for step in self.steps:
                step()

    def follow(self, schedule: Schedule) -> None:
        """Run `schedule` from now on, which differs in its indices alone from the one that was bound.

        With `tables`, what was captured of this program, and of all that share them, follows too.
        """
        self.executor.follow(self, schedule)

    def captured(self) -> Step:
        """A function that does what `run` does, with Triton by replaying one CUDA graph (see `Executor.capture`)."""
        return self.executor.capture(self.run)

    @property
    def launches(self) -> tuple[str, ...]:
        """What one `run` launches, each kind once with its number; empty where the executor launches no kernels."""
        found = Counter(step.what for step in self.steps if isinstance(step, Launch))
        return tuple(what if number == 1 else f"{number} x {what}" for what, number in found.items())

    def write(self, name: str, tiles: torch.Tensor) -> None:
        """Give an input buffer new values, [rows, cols, *tile], rounded to the buffer's dtype."""
        buffer, target = self._buffer(name), self.memory[name]
        target.copy_(tiles.to(torch_dtype(buffer.dtype)).view(target.shape))

    def read(self, name: str) -> torch.Tensor:
        """The values of a buffer: [rows, cols, *tile], or [rows, cols, slots, *tile] if it has several slots."""
        buffer = self._buffer(name)
        dims = (*buffer.tile,) if buffer.slots == 1 else (buffer.slots, *buffer.tile)
        return self.memory[name].to(torch_dtype(buffer.dtype), copy=True).unflatten(-1, dims)

    def _buffer(self, name: str) -> Buffer:
        if name not in self.schedule.buffers:
            raise ShapeError(f"{self.schedule.name}: no buffer {name!r}; it has {', '.join(self.schedule.buffers)}")
        return self.schedule.buffers[name]
