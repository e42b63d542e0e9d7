"""Executors: `Executor` binds schedules to memory and plans them; its subclasses are for torch, Triton and ranks.

With `explicit` exchange tiles move, round by round, see `plan`. With `elided` exchange they stay, and a core reads a
tile in the memory that a tile map records, see `elision`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any

import torch

from wafer_triton.device.dtype import torch_dtype
from wafer_triton.device.layout import sharding
from wafer_triton.device.mesh import Mesh
from wafer_triton.device.modes import WITHOUT_VALUES
from wafer_triton.emulate.elision import elided
from wafer_triton.emulate.parts import Cut, Memory, Step, Tables, Workspace
from wafer_triton.emulate.plan import Planner, explicit
from wafer_triton.emulate.program import POOL, Program
from wafer_triton.errors import BackendError, DtypeError, ShapeError, WaferError, article, shown
from wafer_triton.schedule import rules
from wafer_triton.schedule.rounds import Buffer
from wafer_triton.schedule.schedule import Schedule

EXCHANGES: Mapping[str, Callable[[Planner, Schedule, Memory], list[Step]]] = {"explicit": explicit, "elided": elided}


class Executor(Planner):
    """Runs schedules, with all memory on the torch `device`.

    `exchange` is "explicit" or "elided"; `poison` fills all memory that is not given with NaN.
    """

    graphs = False  # whether `capture` records launches

    def __init__(self, device: str, *, exchange: str = "explicit", poison: bool = False) -> None:
        if exchange not in EXCHANGES:
            raise BackendError(f"exchange {shown(exchange)}: choose one of {', '.join(EXCHANGES)}")
        self.device, self.exchange, self.poison = device, exchange, poison
        self.unwritten = float("nan") if poison else 0.0

    @property
    def on_gpu(self) -> bool:
        """Whether its memory is a GPU's."""
        return self.device != "cpu" and torch.device(self.device).type == "cuda"

    @cached_property
    def workspace(self) -> Workspace:
        """The workspace of programs that never run at the same time."""
        return Workspace(self.device)

    def bind(
        self, schedule: Schedule, tensors: Mapping[str, torch.Tensor], shared: Mapping[str, torch.Tensor] | None = None,
        scratch: dict[Buffer, torch.Tensor] | None = None, tables: Tables | None = None,
        workspace: Workspace | None = None,
    ) -> Program:  # fmt: skip
        """Plan a schedule over memory; `tensors`, [rows, cols, *tile] each, are copied in.

        `shared` holds memory of other programs that this one uses in place. `scratch` is a pool of scratch buffers that
        programs of one schedule share. `tables` are the program's index tables, for `rebind`. Raises ScheduleError for
        a broken rule, ShapeError for a missing or misshapen tensor, BackendError for too little memory.
        """
        self.outside_capture(schedule.name)
        rules.validate(schedule)
        if unknown := [name for name in tensors if name not in schedule.buffers]:
            raise ShapeError(
                f"{schedule.name}: no buffer {unknown[0]!r} to give a tensor to; it has {', '.join(schedule.buffers)}"
            )
        memory, pool = dict(shared or {}), {} if scratch is None else scratch
        held = schedule.buffers.items()
        fresh = [buffer for name, buffer in held if name in tensors or (name not in memory and buffer not in pool)]
        self.admit(schedule, fresh)
        for name, buffer in held:
            if name in tensors:
                memory[name] = self.store(schedule, buffer, tensors[name])
            elif name not in memory and buffer.given:
                raise ShapeError(f"{schedule.name}: no tensor given for {buffer.role} buffer {name!r}")
            elif name not in memory:
                if buffer not in pool:
                    pool[buffer] = self.allocate(schedule, buffer)
                memory[name] = pool[buffer]
        return Program(schedule, memory, self, workspace or self.workspace, tables)

    def borrow(self, schedule: Schedule) -> Program:
        """Return a program of its own memory from the pool, or a new one; `Program.give_back` returns it.

        Its inputs hold old values, all other buffers are as in fresh memory.
        """
        self.outside_capture(schedule.name)
        self.meet(schedule)
        stream = torch.cuda.current_stream(self.device) if self.on_gpu else None
        program = POOL.take((self, schedule, stream))
        if program is not None:
            program.refill()
            return program
        rules.validate(schedule)
        return Program(schedule, self.room(schedule, schedule.buffers), self, Workspace(self.device), stream=stream)

    def outside_capture(self, name: str) -> None:
        """BackendError while the current stream records a CUDA graph of the caller's."""
        if self.on_gpu and torch.cuda.is_current_stream_capturing():
            raise BackendError(
                f"{name}: the current stream records a CUDA graph, whose replays would use memory that other calls "
                f"take meanwhile; call it outside of torch.cuda.graph, as it records graphs of its own"
            )

    def plan(self, schedule: Schedule, memory: Memory) -> list[Step]:
        if memory.tables is not None:
            memory.tables.begin(schedule.name)
        with self.on_device():
            steps = EXCHANGES[self.exchange](self, schedule, memory)
        if memory.tables is not None:
            memory.tables.schedule = schedule
        return steps

    def admit(self, schedule: Schedule, fresh: list[Buffer]) -> None:
        """BackendError if buffers that this executor is about to make do not fit into its device's memory."""
        if not self.on_gpu:
            return
        numbers = ((torch_dtype(buffer.dtype).itemsize, buffer.slots * buffer.numel) for buffer in fresh)
        need = schedule.mesh.cores * sum(size * count for size, count in numbers)
        rows, cols = schedule.mesh.shape
        if need > free_bytes(self.device):
            POOL.clear()  # memory of programs at rest
        if need > (free := free_bytes(self.device)):
            raise BackendError(
                f"{schedule.name}: the tiles of {rows} x {cols} cores take {need:,} B of memory, "
                f"{self.device} has {free:,} B free; use a smaller mesh or smaller tiles"
            )

    def meet(self, schedule: Schedule) -> None:
        """Raise BackendError where ranks do not run the same schedule; one process always does."""

    def agree(self, name: str, given: torch.Tensor) -> None:
        """Raise BackendError where ranks are not given the same values for an operand; one process always is."""

    @torch.inference_mode(False)
    def store(self, schedule: Schedule, buffer: Buffer, given: torch.Tensor) -> torch.Tensor:
        """Fresh memory [rows, cols, slots * numel] of a buffer with the given values, rounded to its dtype."""
        values = self.part(schedule, buffer, given)
        return torch.empty(values.shape, dtype=torch_dtype(buffer.dtype), device=self.device).copy_(values.detach())

    @torch.inference_mode(False)
    def allocate(self, schedule: Schedule, buffer: Buffer) -> torch.Tensor:
        """Fresh memory of a buffer: zeros, or NaN under `poison`."""
        shape = (*schedule.mesh.shape, buffer.slots * buffer.numel)
        return torch.full(shape, self.unwritten, dtype=torch_dtype(buffer.dtype), device=self.device)

    def room(self, schedule: Schedule, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Fresh memory of some buffers by name; BackendError if it does not fit."""
        buffers = [schedule.buffers[name] for name in names]
        self.admit(schedule, buffers)
        return {buffer.name: self.allocate(schedule, buffer) for buffer in buffers}

    def part(self, schedule: Schedule, buffer: Buffer, given: torch.Tensor) -> torch.Tensor:
        return whole(schedule, buffer, given)

    def entry(self, schedule: Schedule, name: str, memory: torch.Tensor, cut: Cut) -> Callable[[torch.Tensor], object]:
        """Return a function that cuts a whole tensor into the memory of a buffer; see `Sharding.entry`."""
        return sharding(*cut, schedule.mesh.shape).entry(memory)

    def exit(self, schedule: Schedule, memory: torch.Tensor, cut: Cut) -> Callable[[], torch.Tensor]:
        """Return a function that makes a whole tensor of the memory of a buffer; see `Sharding.exit`."""
        return sharding(*cut, schedule.mesh.shape).exit(memory)

    def rectangle(self, mesh: Mesh) -> tuple[slice, slice]:
        """Return the rows and the columns of a mesh whose cores this executor holds."""
        return slice(0, mesh.shape[0]), slice(0, mesh.shape[1])

    def take(self, mesh: Mesh, held: torch.Tensor, source: torch.Tensor, out: torch.Tensor) -> None:
        """Give every core the tile of core source[core], from `held` [rows, cols, numel] to `out` likewise."""
        torch.index_select(held.flatten(0, 1), 0, _moved(source, held.device), out=out.flatten(0, 1))

    def precompile(self, steps: Iterable[Step], progress: Callable[[int, int], object] | None = None) -> int:
        """Compile the kernels of planned steps side by side, and return their number; nothing runs.

        `progress(done, all)` is called as each of them is compiled. An executor without kernels has none to compile.
        """
        return 0


@lru_cache(maxsize=64)
def _moved(index: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return an index on a device, to which a CUDA graph could not copy it."""
    return index.to(device)


def free_bytes(device: str) -> int:
    """Return the bytes of a GPU's memory that torch can give out."""
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + reserved


def whole(schedule: Schedule, buffer: Buffer, given: Any) -> torch.Tensor:
    """Return values for all slots of a buffer as [rows, cols, slots * numel]; ShapeError or DtypeError for others."""
    shape = (*schedule.mesh.shape, buffer.slots * buffer.numel)
    if not isinstance(given, torch.Tensor) or given.layout != torch.strided:
        raise ShapeError(
            f"{schedule.name}: buffer {buffer.name!r} is given {article(type(given).__name__)}; give a dense torch "
            f"tensor [rows, cols, *tile], such as torch.from_numpy makes of an array"
        )
    if given.is_complex() or given.is_meta:
        fault = f"of {given.dtype}; give its real part" if given.is_complex() else WITHOUT_VALUES
        raise DtypeError(f"{schedule.name}: buffer {buffer.name!r} is given a tensor {fault}")
    if given.shape[:2] != shape[:2] or given.shape[2:].numel() != shape[2]:
        raise ShapeError(
            f"{schedule.name}: buffer {buffer.name!r} is {list(buffer.tile)} x {buffer.slots} on "
            f"{shape[0]} x {shape[1]} cores, the tensor given is {list(given.shape)}"
        )
    return given.reshape(shape)


class Graph:
    """Calls `run` at first, which compiles its kernels; records its launches at the second call, and replays them.

    With `compiled` the first call records already. Launches that CUDA refuses to record go one by one from then on; a
    `UserWarning` has the reason. Within a graph that the caller records they go one by one into that.
    """

    recording = Lock()  # CUDA records one graph at a time

    def __init__(
        self, run: Step, on_device: Callable[[], AbstractContextManager[object]], compiled: bool = False
    ) -> None:
        self.run, self.on_device, self.compiled = run, on_device, compiled
        self.graph: torch.cuda.CUDAGraph | None = None
        self.refused = False

    def __call__(self) -> None:
        if self.compiled and not self.refused and not torch.cuda.is_current_stream_capturing():
            with self.on_device():
                self.graph = self.graph or self._recorded()
                if self.graph is not None:
                    self.graph.replay()
                    return
        self.run()
        self.compiled = True

    def _recorded(self) -> torch.cuda.CUDAGraph | None:
        """Return the record of a run, which computes nothing yet; None if CUDA refuses it."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # torch's own is the first GPU's
        try:
            # in "global" mode no other thread could allocate meanwhile
            with Graph.recording, torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self.run()
        except RuntimeError as error:
            if isinstance(error, WaferError):
                raise
            self.refused = True
            reason = " ".join(str(error).split())[:200]
            warnings.warn(
                f"CUDA recorded no graph of these launches ({type(error).__name__}: {reason}); they go one by one, "
                f"with the same results, in more time",
                stacklevel=3,
            )
            return None
        return graph
