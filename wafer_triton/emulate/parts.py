"""The parts of plans: segments of a schedule, steps, and the memory that they use.

A step is a function without arguments; planned once, it runs many times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np
import torch

from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import BackendError, ScheduleError
from wafer_triton.schedule.rounds import HIDDEN, Buffer, Exchange, Index, Moves, Round, Slot
from wafer_triton.schedule.schedule import Schedule

Step = Callable[[], object]
Cut = tuple[str, tuple[int, ...]]  # the pattern by which a tensor is cut, and its shape


@dataclass(frozen=True, eq=False)
class Segment:
    """Rounds of a schedule from number `start` on, which run one by one."""

    mesh: Mesh
    start: int
    rounds: tuple[Round, ...]

    @property
    def every(self) -> tuple[Round, ...]:
        """All rounds of the segment."""
        return self.rounds


@dataclass(frozen=True, eq=False)
class Products(Segment):
    """Compute-shift: `number` products c += a b, beside each of which both operands move one ring step.

    In product t the operands are in slots a[t % 2] and b[t % 2]. With `out` other than `c`, the last round rounds the
    sums to `out`. `add`: the first product adds to `c` as well. `to`, [cores] each: the cores that receive each core's
    a and b. `rings`: the rows and the columns of a square mesh in ring order, if b circles all rows and a all columns.
    """

    number: int
    c: str
    out: str
    a: tuple[Slot, Slot]
    b: tuple[Slot, Slot]
    add: bool
    params: Mapping[str, Any]
    to: tuple[Index, Index]
    rings: tuple[Index, Index] | None


@dataclass(frozen=True, eq=False)
class Reduction(Segment):
    """Reduce trees, all of one buffer `acc`, whose messages `op` combines; then the `broadcast` of their sums, if any.

    Each core sends to its parent once it has combined the messages of its children. All indices are [cores]. `parent`
    is -1 for a root. `slot` is the number of a core's message among the `children` messages of its parent. `sent` is
    the round in which it is sent, from the first, and for a root the number of rounds. `roots` are the roots of the
    cores' trees. The exchanges of a round are in the order of their combination.
    """

    acc: str
    op: str
    parent: Index
    slot: Index
    children: Index
    sent: Index
    roots: Index
    broadcast: Round | None = None

    @property
    def every(self) -> tuple[Round, ...]:
        """The rounds of the tree, then its broadcast."""
        return self.rounds if self.broadcast is None else (*self.rounds, self.broadcast)

    @property
    def sums(self) -> str:
        """The name of the buffer of the sums, where they are apart from the parts."""
        return f"{self.acc}{HIDDEN}sums"


def receivers(moves: Moves, mesh: Mesh) -> Index | None:
    """Return [cores]: the core that receives each core's tile; None unless each sends once and receives once."""
    send, recv = moves.ends(mesh)
    if any(not np.array_equal(np.sort(end), np.arange(mesh.cores)) for end in (send, recv)):
        return None
    to = np.empty(mesh.cores, np.int64)
    to[send] = recv
    return to


def shifts(round_: Round, mesh: Mesh) -> dict[int, tuple[Exchange, Index]]:
    """Return the exchange and the receivers [cores] of each input (0: a, 1: b) that circles beside a product.

    Empty unless the round is one product of all cores, beside which every core sends inputs to another slot of one
    other core.
    """
    if len(round_.locals) != 1 or not round_.exchanges or not round_.overlaps:
        return {}
    (op,), found = round_.locals, dict[int, tuple[Exchange, Index]]()
    for exchange in round_.exchanges:
        to = receivers(exchange.moves, mesh) if exchange.src.is_fixed and exchange.dst.is_fixed else None
        if op.op != "gemm" or op.where is not None or exchange.src not in op.ins or to is None:
            return {}
        found[op.ins.index(exchange.src)] = exchange, to
    return found if len(found) == len(round_.exchanges) else {}


@dataclass(frozen=True, eq=False)
class Launch:
    """A step with words for a record of a run; without words, a step between ranks, which sends `crossed` bytes."""

    what: str
    run: Step
    crossed: int = 0

    def __call__(self) -> None:
        """Run the step."""
        self.run()


