"""What a program's cores hold after a round: `for state in program.rounds(): state["a"].core(3, 7)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wafer_triton.errors import MeshError, ScheduleError
from wafer_triton.schedule.rounds import Schedule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Held:
    """A copy of the tiles of a buffer: [rows, cols, *tile], or [rows, cols, slots, *tile] of several slots."""

    name: str
    tiles: Tensor

    def core(self, row: int, col: int) -> Tensor:
        """The tile of one core; MeshError for a core that is not there."""
        rows, cols = self.tiles.shape[:2]
        if not (0 <= row < rows and 0 <= col < cols):
            raise MeshError(f"core ({row}, {col}) is not on the mesh of {self.name!r}, which has {rows} x {cols} cores")
        return self.tiles[row, col]


@dataclass(frozen=True, eq=False)
class State:
    """The moment after a round. What is read is copied, so that it stays when the program goes on."""

    round: int
    label: str
    _read: Callable[[str], Tensor]

    def __getitem__(self, name: str) -> Held:
        return Held(name, self._read(name))


def number_of(schedule: Schedule, until: int | str) -> int:
    """How many rounds come before a round, given by number, or before the first with a label.

    Raises ScheduleError if there is none.
    """
    count = len(schedule.rounds)
    if isinstance(until, str):
        labels = [round_.label for round_ in schedule.rounds]
        if until not in labels:
            known = ", ".join(map(repr, dict.fromkeys(labels)))
            raise ScheduleError(f"{schedule.name}: no round is labelled {until!r}; its labels are {known}")
        return labels.index(until)
    if not 0 <= until <= count:
        raise ScheduleError(f"{schedule.name}: until = {until} is not one of 0 to {count}, its number of rounds")
    return until
