"""Plans: the steps of a schedule over memory, by the hooks of an executor. With explicit exchange every move is a step.

Hooks are given tile maps, so they serve explicit and elided exchange alike.
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
    """The hooks of an executor that plans and programs call."""

    device: str
    exchange: str
    unwritten: float  # the value of memory that is not written yet

    @abstractmethod
    def plan(self, schedule: Schedule, memory: Memory) -> list[Step]:
        """Return the steps of a schedule on memory."""

    @abstractmethod
    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> list[Step]:
        """Return steps that copy the senders' tiles into the receivers' slots, all from one slot to one."""

    @abstractmethod
    def compute(self, memory: Memory, op: Local, ins: tuple[TileMap, ...]) -> list[Step]:
        """Return steps that run a local operation on its cores."""

    def segment(self, memory: Memory, segment: Segment, ins: tuple[TileMap, ...] = ()) -> list[Step] | None:
        """Return fewer steps for a whole segment, or None to run it round by round.

        With elided exchange `ins` are the tile maps of a and b before the first of `Products`. The broadcast of a
        `Reduction` is left out then, since it becomes a tile map.
        """
        return None

    def joined(self, memory: Memory, steps: list[Step]) -> list[Step]:
        """Return all steps of a program, with neighbours fused where one launch can run them."""
        return steps

    def round(self, memory: Memory, round_: Round) -> list[Step]:
        """Return the steps of one round: its moves, then its local operations."""
        moves = (self.move(memory, exchanges, TileMap(exchanges[0].src)) for exchanges in together(round_))
        computes = (self.compute(memory, op, tuple(map(TileMap, op.ins))) for op in round_.locals)
        return [step for steps in (*moves, *computes) for step in steps]

    @abstractmethod
    def part(self, schedule: Schedule, buffer: Buffer, given: torch.Tensor) -> torch.Tensor:
        """Return the share of this executor, [rows, cols, slots * numel], of values for all cores of a buffer.

        Raises ShapeError for another shape, DtypeError for complex values.
        """

    @abstractmethod
    def exit(self, schedule: Schedule, memory: torch.Tensor, cut: Cut) -> Callable[[], torch.Tensor]:
        """Return a function that makes a whole tensor of the memory of a buffer."""

    @abstractmethod
    def entry(self, schedule: Schedule, name: str, memory: torch.Tensor, cut: Cut) -> Callable[[torch.Tensor], object]:
        """Return a function that cuts a whole tensor into the memory of a buffer."""

    def together(self, mesh: Mesh, held: torch.Tensor) -> torch.Tensor:
        """Return the values [rows, cols, ...] of all cores, from the share that this executor holds."""
        return held

    def on_device(self) -> AbstractContextManager[object]:
        """Return the context of plans and runs: torch's plain modes, on the executor's own GPU of several."""
        if self.device == "cpu" and not (torch.is_autocast_enabled("cpu") or torch.is_inference_mode_enabled()):
            return UNCHANGED
        return as_planned(self.device)

    def check(self) -> None:  # noqa: B027  most have nothing to check
        """Raise BackendError if a program failed on the device; results are read after it."""

    def capture(self, run: Step, compiled: bool = False) -> Step:
        """Return `run` itself, or a step that replays a record of its launches from its second call on.

        A record holds the launches, not values written to memory between them. Where all kernels of `run` are
        `compiled` and tried, the first call records.
        """
        return run


def explicit(planner: Planner, schedule: Schedule, memory: Memory) -> list[Step]:
    """Return the steps of a schedule whose tiles move."""
    planned: dict[Round, list[Step]] = {}
    steps: list[Step] = []
    for segment in segments(schedule):
        fused = planner.segment(memory, segment)
        if fused is not None:
            steps += fused
            continue
        for round_ in segment.every:
            if round_ not in planned:
                planned[round_] = planner.round(memory, round_)
            steps += planned[round_]
    return planner.joined(memory, steps)


def together(round_: Round) -> list[list[Exchange]]:
    """Return the exchanges of a round, grouped by their source and target slots."""
    groups: dict[tuple[Slot, Slot], list[Exchange]] = {}
    for exchange in round_.exchanges:
        groups.setdefault((exchange.src, exchange.dst), []).append(exchange)
    return list(groups.values())
