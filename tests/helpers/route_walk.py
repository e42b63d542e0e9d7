"""The check of a route assignment: every message walks through the routers by their tables alone.

The check reads the tables and the colours of the messages, and nothing else of the assignment: no intervals, no
circuits.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from wafer_triton.count.routes import Lines, Routes
from wafer_triton.errors import ScheduleError
from wafer_triton.schedule.rounds import Exchange
from wafer_triton.schedule.rules import title
from wafer_triton.schedule.schedule import Schedule

# a router's sides, as bits: the core itself and the four links
CORE, EAST, WEST, SOUTH, NORTH = 1, 2, 4, 8, 16
STEPS = {EAST: (0, 1), WEST: (0, -1), SOUTH: (1, 0), NORTH: (-1, 0)}
OPPOSITE = {EAST: WEST, WEST: EAST, SOUTH: NORTH, NORTH: SOUTH}
Core = tuple[int, int]
Table = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def table(routes: Routes, colour: int) -> Table:
    """Return each router's configuration for a colour, [rows, cols] of side bits: words come from, words go to."""
    come, go = (np.zeros((routes.mesh.rows, routes.mesh.cols), np.uint8) for _ in range(2))
    for up, down, lines, own in ((EAST, WEST, routes.x, colour), (SOUTH, NORTH, routes.y, routes.colours - 1 - colour)):
        for (sender, receivers), colours in zip(lines.circuits, lines.colour, strict=True):
            for line in np.flatnonzero(colours == own):
                for router in range(min(sender, *receivers), max(sender, *receivers) + 1):
                    core = (line, router) if up == EAST else (router, line)
                    come[core] = CORE if router == sender else down if router > sender else up
                    go[core] = CORE * (router in receivers)
                    go[core] |= up * (sender <= router < receivers[-1]) | down * (sender >= router > receivers[0])
    return come, go


def colours_of(routes: Routes, exchange: Exchange) -> list[int]:
    """Return the colour of every message of an exchange, in the order of `Moves.ends`; -1 inside one core."""
    along = 1 if exchange.axis == "x" else 0
    lines: Lines = routes.x if along else routes.y
    messages, receivers = [], defaultdict(set)
    for ends in zip(*exchange.moves.ends(routes.mesh), strict=True):
        sender, receiver = (np.divmod(end, routes.mesh.shape[1]) for end in ends)
        start, end = (core[along] // routes.mesh.fold[along] for core in (sender, receiver))
        messages.append((tuple(sender), start, end, sender[1 - along] // routes.mesh.fold[1 - along]))
        if start != end:
            receivers[tuple(sender)].add(end)
    number, colour = {circuit: number for number, circuit in enumerate(lines.circuits)}, lines.colour
    found = []
    for sender, start, end, line in messages:
        own = -1 if start == end else colour[number[start, tuple(sorted(receivers[sender]))], line]
        found.append(int(own if along or own < 0 else routes.colours - 1 - own))
    return found


def validate_routes(schedule: Schedule, routes: Routes) -> None:
    """Walk every message of every round from its sender, by the tables alone.

    A word enters at its sender with the colour that `routes` gives it. Raises ScheduleError with round, core
    and colour for two faults: a word meets a router that does not expect it, or does not reach exactly its receivers.
    A router takes the words of a colour from one side, so words of two senders never join. For tests: the time grows
    with messages and hops.
    """
    mesh, seen = schedule.mesh, set()
    tables = [table(routes, colour) for colour in range(routes.colours)]
    for number, round_ in enumerate(schedule.rounds):
        if round_ in seen:
            continue
        seen.add(round_)
        for exchange in round_.exchanges:
            ends = (at for cores in exchange.moves.ends(mesh) for at in np.divmod(cores, mesh.shape[1]))
            wanted: dict[tuple[int, Core], set[Core]] = {}
            for colour, *at in zip(colours_of(routes, exchange), *ends, strict=True):
                row, col, to_row, to_col = (
                    int(position) // fold for position, fold in zip(at, mesh.fold * 2, strict=True)
                )
                if (row, col) != (to_row, to_col):
                    wanted.setdefault((int(colour), (row, col)), set()).add((to_row, to_col))
            for (colour, sender), receivers in wanted.items():
                where = f"{title(schedule, number)}: colour {colour} from core {sender}"
                if not 0 <= colour < routes.colours:
                    raise ScheduleError(f"{where} is not one of the {routes.colours} assigned")
                reached = _walk(tables[colour], sender, where)
                if reached != receivers:
                    raise ScheduleError(f"{where} reaches {sorted(reached)}, not {sorted(receivers)}")


def _walk(table: Table, sender: Core, where: str) -> set[Core]:
    """Return the cores that receive a word from `sender`."""
    come, go = table
    reached, words = set(), [(sender, CORE)]
    while words:
        core, side = words.pop()
        if not (0 <= core[0] < come.shape[0] and 0 <= core[1] < come.shape[1]):
            raise ScheduleError(f"{where} leaves the mesh at {core}")
        if come[core] != side:
            raise ScheduleError(f"{where} meets another route at core {core}")
        if go[core] & CORE:
            reached.add(core)
        for out, (down, right) in STEPS.items():
            if go[core] & out:
                words.append(((core[0] + down, core[1] + right), OPPOSITE[out]))
    return reached
