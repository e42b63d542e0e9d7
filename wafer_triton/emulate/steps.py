"""Steps: what a schedule becomes when an executor plans it, and the memory that they work on.

A step is a function without arguments; planned once, it runs many times. `Planner` is what an executor must know: the
step of a move, the step of a local operation, and whatever it can do in fewer steps. It is told where tiles lie, so it
serves explicit and elided exchange alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from wafer_triton.emulate.launches import ComputeShifts
from wafer_triton.errors import ScheduleError
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.rounds import Buffer, Exchange, Index, Local, Round, Schedule, Slot

Step = Callable[[], object]


@dataclass(frozen=True, eq=False)
class Launch:
    """A step with words for what it launches, which a run's record shows."""

    what: str
    run: Step

    def __call__(self) -> None:
        """Do it."""
        self.run()


@dataclass(frozen=True, eq=False)
class Apart:
    """A step that no other executor joins with its own, such as one between ranks; `crossed` bytes go between them."""

    run: Step
    crossed: int = 0

    def __call__(self) -> None:
        """Do it."""
        self.run()


@dataclass(frozen=True, eq=False)
class Memory:
    """Buffers of a mesh as tensors [rows, cols, slots * numel]; `tables` are what planning writes, if they are kept."""

    mesh: Mesh
    buffers: dict[str, Buffer]
    tensors: dict[str, torch.Tensor]
    tables: Tables | None = None

    def rows(self, slot: Slot) -> torch.Tensor:
        """A buffer as [tiles, numel], every slot of every core a row; as one tile a core if the slot is the whole."""
        tensor = self.tensors[slot.buffer]
        return tensor.flatten(0, 1) if slot.index is None else tensor.view(-1, self.buffers[slot.buffer].numel)


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


class Planner(ABC):
    """Makes the steps of moves and of local operations."""

    @abstractmethod
    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: Place) -> Step:
        """A step that copies the senders' tiles into the receivers' slots; all exchanges are from one slot to one."""

    @abstractmethod
    def compute(self, memory: Memory, op: Local, ins: tuple[Place, ...]) -> Step:
        """A step that runs a local operation on its cores."""

    def fuse(self, memory: Memory, schedule: Schedule, rounds: tuple[Round, ...]) -> tuple[int, list[Step]] | None:
        """How many of the rounds left go together in this executor, if any do, and their steps."""
        return None

    def joined(self, memory: Memory, steps: list[Step]) -> list[Step]:
        """All steps of a program, those that can go together made one."""
        return steps

    @abstractmethod
    def products(self, memory: Memory, run: ComputeShifts, a: Place, b: Place) -> Step | None:
        """One step for all products of a run of compute-shift rounds, on tiles as they lie, where there is one."""

    def round(self, memory: Memory, round_: Round) -> list[Step]:
        """The steps of one round: its moves, then its local operations."""
        moves = [self.move(memory, exchanges, Place(exchanges[0].src)) for exchanges in together(round_)]
        return moves + [self.compute(memory, op, tuple(map(Place, op.ins))) for op in round_.locals]


def together(round_: Round) -> list[list[Exchange]]:
    """The exchanges of a round, those from one slot to one slot together."""
    groups: dict[object, list[Exchange]] = {}
    for exchange in round_.exchanges:
        fixed = exchange.src.is_fixed and exchange.dst.is_fixed
        groups.setdefault((str(exchange.src), str(exchange.dst)) if fixed else id(exchange), []).append(exchange)
    return list(groups.values())
