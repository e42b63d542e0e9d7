"""The slice of a schedule on which some results depend: fewer messages on fewer cores, with equal results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wafer_triton.schedule.access import Act, acts
from wafer_triton.schedule.rounds import Cores, Index, Local, Moves, Round, Slot
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
            computes = acts(round_)[1:]
            locals_ = [kept for act in reversed(computes) if (kept := self.local(act)) is not None]
            # the tiles that a round sends are read before anything arrives
            keeps = [self.take(exchange.dst, exchange.moves.ends(self.mesh)[1]) for exchange in round_.exchanges]
            for exchange, keep in zip(round_.exchanges, keeps, strict=True):
                self.mark(exchange.src, exchange.moves.ends(self.mesh)[0][keep], True)
            exchanges = [
                replace(exchange, moves=self.moves(exchange.moves, keep))
                for exchange, keep in zip(round_.exchanges, keeps, strict=True)
                if keep.any()
            ]  # fmt: skip
            rounds.append(Round(tuple(exchanges), tuple(reversed(locals_)), round_.label))
        return replace(self.schedule, rounds=Rounds(reversed(rounds)))

    def local(self, act: Act) -> Local | None:
        """Return the operation on the cores where one of its outputs is needed, or None."""
        op = act.op
        assert op is not None
        cores = op.cores(self.mesh)
        keep = np.zeros(len(cores), np.bool_)
        for out in act.writes:
            keep |= self.is_needed(out.slot, cores)
        if not keep.any():
            return None
        for out in act.writes:
            if not out.keeps(self.schedule):
                self.mark(out.slot, cores[keep], False)
        for read in act.reads:
            self.mark(read.slot, cores[keep], True)
        return replace(op, where=Cores.of(*np.divmod(cores[keep], self.mesh.shape[1]), paired=True))

    def take(self, slot: Slot, cores: Index) -> NDArray[np.bool_]:
        """Return for each receiving core whether its tile is needed; before the tile arrives the slot is not needed."""
        keep = self.is_needed(slot, cores)
        self.mark(slot, cores, False)
        return keep

    def mark(self, slot: Slot, cores: Index, needed: bool) -> None:
        self.needed[slot.buffer][self.schedule.cells(slot, cores)] = needed

    def is_needed(self, slot: Slot, cores: Index) -> NDArray[np.bool_]:
        """Return [cores]: whether the slot is needed; for a whole buffer, whether any of its slots is."""
        needed = self.needed[slot.buffer][self.schedule.cells(slot, cores)]
        return np.asarray(needed.any(1)) if slot.index is None else needed

    def moves(self, moves: Moves, keep: NDArray[np.bool_]) -> Moves:
        """Return the messages, in the order of `ends`, for which `keep` holds."""
        rows, cols = np.divmod(np.stack(moves.ends(self.mesh))[:, keep], self.mesh.shape[1])
        (send, recv), lines = (cols, rows[0]) if moves.axis == "x" else (rows, cols[0])
        return Moves(moves.axis, send, recv, lines, paired=True)
