"""Builders: algorithms are functions that add their buffers and rounds to a `Builder`, which checks what it builds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wafer_triton.errors import ScheduleError
from wafer_triton.mesh import Mesh
from wafer_triton.schedule import rules, sram
from wafer_triton.schedule.rounds import ROLES, Buffer, Cores, Exchange, Index, Local, Round, Schedule, Slot, as_slot


class Builder:
    """Collects the buffers and rounds of a schedule called `name`; `family` as of `Schedule`."""

    def __init__(self, mesh: Mesh, name: str, family: str = "kernel") -> None:
        self.mesh = mesh
        self.name = name
        self.family = family
        self.buffers: dict[str, Buffer] = {}
        self.rounds: list[Round] = []

    def buffer(self, name: str, tile: Sequence[int], dtype: str, role: str = "scratch", slots: int = 1) -> str:
        """Declare a buffer of `slots` tiles of shape `tile` and return its name; the same buffer may be declared again.

        Raises ScheduleError for an unknown role, or when the name stands for a different buffer.
        """
        if role not in ROLES:
            raise ScheduleError(f"{self.name}: buffer {name!r} has role {role!r}; choose one of {', '.join(ROLES)}")
        buffer = Buffer(name, tuple(tile), dtype, role, slots)
        if self.buffers.setdefault(name, buffer) != buffer:
            raise ScheduleError(f"{self.name}: buffer {name!r} is declared twice: {self.buffers[name]} and {buffer}")
        return name

    def like(self, name: str, of: str) -> str:
        """A scratch buffer with the tile, dtype and slots of buffer `of`."""
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
        """An exchange for `round`, from positions `send` to positions `recv` (see `Exchange`).

        Receivers are put in ascending order where all lines share them.
        """
        recv = np.atleast_1d(np.asarray(recv, np.int64))
        send = np.broadcast_to(np.asarray(send, np.int64), recv.shape)
        if recv.ndim == 1:
            order = np.argsort(recv, kind="stable")
            send, recv = send[..., order], recv[order]
        line_numbers = None if lines is None else np.asarray(lines, np.int64)
        return Exchange(axis, as_slot(src), as_slot(dst), send, recv, line_numbers)

    def local(
        self,
        op: str,
        outs: str | Slot | Sequence[str | Slot],
        ins: str | Slot | Sequence[str | Slot],
        where: Cores | None = None,
        **params: Any,
    ) -> Local:
        """A local operation for `round`, on the cores `where` (None: all); `wafer_triton.local` names its `params`."""
        return Local(op, _slots(outs), _slots(ins), params, where)

    def round(self, *steps: Exchange | Local, label: str = "") -> Round | None:
        """Append a round of the given exchanges and local operations and return it; None, and no round, without any."""
        exchanges = tuple(step for step in steps if isinstance(step, Exchange) and step.recv.size)
        locals_ = tuple(step for step in steps if isinstance(step, Local))
        if not exchanges and not locals_:
            return None
        self.rounds.append(Round(exchanges, locals_, label))
        return self.rounds[-1]

    def repeat(self, times: int, turn: Callable[[int], None]) -> None:
        """Add `turn(0)` to `turn(times - 1)`: turns after the first may differ only in which line does what."""
        for number in range(times):
            turn(number)

    def roots(self, place: Index) -> Index:
        """The root of every line of a reduction; a builder for pricing may put a few roots in place of all."""
        return place

    def stages(self, count: int) -> int:
        """How many of `count` stages to add, each of which takes the data of the one before a hop further.

        A builder for pricing may add a few that stand for all.
        """
        return count

    def build(self, draft: bool = False) -> Schedule:
        """The finished schedule; a draft is not checked, so that `wafer_triton.verify.faults` can read a faulty one.

        Raises ScheduleError when a rule of the machine is broken, SramError when a core's buffers do not fit.
        """
        schedule = Schedule(self.name, self.mesh, dict(self.buffers), tuple(self.rounds), self.family)
        return schedule if draft else checked(schedule)


def checked(schedule: Schedule) -> Schedule:
    """The schedule itself; raises ScheduleError for a broken rule, SramError when a core's buffers do not fit."""
    rules.validate(schedule)
    sram.check(schedule)
    return schedule


def _slots(slots: str | Slot | Sequence[str | Slot]) -> tuple[Slot, ...]:
    return (as_slot(slots),) if isinstance(slots, str | Slot) else tuple(as_slot(slot) for slot in slots)
