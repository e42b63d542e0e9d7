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
        """Declare a buffer and return its name; declaring the same one again is harmless, another one an error."""
        if role not in ROLES:
            raise ScheduleError(f"{self.name}: buffer {name!r} has role {role!r}; choose one of {', '.join(ROLES)}")
        made = Buffer(name, tuple(tile), dtype, role, slots)
        if self.buffers.setdefault(name, made) != made:
            raise ScheduleError(f"{self.name}: buffer {name!r} is declared twice: {self.buffers[name]} and {made}")
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
        """An exchange for `round`; receivers are put in ascending order where all lines share them."""
        recv = np.atleast_1d(np.asarray(recv, np.int64))
        send = np.broadcast_to(np.asarray(send, np.int64), recv.shape)
        if recv.ndim == 1:
            order = np.argsort(recv, kind="stable")
            send, recv = send[..., order], recv[order]
        on = None if lines is None else np.asarray(lines, np.int64)
        return Exchange(axis, as_slot(src), as_slot(dst), send, recv, on)

    def local(
        self,
        op: str,
        outs: str | Slot | Sequence[str | Slot],
        ins: str | Slot | Sequence[str | Slot],
        where: Cores | None = None,
        **params: Any,
    ) -> Local:
        """A local operation for `round`."""
        return Local(op, _slots(outs), _slots(ins), params, where)

    def round(self, *steps: Exchange | Local, label: str = "") -> Round | None:
        """Append a round of the given exchanges and local operations (nothing if there are none)."""
        exchanges = tuple(step for step in steps if isinstance(step, Exchange) and step.recv.size)
        locals_ = tuple(step for step in steps if isinstance(step, Local))
        if not exchanges and not locals_:
            return None
        self.rounds.append(Round(exchanges, locals_, label))
        return self.rounds[-1]

    def repeat(self, times: int, turn: Callable[[int], None]) -> None:
        """Add `turn(0)`, `turn(1)` and so on: from the second on, turns do the same but for which line does what."""
        for number in range(times):
            turn(number)

    def roots(self, place: Index) -> Index:
        """Where the lines of a reduction have their roots; a builder for pricing may take a few for all."""
        return place

    def build(self, draft: bool = False) -> Schedule:
        """The finished schedule; a draft, for `wafer_triton.verify.faults`, is not checked.

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
