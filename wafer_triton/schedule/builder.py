"""The builder of schedules: an algorithm is a function that adds buffers and rounds to it, and `build` checks them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wafer_triton.device.dtype import storage_name
from wafer_triton.device.mesh import MeshLike, as_mesh
from wafer_triton.errors import ScheduleError, plain, shown
from wafer_triton.schedule import rules, sram
from wafer_triton.schedule.rounds import (
    FAMILIES,
    HIDDEN,
    ROLES,
    Buffer,
    Cores,
    Exchange,
    Local,
    Moves,
    Parameter,
    Round,
    Slot,
    as_slot,
    positions,
)
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Loop, Rounds, Step, flat

MOST_TIMES = 1_000_000  # of a `loop`, a thousand times the side of the largest mesh
_DRAFTING = ContextVar("drafting", default=False)


@contextmanager
def drafting() -> Iterator[None]:
    """Let every `build` in a `with` block return an unchecked draft, so that all faults of a schedule can be listed."""
    before = _DRAFTING.set(True)
    try:
        yield
    finally:
        _DRAFTING.reset(before)


class _Declared(dict[str, Buffer]):
    """The buffers of a schedule by name; a name that is not declared raises ScheduleError."""

    def __init__(self, schedule: str) -> None:
        super().__init__()
        self.schedule = schedule

    def __missing__(self, name: object) -> Buffer:
        declared = ", ".join(self) or "none"
        raise ScheduleError(f"{self.schedule}: buffer {shown(name)} is not declared; declared: {declared}")


class Builder:
    """The buffers and steps of a schedule called `name` while it is made, on a mesh as `as_mesh` takes it.

    `family` is as in `Schedule`.

    A step is a round, a loop of steps, a ring or a tree (see `wafer_triton.schedule.steps`). `steps` is the list of
    those so far: `round` and `loop` add to it, and `b.steps.append(Ring(...))` does for a ring or a tree of your own.
    """

    def __init__(self, mesh: MeshLike, name: str, family: str = "kernel") -> None:
        if not name:
            raise ScheduleError("Builder: the schedule has no name; give a text of one character or more")
        if family not in FAMILIES:
            raise ScheduleError(f"Builder {name!r}: family {family!r}: choose one of {', '.join(FAMILIES)}")
        self.mesh = as_mesh(mesh)
        self.name = name
        self.family = family
        self.buffers: dict[str, Buffer] = _Declared(name)
        self.steps: list[Step] = []

    @property
    def rounds(self) -> tuple[Round, ...]:
        """All rounds so far."""
        return flat(self.steps)

    def buffer(
        self, name: str, tile: Sequence[int], dtype: str, role: str = "scratch", slots: int = 1, *, pattern: str = "",
        holds: Sequence[Parameter] = (), skew: int = 0,
    ) -> str:  # fmt: skip
        """Declare a buffer of `slots` tiles of shape `tile` and return its name; the same buffer may be declared again.

        `dtype` is "fp32", "bf16" or "fp16", or "int8" or "fp8" for stored weights. Roles and all other arguments are
        those of `wafer_triton.schedule.rounds.Buffer`.
        Raises ScheduleError for sizes that are not positive whole numbers, an unknown role, or a name that stands for a
        different buffer; DtypeError for an unknown dtype.
        """
        if not name:
            raise ScheduleError(f"{self.name}: buffer {shown(name)} has no name; give a text of one character or more")
        if HIDDEN in name:
            raise ScheduleError(f"{self.name}: buffer {name!r}: {HIDDEN!r} is for executors; give another name")
        if role not in ROLES:
            raise ScheduleError(f"{self.name}: buffer {name!r} has role {role!r}; choose one of {', '.join(ROLES)}")
        if not isinstance(tile, tuple | Sequence) or not all(map(_positive, tile)) or not _positive(slots):
            raise ScheduleError(
                f"{self.name}: buffer {name!r} has tile {shown(tile)} and slots {shown(slots)}; give a tuple of whole "
                f"numbers of at least 1, such as (4, 8), and a whole number of slots"
            )
        sizes = tuple(map(int, tile))
        buffer = Buffer(name, sizes, storage_name(dtype), role, int(slots), pattern, tuple(holds), skew)
        if self.buffers.setdefault(name, buffer) != buffer:
            first, more = vars(self.buffers[name]), vars(buffer)
            ways = ", ".join(f"{key} {first[key]!r} and {more[key]!r}" for key in more if first[key] != more[key])
            raise ScheduleError(f"{self.name}: buffer {name!r} is declared twice, with {ways}; give another name")
        return name

    def like(self, name: str, of: str) -> str:
        """Declare a scratch buffer with the tile, dtype and slots of buffer `of`; ScheduleError if there is no `of`."""
        model = self.buffers[of]
        return self.buffer(name, model.tile, model.dtype, "scratch", model.slots)

    def exchange(
        self,
        axis: str,
        src: str | Slot,
        dst: str | Slot,
        send: ArrayLike,
        recv: ArrayLike,
        lines: ArrayLike | None = None,
    ) -> Exchange:
        """Return an exchange for `round`, along `axis` from positions `send` to positions `recv`.

        Both are [n], the same on each of `lines` (None: all), or [lines, n] with -1 for none. `send` has one sender for
        each receiver, or one for all. A core whose tile only changes buffer sends to itself, which counts as a message:

            >>> b.exchange("x", "a", "a.next", send=[[0, 1], [1, 0]], recv=[[0, 1], [0, 1]])  # row 1 swaps, row 0 stays

        Raises ScheduleError for positions that are not whole numbers, or not as many senders as receivers.
        """
        to, of = positions(f"{self.name}: recv", recv, 2), positions(f"{self.name}: send", send, 2)
        on = None if lines is None else positions(f"{self.name}: lines", lines)
        if of.size not in (1, to.size) or of.ndim > to.ndim:
            raise ScheduleError(
                f"{self.name}: {list(of.shape)} senders for {list(to.shape)} receivers; give one sender for each, "
                f"or one for all"
            )
        across = self.mesh.length("y" if axis == "x" else "x")
        if on is None and to.ndim == 2 and len(to) != across:
            raise ScheduleError(f"{self.name}: {len(to)} rows of positions for {across} lines; give `lines`")
        moves = Moves(axis, np.broadcast_to(of, to.shape), to, on)
        if on is None and moves.lines is not None and not moves.paired and len(moves.lines) == across:
            moves = replace(moves, lines=None)
        return Exchange(moves, as_slot(src), as_slot(dst))

    def local(
        self,
        op: str,
        outs: str | Slot | Sequence[str | Slot],
        ins: str | Slot | Sequence[str | Slot],
        where: Cores | None = None,
        **params: Any,
    ) -> Local:
        """Return a local operation for `round` on the cores `where` (None: all).

        `gemm_torch(c, a, b, *, m, k, n, ...)` of `wafer_triton.local` defines the operation "gemm", whose outputs come
        first: `b.local("gemm", "c", ("a", "b"), m=4, k=2, n=3)`.

        Raises ScheduleError when `where` is something else.
        """
        if not isinstance(where, Cores | None):
            raise ScheduleError(
                f'{self.name}: {op} where {shown(where)}: give Cores, such as Cores("x", np.array([0, 1]))'
            )
        return Local(op, _slots(outs), _slots(ins), {name: plain(value) for name, value in params.items()}, where)

    def round(self, *steps: Exchange | Local, label: str = "") -> Round | None:
        """Append a round of exchanges and local operations and return it; without a step, add none and return None.

        Raises ScheduleError for a step that is neither.
        """
        for step in steps:
            if not isinstance(step, Exchange | Local):
                raise ScheduleError(
                    f"{self.name}: step {shown(step)} of a round is neither an exchange nor a local operation; give "
                    f"them one by one, as b.exchange and b.local make them"
                )
        exchanges = tuple(step for step in steps if isinstance(step, Exchange) and step.moves.recv.size)
        locals_ = tuple(step for step in steps if isinstance(step, Local))
        if not exchanges and not locals_:
            return None
        made = Round(exchanges, locals_, label)
        self.steps.append(made)
        return made

    @contextmanager
    def loop(self, times: int, rows: ArrayLike | None = None, cols: ArrayLike | None = None) -> Iterator[None]:
        """Repeat the steps that a `with` block adds, `times` times in all.

        With `rows` [mesh rows] row rows[i] does in each time what row i did in the time before. Exchanges along y must
        keep their moves under that order, see `rules`; slot numbers along y go with the rows. `cols` are the same for
        columns and x. Raises ScheduleError for a number of times that is none, and for both.

            >>> with b.loop(4, rows=[1, 2, 3, 0]):  # row 0, then row 1, then row 2, then row 3
            ...     b.round(b.exchange("x", "a", "b", send=[0], recv=[3], lines=[0]))
        """
        times = plain(times)
        if type(times) is not int or not 0 <= times <= MOST_TIMES:
            raise ScheduleError(f"{self.name}: loop {shown(times)} times: give a number from 0 to {MOST_TIMES:,}")
        if rows is not None and cols is not None:
            raise ScheduleError(f"{self.name}: a loop turns rows or columns; put one in another for both")
        axis, kind, lines = ("x", "rows", rows) if cols is None else ("y", "columns", cols)
        turned = None if lines is None else positions(f"{self.name}: {kind} of loop", lines)
        start = len(self.steps)
        yield
        body = tuple(self.steps[start:])
        repeated = [Loop(body, times, turned, axis)] if times and body else []
        self.steps[start:] = body if times == 1 else repeated

    def build(self, draft: bool = False) -> Schedule:
        """Return the finished schedule; a draft is not checked, so that `verify.faults` can read a faulty one.

        Raises ScheduleError when a rule of the machine is broken, SramError when a core's buffers do not fit.
        """
        schedule = Schedule(self.name, self.mesh, dict(self.buffers), Rounds(self.steps), self.family)
        if draft or _DRAFTING.get():
            return schedule
        return checked(schedule)


def checked(schedule: Schedule) -> Schedule:
    """Return the schedule itself; raise ScheduleError for a broken rule, SramError if a core's buffers do not fit."""
    rules.validate(schedule)
    sram.check(schedule)
    return schedule


def _positive(size: object) -> bool:
    size = plain(size)
    return type(size) is int and size >= 1


def _slots(slots: str | Slot | Sequence[str | Slot]) -> tuple[Slot, ...]:
    if isinstance(slots, str | Slot) or not isinstance(slots, tuple | Sequence):  # a tuple is recognised fastest
        return (as_slot(slots),)
    return tuple(map(as_slot, slots))
