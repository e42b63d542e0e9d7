"""Plans: a schedule as steps over memory. A step is a function without arguments; planned once, it runs many times.

A `Planner` makes the steps of moves, of local operations and of whole segments. It is given tile maps, so it serves
explicit and elided exchange alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from wafer_triton.emulate.segments import Segment, Tree, segments
from wafer_triton.errors import ScheduleError
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.rounds import Buffer, Exchange, Index, Local, Round, Schedule, Slot

Step = Callable[[], object]


@dataclass(frozen=True, eq=False)
class Launch:
    """A step with words for the kernel that it launches, which a record of a run shows."""

    what: str
    run: Step

    def __call__(self) -> None:
        """Launch the kernel."""
        self.run()


@dataclass(frozen=True, eq=False)
class Communication:
    """A step between ranks, never fused with others; `crossed` bytes are sent."""

    run: Step
    crossed: int = 0

    def __call__(self) -> None:
        """Run the step."""
        self.run()


class Steps:
    """Steps in order, which count as one until a program's steps are `flat`."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = flat(steps)

    def __call__(self) -> None:
        """Run all steps."""
        for step in self.steps:
            step()


def flat(steps: Sequence[Step]) -> list[Step]:
    """Steps without `Steps` among them."""
    found: list[Step] = []
    for one in steps:
        found += one.steps if isinstance(one, Steps) else (one,)
    return found


