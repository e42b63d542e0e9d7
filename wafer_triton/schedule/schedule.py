"""A schedule: an algorithm on a mesh as immutable data, written once and read by everything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

from wafer_triton import local
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ScheduleError, shown
from wafer_triton.schedule.rounds import FAMILIES, Buffer
from wafer_triton.schedule.steps import Rounds
from wafer_triton.text.table import Table

T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """Rounds on a mesh over named buffers, built and checked by `Builder.build`; any sequence of rounds may be given.

    `rounds` are read one by one, `rounds.steps` has the steps that define them (see `Rounds`).

    `family` names the measurements whose constants price it: "kernel", or "decode" for the steps of a decode layer.
    """

    name: str
    mesh: Mesh
    buffers: Mapping[str, Buffer]
    rounds: Rounds
    family: str = "kernel"

    def __post_init__(self) -> None:
        named = f"schedule {shown(self.name)}"
        if not isinstance(self.rounds, Rounds):
            object.__setattr__(self, "rounds", Rounds(self.rounds))
        if self.family not in FAMILIES:
            raise ScheduleError(f"{named}: family {shown(self.family)}: choose one of {', '.join(FAMILIES)}")

    def __getstate__(self) -> dict[str, object]:
        """Pickle the fields alone, without what `once` keeps."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def __repr__(self) -> str:
        return f"Schedule {self.name!r} on mesh {self.mesh} of {self.mesh.device.name}: {len(self.rounds):,} rounds"

    def _repr_html_(self) -> str:
        steps = Counter[str]()
        for one in self.rounds.distinct():
            steps[one.round.label or "(no label)"] += one.times
        title = f"{self.name} on mesh {self.mesh} of {self.mesh.device.name}: {len(self.rounds):,} rounds"
        held = (
            (buffer.name, f"{buffer.tile} {buffer.dtype}", buffer.role, buffer.bytes)
            for buffer in self.buffers.values()
        )
        buffers = Table.rows(("name", "tile", "role", "bytes"), held, title="buffers")
        return Table.rows(("step", "rounds"), steps.items(), title=title)._repr_html_() + buffers._repr_html_()


def once(find: Callable[[Schedule], T]) -> Callable[[Schedule], T]:
    """Return a function of schedules that finds its result for each of them once, and keeps it beside their fields.

    After a definition of a local operation by a user it is found anew.
    """

    def found(schedule: Schedule) -> T:
        kept = vars(schedule).setdefault("_kept", {})
        if find not in kept or kept[find][0] != local.definitions():
            kept[find] = local.definitions(), find(schedule)
        result: T = kept[find][1]
        return result

    return found
