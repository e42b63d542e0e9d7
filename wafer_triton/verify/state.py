"""Slots of cores as parts of arrays [rows, cols, slots, ...] that follow every core's state through a schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.rounds import Cores, Index, Slot
from wafer_triton.schedule.rules import Finding, title
from wafer_triton.schedule.schedule import Schedule


@dataclass(frozen=True, eq=False)
class SlotView:
    """A slot on some cores: `get` returns [lines, positions, ...], or [cores, ...] where lines differ.

    Senders and receivers of an exchange come in the same order. A whole buffer has its slots as one more dimension.
    """

    axis: str
    index: tuple[Any, ...]
    lines: Index  # of every line, or of every core where lines differ
    at: Index  # of every position, or of every core
    ragged: bool

    def get(self, state: NDArray[Any]) -> NDArray[Any]:
        """Return the entries of an array [rows, cols, slots, ...] that the view selects."""
        return self._turned(state)[self.index]

    def put(self, state: NDArray[Any], value: Any) -> None:
        """Set the entries that the view selects."""
        self._turned(state)[self.index] = value

    def core(self, mask: NDArray[np.bool_]) -> tuple[int, int]:
        """Return the first core (row, column) for which `mask`, in the shape of `get`, holds."""
        line, place = np.argwhere(mask)[0][[0, 0 if self.ragged else 1]]
        across, along = int(self.lines[line]), int(self.at[place])
        return (across, along) if self.axis == "x" else (along, across)

    def _turned(self, state: NDArray[Any]) -> NDArray[Any]:
        return state if self.axis == "x" else state.swapaxes(0, 1)


def slot_view(slot: Slot, cores: Cores | None, mesh: Mesh) -> SlotView:
    """Return the view of a slot on the given cores (None: all)."""
    axis = "x" if cores is None else cores.axis
    along, across = mesh.length(axis), mesh.length("y" if axis == "x" else "x")
    lines = np.arange(across) if cores is None or cores.lines is None else cores.lines
    at = np.arange(along) if cores is None else cores.at
    if at.ndim == 2:
        row, column = np.nonzero(at >= 0)
        lines, at = lines[row], at[row, column]
        index: tuple[Any, ...] = (lines, at)
        if isinstance(slot.index, np.ndarray):
            index += (slot.index[at if slot.axis == axis else lines],)
        elif slot.index is not None:
            index += (slot.index,)
        return SlotView(axis, index, lines, at, True)
    if isinstance(slot.index, np.ndarray):
        chosen = slot.index[at][None, :] if slot.axis == axis else slot.index[lines][:, None]
        return SlotView(axis, (lines[:, None], at[None, :], chosen), lines, at, False)
    # slices where possible: a view copies nothing
    all_lines, all_at = np.array_equal(lines, np.arange(across)), np.array_equal(at, np.arange(along))
    if not all_lines and not all_at:
        index = (lines[:, None], at[None, :])
    else:
        index = (slice(None) if all_lines else lines, slice(None) if all_at else at)
    return SlotView(axis, index if slot.index is None else (*index, slot.index), lines, at, False)


def fault(schedule: Schedule, verdict: str, number: int, core: tuple[int, int], message: str) -> Finding:
    """Return a finding about a core in round `number`; of a schedule without rounds it names none."""
    if not schedule.rounds:
        return Finding(verdict, f"{schedule.name}: core {core} {message}", None, core)
    return Finding(verdict, f"{title(schedule, number)}: core {core} {message}", number, core)


def given_buffers(schedule: Schedule, named: Iterable[str] | None) -> set[str]:
    """Return the buffers with values at the start: inputs, residents and the buffers that an intent has `named`.

    Without an intent (None) they are the outputs that are read first.
    """
    given = {name for name, buffer in schedule.buffers.items() if buffer.given}
    return given | (_read_first(schedule) if named is None else set(named))


def _read_first(schedule: Schedule) -> set[str]:
    """Return outputs that are read before they are written: they are given as well, as for an all-reduce in place."""
    written: set[str] = set()
    unwritten: set[str] = set()
    for round_ in schedule.rounds:
        reads = {exchange.src.buffer for exchange in round_.exchanges}
        unwritten |= reads - written
        written |= {exchange.dst.buffer for exchange in round_.exchanges}
        for op in round_.locals:
            unwritten |= {slot.buffer for slot in op.ins} - written
            written |= {slot.buffer for slot in op.outs}
    return {name for name in unwritten if name in schedule.buffers and schedule.buffers[name].role == "output"}
