"""The values of cores, summarised: after every round norm, range and first numbers of each tile that changed.

Values come from a program that runs round by round, so they are results of the emulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wafer_triton.errors import DrawError
from wafer_triton.schedule.access import acts
from wafer_triton.schedule.rounds import Round
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.text.table import Table

if TYPE_CHECKING:
    from wafer_triton.emulate.program import Program

FIRST = 4  # numbers of a tile that are shown
FIGURES = ("norm", "smallest", "largest")  # of a tile; the first numbers follow
MOST = 300_000  # tiles that are summarised for a page, over all rounds: tens of megabytes before they are packed

Summaries = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Values:
    """Summaries [cores, figures and first numbers] of the tiles that each round wrote, by buffer."""

    start: dict[str, Summaries]
    rounds: list[dict[str, Summaries]]


def written(round_: Round) -> list[str]:
    """Return the buffers that a round writes, in the order in which it does."""
    return list(dict.fromkeys(access.slot.buffer for act in acts(round_) for access in act.writes))


def summaries(program: Program) -> Values:
    """Run a program round by round and summarise the tiles that it writes; DrawError for more than `MOST` tiles."""
    schedule = program.schedule
    demand(schedule)
    start = {name: _summary(program, name) for name in schedule.buffers}
    rounds = [
        {name: _summary(program, name) for name in written(schedule.rounds[state.round])} for state in program.rounds()
    ]
    return Values(start, rounds)


def demand(schedule: Schedule) -> None:
    """Raise DrawError for a schedule of too many cores and rounds to show the values of."""
    count = schedule.mesh.cores * (len(schedule.buffers) + sum(len(written(round_)) for round_ in schedule.rounds))
    if count > MOST:
        rows, cols = schedule.mesh.shape
        raise DrawError(
            f"{schedule.name}: values of {rows} x {cols} cores over {len(schedule.rounds)} rounds are {count:,} tiles, "
            f"more than the {MOST:,} that a page shows; take a smaller mesh, or leave values out"
        )


def values(program: Program, buffer: str, core: tuple[int, int]) -> Table:
    """Run a program; return a table of one core's tile of a buffer after every round that writes it.

    `core` is (row, column) of the logical mesh. Raises ShapeError for a buffer, MeshError for a core that is not there.
    """
    rows = [("start", "", *_cells(program.held(buffer).core(*core)))]
    for state in program.rounds():
        if buffer in written(program.schedule.rounds[state.round]):
            tile = state[buffer].core(*core)
            rows.append((str(state.round), state.label or "-", *_cells(tile)))
    head = ("round", "step", *FIGURES, "first numbers")
    return Table.rows(head, rows, title=f"{program.schedule.name}: {buffer} of core {core}", left=2)


def _cells(tile: Any) -> tuple[str, ...]:
    """Return the figures and the first numbers of a torch tile as texts."""
    *figures, first = np.split(_figures(tile.flatten()[None])[0], range(1, len(FIGURES) + 1))
    return tuple(" ".join(f"{number:.4g}" for number in each) for each in (*figures, first))


def _summary(program: Program, name: str) -> Summaries:
    """Return the summaries of all cores' tiles of a buffer."""
    return _figures(program.read(name).flatten(0, 1).flatten(1))


def _figures(tiles: Any) -> Summaries:
    """Return norm, range and first numbers of torch tiles [tiles, numel]."""
    import torch

    exact = tiles.double()
    figures = torch.stack([exact.norm(dim=1), exact.amin(1), exact.amax(1)], 1)
    summed: Summaries = torch.cat([figures, exact[:, :FIRST]], 1).numpy()
    return summed
