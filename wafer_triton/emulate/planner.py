"""Planners: how moves and local operations become calls over memory; an executor is one that binds schedules too.

A schedule becomes a list of calls over memory. With "explicit" exchange every move of a tile is a call. With "elided"
exchange tiles stay in place, and a core reads a tile where a tile map says that it lies (`elision`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from itertools import chain
from typing import Any, TypeAlias

import torch

from wafer_triton.device.dtype import torch_dtype
from wafer_triton.device.layout import sharding
from wafer_triton.device.mesh import Mesh
from wafer_triton.device.modes import UNCHANGED, WITHOUT_VALUES, as_planned
from wafer_triton.emulate.parts import Call, Cut, Graph, Memory, Segment, Task, TileMap
from wafer_triton.emulate.segments import segments
from wafer_triton.errors import BackendError, DtypeError, ShapeError, article, shown
from wafer_triton.schedule.rounds import Buffer, Exchange, Local, Round, Slot
from wafer_triton.schedule.schedule import Schedule

EXCHANGES = ("explicit", "elided")
Key: TypeAlias = "tuple[Planner, Schedule, torch.cuda.Stream | None, int]"  # the last: definitions of operations


class Planner(ABC):
    """Plans schedules over memory on the torch `device`.

    `exchange` is "explicit" or "elided"; `poison` fills memory with NaN, but for given buffers, to reveal early reads.
    Subclasses say how moves and local operations become tasks.
    """

    graphs = False  # whether `capture` records CUDA graphs
    fuses = True  # whether some rounds may run at once; ranks send all tiles of a round together

    def __init__(self, device: str = "cpu", *, exchange: str = "explicit", poison: bool = False) -> None:
        if exchange not in EXCHANGES:
            raise BackendError(f"exchange {shown(exchange)}: choose one of {', '.join(EXCHANGES)}")
        self.device, self.exchange, self.poison = device, exchange, poison
        self.unwritten = float("nan") if poison else 0.0  # what memory holds before it is written

    @property
    def on_gpu(self) -> bool:
        """Whether memory is on a GPU."""
        return self.device != "cpu" and torch.device(self.device).type == "cuda"

    @abstractmethod
    def plan(self, schedule: Schedule, memory: Memory) -> list[Call]:
        """Return the calls that run the whole schedule on memory."""

    def explicit(self, schedule: Schedule, memory: Memory) -> list[Task]:
        """Return the steps of a schedule, in which every exchange copies its tiles."""
        planned = cache(partial(self.round, memory))
        tasks: list[Task] = []
        for segment in self.segments(schedule, memory):
            fused = self.segment(memory, segment)
            tasks += chain.from_iterable(map(planned, segment.rounds)) if fused is None else fused
        return tasks

    def segments(self, schedule: Schedule, memory: Memory) -> tuple[Segment, ...]:
        """Return the rounds of a schedule by what may run at once.

        With tables all run one by one: another schedule may change the slots and moves that decide what can be fused.
        """
        fused = self.fuses and memory.tables is None
        return segments(schedule) if fused else (Segment(0, tuple(schedule.rounds)),)

    def segment(self, memory: Memory, segment: Segment, ins: tuple[TileMap, ...] = ()) -> list[Task] | None:
        """Return steps that run a segment at once, or None to have it run round by round.

        With elided exchange `ins` says where the tiles of a and b lie before the first of `Products`, and the broadcast
        of a `Reduction` is not to be run, since it becomes a tile map.
        """
        return None

    def round(self, memory: Memory, round_: Round) -> list[Task]:
        """Return the steps of one round: its moves, then its local operations."""
        moves = (self.move(memory, exchanges, TileMap(exchanges[0].src)) for exchanges in by_slots(round_))
        computes = (self.compute(memory, op, tuple(map(TileMap, op.ins))) for op in round_.locals)
        return [step for steps in (*moves, *computes) for step in steps]

    @abstractmethod
    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> list[Task]:
        """Return steps for exchanges that share a source and a target slot; `src` says where senders' tiles lie."""

    @abstractmethod
    def compute(self, memory: Memory, op: Local, ins: tuple[TileMap, ...]) -> list[Task]:
        """Return steps that run a local operation on its cores; `ins` says where their input tiles lie."""

    def fuse_tasks(self, memory: Memory, tasks: list[Task]) -> list[Call]:
        """Return the calls of a program, in which consecutive tasks are merged where one launch can run them."""
        return [task for task in tasks if callable(task)]

    def on_device(self) -> AbstractContextManager[object]:
        """Return a context for planning and running: on the executor's GPU, without autocast or inference mode."""
        if self.device == "cpu" and not (torch.is_autocast_enabled("cpu") or torch.is_inference_mode_enabled()):
            return UNCHANGED
        return as_planned(self.device)

    def check(self) -> None:  # noqa: B027  most have nothing to check
        """Raise BackendError if a program failed on the device; called before results are read."""

    def capture(self, run: Call, compiled: bool = False) -> Call:
        """Return `run`, or on a GPU a step that records its launches as a CUDA graph and then replays them.

        The second call records, or the first if `compiled` says that all kernels are compiled. A graph repeats the
        launches, not what the host writes to memory between them.
        """
        return Graph(run, self.on_device, compiled) if self.graphs else run

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
        """Copy tile source[i] of `tiles` to tile i of `out`, for every core i; both are [rows, cols, numel].

        `source` [cores] is on their device, as a CUDA graph cannot copy it there.
        """
        here = source.view(mesh.shape)[self.rectangle(mesh)].flatten()
        torch.index_select(self.all_gather(mesh, tiles).flatten(0, 1), 0, here, out=out.flatten(0, 1))


def by_slots(round_: Round) -> list[list[Exchange]]:
    """Return the exchanges of a round in groups that share a source and a target slot."""
    groups: dict[tuple[Slot, Slot], list[Exchange]] = {}
    for exchange in round_.exchanges:
        groups.setdefault((exchange.src, exchange.dst), []).append(exchange)
    return list(groups.values())


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
    fits = given.numel() == shape[2] and _same_form(buffer, given)
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
    if given == buffer.tile:
        return True
    if len(buffer.tile) == 1 and (buffer.slots == 1 or given[0] == buffer.slots):
        return True
    forms = ((buffer.slots * buffer.numel,), (buffer.slots, buffer.numel), (buffer.slots, *buffer.tile), given)
    *fits, tile = ([size for size in form if size > 1] for form in forms)
    return tile in fits
