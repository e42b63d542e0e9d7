"""A round of a schedule as immutable data: tiles move between cores, then cores compute, on slots of named buffers.

In a round tiles first move, in each `Exchange` along one axis; then cores compute (`Local`). The round rule has two
parts. Within the exchanges, and within one local operation, a slot of a core is either read or written. No local
operation writes a slot that its core sends in the same round. So the order in which cores run cannot change a result.
Local operations that touch nothing which arrives in their round overlap with the exchanges.

Moves that are the same on every line are kept for one line, so a round of a 720 x 720 mesh costs kilobytes; only moves
that differ from line to line have an entry for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wafer_triton import local
from wafer_triton.device.dtype import BYTES
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import DtypeError, ScheduleError, shown

Index = NDArray[np.int64]
SlotIndex = NDArray[np.integer[Any]]  # kept as 32 bits: an all-to-all has megabytes of slot numbers
GIVEN = ("input", "weight", "cache", "state")  # roles that have values at the start
KEPT = ("weight", "cache", "state", "output")  # roles whose values are kept to the end
RESIDENT = ("weight", "cache")  # roles that stay on the cores between schedules
ROLES = (*GIVEN, "output", "scratch")
FAMILIES = ("kernel", "decode")  # of measurements, see `Schedule`
HIDDEN = "~"  # in names of memory that executors keep beside the buffers of a schedule
Uses = dict[str, tuple[int, int]]  # of buffers, the first and the last round that touches them
T = TypeVar("T")
V = TypeVar("V", bound="Value")
N = TypeVar("N", bound=NDArray[np.integer[Any]] | None)


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

    @property
    def cut_shape(self) -> tuple[int, ...]:
        """The shape that the pattern cuts, with `rows` in place of the dimension that they are of."""
        if self.rows is None:
            return self.shape
        return (*self.shape[: self.dim], self.rows.size, *self.shape[self.dim + 1 :])

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

    `pattern` says how a whole tensor is cut into the tiles, as in `layout`; "" where it is not said. It may begin the
    tile's axes with one for slots. A weight `holds` parameters. With `skew` the tiles of a weight are given as
    MeshGEMM's alignment along y leaves them, in squares of `skew` cores a side. Buffers that differ in these three
    alone are equal.
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
        if self.dtype not in BYTES:
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

    @property
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

    @property
    def dims(self) -> tuple[int, ...]:
        """Dimensions of the values on a core: the tile's, after the number of slots if there are several."""
        return self.tile if self.slots == 1 else (self.slots, *self.tile)

    def slot_numel(self, slot: Slot) -> int:
        """Return the elements of one of its slots, or of the whole buffer where the slot stands for it."""
        return self.numel * (self.slots if slot.index is None else 1)

    def slot_bytes(self, slot: Slot) -> int:
        """Return the bytes of as many elements."""
        return self.slot_numel(slot) * BYTES[self.dtype]


class Value:
    """A frozen dataclass of numbers, texts, index arrays and values, with equality and hash by content.

    The hash and the readings of a value are kept beside its fields and live as long as it does. A pickle has the fields
    alone, as texts hash differently in another process.
    """

    __match_args__: ClassVar[tuple[str, ...]]  # the names of its fields

    @property
    def content(self) -> tuple[object, ...]:
        """The fields, arrays by their bytes; kept, as their hash is, without the lock of a cached property."""
        kept = vars(self)
        if "_content" not in kept:
            held = map(kept.__getitem__, self.__match_args__)
            kept["_content"] = tuple([each if type(each) in _PLAIN else _content(each) for each in held])
        content: tuple[object, ...] = kept["_content"]
        return content

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(self) is type(other) and hash(self) == hash(other) and self.content == other.content
        )

    def __hash__(self) -> int:
        kept = vars(self)
        if "_hash" not in kept:
            kept["_hash"] = hash(self.content)
        known: int = kept["_hash"]
        return known

    def __reduce__(self) -> tuple[Callable[..., Value], tuple[object, ...]]:
        held = map(vars(self).__getitem__, self.__match_args__)
        return type(self), tuple(dict(each) if isinstance(each, MappingProxyType) else each for each in held)


