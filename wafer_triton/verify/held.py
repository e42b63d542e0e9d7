"""The content of every core while a schedule is followed: for each slot the terms of its value, and their maker."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wafer_triton.errors import ScheduleError
from wafer_triton.schedule.rounds import Cores, Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.verify.state import slot_view
from wafer_triton.verify.terms import PART, Counts, Letters

Origin = NDArray[np.int16]
JOINTS = ("", "add", "maximum")  # how terms were joined
MOST = 1 << 27  # counts that are held at once, of two bytes


class Value(NamedTuple):
    """The content of some cores: counts [..., parts, indices], and the origin of these terms [..., parts].

    An origin is a maker, a whole number, times `len(JOINTS)`, plus the number of the joint of the terms.
    """

    counts: Counts
    origin: Origin

    def maker(self) -> Origin:
        """Return the operation that made the terms; 0 for given ones."""
        return self.origin // len(JOINTS)

    def joint(self) -> Origin:
        """Return the joint of the terms, as a place in `JOINTS`."""
        return self.origin % len(JOINTS)


class HeldTiles:
    """The values [rows, cols, slots, parts] of all cores for each buffer, and the round that last wrote each slot.

    `specs` has for each given buffer the index of each letter, [rows, cols, slots]. Raises ScheduleError for a mesh too
    large to follow every tile.
    """

    def __init__(self, schedule: Schedule, specs: dict[str, dict[str, NDArray[np.int64]]]) -> None:
        self.schedule, self.mesh = schedule, schedule.mesh
        self.parts = _parts(schedule)
        sizes = {PART: max((self.cells(Slot(name, None)) for name in schedule.buffers), default=1)}
        for spec in specs.values():
            for letter, at in spec.items():
                sizes[letter] = max(sizes.get(letter, 0), int(at.max()) + 1)
        self.letters = Letters(sizes)
        cells = sum(self.cells(Slot(name, None)) for name in schedule.buffers)
        if cells * self.mesh.cores * self.letters.total > MOST:
            raise ScheduleError(f"{schedule.name}: {self.mesh} is too large to follow every tile; check a smaller mesh")
        shapes = {name: (*self.mesh.shape, buffer.slots) for name, buffer in schedule.buffers.items()}
        self.counts: dict[str, Counts] = {}
        self.origins: dict[str, Origin] = {}
        for name, shape in shapes.items():
            self.counts[name] = np.zeros((*shape, self.parts[name], self.letters.total), np.int16)
            self.origins[name] = np.zeros((*shape, self.parts[name]), np.int16)
        self.when = {name: np.full(shape, -1, np.int32) for name, shape in shapes.items()}
        for name, spec in specs.items():
            for letter, at in spec.items():
                self.letters.set(self.counts[name], letter, np.repeat(at[..., None], self.parts[name], -1))
            if self.parts[name] > 1:
                self.letters.set(self.counts[name], PART, np.arange(self.parts[name]))

    def cells(self, slot: Slot) -> int:
        """Return the number of parts of a slot's value; of all slots if `slot` stands for the whole buffer."""
        return self.parts[slot.buffer] * (self.schedule.buffers[slot.buffer].slots if slot.index is None else 1)

    def get(self, slot: Slot, cores: Cores | None) -> Value:
        """Return the value that cores hold in a slot, part by part."""
        here = slot_view(slot, cores, self.mesh)
        counts, origin = here.get(self.counts[slot.buffer]), here.get(self.origins[slot.buffer])
        if slot.index is None:
            counts = counts.reshape(*counts.shape[:-3], -1, counts.shape[-1])
            origin = origin.reshape(*origin.shape[:-2], -1)
        return Value(counts, origin)

    def put(self, slot: Slot, cores: Cores | None, value: Value, number: int) -> None:
        """Write a value in round `number`; a tile of one part is cut into as many as the slot has."""
        here, (counts, origin), cells = slot_view(slot, cores, self.mesh), value, self.cells(slot)
        if counts.shape[-2] != cells:
            counts, origin = np.repeat(counts[..., :1, :], cells, -2), np.repeat(origin[..., :1], cells, -1)
            self.letters.set(counts, PART, np.arange(cells))
        if slot.index is None:
            parts = self.parts[slot.buffer]
            counts = counts.reshape(*counts.shape[:-2], -1, parts, counts.shape[-1])
            origin = origin.reshape(*origin.shape[:-1], -1, parts)
        here.put(self.counts[slot.buffer], counts)
        here.put(self.origins[slot.buffer], origin)
        here.put(self.when[slot.buffer], number)


def _parts(schedule: Schedule) -> dict[str, int]:
    """Return the number of parts of each buffer's slots: the number of slots into which another buffer cuts them."""
    parts = dict.fromkeys(schedule.buffers, 1)
    groups = {
        frozenset((slot.buffer, slot.index is None) for slot in slots)
        for round_ in schedule.rounds
        for slots in (
            *((exchange.src, exchange.dst) for exchange in round_.exchanges),
            *((*op.ins, *op.outs) for op in round_.locals if op.op == "copy" or op.op in JOINTS),
        )
    }
    for _ in schedule.buffers:  # parts spread from buffer to buffer
        for group in groups:
            slots = {name: schedule.buffers[name].slots if whole else 1 for name, whole in group}
            cells = max(parts[name] * count for name, count in slots.items())
            for name, count in slots.items():
                parts[name] = cells // count if cells % count == 0 else parts[name]
    return parts
