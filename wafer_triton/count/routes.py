"""Routes (PLMR's R): the colours that a schedule needs at each router, counted on an assignment.

A circuit is one sender's path along a line, through the routers in between, to its receiver or receivers. Two logical
cores that send from one physical core have two circuits. A router holds one configuration per colour: the side that
words come from, and the sides that they go to. It is set once for the whole kernel, so SUMMA and all-gather need O(P)
colours. Two different circuits that touch one router need different configurations of it: a sender takes words from its
own core, a receiver hands them to its own core, a router in between does neither. So circuits share a colour exactly
when they have no router in common, over all rounds. Equal circuits, of any rounds and exchanges, are one route. The
words that a core sends over a route in one round follow one another.

Along a line this is the colouring of intervals: first fit by left end needs no more colours than circuits meet at one
router. Circuits along x take their colours from 0 upwards, circuits along y from the last downwards; at no router
do the two overlap. Lines with the same circuits are coloured once, so a 720 x 720 mesh takes a second.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wafer_triton.count.circuits import Lines, collect, groups_of, meeting
from wafer_triton.count.numbers import circuits_of
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import check_type
from wafer_triton.schedule.repeat import Repeat, Section
from wafer_triton.schedule.rounds import Exchange, Index, Round
from wafer_triton.schedule.rules import Finding, title
from wafer_triton.schedule.schedule import Schedule

if TYPE_CHECKING:
    from wafer_triton.schedule.repeat import Step


@dataclass(frozen=True, eq=False)
class Routes:
    """A conflict-free assignment: colour c of an x circuit is c, of a y circuit `colours` - 1 - c."""

    mesh: Mesh
    x: Lines
    y: Lines
    per_core: NDArray[np.int64]  # [rows, cols] physical: colours configured at each router
    colours: int  # different colours in all; a device must offer as many

    @property
    def maximum(self) -> int:
        """Colours at the fullest router."""
        return int(self.per_core.max())

    def of(self, exchange: Exchange) -> Index:
        """Return the colour of every message of an exchange, in the order of `Moves.ends`; -1 inside one core."""
        x = exchange.axis == "x"
        lines = self.x if x else self.y
        fold, fold_across = self.mesh.fold[::-1] if x else self.mesh.fold
        groups = groups_of(exchange, self.mesh)
        found = list[Index]()
        for at, send, recv in groups:
            colours = np.full((len(at), len(recv)), -1, np.int64)
            for sender, circuit in circuits_of(send, recv, fold).items():
                mine = (send == sender) & (recv // fold != circuit.sender)
                own = lines.colour[lines.circuits[circuit], at // fold_across]
                colours[:, mine] = (own if x else self.colours - 1 - own)[:, None]
            found.append(colours[:, recv >= 0].ravel())
        return np.concatenate(found)

    def table(self, colour: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return each router's configuration for a colour, [rows, cols] of side bits: words come from, words go to."""
        come, go = (np.zeros((self.mesh.rows, self.mesh.cols), np.uint8) for _ in range(2))
        for axis, lines, own in (("x", self.x, colour), ("y", self.y, self.colours - 1 - colour)):
            for circuit, number in lines.circuits.items():
                for line in np.flatnonzero(lines.colour[number] == own):
                    for router in range(circuit.span[0], circuit.span[1] + 1):
                        core = (line, router) if axis == "x" else (router, line)
                        come[core], go[core] = circuit.at(router, axis)
        return come, go

    def exceeds(self, limit: int) -> tuple[tuple[int, int], int]:
        """Return the fullest core and the round of its first route over `limit`, else of its last route."""
        row, col = (int(side) for side in np.unravel_index(self.per_core.argmax(), self.per_core.shape))
        rounds = [
            int(lines.first[number, line])
            for lines, line, at in ((self.x, row, col), (self.y, col, row))
            for circuit, number in lines.of_line(line)
            if circuit.span[0] <= at <= circuit.span[1]
        ]
        return (row, col), sorted(rounds)[min(limit, len(rounds) - 1)]


def routes(schedule: Schedule, relayed: bool = False) -> Routes:
    """Return the routes of a schedule; with `relayed` each message goes from core to core in software."""
    check_type("routes: relayed", relayed, bool)
    mesh = schedule.mesh
    x, along_x, top_x = collect(schedule, "x", relayed).coloured(mesh.rows, mesh.cols)
    y, along_y, top_y = collect(schedule, "y", relayed).coloured(mesh.cols, mesh.rows)
    return Routes(mesh, x, y, along_x + along_y.T, int((top_x + top_y.T).max()))


def colours(schedule: Schedule) -> int:
    """Return the number of colours of `routes(schedule)`; lines that move alike are counted once."""
    alike = schedule.mesh.shape, schedule.mesh.fold, frozenset(_ways(schedule.rounds.steps, None))
    if alike not in _WAYS:
        if len(_WAYS) >= 4096:
            _WAYS.clear()
        _WAYS[alike] = _colours(schedule)
    return _WAYS[alike]


def _ways(steps: Iterable[Step], turning: tuple[bytes, int] | None) -> Iterator[Hashable]:
    """Yield the moves of the messages, and the rows that change so many times."""
    for step in steps:
        if isinstance(step, Repeat):
            yield from _ways(step.steps, turning if step.rows is None else (step.rows.tobytes(), step.times))
        elif isinstance(step, Section):
            yield step.moves, turning
        else:
            yield from ((one.moves, turning) for one in step.exchanges)


def _colours(schedule: Schedule) -> int:
    mesh, moves = schedule.mesh, dict[str, list[Exchange]](x=[], y=[])
    for one, turning in _exchanges(schedule.rounds.steps, None):
        everywhere = one.lines is None
        if one.lines is not None and one.axis == "x" and turning is not None:
            everywhere = bool((turning.first_time(one.lines) < turning.times).all())
        if one.moves.paired or not everywhere:
            tops = (
                collect(schedule, "x").top(mesh.rows, mesh.cols),
                collect(schedule, "y").top(mesh.cols, mesh.rows),
            )
            return int((tops[0] + tops[1].T).max())
        moves[one.axis].append(one)
    return meeting(moves["x"], mesh.fold[1], mesh.cols) + meeting(moves["y"], mesh.fold[0], mesh.rows)


def _exchanges(steps: Iterable[Step], turning: Repeat | None) -> Iterator[tuple[Exchange, Repeat | None]]:
    """Yield the exchanges of each round with the repetition that changes rows; sections that move alike give one."""
    seen = set[Hashable]()
    for step in steps:
        if isinstance(step, Repeat):
            yield from _exchanges(step.steps, turning if step.rows is None else step)
        elif not isinstance(step, Section) or step.moves not in seen:
            if isinstance(step, Section):
                seen.add(step.moves)
            for round_ in (step,) if isinstance(step, Round) else step.rounds:
                yield from ((one, turning) for one in round_.exchanges)


# Colours of a mesh by its messages.
_WAYS: dict[tuple[tuple[int, int], tuple[int, int], frozenset[Hashable]], int] = {}


def excess(schedule: Schedule, needed: Routes | None = None) -> Finding | None:
    """Return a finding if the routes, `needed` or the schedule's own, are more than its device has; else None."""
    needed, device = needed or routes(schedule), schedule.mesh.device
    if device.routes is None or needed.colours <= device.routes:
        return None
    core, number = needed.exceeds(device.routes)
    message = (
        f"{title(schedule, number)}: core {core} needs {needed.maximum} routes, the mesh {needed.colours} colours in "
        f"all; {device.name} has {device.routes}"
    )
    return Finding("routes", message, number, core)