def once(find: Callable[[V], T]) -> Callable[[V], T]:
    """Return a function of values that finds its result for each of them once, and keeps it beside their fields.

    After a definition of a local operation by a user it is found anew.
    """

    def found(value: V) -> T:
        kept: dict[object, tuple[int, T]] = vars(value).setdefault("_kept", {})
        now = local.definitions()
        if find not in kept or kept[find][0] != now:
            kept[find] = now, find(value)
        return kept[find][1]

    return found


_PLAIN = (str, int, tuple, type(None))  # whose content they are themselves


def _content(held: object) -> object:
    if isinstance(held, np.ndarray):
        return held.base  # its bytes, see `frozen`
    if isinstance(held, MappingProxyType):  # 1, 1.0 and True differ, and 0.0 and -0.0
        return frozenset((name, type(each), _content(each)) for name, each in held.items())
    return held.hex() if isinstance(held, float) else held


def frozen(index: N) -> N:
    """Return whole numbers [n] (None: none) that nobody can change later: a view of the bytes that are compared."""
    if index is None or (isinstance(index.base, bytes) and index.nbytes == len(index.base)):
        return index
    return np.frombuffer(index.tobytes(), index.dtype)  # type: ignore[return-value]


def _array(given: Any) -> NDArray[Any]:
    """Return an array of what was given; one of None if it is ragged, or a tensor of torch's that is not numpy's."""
    try:
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError):
        return np.array(None)


def positions(what: str, given: Any, dims: int = 1) -> Index:
    """Return whole numbers with at most `dims` dimensions; ScheduleError about `what` they are for anything else."""
    array = np.atleast_1d(_array(given))
    if array.ndim > dims or (array.size and array.dtype.kind not in "iu"):
        raise ScheduleError(f"{what} = {shown(given)} must be whole numbers, positions [n] on all lines or [lines, n]")
    return array.astype(np.int64, copy=False)


def check_axis(what: str, axis: object) -> None:
    """Raise ScheduleError, which begins with `what`, unless the axis is "x" or "y"."""
    if axis not in ("x", "y"):
        raise ScheduleError(f"{what}: axis {shown(axis)} is neither 'x' nor 'y'")


def _filled(*ends: Index) -> Index:
    """Return ends in one shape, [ends, n] or [ends, lines, n], with -1 where they lack positions."""
    rows = {len(end) for end in ends if end.ndim > 1} - {1}
    if len(rows) > 1:
        counts = " and ".join(map(str, sorted(rows)))
        raise ScheduleError(f"Moves: {counts} rows of positions; give senders and receivers a row for each line")
    table = np.full((len(ends), *max(end.shape[:-1] for end in ends), max(end.shape[-1] for end in ends)), -1)
    for own, end in zip(table, ends, strict=True):
        own[..., : end.shape[-1]] = end
    return table


def _apart(lines: Index | None, *ends: Index) -> tuple[Index, ...]:
    """Return the line and the ends of each message, given ends [lines, n]; -1 at all ends stands for none."""
    if lines is not None and len(lines) != len(ends[0]):
        raise ScheduleError(f"{len(ends[0])} rows of positions for {len(lines)} lines; give a row for each of them")
    messages = np.any([end != -1 for end in ends], axis=0)
    row = messages.nonzero()[0]
    return row if lines is None else lines[row], *(end[messages] for end in ends)


def _together(line: Index, *ends: Index) -> tuple[Index, list[Index], bool]:
    """Return lines and ends of messages in order of lines and last ends; False if they are the same on all lines."""
    order = np.lexsort((*ends, line))
    every = [end[order] for end in ends]
    lines, sizes = np.unique(line, return_counts=True)
    size = sizes.max(initial=0)
    if (sizes < size).any() or any((end.reshape(len(lines), size) != end[:size]).any() for end in every):
        return line[order], every, True
    return lines, [end[:size] for end in every], False


