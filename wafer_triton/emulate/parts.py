"""What plans are made of: segments of a schedule, tasks, and the memory that they read and write.

A move or a local operation is planned as tasks. A task is a call, a function without arguments that runs many times, or
a part of a launch, which becomes one together with its neighbours.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, NoReturn, TypeAlias

import torch

from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import BackendError, ScheduleError, WaferError
from wafer_triton.schedule.rounds import HIDDEN, Buffer, Index, Moves, Round, Slot
from wafer_triton.schedule.schedule import Schedule

Call = Callable[[], object]


class LaunchPart:
    """A task that is not called: `TritonExecutor.fuse_tasks` makes it part of a launch."""


Task: TypeAlias = "Call | LaunchPart"
Cut = tuple[str, tuple[int, ...]]  # the pattern by which a whole tensor is cut into tiles, and its shape


@dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive rounds of a schedule, of which the first has number `start`; they run one by one."""

    start: int
    rounds: tuple[Round, ...]


@dataclass(frozen=True, eq=False)
class Products(Segment):
    """Compute-shift: `count` rounds, each with a product c += a b on every core, while a and b move one ring step.

    In product t the operands are in slots a[t % 2] and b[t % 2]. If `out` is not `c`, a last round rounds the sums to
    buffer `out`. Without `add` the first product overwrites c. `shifts` are the ring steps of a and of b, in which each
    core sends a tile and receives one. `rings`: the mesh's rows and its columns in ring order, where b passes all rows
    of a square mesh once and a all columns; else None.
    """

    count: int
    c: str
    out: str
    a: tuple[Slot, Slot]
    b: tuple[Slot, Slot]
    add: bool
    params: Mapping[str, Any]
    shifts: tuple[Moves, Moves]
    rings: tuple[Index, ...] | None


@dataclass(frozen=True, eq=False)
class Reduction(Segment):
    """Reduce trees over buffer `acc`, combined by operation `op`, in `count` rounds; then the sums' broadcast, if any.

    A core combines the messages of its children, then sends to its parent. Index arrays are [cores]:
    `parent`: the receiver of a core's message, -1 for a root.
    `slot`: the place of that message among those of its parent, in the order in which they are combined.
    `children`: how many messages a core receives.
    `send_round`: the round of the segment in which a core sends; for a root `count`.
    `roots`: the root of a core's tree.
    With `once` the next round copies sums of roots, and no later one reads the tile of any core.
    """

    count: int
    acc: str
    op: str
    parent: Index
    slot: Index
    children: Index
    send_round: Index
    roots: Index
    once: bool

    @property
    def broadcast(self) -> tuple[Round, ...]:
        """The round that sends the sums to all cores of their trees; none without one."""
        return self.rounds[self.count :]

    @property
    def sums(self) -> str:
        """The name of the buffer that holds the sums if they are not written to `acc` (`Memory.separate_sums`)."""
        return f"{self.acc}{HIDDEN}sums"


@dataclass(frozen=True, eq=False)
class Launch:
    """A step that a record of a run names `what`; with what = "" it is a transfer of `rank_bytes` between ranks."""

    what: str
    run: Call
    rank_bytes: int = 0

    def __call__(self) -> None:
        """Run the step."""
        self.run()


