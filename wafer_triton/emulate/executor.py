"""Executors: `Executor` binds schedules to memory and plans them; subclasses are for torch, Triton and ranks.

A schedule becomes a list of steps over memory. With "explicit" exchange every move of a tile is a step. With "elided"
exchange tiles stay in place, and a core reads a tile where a tile map says that it lies (`elision`).
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any

import torch

from wafer_triton.device.dtype import torch_dtype
from wafer_triton.device.layout import sharding
from wafer_triton.device.mesh import Mesh
from wafer_triton.device.modes import UNCHANGED, WITHOUT_VALUES, as_planned
from wafer_triton.emulate.elision import elided
from wafer_triton.emulate.parts import Cut, Memory, Segment, Step, Tables, TileMap, Workspace
from wafer_triton.emulate.program import POOL, Program
from wafer_triton.emulate.segments import segments
from wafer_triton.errors import BackendError, DtypeError, ShapeError, WaferError, article, shown
from wafer_triton.local import definitions
from wafer_triton.schedule import rules
from wafer_triton.schedule.rounds import Buffer, Exchange, Local, Round, Slot
from wafer_triton.schedule.schedule import Schedule

EXCHANGES = ("explicit", "elided")


class Executor(ABC):
    """Runs schedules, with all memory on the torch `device`.

    `exchange` is "explicit" or "elided"; `poison` fills memory with NaN, but for given buffers, to reveal early reads.
    Subclasses say how moves and local operations become steps.
    """

    graphs = False  # whether `capture` records CUDA graphs

    def __init__(self, device: str, *, exchange: str = "explicit", poison: bool = False) -> None:
        if exchange not in EXCHANGES:
            raise BackendError(f"exchange {shown(exchange)}: choose one of {', '.join(EXCHANGES)}")
        self.device, self.exchange, self.poison = device, exchange, poison
        self.unwritten = float("nan") if poison else 0.0  # what memory holds before it is written

    @property
    def on_gpu(self) -> bool:
        """Whether memory is on a GPU."""
        return self.device != "cpu" and torch.device(self.device).type == "cuda"

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

    def plan(self, schedule: Schedule, memory: Memory) -> list[Step]:
        """Return steps that run the whole schedule on memory."""
        if memory.tables is not None:
            memory.tables.begin(schedule.name)
        with self.on_device():
            steps = self.explicit(schedule, memory) if self.exchange == "explicit" else elided(self, schedule, memory)
            fused = self.fuse_steps(memory, steps)
        if memory.tables is not None:
            memory.tables.schedule = schedule
        return fused

    def explicit(self, schedule: Schedule, memory: Memory) -> list[Step]:
        """Return the steps of a schedule, in which every exchange copies its tiles."""
        planned: dict[Round, list[Step]] = {}
        steps: list[Step] = []
        for segment in segments(schedule):
            fused = self.segment(memory, segment)
            if fused is not None:
                steps += fused
                continue
            for round_ in segment.all_rounds:
                if round_ not in planned:
                    planned[round_] = self.round(memory, round_)
                steps += planned[round_]
        return steps

    def segment(self, memory: Memory, segment: Segment, ins: tuple[TileMap, ...] = ()) -> list[Step] | None:
        """Return steps that run a segment at once, or None to have it run round by round.

        With elided exchange `ins` says where the tiles of a and b lie before the first of `Products`, and the broadcast
        of a `Reduction` is not to be run, since it becomes a tile map.
        """
        return None

    def round(self, memory: Memory, round_: Round) -> list[Step]:
        """Return the steps of one round: its moves, then its local operations."""
        moves = (self.move(memory, exchanges, TileMap(exchanges[0].src)) for exchanges in by_slots(round_))
        computes = (self.compute(memory, op, tuple(map(TileMap, op.ins))) for op in round_.locals)
        return [step for steps in (*moves, *computes) for step in steps]

    @abstractmethod
    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> list[Step]:
        """Return steps for exchanges that share a source and a target slot; `src` says where senders' tiles lie."""

    @abstractmethod
    def compute(self, memory: Memory, op: Local, ins: tuple[TileMap, ...]) -> list[Step]:
        """Return steps that run a local operation on its cores; `ins` says where their input tiles lie."""

    def fuse_steps(self, memory: Memory, steps: list[Step]) -> list[Step]:
        """Return the steps of a program with consecutive ones merged where one launch can run them."""
        return steps

    def on_device(self) -> AbstractContextManager[object]:
        """Return a context for planning and running: on the executor's GPU, without autocast or inference mode."""
        if self.device == "cpu" and not (torch.is_autocast_enabled("cpu") or torch.is_inference_mode_enabled()):
            return UNCHANGED
        return as_planned(self.device)

    def check(self) -> None:  # noqa: B027  most have nothing to check
        """Raise BackendError if a program failed on the device; called before results are read."""

    def capture(self, run: Step, compiled: bool = False) -> Step:
        """Return `run`, or on a GPU a step that records its launches as a CUDA graph and then replays them.

        The second call records, or the first if `compiled` says that all kernels are compiled. A graph repeats the
        launches, not what the host writes to memory between them.
        """
        return run

    def check_allocation(self, schedule: Schedule, fresh: list[Buffer]) -> None:
        """Raise BackendError if the device cannot hold the buffers `fresh`, which are about to be allocated."""
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

    def agree_on_schedule(self, schedule: Schedule) -> None:  # noqa: B027  one process has nothing to compare
        """Raise BackendError if ranks run different schedules."""

    def agree_on_operand(self, name: str, values: torch.Tensor) -> None:  # noqa: B027
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

    def local_tiles(self, schedule: Schedule, buffer: Buffer, values: torch.Tensor) -> torch.Tensor:
        """Return the tiles of this executor's own cores as [rows, cols, slots * numel].

        `values` are a buffer's [rows, cols, *tile] of all cores. Raises ShapeError for another shape, DtypeError
        for complex values.
        """
        return checked_tiles(schedule, buffer, values)

    def plan_scatter(
        self, schedule: Schedule, name: str, memory: torch.Tensor, cut: Cut
    ) -> Callable[[torch.Tensor], object]:
        """Return a function that cuts a tensor into tiles, in the memory of buffer `name`."""
        return sharding(*cut, schedule.mesh.shape).plan_scatter(memory)

    def plan_gather(self, schedule: Schedule, memory: torch.Tensor, cut: Cut) -> Callable[[], torch.Tensor]:
        """Return a function that gathers the tiles in a buffer's memory into one tensor."""
        return sharding(*cut, schedule.mesh.shape).plan_gather(memory)

    def all_gather(self, mesh: Mesh, local: torch.Tensor) -> torch.Tensor:
        """Return the values [rows, cols, ...] of all cores; `local` are those of this executor's own cores."""
        return local

    def rectangle(self, mesh: Mesh) -> tuple[slice, slice]:
        """Return the mesh rows and columns whose cores this executor holds."""
        return slice(0, mesh.shape[0]), slice(0, mesh.shape[1])

    def gather_tiles(self, mesh: Mesh, tiles: torch.Tensor, source: torch.Tensor, out: torch.Tensor) -> None:
        """Copy tile source[i] of `tiles` to tile i of `out`, for every core i; both are [rows, cols, numel]."""
        torch.index_select(tiles.flatten(0, 1), 0, _index_on(source, tiles.device), out=out.flatten(0, 1))

    def precompile(self, steps: Iterable[Step], progress: Callable[[int, int], object] | None = None) -> int:
        """Compile the kernels of planned steps in parallel, without running them, and return how many there are.

        `progress(done, count)` is called after each.
        """
        return 0


