"""A round of a schedule as immutable data: tiles move between cores, then cores compute, on slots of named buffers.

In a round tiles first move, in each `Exchange` along one axis; then cores compute (`Local`). The round rule has two
parts. Within the exchanges, and within one local operation, a slot of a core is either read or written. No local
operation writes a slot that its core sends in the same round. So the order in which cores run cannot change a result.
Local operations that touch nothing which arrives in their round overlap with the exchanges.

Index arrays are per axis and per line, never per core, so a 720 x 720 mesh costs kilobytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafer_triton.device.dtype import BYTES
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import DtypeError, ScheduleError, shown

Index = NDArray[np.int64]
GIVEN = ("input", "weight", "cache", "state")  # roles that have values at the start
KEPT = ("weight", "cache", "state", "output")  # roles whose values are kept to the end
RESIDENT = ("weight", "cache")  # roles that stay on the cores between schedules
ROLES = (*GIVEN, "output", "scratch")
FAMILIES = ("kernel", "decode")  # of measurements, see `Schedule`
HIDDEN = "~"  # in names of memory that executors keep beside the buffers of a schedule
PATTERNS = ("ring", "tree", "broadcast", "relay")


@dataclass(frozen=True, eq=False)
class Parameter:
    """A model's parameter in a weight buffer: its Hugging Face name, its whole `shape` and how it is cut.

    `{}` in the name stands for a layer's number. `pattern` is an einops pattern as in `layout`, `sizes` are its sizes.
    With `rows` [cores, rows of one] the pattern cuts these rows of dimension `dim`, -1 for padding, and not the whole.
    Of a buffer with tiles of several experts, the parameter holds those from `experts[0]` up to `experts[1]`.
    Parameters of the same experts lie side by side in the last dimension of the tile. A `repeated` vector is there once
    for every row of the tile.
    """

    name: str
    shape: tuple[int, ...]
    pattern: str
    rows: Index | None = None
    dim: int = 0
    experts: tuple[int, int] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    repeated: bool = False

    def of(self, layer: int) -> str:
        """Return the name in a layer."""
        return self.name.format(layer)


@dataclass(frozen=True)
class Buffer:
    """One buffer in every core's SRAM: `slots` tiles of shape `tile`.

    | role | given at the start | ends | between schedules |
    | --- | --- | --- | --- |
    | "input" | yes | after its last use | goes |
    | "weight", "cache" | yes | with the schedule | stays on the cores |
    | "state" | yes | with the schedule | is passed on, as an activation |
    | "output" | no | with the schedule | goes |
    | "scratch" | no | after its last use | goes |

    `pattern` says how a whole tensor is cut into the tiles, as in `layout`; "" where it is not said. A weight `holds`
    parameters. With `skew` the tiles of a weight are given as MeshGEMM's alignment along y leaves them, in squares of
    `skew` cores a side. Buffers that differ in these three alone are equal.
    """

    name: str
    tile: tuple[int, ...]
    dtype: str
    role: str = "scratch"
    slots: int = 1
    pattern: str = field(default="", compare=False)
    holds: tuple[Parameter, ...] = field(default=(), compare=False)
    skew: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, str) or self.dtype not in BYTES:
            raise DtypeError(f"buffer {shown(self.name)}: dtype {shown(self.dtype)}: choose one of {', '.join(BYTES)}")

    @property
    def given(self) -> bool:
        """Whether the buffer has values at the start."""
        return self.role in GIVEN

    @property
    def kept(self) -> bool:
        """Whether the values of the buffer are kept to the end."""
        return self.role in KEPT

    @property
    def resident(self) -> bool:
        """Whether the buffer stays on the cores between schedules."""
        return self.role in RESIDENT

    @cached_property
    def numel(self) -> int:
        """Elements of one tile."""
        return prod(self.tile)

    @property
    def tile_bytes(self) -> int:
        """Bytes of one tile."""
        return self.numel * BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        """Bytes of all slots."""
        return self.tile_bytes * self.slots

    def slot_bytes(self, slot: Slot) -> int:
        """Return the bytes of one of its slots, or of the whole buffer where the slot stands for it."""
        return self.bytes if slot.index is None else self.tile_bytes


@dataclass(frozen=True, eq=False)
class Slot:
    """A slot of a buffer: a number, or one per position along `axis`; None means the whole buffer as one tile.

    Slots of equal content are equal: the same number, or the same numbers along the same axis.
    """

    buffer: str
    index: int | Index | None = 0
    axis: str = "x"

    def __post_init__(self) -> None:
        if not isinstance(self.axis, str) or self.axis not in ("x", "y"):
            raise ScheduleError(f"slot of {self.buffer!r}: axis {shown(self.axis)} is neither 'x' nor 'y'")
        if type(self.index) is not int and self.index is not None:
            object.__setattr__(self, "index", _index(self.buffer, self.index))

    @cached_property
    def _content(self) -> tuple[object, ...]:
        per_core = (self.index.tobytes(), self.axis) if isinstance(self.index, np.ndarray) else (self.index,)
        return self.buffer, *per_core

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slot) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def __str__(self) -> str:
        return self.buffer if self.index is None else f"{self.buffer}[{self.index if self.is_fixed else '*'}]"

    @property
    def is_fixed(self) -> bool:
        """Whether every core uses the same slot."""
        return not isinstance(self.index, np.ndarray)

    def of_cores(self, flat: Index, mesh: Mesh) -> Index:
        """Return the slot number that each of the given cores uses."""
        if isinstance(self.index, np.ndarray):
            rows, cols = np.divmod(flat, mesh.shape[1])
            return self.index[cols if self.axis == "x" else rows]
        return np.full_like(flat, self.index or 0)


def frozen(index: Index) -> Index:
    """Return whole numbers that nobody can change later: the array itself if it is read-only, else a copy."""
    owner = index if index.base is None else index.base
    if index.flags.writeable or not isinstance(owner, np.ndarray) or owner.flags.writeable:
        index = index.copy()
        index.flags.writeable = False
    return index


def _freeze(value: object, *names: str) -> None:
    for name in names:
        index = getattr(value, name)
        if isinstance(index, np.ndarray):
            object.__setattr__(value, name, frozen(index))


def _index(buffer: str, index: Any) -> int | Index:
    """Return a slot number, or one for each position; ScheduleError for anything else."""
    if type(index) is np.ndarray and index.dtype == np.int64 and index.ndim == 1:
        return frozen(index)
    try:
        array = np.asarray(index)
    except (TypeError, ValueError, RuntimeError):
        array = np.array(None)
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise ScheduleError(
            f"slot of {buffer!r}: index {shown(index)} is neither a whole number, nor one for each position, nor None"
        )
    return frozen(array.astype(np.int64)) if array.ndim else int(array)


@dataclass(frozen=True, eq=False)
class Cores:
    """The cores at positions `at` along `axis`, on the given `lines` (None: all) of that axis.

    `at` is [n], the same on each line, or [lines, n] with -1 for none.
    """

    axis: str
    at: Index
    lines: Index | None = None

    def __post_init__(self) -> None:
        _freeze(self, "at", "lines")

    def grid(self, mesh: Mesh) -> tuple[Index, Index]:
        """Return rows and columns of the cores, each [lines, n]; where a position is -1, so are both."""
        lines = np.arange(mesh.length("y" if self.axis == "x" else "x")) if self.lines is None else self.lines
        at = np.broadcast_to(self.at, (len(lines), self.at.shape[-1]))
        across = np.where(at < 0, -1, lines[:, None])
        return (across, at) if self.axis == "x" else (at, across)

    def flat(self, mesh: Mesh) -> Index:
        """Core numbers (row * columns + column), line by line."""
        if self.at.ndim == 1:
            lines = np.arange(mesh.length("y" if self.axis == "x" else "x")) if self.lines is None else self.lines
            steps = (mesh.shape[1], 1) if self.axis == "x" else (1, mesh.shape[1])
            return (lines[:, None] * steps[0] + self.at * steps[1]).ravel()
        rows, cols = self.grid(mesh)
        return (rows * mesh.shape[1] + cols)[rows >= 0]


@dataclass(frozen=True, eq=False)
class Exchange:
    """On every line, position send[i] sends its tile in slot `src` to slot `dst` of position recv[i].

    send and recv are [n] or [lines, n] (-1: none). A sender named several times multicasts: its tile crosses each
    link once.
    """

    axis: str
    src: Slot
    dst: Slot
    send: Index
    recv: Index
    lines: Index | None = None

    def __post_init__(self) -> None:
        _freeze(self, "send", "recv", "lines")

    @property
    def senders(self) -> Cores:
        """The sending cores, in the order of the receivers."""
        return Cores(self.axis, self.send, self.lines)

    @property
    def receivers(self) -> Cores:
        """The receiving cores."""
        return Cores(self.axis, self.recv, self.lines)


@dataclass(frozen=True, eq=False)
class Local:
    """A local operation (see `wafer_triton.local`) on slots of a core's own SRAM, on the cores `where` (None: all)."""

    op: str
    outs: tuple[Slot, ...]
    ins: tuple[Slot, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    where: Cores | None = None


@dataclass(frozen=True, eq=False)
class Pattern:
    """The algorithm that consecutive rounds with this same object carry out; `rules` checks every round for it.

    - "ring": one product on all cores, beside which `buffers` move on by a permutation of the whole axis.
    - "tree": tiles of `buffers` go to mailboxes, where `op`, "add" or "maximum", combines them; no core sends and
      receives in one round.
    - "broadcast": cores send their tile of `buffers` to the same slot of others; no core computes.
    - "relay": tiles of `buffers` move; no core computes.
    """

    kind: str
    buffers: tuple[str, ...]
    op: str = ""


@dataclass(frozen=True, eq=False)
class Round:
    """Exchanges, then local operations in order; `label` names the step of the algorithm for traces.

    A round with a `pattern` may run in one planned step with its neighbours; the bits are the same without.
    """

    exchanges: tuple[Exchange, ...] = ()
    locals: tuple[Local, ...] = ()
    label: str = ""
    pattern: Pattern | None = None

    @cached_property
    def touched(self) -> frozenset[str]:
        """Names of the buffers that the round reads or writes."""
        read = [exchange.src.buffer for exchange in self.exchanges]
        return self.written.union(read, (slot.buffer for op in self.locals for slot in op.ins))

    @property
    def written(self) -> frozenset[str]:
        """Names of the buffers that the round writes."""
        arrived = [exchange.dst.buffer for exchange in self.exchanges]
        return frozenset([*arrived, *(slot.buffer for op in self.locals for slot in op.outs)])

    @cached_property
    def overlaps(self) -> bool:
        """Return whether compute runs beside the exchange: no local operation reads an arrival of this round."""
        arriving = {exchange.dst.buffer for exchange in self.exchanges}
        return not any(slot.buffer in arriving for op in self.locals for slot in (*op.ins, *op.outs))


def as_slot(slot: str | Slot) -> Slot:
    """Return a buffer's name as its slot 0."""
    if isinstance(slot, Slot):
        return slot
    return _first_slot(slot)


@lru_cache(maxsize=1024)
def _first_slot(buffer: str) -> Slot:
    """Return slot 0 of a buffer, made once: most steps name it."""
    return Slot(buffer)