class Graph:
    """A step as a CUDA graph: the first call runs it, which compiles its kernels; later calls record once, and replay.

    With `compiled` the first call records already. If CUDA refuses to record, a `UserWarning` says why, and every call
    runs the launches one by one. While the caller records a graph of his own, the launches go into that.
    """

    recording = Lock()  # CUDA records one graph at a time

    def __init__(
        self, run: Call, on_device: Callable[[], AbstractContextManager[object]], compiled: bool = False
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


class Workspace:
    """Scratch memory for values that live within one step; the steps of a program reuse the same bytes."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._lock = Lock()
        self._bytes, self._used = torch.empty(0, dtype=torch.uint8, device=device), 0

    def __reduce__(self) -> tuple[type[Workspace], tuple[str]]:
        """Copy or pickle to a workspace with no memory yet."""
        return Workspace, (self.device,)

    def exclusive(self, name: str) -> Workspace:
        """Lock the workspace for a `with` block; BackendError if another thread has it. `name`: of the schedule."""
        if not self._lock.acquire(False):
            raise BackendError(
                f"{name}: another thread runs a program of this executor; programs that one executor bound, and a "
                f"model, are for one thread at a time: bind with an executor for each thread"
            )
        return self

    def __enter__(self) -> None:
        """Do nothing: `exclusive` has taken the lock."""

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self._lock.release()

    def begin(self) -> None:
        """Start planning another step: what was taken before may be overwritten by it."""
        self._used = 0

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a flat tensor of `count` elements that no other `take` of this step overlaps."""
        size = -(-count * dtype.itemsize // 64) * 64
        if self._used + size > self._bytes.numel():  # steps planned before keep their memory
            self._bytes, self._used = torch.empty(self._used + size, dtype=torch.uint8, device=self.device), 0
        taken = self._bytes[self._used : self._used + count * dtype.itemsize].view(dtype)
        self._used += size
        return taken


class Tables:
    """Index tables on the device, shared by programs whose schedules differ in indices alone.

    Planning asks for tables in a fixed order. Planning another such schedule overwrites them in place, so CUDA graphs
    that were recorded before stay valid. `schedule` is None while the tables are being written.
    """

    def __init__(self) -> None:
        self.entries: list[list[torch.Tensor]] = []
        self._count = 0  # of the tables of the schedule that was bound
        self.begin("")

    def begin(self, name: str) -> None:
        """Start again with the first table, for a schedule that errors call `name`."""
        self.schedule: Schedule | None = None
        self._name, self._next = name, 0

    def end(self, schedule: Schedule) -> None:
        """Keep the schedule whose tables were just written.

        Raises ScheduleError if it has more or fewer tables than the schedule that was bound.
        """
        if self._count not in (0, self._next):
            del self.entries[self._count :]
            self._refuse(f"it has {self._next} tables, and {self._count}")
        self.schedule, self._count = schedule, self._next

    def put(self, values: torch.Tensor, device: str) -> torch.Tensor:
        """Copy values into the next table and return it; ScheduleError if it was made for another number of them."""
        (table,) = self._following(torch.empty_like(values, device=device), values.shape)
        return table.copy_(values)

    def index(self, values: torch.Tensor, any_length: bool = False) -> list[torch.Tensor]:
        """Return a list with the next table as its one item; steps read it when they run. ScheduleError as `put`."""
        entry = self._following(values, None if any_length else values.shape)
        entry[0] = values
        return entry

    def _following(self, first: torch.Tensor, shape: torch.Size | None) -> list[torch.Tensor]:
        if self._next == len(self.entries):
            self.entries.append([first])
        (table,) = entry = self.entries[self._next]
        if shape not in (None, table.shape):
            self._refuse(f"table {self._next} has {first.numel()} entries, and {table.numel()}")
        self._next += 1
        return entry

    def _refuse(self, numbers: str) -> NoReturn:
        raise ScheduleError(
            f"{self._name}: {numbers} in the schedule that was bound; bind this one anew, it differs in more than its "
            f"indices"
        )


@dataclass(frozen=True, eq=False)
class Memory:
    """The buffers of a schedule as tensors [rows, cols, slots * numel]; `tables` is None unless programs share them.

    `separate_sums` are the trees whose sums were written to buffer `Reduction.sums` in place of `acc`. `halos`: by
    buffer and number of an operation's input, the tiles [ranks, cores * slots] that ranks have fetched from others.
    """

    mesh: Mesh
    buffers: dict[str, Buffer]
    tensors: dict[str, torch.Tensor]
    workspace: Workspace
    tables: Tables | None = None
    separate_sums: set[Reduction] = field(default_factory=set)
    halos: dict[tuple[str, int], Index] = field(default_factory=dict)

    def rows(self, slot: Slot) -> torch.Tensor:
        """Return a view of the slot's buffer, [cores * slots, numel]; [cores, slots * numel] if slot.index is None."""
        tensor = self.tensors[slot.buffer]
        return tensor.flatten(0, 1) if slot.index is None else tensor.view(-1, self.buffers[slot.buffer].numel)

    def rows_of(self, tile_map: TileMap, cores: Index) -> Index:
        """Return the rows of `rows(tile_map.slot)` that hold the tiles of some cores; -1 as in `TileMap`."""
        slot = tile_map.slot
        if tile_map.base is not None:
            return tile_map.base[cores]
        return cores if slot.index is None else slot.cells(self.mesh, self.buffers[slot.buffer].slots, cores)

    def scratch_like(self, like: str, name: str) -> torch.Tensor:
        """Return the memory of scratch buffer `name`; the first call makes it as a copy of buffer `like`."""
        if name not in self.buffers:
            self.buffers[name] = replace(self.buffers[like], name=name, role="scratch")
            self.tensors[name] = self.tensors[like].clone()
        return self.tensors[name]


@dataclass(frozen=True, eq=False)
class TileMap:
    """Where the cores' tiles lie: core i reads row base[i] of `Memory.rows(slot)`, or its own `slot` if base is None.

    base[i] = -1: core i's tile is in the mapped buffer itself, as an exchange redirected other cores only.
    """

    slot: Slot
    base: Index | None = None