def by_slots(round_: Round) -> list[list[Exchange]]:
    """Return the exchanges of a round in groups that share a source and a target slot."""
    groups: dict[tuple[Slot, Slot], list[Exchange]] = {}
    for exchange in round_.exchanges:
        groups.setdefault((exchange.src, exchange.dst), []).append(exchange)
    return list(groups.values())


@lru_cache(maxsize=64)
def _index_on(index: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return an index on a device, cached, as a CUDA graph cannot copy it there."""
    return index.to(device)


def free_bytes(device: str) -> int:
    """Return the bytes of a GPU's memory that torch can still allocate."""
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + reserved


def checked_tiles(schedule: Schedule, buffer: Buffer, values: Any) -> torch.Tensor:
    """Return values of a buffer as [rows, cols, slots * numel]; ShapeError or DtypeError if they are not its tiles."""
    shape = (*schedule.mesh.shape, buffer.slots * buffer.numel)
    if not isinstance(values, torch.Tensor) or values.layout != torch.strided:
        raise ShapeError(
            f"{schedule.name}: buffer {buffer.name!r} is given {article(type(values).__name__)}; give a dense torch "
            f"tensor [rows, cols, *tile], such as torch.from_numpy makes of an array"
        )
    if values.is_complex() or values.is_meta:
        fault = f"of {values.dtype}; give its real part" if values.is_complex() else WITHOUT_VALUES
        raise DtypeError(f"{schedule.name}: buffer {buffer.name!r} is given a tensor {fault}")
    given = values.shape[2:]
    fits = given.numel() == shape[2] and (given == buffer.tile or _same_form(buffer, given))
    if values.shape[:2] != shape[:2] or not fits:
        raise ShapeError(
            f"{schedule.name}: buffer {buffer.name!r} is {list(buffer.tile)} x {buffer.slots} on "
            f"{shape[0]} x {shape[1]} cores, the tensor given is {list(values.shape)}"
        )
    if values.is_cpu and not values.is_floating_point():  # a GPU would have to be waited for
        inexact = values[values.to(torch_dtype(buffer.dtype)).to(values.dtype) != values]
        if inexact.numel():
            raise DtypeError(
                f"{schedule.name}: buffer {buffer.name!r} of {buffer.dtype} is given the whole number "
                f"{int(inexact[0]):,}, which {buffer.dtype} would round; give the tensor's .double() if it may"
            )
    return values.reshape(shape)


def _same_form(buffer: Buffer, given: Sequence[int]) -> bool:
    """Return whether sizes that hold all slots of a buffer are its own; [1, 4] is [4], and either may be flat."""
    if len(buffer.tile) == 1 and (buffer.slots == 1 or given[0] == buffer.slots):
        return True
    forms = ((buffer.slots * buffer.numel,), (buffer.slots, buffer.numel), (buffer.slots, *buffer.tile), given)
    *fits, tile = ([size for size in form if size > 1] for form in forms)
    return tile in fits


class Graph:
    """A step as a CUDA graph: the first call runs it, which compiles its kernels; later calls record once, and replay.

    With `compiled` the first call records already. If CUDA refuses to record, a `UserWarning` says why, and every call
    runs the launches one by one. While the caller records a graph of his own, the launches go into that.
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
        """Record `run` without computing anything, and return the graph; None if CUDA refuses."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # torch's default stream is of the first GPU
        try:
            # in "global" mode other threads could not allocate while this one records
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