@dataclass(frozen=True, eq=False)
class Slot(Value):
    """A slot of a buffer: a number, or one per position along `axis`; None means the whole buffer as one tile."""

    buffer: str
    index: int | SlotIndex | None = 0
    axis: str = "x"

    def __post_init__(self) -> None:
        if self.axis != "x":
            check_axis(f"slot of {self.buffer!r}", self.axis)
        if type(self.index) is not int and self.index is not None:
            object.__setattr__(self, "index", _index(self.buffer, self.index))
        if self.axis != "x" and self.is_fixed:
            object.__setattr__(self, "axis", "x")

    def __str__(self) -> str:
        return self.buffer if self.index is None else f"{self.buffer}[{self.index if self.is_fixed else '*'}]"

    @property
    def is_fixed(self) -> bool:
        """Whether every core uses the same slot."""
        return not isinstance(self.index, np.ndarray)

    def cells(self, mesh: Mesh, slots: int, cores: Index | None = None) -> Index:
        """Return where the tiles of some cores (None: all) lie, as core * slots + slot: [cores].

        For a whole buffer of `slots` slots [cores, slots].
        """
        cores = np.arange(mesh.cores) if cores is None else cores
        if self.index is None:
            return cores[:, None] * slots + np.arange(slots)
        if isinstance(self.index, np.ndarray):
            rows, cols = np.divmod(cores, mesh.shape[1])
            return cores * slots + self.index[cols if self.axis == "x" else rows]
        return cores * slots + self.index


def _index(buffer: str, index: Any) -> int | SlotIndex:
    """Return a slot number, or one for each position; ScheduleError for anything else."""
    if type(index) is np.ndarray and index.dtype == np.int32 and index.ndim == 1:
        return frozen(index)
    array = _array(index)
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise ScheduleError(
            f"slot of {buffer!r}: index {shown(index)} is neither a whole number, nor one for each position, nor None"
        )
    if not array.ndim:
        return int(array)
    numbers = array.astype(np.int32)
    if (numbers != array).any():
        raise ScheduleError(f"slot of {buffer!r}: index {shown(index)} has numbers of more than 31 bits")
    return frozen(numbers)


@dataclass(frozen=True, eq=False, init=False)
class Cores(Value):
    """The cores at positions `at` along `axis`, on the given `lines` (None: all) of that axis.

    `at` is [n], the same on each line, or [lines, n] with -1 for none.

        >>> Cores("x", [0, 2])  # columns 0 and 2
        >>> Cores("y", [1], [0])  # row 1 of column 0
        >>> Cores("x", [[0], [2]])  # column 0 of row 0, and column 2 of row 1

    They are kept as each of `rows` with each of `cols` (None: all), ascending, or if `paired` as row i with column i.
    """

    rows: Index | None
    cols: Index | None
    paired: bool

    def __init__(self, axis: str, at: ArrayLike, lines: ArrayLike | None = None) -> None:
        check_axis("Cores", axis)
        along, across = positions("Cores: at", at, 2), None if lines is None else positions("Cores: lines", lines)
        paired = along.ndim == 2
        if paired:
            across, along = _apart(across, along)
        rows, cols = (across, along) if axis == "x" else (along, across)
        vars(self).update(vars(Cores.of(rows, cols, paired)))

    @classmethod
    def of(cls, rows: Index | None, cols: Index | None, paired: bool = False) -> Cores:
        """Return the cores in these rows and columns (None: all)."""
        if paired:
            assert rows is not None and cols is not None, "pairs of rows and columns"
            rows, (cols,), paired = _together(rows, cols)
        if not paired:
            rows, cols = [index if index is None else np.sort(index) for index in (rows, cols)]
        return cls._in_order(rows, cols, paired)

    @classmethod
    def _in_order(cls, rows: Index | None, cols: Index | None, paired: bool) -> Cores:
        """Return cores whose rows and columns are in order already."""
        made = object.__new__(cls)
        vars(made).update(rows=frozen(rows), cols=frozen(cols), paired=paired)
        return made

    def __reduce__(self) -> tuple[Callable[..., Value], tuple[object, ...]]:
        return Cores._in_order, (self.rows, self.cols, self.paired)

    def grid(self, mesh: Mesh) -> tuple[Index, Index]:
        """Return rows and columns that broadcast to the cores."""
        rows, cols = (
            np.arange(length) if own is None else own
            for own, length in zip((self.rows, self.cols), mesh.shape, strict=True)
        )
        return (rows, cols) if self.paired else (rows[:, None], cols[None, :])

    def flat(self, mesh: Mesh) -> Index:
        """Core numbers (row * columns + column), ascending."""
        rows, cols = self.grid(mesh)
        return (rows * mesh.shape[1] + cols).ravel()

    def moved(self, lines: Index, axis: str) -> Cores:
        """Return the cores with line `lines[i]` of an axis in place of line i."""
        rows, cols = (own if own is None or along != axis else lines[own]
                      for own, along in ((self.rows, "x"), (self.cols, "y")))  # fmt: skip
        return Cores.of(rows, cols, self.paired)