class Workspace:
    """Memory for values that live within one step; all steps of a program use it in turn."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._bytes, self._used = torch.empty(0, dtype=torch.uint8, device=device), 0

    def begin(self) -> None:
        """The next step is planned, which may use all of the memory."""
        self._used = 0

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat tensor of `count` elements, apart from the others of this step."""
        size = -(-count * dtype.itemsize // 64) * 64
        if self._used + size > self._bytes.numel():  # steps planned before keep what they have
            self._bytes, self._used = torch.empty(self._used + size, dtype=torch.uint8, device=self.device), 0
        taken = self._bytes[self._used : self._used + count * dtype.itemsize].view(dtype)
        self._used += size
        return taken


@dataclass(frozen=True, eq=False)
class Memory:
    """Buffers of a mesh as tensors [rows, cols, slots * numel]; `tables` are index tables that programs share.

    Of trees that are `apart` the roots' sums lie in the buffer `sums_of(tree.acc)`.
    """

    mesh: Mesh
    buffers: dict[str, Buffer]
    tensors: dict[str, torch.Tensor]
    workspace: Workspace
    tables: Tables | None = None
    apart: set[Tree] = field(default_factory=set)

    def rows(self, slot: Slot) -> torch.Tensor:
        """A buffer as [tiles, numel], every slot of every core a row; as one tile a core if the slot is the whole."""
        tensor = self.tensors[slot.buffer]
        return tensor.flatten(0, 1) if slot.index is None else tensor.view(-1, self.buffers[slot.buffer].numel)

    def index(self, values: torch.Tensor) -> list[torch.Tensor]:
        """An index as the one item of a list that a step reads when it runs, as another schedule may replace it."""
        return [values] if self.tables is None else self.tables.index(values)

    def beside(self, name: str, other: str) -> torch.Tensor:
        """The memory of buffer `other`, which lies like buffer `name`; made where there is none."""
        if other not in self.buffers:
            self.buffers[other] = replace(self.buffers[name], name=other, role="scratch")
            self.tensors[other] = self.tensors[name].clone()
        return self.tensors[other]


def sums_of(acc: str) -> str:
    """The buffer of the sums of reduce trees of `acc`, where they lie apart from its parts."""
    return f"{acc}.sums"


class Tables:
    """The index tables of programs that are planned alike and so share them.

    Planning asks for tables in an order. When it is done again, for a schedule that differs in indices alone, the
    tables are written anew in place, and every record of those programs stays valid.
    """

    def __init__(self) -> None:
        self.held: list[torch.Tensor] = []
        self.indices: list[list[torch.Tensor]] = []
        self.schedule: Schedule | None = None  # that the tables are of; None while they are being written
        self._name, self._next, self._index = "", 0, 0

    def begin(self, name: str) -> None:
        """The next table is the first one of the schedule `name`."""
        self.schedule, self._name, self._next, self._index = None, name, 0, 0

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

    def index(self, values: torch.Tensor) -> list[torch.Tensor]:
        """The next index of any length, with these values, as the one item of a list that steps read when they run."""
        if self._index == len(self.indices):
            self.indices.append([values])
        held = self.indices[self._index]
        held[0] = values
        self._index += 1
        return held


@dataclass(frozen=True, eq=False)
class TileMap:
    """The tiles that cores read for a slot: core (i, j) reads the slot of core `base[row[i], col[j]]`; None: its own.

    `base` is flat, over all cores; -1 stands for a tile in the core's own memory of the buffer itself, where only some
    tiles were renamed.
    """

    slot: Slot
    row: Index | None = None
    col: Index | None = None
    base: Index | None = None

    @property
    def is_own(self) -> bool:
        """Whether every core reads its own tile."""
        return self.row is None and self.col is None and self.base is None

    def lies_in(self, slot: Slot) -> bool:
        """Whether every core reads its own tile, in the buffer of `slot`."""
        return self.is_own and self.slot.buffer == slot.buffer

    def flat(self, shape: tuple[int, int]) -> Index:
        """[cores]: the core whose memory holds each core's tile."""
        if self.base is not None and self.row is None and self.col is None:
            return self.base
        row = np.arange(shape[0]) if self.row is None else self.row
        col = np.arange(shape[1]) if self.col is None else self.col
        cores = (row[:, None] * shape[1] + col).ravel()
        return cores if self.base is None else self.base[cores]

    def moved(self, axis: str, source: Index) -> TileMap:
        """This map after an exchange in which position i of `axis` receives from position source[i]."""
        if axis == "x":
            return replace(self, col=_compose(self.col, source))
        return replace(self, row=_compose(self.row, source))


def _compose(before: Index | None, source: Index) -> Index | None:
    index = source if before is None else before[source]
    return None if (index == np.arange(len(index))).all() else index


class Planner(ABC):
    """What plans and programs ask of an executor."""

    poison: bool
    exchange: str

    @abstractmethod
    def plan(self, schedule: Schedule, memory: Memory) -> list[Step]:
        """The steps of a schedule on memory."""

    @abstractmethod
    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> Step:
        """A step that copies the senders' tiles into the receivers' slots; all exchanges are from one slot to one."""

    @abstractmethod
    def compute(self, memory: Memory, op: Local, ins: tuple[TileMap, ...]) -> Step:
        """A step that runs a local operation on its cores."""

    def segment(self, memory: Memory, segment: Segment, ins: tuple[TileMap, ...] = ()) -> list[Step] | None:
        """Fewer steps for a whole segment, or None to run it round by round.

        With elided exchange `ins` are the tile maps of a and b before the first of `Products`, and the broadcast of a
        `Tree` is left out, since it becomes a tile map.
        """
        return None

    def joined(self, memory: Memory, steps: list[Step]) -> list[Step]:
        """All steps of a program, with neighbours fused where one launch can run them."""
        return steps

    def round(self, memory: Memory, round_: Round) -> list[Step]:
        """The steps of one round: its moves, then its local operations."""
        moves = [self.move(memory, exchanges, TileMap(exchanges[0].src)) for exchanges in together(round_)]
        return moves + [self.compute(memory, op, tuple(map(TileMap, op.ins))) for op in round_.locals]

    @property
    def unwritten(self) -> float:
        """The value of memory that is not written yet."""
        return float("nan") if self.poison else 0.0

    @abstractmethod
    def part(self, schedule: Schedule, buffer: Buffer, given: torch.Tensor) -> torch.Tensor:
        """The share of this executor, [rows, cols, slots * numel], of values for all cores of a buffer."""

    def together(self, mesh: Mesh, held: torch.Tensor) -> torch.Tensor:
        """The values [rows, cols, ...] of all cores, from the share that this executor holds."""
        return held

    def on_device(self) -> AbstractContextManager[object]:
        """The context in which kernels are compiled and launched, on this executor's device."""
        return nullcontext()

    def check(self) -> None:  # noqa: B027  most have nothing to check
        """BackendError if a program failed on the device; results are read after it."""

    def capture(self, run: Step, compiled: bool = False) -> Step:
        """Return `run` itself, or a step that replays a record of its launches from its second call on.

        A record holds the launches, not values written to memory between them. Where all kernels of `run` are
        `compiled` and tried, the first call records.
        """
        return run


def together(round_: Round) -> list[list[Exchange]]:
    """The exchanges of a round, grouped by their source and target slots."""
    groups: dict[object, list[Exchange]] = {}
    for exchange in round_.exchanges:
        fixed = exchange.src.is_fixed and exchange.dst.is_fixed
        groups.setdefault((str(exchange.src), str(exchange.dst)) if fixed else id(exchange), []).append(exchange)
    return list(groups.values())


def explicit(planner: Planner, schedule: Schedule, memory: Memory) -> list[Step]:
    """The steps of a schedule whose tiles move."""
    planned: dict[int, list[Step]] = {}
    steps: list[Step] = []
    for segment in segments(schedule):
        fused = planner.segment(memory, segment)
        if fused is not None:
            steps += fused
            continue
        for round_ in segment.every:
            if id(round_) not in planned:
                planned[id(round_)] = planner.round(memory, round_)
            steps += planned[id(round_)]
    return planner.joined(memory, flat(steps))