class Workspace:
    """Memory for values that live within one step; all steps of a program use it in turn."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._lock = Lock()
        self._bytes, self._used = torch.empty(0, dtype=torch.uint8, device=device), 0

    def __reduce__(self) -> tuple[type[Workspace], tuple[str]]:
        """Copy and pickle as new memory."""
        return Workspace, (self.device,)

    def alone(self, name: str) -> Workspace:
        """Return the context of steps of schedule `name`; BackendError while another thread runs on the same memory."""
        if not self._lock.acquire(blocking=False):
            raise BackendError(
                f"{name}: another thread runs a program of this executor; programs that one executor bound, and a "
                f"model, are for one thread at a time: bind with an executor for each thread"
            )
        return self

    def __enter__(self) -> None:
        """Nothing: `alone` has the lock."""

    def __exit__(self, *_: object) -> None:
        """Let others run."""
        self._lock.release()

    def begin(self) -> None:
        """Plan the next step, which may use all of the memory."""
        self._used = 0

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a flat tensor of `count` elements, apart from the others of this step."""
        size = -(-count * dtype.itemsize // 64) * 64
        if self._used + size > self._bytes.numel():  # steps planned before keep their memory
            self._bytes, self._used = torch.empty(self._used + size, dtype=torch.uint8, device=self.device), 0
        taken = self._bytes[self._used : self._used + count * dtype.itemsize].view(dtype)
        self._used += size
        return taken


class Tables:
    """The index tables of programs that are planned alike and so share them.

    Planning makes tables in an order. For a schedule that differs in indices alone, it writes the tables anew in
    place, and every record of those programs stays valid. `schedule` is None while they are being written.
    """

    def __init__(self) -> None:
        self.held: list[list[torch.Tensor]] = []
        self.begin("")

    def begin(self, name: str) -> None:
        """Begin again with the first table, for the schedule `name`."""
        self.schedule: Schedule | None = None
        self._name, self._next = name, 0

    def put(self, values: torch.Tensor, device: str) -> torch.Tensor:
        """Return the next table, with these values; ScheduleError if the one planned first had another size."""
        (table,) = self._following(torch.empty_like(values, device=device))
        if table.shape != values.shape:
            raise ScheduleError(
                f"{self._name}: table {self._next - 1} has {values.numel()} entries, and {table.numel()} in the "
                f"schedule that was bound; bind this one anew, it differs in more than its indices"
            )
        return table.copy_(values)

    def index(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the next table, of any length, as the one item of a list that steps read when they run."""
        held = self._following(values)
        held[0] = values
        return held

    def _following(self, first: torch.Tensor) -> list[torch.Tensor]:
        if self._next == len(self.held):
            self.held.append([first])
        self._next += 1
        return self.held[self._next - 1]


@dataclass(frozen=True, eq=False)
class Memory:
    """Buffers of a mesh as tensors [rows, cols, slots * numel]; `tables` are index tables that programs share.

    The sums of trees that are `apart` are in a buffer of their own.
    """

    mesh: Mesh
    buffers: dict[str, Buffer]
    tensors: dict[str, torch.Tensor]
    workspace: Workspace
    tables: Tables | None = None
    apart: set[Reduction] = field(default_factory=set)

    def rows(self, slot: Slot) -> torch.Tensor:
        """Return a buffer as [tiles, numel], every slot of every core a row; one a core if the slot is the whole."""
        tensor = self.tensors[slot.buffer]
        return tensor.flatten(0, 1) if slot.index is None else tensor.view(-1, self.buffers[slot.buffer].numel)

    def numbers(self, slot: Slot, cores: Index) -> Index:
        """Return the rows of `rows(slot)` that hold the tiles of some cores."""
        return cores if slot.index is None else slot.cells(self.mesh, self.buffers[slot.buffer].slots, cores)

    def index(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return an index as the one item of a list that a step reads when it runs: schedules may replace it."""
        return [values] if self.tables is None else self.tables.index(values)

    def beside(self, name: str, other: str) -> torch.Tensor:
        """Return the memory of buffer `other`, of the shape of buffer `name`; made where there is none."""
        if other not in self.buffers:
            self.buffers[other] = replace(self.buffers[name], name=other, role="scratch")
            self.tensors[other] = self.tensors[name].clone()
        return self.tensors[other]


@dataclass(frozen=True, eq=False)
class TileMap:
    """The tiles that cores read for a slot: core i reads the slot of core base[i]; None: its own.

    -1 stands for a tile in the core's own memory of the buffer itself, where only some tiles were renamed.
    """

    slot: Slot
    base: Index | None = None

    def homes(self, mesh: Mesh) -> Index:
        """Return [cores]: the core whose memory holds each core's tile."""
        return np.arange(mesh.cores) if self.base is None else self.base