def disjoint(many: Sequence[Index | None]) -> bool:
    """Return whether lists of positions (None: all) name every position at most once."""
    named = [positions for positions in many if positions is not None]
    if len(named) < len(many):
        return False
    every = np.concatenate(named)
    return np.count_nonzero(np.bincount(every)) == every.size


@dataclass(frozen=True, eq=False)
class Moves(Value):
    """On each of `lines` (None: all) position send[i] sends to recv[i] along `axis`; if `paired`, on lines[i] alone.

    Positions may be given [n], or [lines, n] with -1 for none. They are kept in order of lines and receivers, and by
    lines only where these differ, so that equal moves are equal. A sender or receiver that is missing is -1, which the
    rules refuse.
    """

    axis: str
    send: Index
    recv: Index
    lines: Index | None = None
    paired: bool = False

    def __post_init__(self) -> None:
        check_axis("Moves", self.axis)
        send, recv = positions("Moves: send", self.send, 2), positions("Moves: recv", self.recv, 2)
        lines = None if self.lines is None else positions("Moves: lines", self.lines)
        if lines is not None and not lines.size:
            send = recv = lines  # on no line there is no message
        if send.shape != recv.shape:
            send, recv = _filled(send, recv)
        paired = self.paired or send.ndim > 1
        if paired:
            messages = (lines, send, recv) if self.paired else _apart(lines, send, recv)
            lines, (send, recv), paired = _together(*messages)
        else:
            if recv.size > 1 and not (recv[1:] > recv[:-1]).all():
                order = np.lexsort((send, recv))
                send, recv = send[order], recv[order]
            lines = lines if lines is None else np.sort(lines)
        lines = lines if send.size else None
        vars(self).update(send=frozen(send), recv=frozen(recv), lines=frozen(lines), paired=paired)

    def ends(self, mesh: Mesh) -> tuple[Index, Index]:
        """Return the core numbers of senders and of their receivers, line by line.

        A multicast has an entry for each of its receivers.
        """
        rows, cols = mesh.shape
        along, across, lines = (1, cols, rows) if self.axis == "x" else (cols, 1, cols)
        first = self.line_of_each(lines) * across
        return (first + self.send * along).ravel(), (first + self.recv * along).ravel()

    def line_of_each(self, across: int) -> Index:
        """Return the line of each message on a mesh of `across` lines; [lines, 1] if each of them has all messages."""
        lines = np.arange(across) if self.lines is None else self.lines
        return lines if self.paired else lines[:, None]

    @property
    def digest(self) -> tuple[int, ...]:
        """The hash of each field, 64 bits of each array, for keys of this process that outlive the moves."""
        return tuple(map(hash, self.content))

    @property
    def senders(self) -> Cores:
        """The cores that send, each once."""
        return self._cores(self.send)

    @cached_property
    def receivers(self) -> Cores:
        """The cores that receive, each once."""
        return self._cores(self.recv)

    def _cores(self, at: Index) -> Cores:
        lines = self.lines
        if lines is not None and self.paired:
            size = at.max(initial=-1) + 2  # -1: none
            lines, at = np.divmod(np.unique(lines * size + at + 1), size)
            at -= 1
        elif not (at[1:] > at[:-1]).all():
            at = np.flatnonzero(np.bincount(at))
        rows, cols = (lines, at) if self.axis == "x" else (at, lines)
        return Cores.of(rows, cols, True) if self.paired else Cores._in_order(rows, cols, False)

    @cached_property
    def passes_on(self) -> bool:
        """Whether a core both sends and receives, so that whole tiles move from core to core."""
        size = max(self.send.max(initial=0), self.recv.max(initial=0)) + 1
        first = self.lines * size if self.paired and self.lines is not None else 0
        sends = np.zeros(np.max(first) + size + 1, bool)
        sends[first + self.send] = True
        sends[-1] = False  # -1: none
        return bool(sends[first + self.recv].any())

    def moved(self, lines: Index, axis: str) -> Moves:
        """Return the moves with line `lines[i]` of an axis in place of line i; moves along the other one stay."""
        return self if self.axis != axis or self.lines is None else replace(self, lines=lines[self.lines])

    @property
    def table(self) -> tuple[Index, Index, Index | None]:
        """Senders, receivers and lines: [n], the same on every line, or [lines, n] with -1 for none."""
        if self.lines is None or not self.paired:
            return self.send, self.recv, self.lines
        lines, count = np.unique(self.lines, return_counts=True)
        messages = np.arange(count.max()) < count[:, None]  # [lines, n]: the messages of a line, then none
        send, recv = (np.full(messages.shape, -1) for _ in range(2))
        send[messages], recv[messages] = self.send, self.recv
        return send, recv, lines


