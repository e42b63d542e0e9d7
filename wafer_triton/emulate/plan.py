"""Plans: a schedule becomes a list of steps over memory. `Planner` has the hooks that an executor defines for that.

`explicit` makes every move of a tile a step; `elision.elided` calls the same hooks, with tile maps in place of moves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch

from wafer_triton.device.mesh import Mesh
from wafer_triton.device.modes import UNCHANGED, as_planned
from wafer_triton.emulate.parts import Cut, Memory, Segment, Step, TileMap
from wafer_triton.emulate.segments import segments
from wafer_triton.schedule.rounds import Buffer, Exchange, Local, Round, Slot
from wafer_triton.schedule.schedule import Schedule


class Planner(ABC):
    """What an executor defines: how moves and local operations become steps, and how tensors enter and leave memory."""

    device: str
    exchange: str
    unwritten: float  # what memory holds before it is written: 0, or NaN under `poison`

    @abstractmethod
    def plan(self, schedule: Schedule, memory: Memory) -> list[Step]:
        """Return steps that run the whole schedule on memory."""

    @abstractmethod
    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> list[Step]:
        """Return steps for exchanges that share a source and a target slot; `src` says where senders' tiles lie."""

    @abstractmethod
    def compute(self, memory: Memory, op: Local, ins: tuple[TileMap, ...]) -> list[Step]:
        """Return steps that run a local operation on its cores; `ins` says where their input tiles lie."""

    def segment(self, memory: Memory, segment: Segment, ins: tuple[TileMap, ...] = ()) -> list[Step] | None:
        """Return steps that run a segment at once, or None to have it run round by round.

        With elided exchange `ins` says where the tiles of a and b lie before the first of `Products`, and the broadcast
        of a `Reduction` is not to be run, since it becomes a tile map.
        """
        return None

    def fuse_steps(self, memory: Memory, steps: list[Step]) -> list[Step]:
        """Return the steps of a program with consecutive ones merged where one launch can run them."""
        return steps

    def round(self, memory: Memory, round_: Round) -> list[Step]:
        """Return the steps of one round: its moves, then its local operations."""
        moves = (self.move(memory, exchanges, TileMap(exchanges[0].src)) for exchanges in by_slots(round_))
        computes = (self.compute(memory, op, tuple(map(TileMap, op.ins))) for op in round_.locals)
        return [step for steps in (*moves, *computes) for step in steps]

    @abstractmethod
    def local_tiles(self, schedule: Schedule, buffer: Buffer, values: torch.Tensor) -> torch.Tensor:
        """Return the tiles of this executor's own cores as [rows, cols, slots * numel].

        `values` are a buffer's [rows, cols, *tile] of all cores. Raises ShapeError for another shape, DtypeError
        for complex values.
        """

    @abstractmethod
    def plan_gather(self, schedule: Schedule, memory: torch.Tensor, cut: Cut) -> Callable[[], torch.Tensor]:
        """Return a function that gathers the tiles in a buffer's memory into one tensor."""

    @abstractmethod
    def plan_scatter(
        self, schedule: Schedule, name: str, memory: torch.Tensor, cut: Cut
    ) -> Callable[[torch.Tensor], object]:
        """Return a function that cuts a tensor into tiles, in the memory of buffer `name`."""

    def all_gather(self, mesh: Mesh, local: torch.Tensor) -> torch.Tensor:
        """Return the values [rows, cols, ...] of all cores; `local` are those of this executor's own cores."""
        return local

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


def explicit(planner: Planner, schedule: Schedule, memory: Memory) -> list[Step]:
    """Return the steps of a schedule, in which every exchange copies its tiles."""
    planned: dict[Round, list[Step]] = {}
    steps: list[Step] = []
    for segment in segments(schedule):
        fused = planner.segment(memory, segment)
        if fused is not None:
            steps += fused
            continue
        for round_ in segment.all_rounds:
            if round_ not in planned:
                planned[round_] = planner.round(memory, round_)
            steps += planned[round_]
    return planner.fuse_steps(memory, steps)


def by_slots(round_: Round) -> list[list[Exchange]]:
    """Return the exchanges of a round in groups that share a source and a target slot."""
    groups: dict[tuple[Slot, Slot], list[Exchange]] = {}
    for exchange in round_.exchanges:
        groups.setdefault((exchange.src, exchange.dst), []).append(exchange)
    return list(groups.values())
