"""Accesses of cores to slots in a round, and the pairs of them that may touch the same slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wafer_triton.schedule.rounds import Cores, Index, Slot


class Access(NamedTuple):
    """Cores (None: all) that read or write a slot."""

    slot: Slot
    cores: Cores | None
    op: str = ""


def pairs(firsts: list[Access], seconds: list[Access]) -> Iterator[tuple[Access, Access]]:
    """Yield pairs that may touch the same slot; the many pairs of different buffers or fixed slots are left out."""
    table: dict[tuple[str, int | None], list[Access]] = {}
    for second in seconds:
        table.setdefault((second.slot.buffer, _number(second.slot)), []).append(second)
    names = {name for name, _ in table}
    for first in firsts:
        name, number = first.slot.buffer, _number(first.slot)
        if name not in names:
            continue
        numbers: Iterable[int | None] = (number, None) if number is not None else {of for to, of in table if to == name}
        for of in numbers:
            for second in table.get((name, of), ()):
                yield first, second


def _number(slot: Slot) -> int | None:
    return slot.index if isinstance(slot.index, int) else None


def slots_at(slot: Slot, at: Index) -> Index | int | None:
    """Return the slot numbers at positions along the axis of the slot; None for the whole buffer."""
    return slot.index[at] if isinstance(slot.index, np.ndarray) else slot.index


def common_lines(first: Index | None, second: Index | None, across: int) -> Index:
    """Return the lines that two accesses share; None stands for all of `across` lines."""
    if first is None or second is None:
        lines = second if first is None else first
        return np.arange(across) if lines is None else lines
    named = np.zeros(across, bool)
    named[first] = True
    return np.sort(second[named[second]])


def cells(slots_of: Index | int | None, at: Index, slots: int) -> NDArray[np.int64]:
    """Return the slots that an access touches, as core (or position) * slots + slot; `slots_of`: one, or one a core."""
    if slots_of is None:
        return (at[:, None] * slots + np.arange(slots)).ravel()
    return at * slots + slots_of
