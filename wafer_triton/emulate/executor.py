"""What both executors share: binding a schedule to tensors, and planning it once into steps that run many times.

Exchange is `explicit` (tiles really move, round by round) or `elided` (a core reads the tile that it would hold from
where it lies). Elision follows from the schedule alone: an exchange in which every core receives one tile is a
renaming, so it becomes an index map on the buffer that still holds the tiles. The operations and their order stay the
same, and so do the bits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice

import torch

from wafer_triton.cost.price import Prediction, price
from wafer_triton.dtype import torch_dtype
from wafer_triton.emulate.elision import Elision
from wafer_triton.emulate.launches import one_by_one
from wafer_triton.emulate.stepping import State, number_of
from wafer_triton.emulate.steps import Apart, Launch, Memory, Planner, Step, Tables
from wafer_triton.errors import BackendError, DtypeError, ShapeError, check_type
from wafer_triton.layout import MeshTensor
from wafer_triton.mesh import Mesh
from wafer_triton.schedule import rules
from wafer_triton.schedule.rounds import Buffer, Schedule

EXCHANGES = ("explicit", "elided")


class Executor(Planner):
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
        others needs. Raises ScheduleError for a draft that breaks a rule, ShapeError for a missing or misshapen tensor.
        """
        check_type("bind: schedule", schedule, Schedule)
        check_type("bind: tensors", tensors, Mapping, ShapeError)
        rules.validate(schedule)
        if unknown := [name for name in tensors if name not in schedule.buffers]:
            raise ShapeError(
                f"{schedule.name}: no buffer {unknown[0]!r} to give a tensor to; it has {', '.join(schedule.buffers)}"
            )
        memory = dict(shared or {})
        pool = {} if scratch is None else scratch
        fresh = [
            buffer
            for name, buffer in schedule.buffers.items()
            if name in tensors or (name not in memory and buffer not in pool)
        ]
        self.admit(schedule, fresh)
        for name, buffer in schedule.buffers.items():
            if name in tensors:
                memory[name] = self.store(schedule, buffer, tensors[name])
            elif name in memory:
                continue
            elif buffer.given:
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
        need = schedule.mesh.cores * sum(
            buffer.slots * buffer.numel * self.storage(buffer).itemsize for buffer in fresh
        )
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
        rounded = self.part(schedule, buffer, given).to(self.device, torch_dtype(buffer.dtype))
        return rounded.to(self.storage(buffer), copy=True, memory_format=torch.contiguous_format)

    def allocate(self, schedule: Schedule, buffer: Buffer) -> torch.Tensor:
        """Fresh storage of a buffer: zeros, or NaN under `poison`."""
        shape = (*schedule.mesh.shape, buffer.slots * buffer.numel)
        fill = float("nan") if self.poison else 0.0
        return torch.full(shape, fill, dtype=self.storage(buffer), device=self.device)

    def room(self, schedule: Schedule, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Fresh storage of some buffers by name; BackendError if it does not fit."""
        buffers = [schedule.buffers[name] for name in names]
        self.admit(schedule, buffers)
        return {buffer.name: self.allocate(schedule, buffer) for buffer in buffers}

    def part(self, schedule: Schedule, buffer: Buffer, given: torch.Tensor) -> torch.Tensor:
        """What this executor stores, [rows, cols, slots * numel], of values for all cores of a buffer.

        Raises ShapeError or DtypeError for what is no such.
        """
        return whole(schedule, buffer, given)

    def rectangle(self, mesh: Mesh) -> tuple[slice, slice]:
        """The rows and the columns of a mesh whose cores this executor holds."""
        return slice(0, mesh.shape[0]), slice(0, mesh.shape[1])

    def together(self, mesh: Mesh, held: torch.Tensor) -> torch.Tensor:
        """The values [rows, cols, ...] of all cores, of which this executor stores those that are `held`."""
        return held

    def take(self, mesh: Mesh, held: torch.Tensor, source: torch.Tensor, out: torch.Tensor) -> None:
        """Give every core the tile of core source[core], from [rows, cols, numel] of what is held to `out` likewise."""
        torch.index_select(held.flatten(0, 1), 0, source.to(held.device), out=out.flatten(0, 1))

    @property
    def device(self) -> str:
        """The torch device of fresh storage."""
        return "cpu"

    def on_device(self) -> AbstractContextManager[object]:
        """What to be in while kernels are compiled and launched, so that they go to this executor's device."""
        return nullcontext()

    def check(self) -> None:
        """BackendError if something that was run went wrong on the device; results are given away after it."""

    def capture(self, run: Step) -> Step:
        """`run` itself, or what replays a record of its launches from its second call on.

        A record holds the launches, not what is written to memory between them.
        """
        return run

    @abstractmethod
    def storage(self, buffer: Buffer) -> torch.dtype:
        """The dtype that a buffer is stored in."""

    def _plan(self, schedule: Schedule, tensors: dict[str, torch.Tensor], tables: Tables | None) -> list[Step]:
        memory, schedule = Memory(schedule.mesh, dict(schedule.buffers), tensors, tables), one_by_one(schedule)
        if tables is not None:
            tables.begin(schedule.name)
        if self.exchange == "elided":
            return self.joined(memory, Elision(self, schedule, memory).plan())
        planned: dict[int, list[Step]] = {}
        steps: list[Step] = []
        rounds = schedule.rounds
        while rounds:
            fused = self.fuse(memory, schedule, rounds)
            if fused is not None:
                steps += fused[1]
                rounds = rounds[fused[0] :]
                continue
            if id(rounds[0]) not in planned:
                planned[id(rounds[0])] = self.round(memory, rounds[0])
            steps += planned[id(rounds[0])]
            rounds = rounds[1:]
        return self.joined(memory, steps)


@dataclass(eq=False)
class Program:
    """A schedule bound to memory; `run` executes it, and may be called again after inputs changed in place."""

    schedule: Schedule
    memory: dict[str, torch.Tensor]
    steps: list[Step]
    executor: Executor
    tables: Tables | None = None

    def run(self, until: int | str | None = None) -> None:
        """Execute every round; with `until` those before a round, given by number or as the first with a label."""
        if until is not None:
            for _ in islice(self.rounds(), number_of(self.schedule, until)):
                pass
            return
        with self.executor.on_device():
            for step in self.steps:
                step()

    def rounds(self) -> Iterator[State]:
        """Execute round by round, and give the state after each; rounds are not fused, which takes longer than `run`.

        Raises BackendError with elided exchange, where tiles do not move.
        """
        if self.executor.exchange != "explicit":
            raise BackendError(
                f"{self.schedule.name}: with elided exchange tiles stay where they lie, so that no round can be looked "
                f"at; use exchange='explicit'"
            )
        memory, planned = Memory(self.schedule.mesh, dict(self.schedule.buffers), self.memory), dict[int, list[Step]]()
        for number, round_ in enumerate(self.schedule.rounds):
            with self.executor.on_device():
                if id(round_) not in planned:
                    planned[id(round_)] = self.executor.round(memory, round_)
                for step in planned[id(round_)]:
                    step()
            yield State(number, round_.label, self.read)

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
        launches = Counter(step.what for step in self.steps if isinstance(step, Launch))
        return tuple(what if number == 1 else f"{number} x {what}" for what, number in launches.items())

    @property
    def rank_bytes(self) -> tuple[int, ...]:
        """The bytes that one `run` sends between ranks, an entry for each round that does; see `DistributedExecutor`.

        With elided exchange a round that reads tiles of other ranks has the entry.
        """
        return tuple(step.crossed for step in self.steps if isinstance(step, Apart) and step.crossed)

    @property
    def predicted(self) -> Prediction:
        """What one `run` is predicted to take on the wafer, by the price of the schedule."""
        return Prediction.of(price(self.schedule), self.schedule.mesh.device)

    def write(self, name: str, tiles: torch.Tensor) -> None:
        """Give an input buffer new values, [rows, cols, *tile], rounded to the buffer's dtype."""
        buffer, target = self._buffer(name), self.memory[name]
        target.copy_(self.executor.part(self.schedule, buffer, tiles).to(torch_dtype(buffer.dtype)))

    def read(self, name: str) -> torch.Tensor:
        """The values of a buffer: [rows, cols, *tile], or [rows, cols, slots, *tile] if it has several slots.

        BackendError if what was run gave up on the way.
        """
        self.executor.check()
        buffer = self._buffer(name)
        dims = (*buffer.tile,) if buffer.slots == 1 else (buffer.slots, *buffer.tile)
        held = self.executor.together(self.schedule.mesh, self.memory[name])
        return held.to(torch_dtype(buffer.dtype), copy=True).unflatten(-1, dims)

    def gather(self, name: str, pattern: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor of a shape whose tiles a buffer of one slot holds, cut by `pattern`; raises as `read` does.

        Of tiles that are repeated one copy is made.
        """
        self.executor.check()
        buffer, mesh = self._buffer(name), self.schedule.mesh
        tiles = self.executor.together(mesh, self.memory[name]).unflatten(-1, buffer.tile)
        return MeshTensor(mesh, tiles, pattern, shape, {}).gather().to(torch_dtype(buffer.dtype), copy=True)

    def _buffer(self, name: str) -> Buffer:
        if name not in self.schedule.buffers:
            raise ShapeError(f"{self.schedule.name}: no buffer {name!r}; it has {', '.join(self.schedule.buffers)}")
        return self.schedule.buffers[name]


def whole(schedule: Schedule, buffer: Buffer, given: torch.Tensor) -> torch.Tensor:
    """Values for all slots of a buffer as [rows, cols, slots * numel]; ShapeError or DtypeError for what is no such."""
    shape = (*schedule.mesh.shape, buffer.slots * buffer.numel)
    if not isinstance(given, torch.Tensor) or given.layout != torch.strided:
        raise ShapeError(
            f"{schedule.name}: buffer {buffer.name!r} is given a {type(given).__name__}; give a dense torch tensor "
            f"[rows, cols, *tile], such as torch.from_numpy makes of an array"
        )
    if given.is_complex():
        raise DtypeError(
            f"{schedule.name}: buffer {buffer.name!r} is given a tensor of {given.dtype}; give its real part"
        )
    if given.shape[:2] != shape[:2] or given.shape[2:].numel() != shape[2]:
        raise ShapeError(
            f"{schedule.name}: buffer {buffer.name!r} is {list(buffer.tile)} x {buffer.slots} on "
            f"{shape[0]} x {shape[1]} cores, the tensor given is {list(given.shape)}"
        )
    return given.reshape(shape)
