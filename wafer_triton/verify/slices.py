"""The slice of a schedule on which some results depend: fewer messages on fewer cores, with equal results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wafer_triton.schedule.access import Act, acts
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Moves, Round, Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Rounds


def backward_slice(schedule: Schedule, wanted: Mapping[str, NDArray[np.bool_]]) -> Schedule:
    """Return the schedule with the messages and operations on which the slots `wanted` depend, and no others.

    `wanted` has for each result by name whether a slot is needed, [rows, cols, slots].
    """
    return _SliceBuilder(schedule, wanted).run()


class _SliceBuilder:
    """Goes from the last round to the first and keeps which slots of a buffer, [cores * slots], are needed later."""

    def __init__(self, schedule: Schedule, wanted: Mapping[str, NDArray[np.bool_]]) -> None:
        self.schedule, self.mesh = schedule, schedule.mesh
        self.needed = {
            name: np.zeros(self.mesh.cores * buffer.slots, np.bool_) for name, buffer in schedule.buffers.items()
        }
        for name, slots in wanted.items():
            self.needed[name] |= slots.reshape(self.needed[name].shape)

    def run(self) -> Schedule:
        rounds: list[Round] = []
        for round_ in reversed(self.schedule.rounds):
            exchanges, *computes = acts(round_)
            sends = [
                Act(None, (read,), (write,)) for read, write in zip(exchanges.reads, exchanges.writes, strict=True)
            ]
            kept = [self.needed_part(act) for act in reversed([*sends, *computes])][::-1]
            sent = tuple(step for step in kept if isinstance(step, Exchange))
            rounds.append(Round(sent, tuple(step for step in kept if isinstance(step, Local)), round_.label))
        return replace(self.schedule, rounds=Rounds(reversed(rounds)))

    def needed_part(self, act: Act) -> Exchange | Local | None:
        """Return the exchange or the operation on the cores where one of its outputs is needed, or None."""
        step = act.writes[0].by
        if isinstance(step, Local):
            senders = receivers = step.cores(self.mesh)
        else:
            senders, receivers = step.moves.ends(self.mesh)
        needed = [self.needed[write.slot.buffer][self.schedule.cells(write.slot, receivers)] for write in act.writes]
        keep = np.any([each.any(1) if each.ndim > 1 else each for each in needed], axis=0)  # any slot of a whole buffer
        if not keep.any():
            return None
        senders, receivers = senders[keep], receivers[keep]
        for write in act.writes:
            if not write.keeps(self.schedule):
                self.mark(write.slot, receivers, False)
        for read in act.reads:
            self.mark(read.slot, senders, True)
        rows, cols = np.divmod((senders, receivers), self.mesh.shape[1])
        if isinstance(step, Local):
            return replace(step, where=Cores.of(rows[0], cols[0], paired=True))
        (send, recv), lines = (cols, rows[0]) if step.axis == "x" else (rows, cols[0])
        return replace(step, moves=Moves(step.axis, send, recv, lines, paired=True))

    def mark(self, slot: Slot, cores: Index, needed: bool) -> None:
        self.needed[slot.buffer][self.schedule.cells(slot, cores)] = needed
