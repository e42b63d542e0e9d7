"""A schedule: an algorithm on a mesh as immutable data, written once and read by everything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ScheduleError, shown
from wafer_triton.schedule.rounds import FAMILIES, Buffer, Cores, Index, Slot, Value
from wafer_triton.schedule.steps import Rounds
from wafer_triton.text.table import Table


@dataclass(frozen=True, eq=False, repr=False)
class Schedule(Value):
    """Rounds on a mesh over named buffers, built and checked by `Builder.build`; any sequence of rounds may be given.

    Schedules are equal if their fields are, however often they were built. `rounds` are read one by one, `rounds.steps`
    has the steps that define them (see `Rounds`).

    `family` names the measurements whose constants price it: "kernel", or "decode" for the steps of a decode layer.
    """

    name: str
    mesh: Mesh
    buffers: Mapping[str, Buffer]
    rounds: Rounds
    family: str = "kernel"

    def __post_init__(self) -> None:
        object.__setattr__(self, "buffers", MappingProxyType(dict(self.buffers)))
        if not isinstance(self.rounds, Rounds):
            object.__setattr__(self, "rounds", Rounds(self.rounds))
        if self.family not in FAMILIES:
            raise ScheduleError(
                f"schedule {shown(self.name)}: family {shown(self.family)}: choose one of {', '.join(FAMILIES)}"
            )

    def cells(self, slot: Slot, cores: Cores | Index | None = None) -> Index:
        """Return where the tiles of a slot lie on some cores (None: all), see `Slot.cells`."""
        at = cores.flat(self.mesh) if isinstance(cores, Cores) else cores
        return slot.cells(self.mesh, self.buffers[slot.buffer].slots, at)

    def place(self, name: str, cell: int) -> tuple[Slot, tuple[int, int]]:
        """Return the slot of a buffer and the core, a row and a column, of one of its `cells`."""
        core, slot = divmod(cell, self.buffers[name].slots)
        return Slot(name, slot), divmod(core, self.mesh.shape[1])

    def __repr__(self) -> str:
        return f"Schedule {self.name!r} {self._size}"

    @property
    def _size(self) -> str:
        return f"on mesh {self.mesh} of {self.mesh.device.name}: {len(self.rounds):,} rounds"

    def _repr_html_(self) -> str:
        steps = Counter[str]()
        for one in self.rounds.distinct():
            steps[one.round.label or "(no label)"] += one.times
        held = (
            (buffer.name, f"{buffer.tile} {buffer.dtype}", buffer.role, buffer.bytes)
            for buffer in self.buffers.values()
        )
        buffers = Table.rows(("name", "tile", "role", "bytes"), held, title="buffers")
        return (
            Table.rows(("step", "rounds"), steps.items(), title=f"{self.name} {self._size}")._repr_html_()
            + buffers._repr_html_()
        )
