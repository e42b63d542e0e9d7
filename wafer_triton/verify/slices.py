"""The slice of a schedule on which some results depend: fewer messages on fewer cores, with equal results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wafer_triton import local
from wafer_triton.schedule.repeat import Rounds
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Round, Slot
from wafer_triton.schedule.schedule import Schedule


def sliced(schedule: Schedule, wanted: Mapping[str, NDArray[np.bool_]]) -> Schedule:
    """Return the schedule with the messages and operations on which the slots `wanted` depend, and no others.

    `wanted` has for each result by name whether a slot is needed, [rows, cols, slots].
    """
    return _Backwards(schedule, wanted).run()


class _Backwards:
    """The slots of each core that are needed later, [cores, slots], from the last round to the first."""

    def __init__(self, schedule: Schedule, wanted: Mapping[str, NDArray[np.bool_]]) -> None:
        self.schedule, self.mesh = schedule, schedule.mesh
        self.needed = {
            name: np.zeros((self.mesh.cores, buffer.slots), np.bool_) for name, buffer in schedule.buffers.items()
        }
        for name, slots in wanted.items():
            self.needed[name] |= slots.reshape(self.needed[name].shape)

    def run(self) -> Schedule:
        rounds: list[Round] = []
        for round_ in reversed(self.schedule.rounds):
            locals_ = [kept for op in reversed(round_.locals) if (kept := self.local(op)) is not None]
            # the tiles that a round sends are read before anything arrives
            keeps = [self.take(exchange.dst, exchange.receivers) for exchange in round_.exchanges]
            for exchange, keep in zip(round_.exchanges, keeps, strict=True):
                self.need(exchange.src, exchange.senders.flat(self.mesh)[keep])
            exchanges = [
                self.exchange(exchange, keep)
                for exchange, keep in zip(round_.exchanges, keeps, strict=True)
                if keep.any()
            ]  # fmt: skip
            rounds.append(Round(tuple(exchanges), tuple(reversed(locals_)), round_.label))
        return replace(self.schedule, rounds=Rounds(reversed(rounds)))

    def local(self, op: Local) -> Local | None:
        """Return the operation on the cores where one of its outputs is needed, or None."""
        cores = self.flat(op.where)
        keep = np.zeros(len(cores), np.bool_)
        for slot in op.outs:
            keep |= self.at(slot, cores)
        if not keep.any():
            return None
        reads = (*op.ins, *op.outs) if local.find(op.op).updates(op.params) else op.ins
        for slot in op.outs:
            if not self.partly(op, slot):
                self.needed[slot.buffer][self.key(slot, cores[keep])] = False
        for slot in reads:
            self.need(slot, cores[keep])
        everywhere = Cores("x", np.arange(self.mesh.shape[1]))
        return replace(op, where=_only(op.where or everywhere, keep, self.mesh.shape))

    def partly(self, op: Local, slot: Slot) -> bool:
        """Return whether the operation leaves a part of the slot unchanged."""
        buffer = self.schedule.buffers[slot.buffer]
        return op.op == "copy" and op.params["size"] < buffer.numel * (buffer.slots if slot.index is None else 1)

    def take(self, slot: Slot, cores: Cores) -> NDArray[np.bool_]:
        """Return for each receiving core whether its tile is needed; before the tile arrives the slot is not needed."""
        flat = cores.flat(self.mesh)
        keep = self.at(slot, flat)
        self.needed[slot.buffer][self.key(slot, flat)] = False
        return keep

    def need(self, slot: Slot, flat: Index) -> None:
        self.needed[slot.buffer][self.key(slot, flat)] = True

    def at(self, slot: Slot, flat: Index) -> NDArray[np.bool_]:
        """[cores]: whether the slot is needed; for a whole buffer, whether any of its slots is."""
        needed = self.needed[slot.buffer][self.key(slot, flat)]
        return np.asarray(needed.any(1)) if slot.index is None else needed

    def key(self, slot: Slot, flat: Index) -> Index | tuple[Index, Index]:
        return flat if slot.index is None else (flat, slot.of_cores(flat, self.mesh))

    def flat(self, cores: Cores | None) -> Index:
        return np.arange(self.mesh.cores) if cores is None else cores.flat(self.mesh)

    def exchange(self, exchange: Exchange, keep: NDArray[np.bool_]) -> Exchange:
        send, recv = (_only(ends, keep, self.mesh.shape) for ends in (exchange.senders, exchange.receivers))
        return replace(exchange, send=send.at, recv=recv.at)


def _only(cores: Cores, keep: NDArray[np.bool_], shape: tuple[int, int]) -> Cores:
    """Return the cores, in the order of `flat`, for which `keep` holds."""
    lines = (shape[0] if cores.axis == "x" else shape[1]) if cores.lines is None else len(cores.lines)
    at = np.broadcast_to(cores.at, (lines, cores.at.shape[-1])).copy()
    places = np.argwhere(at >= 0)[~keep]
    at[places[:, 0], places[:, 1]] = -1
    return replace(cores, at=at)