@dataclass(frozen=True, eq=False)
class Exchange(Value):
    """Tiles in slot `src` of the senders of `moves` go to slot `dst` of their receivers.

    A sender with several receivers multicasts: its tile crosses each link once. `Moves` has the positions.
    """

    moves: Moves
    src: Slot
    dst: Slot

    @property
    def axis(self) -> str:
        """The axis along which tiles move."""
        return self.moves.axis


@dataclass(frozen=True, eq=False)
class Local(Value):
    """A local operation (see `wafer_triton.local`) on slots of a core's own SRAM, on the cores `where` (None: all)."""

    op: str
    outs: tuple[Slot, ...]
    ins: tuple[Slot, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    where: Cores | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.params, MappingProxyType):
            object.__setattr__(self, "params", MappingProxyType(dict(self.params)))
            try:
                hash(tuple(self.params.values()))
            except TypeError as error:
                raise ScheduleError(
                    f"{self.op}: parameters {shown(dict(self.params))}: give numbers, texts and tuples of these"
                ) from error

    def cores(self, mesh: Mesh) -> Index:
        """Return the numbers of its cores, ascending."""
        return np.arange(mesh.cores) if self.where is None else self.where.flat(mesh)

    @property
    def operands(self) -> tuple[Slot, ...]:
        """The slots of its operands, outputs first."""
        return (*self.outs, *self.ins)

    @property
    def work(self) -> tuple[object, ...]:
        """The operation and its parameters, by content."""
        return self.content[0], self.content[3]


@dataclass(frozen=True, eq=False)
class Round(Value):
    """Exchanges, then local operations in order; `label` names the step of the algorithm for traces."""

    exchanges: tuple[Exchange, ...] = ()
    locals: tuple[Local, ...] = ()
    label: str = ""
    count: ClassVar[int] = 1  # of rounds: this is a step of one

    @property
    def rounds(self) -> tuple[Round]:
        """All rounds."""
        return (self,)

    @property
    def ends(self) -> tuple[Round, Round]:
        """The first round of this step, and the last."""
        return self, self

    @cached_property
    def uses(self) -> Uses:
        """The first and the last round that touches each buffer, of unknown operations, too."""
        slots = [slot for one in self.exchanges for slot in (one.src, one.dst)]
        slots += [slot for op in self.locals for slot in op.operands]
        return dict.fromkeys([slot.buffer for slot in slots], (0, 0))

    @cached_property
    def moves(self) -> tuple[Moves, ...]:
        """The moves of its exchanges."""
        return tuple(exchange.moves for exchange in self.exchanges)


def as_slot(slot: str | Slot) -> Slot:
    """Return a buffer's name as its slot 0."""
    return slot if isinstance(slot, Slot) else Slot(slot)
