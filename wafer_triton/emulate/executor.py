"""Executors: an `Executor` binds schedules to memory and plans them; subclasses are for torch, Triton and ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

import torch

from wafer_triton.device.dtype import torch_dtype
from wafer_triton.emulate.elision import Elision
from wafer_triton.emulate.parts import Call, Memory, Tables, Workspace
from wafer_triton.emulate.planner import Planner
from wafer_triton.emulate.pool import POOL
from wafer_triton.emulate.program import Program
from wafer_triton.errors import BackendError, ShapeError
from wafer_triton.local import definitions
from wafer_triton.schedule import rules
from wafer_triton.schedule.rounds import Buffer
from wafer_triton.schedule.schedule import Schedule


class Executor(Planner):
    """Runs schedules, with all memory on the torch `device`; `exchange` and `poison` are as in `Planner`."""

    @cached_property
    def workspace(self) -> Workspace:
        """The workspace that all programs of `bind` share, so only one of them may run at a time."""
        return Workspace(self.device)

    def bind(
        self, schedule: Schedule, tensors: Mapping[str, torch.Tensor], shared: Mapping[str, torch.Tensor] | None = None,
        scratch: dict[Buffer, torch.Tensor] | None = None, tables: Tables | None = None,
        workspace: Workspace | None = None,
    ) -> Program:  # fmt: skip
        """Plan a schedule over memory; `tensors` by buffer name are copied in and rounded to the buffers' dtypes.

        A tensor is [rows, cols, *tile], with several slots [rows, cols, slots, *tile]; its tiles, or the buffer's, may
        be flat. The program is run by `run()`, and `read(name)` returns a buffer's tiles.

        `shared` is memory by buffer name, such as another program's, that is used in place. `scratch` holds memory of
        buffers by their values: missing ones are added, so programs that are given the same dict share it. `tables`
        are the program's index tables, for `rebind`. Raises ScheduleError for a broken rule, ShapeError for a missing
        or misshapen tensor, BackendError for too little memory.
        """
        self.outside_capture(schedule.name)
        rules.validate(schedule)
        if unknown := [name for name in tensors if name not in schedule.buffers]:
            raise ShapeError(
                f"{schedule.name}: no buffer {unknown[0]!r} to give a tensor to; it has {', '.join(schedule.buffers)}"
            )
        memory, pool = dict(shared or {}), {} if scratch is None else scratch
        buffers = schedule.buffers.items()
        fresh = [buffer for name, buffer in buffers if name in tensors or (name not in memory and buffer not in pool)]
        self.check_allocation(schedule, fresh)
        for name, buffer in buffers:
            if name in tensors:
                memory[name] = self.store(schedule, buffer, tensors[name])
            elif name not in memory and buffer.given:
                raise ShapeError(f"{schedule.name}: no tensor given for {buffer.role} buffer {name!r}")
            elif name not in memory:
                if buffer not in pool:
                    pool[buffer] = self.allocate(schedule, buffer)
                memory[name] = pool[buffer]
        return Program(schedule, memory, self, workspace or self.workspace, tables, given=frozenset(tensors))

    def borrow(self, schedule: Schedule) -> Program:
        """Return a program of this schedule from the pool, or a new one; `Program.give_back` returns it.

        Given buffers hold values of earlier calls, all others are as in fresh memory.
        """
        self.outside_capture(schedule.name)
        self.agree_on_schedule(schedule)
        stream = torch.cuda.current_stream(self.device) if self.on_gpu else None
        key = self, schedule, stream, definitions()
        program = POOL.take(key)
        if program is not None:
            program.refill()
            return program
        rules.validate(schedule)
        return Program(schedule, self.allocate_all(schedule, schedule.buffers), self, Workspace(self.device), key=key)

    def outside_capture(self, name: str) -> None:
        """Raise BackendError if the caller is recording a CUDA graph; `name` is the schedule's."""
        if self.on_gpu and torch.cuda.is_current_stream_capturing():
            raise BackendError(
                f"{name}: the current stream records a CUDA graph, whose replays would use memory that other calls "
                f"take meanwhile; call it outside of torch.cuda.graph, as it records graphs of its own"
            )

    def plan(self, schedule: Schedule, memory: Memory) -> list[Call]:
        """Return steps that run the whole schedule on memory."""
        if memory.tables is not None:
            memory.tables.begin(schedule.name)
        with self.on_device():
            tasks = (
                self.explicit(schedule, memory)
                if self.exchange == "explicit"
                else Elision(self, schedule, memory).plan()
            )
            fused = self.fuse_tasks(memory, tasks)
        if memory.tables is not None:
            memory.tables.end(schedule)
        return fused

    def check_allocation(self, schedule: Schedule, fresh: list[Buffer]) -> None:
        """Raise BackendError if the device cannot hold the buffers `fresh`, which are about to be allocated."""
        if not self.on_gpu:
            return
        need = schedule.mesh.cores * sum(buffer.bytes for buffer in fresh)
        rows, cols = schedule.mesh.shape
        if need > free_bytes(self.device):
            POOL.clear()  # memory of programs at rest
        if need > (free := free_bytes(self.device)):
            raise BackendError(
                f"{schedule.name}: the tiles of {rows} x {cols} cores take {need:,} B of memory, "
                f"{self.device} has {free:,} B free; use a smaller mesh or smaller tiles"
            )

    def agree_on_schedule(self, schedule: Schedule) -> None:
        """Raise BackendError if ranks run different schedules."""

    def agree_on_operand(self, name: str, values: torch.Tensor) -> None:
        """Raise BackendError if ranks have different values for the operand `name`."""

    @torch.inference_mode(False)
    def store(self, schedule: Schedule, buffer: Buffer, values: torch.Tensor) -> torch.Tensor:
        """Return new memory [rows, cols, slots * numel] of a buffer with these values, rounded to its dtype."""
        tiles = self.local_tiles(schedule, buffer, values)
        return torch.empty(tiles.shape, dtype=torch_dtype(buffer.dtype), device=self.device).copy_(tiles.detach())

    @torch.inference_mode(False)
    def allocate(self, schedule: Schedule, buffer: Buffer) -> torch.Tensor:
        """Return new memory [rows, cols, slots * numel] of a buffer: zeros, or NaN under `poison`."""
        shape = (*schedule.mesh.shape, buffer.slots * buffer.numel)
        return torch.full(shape, self.unwritten, dtype=torch_dtype(buffer.dtype), device=self.device)

    def allocate_all(self, schedule: Schedule, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Return new memory of the buffers `names`, by name; BackendError if it does not fit."""
        buffers = [schedule.buffers[name] for name in names]
        self.check_allocation(schedule, buffers)
        return {buffer.name: self.allocate(schedule, buffer) for buffer in buffers}

    def precompile(self, steps: Iterable[Call], progress: Callable[[int, int], object] | None = None) -> int:
        """Compile the kernels of planned steps in parallel, without running them, and return how many there are.

        `progress(done, count)` is called after each.
        """
        return 0


def free_bytes(device: str) -> int:
    """Return the bytes of a GPU's memory that torch can still allocate."""
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + reserved
