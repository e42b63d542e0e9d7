"""Routes (PLMR's R): the colours that a schedule needs at every router, from an actual assignment.

A circuit is one sender's path along a line, through the routers in between, to its receiver or receivers. A router
holds one configuration per colour (whence words come, whither they go), set once for the whole kernel; that is what
makes SUMMA and all-gather O(P). Two different circuits that touch one router want different configurations of it: a
sender takes words from its own core, a receiver hands them to its own core, a router in between does neither. So
circuits share a colour exactly when they have no router in common, over all rounds. Equal circuits, of any rounds and
exchanges, are one route: what a core sends over it in one round goes one after the other.

Along a line that is the colouring of intervals, where first fit by left end needs no more colours than circuits meet
at one router. Circuits along x take their colours from 0 upwards, those along y from the last downwards, so few that
they never meet at a router. Lines with the same circuits are coloured once, so a 720 x 720 mesh takes a second.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wafer_triton.count.traffic import Traffic
from wafer_triton.errors import ScheduleError, check_type
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.repeat import Repeat, comings
from wafer_triton.schedule.rounds import Exchange, Index, Schedule
from wafer_triton.schedule.rules import Finding, title

NEVER = np.iinfo(np.int32).max  # the first round of a route that is not there
# a router's sides, as bits: the core itself and the four links
CORE, EAST, WEST, SOUTH, NORTH = 1, 2, 4, 8, 16
SIDES = {"x": (EAST, WEST), "y": (SOUTH, NORTH)}


class Circuit(NamedTuple):
    """From physical position `sender` of a line to its ascending `receivers`."""

    sender: int
    receivers: tuple[int, ...]

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last router that it touches."""
        return min(self.sender, self.receivers[0]), max(self.sender, self.receivers[-1])

    def at(self, router: int, axis: str) -> tuple[int, int]:
        """The router's configuration: the side that words come from, and the sides that they go to."""
        up, down = SIDES[axis]
        come = CORE if router == self.sender else (down if router > self.sender else up)
        go = CORE * (router in self.receivers)
        go |= up * (router >= self.sender and router < self.receivers[-1])
        go |= down * (router <= self.sender and router > self.receivers[0])
        return come, go


@dataclass(eq=False)
class Lines:
    """All circuits along one axis: in which round each first runs on each line, and its colour there."""

    circuits: dict[Circuit, int] = field(default_factory=dict)
    first: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0), np.int32))  # [circuits, lines]
    colour: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0), np.int32))  # [circuits, lines]

    def of_line(self, line: int) -> list[tuple[Circuit, int]]:
        """The circuits of one line and their numbers."""
        return [(circuit, number) for circuit, number in self.circuits.items() if self.first[number, line] != NEVER]


@dataclass(frozen=True, eq=False)
class Routes:
    """A conflict-free assignment: colour c of an x circuit is c, of a y circuit `colours` - 1 - c."""

    mesh: Mesh
    x: Lines
    y: Lines
    per_core: NDArray[np.int64]  # [rows, cols] physical: colours configured at each router
    colours: int  # different colours in all; what a device must offer

    @property
    def maximum(self) -> int:
        """Colours at the fullest router."""
        return int(self.per_core.max())

    def of(self, exchange: Exchange) -> Index:
        """The colour of every message of an exchange, [lines, messages] as its receivers; -1 inside one core."""
        x = exchange.axis == "x"
        lines = self.x if x else self.y
        fold, fold_across = self.mesh.fold[::-1] if x else self.mesh.fold
        groups = _groups(exchange, self.mesh)
        colours = np.full((sum(len(at) for at, _, _ in groups), exchange.recv.shape[-1]), -1, np.int64)
        done = 0
        for at, send, recv in groups:
            for circuit in _circuits(send, recv, fold):
                mine = (send >= 0) & (send // fold == circuit.sender) & (recv // fold != circuit.sender)
                own = lines.colour[lines.circuits[circuit], at // fold_across]
                colours[done : done + len(at), mine] = (own if x else self.colours - 1 - own)[:, None]
            done += len(at)
        return colours

    def table(self, colour: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """How every router is configured for a colour, [rows, cols] of side bits: words come from, words go to."""
        come, go = (np.zeros((self.mesh.rows, self.mesh.cols), np.uint8) for _ in range(2))
        for axis, lines, own in (("x", self.x, colour), ("y", self.y, self.colours - 1 - colour)):
            for circuit, number in lines.circuits.items():
                for line in np.flatnonzero(lines.colour[number] == own):
                    for router in range(circuit.span[0], circuit.span[1] + 1):
                        core = (line, router) if axis == "x" else (router, line)
                        come[core], go[core] = circuit.at(router, axis)
        return come, go

    def exceeds(self, limit: int) -> tuple[tuple[int, int], int]:
        """The fullest core and the round in which it first needs more than `limit` routes (else its last new one)."""
        row, col = (int(side) for side in np.unravel_index(self.per_core.argmax(), self.per_core.shape))
        rounds = [
            int(lines.first[number, line])
            for lines, line, at in ((self.x, row, col), (self.y, col, row))
            for circuit, number in lines.of_line(line)
            if circuit.span[0] <= at <= circuit.span[1]
        ]
        return (row, col), sorted(rounds)[min(limit, len(rounds) - 1)]


def routes(schedule: Schedule, relayed: bool = False) -> Routes:
    """The routes of a schedule; `relayed`, of the one in which every message goes from core to core in software."""
    check_type("routes: schedule", schedule, Schedule)
    mesh = schedule.mesh
    x, y = _collect(schedule, "x", relayed), _collect(schedule, "y", relayed)
    loads, tops = zip(_colour(x, mesh.rows, mesh.cols), _colour(y, mesh.cols, mesh.rows), strict=True)
    return Routes(mesh, x, y, loads[0] + loads[1].T, int((tops[0] + tops[1].T).max()))


def colours(schedule: Schedule) -> int:
    """The colours of `routes(schedule)` alone; where all lines of an axis move alike, those of one are counted."""
    mesh, ways = schedule.mesh, dict[_Way, tuple[Exchange, Repeat | None]]()
    for coming in comings(schedule.rounds.steps):
        for one in coming.round.exchanges:
            turning = coming.turning if one.axis == "x" and one.lines is not None else None
            ways[one.axis, id(one.send), id(one.recv), id(one.lines), id(turning and turning.rows)] = one, turning
    alike = mesh.shape, mesh.fold, frozenset(ways)
    if alike not in _WAYS:
        if len(_WAYS) >= 4096:
            _WAYS.clear()
        _WAYS[alike] = list(ways.values()), _colours(schedule, list(ways.values()))
    return _WAYS[alike][1]


def _colours(schedule: Schedule, ways: list[tuple[Exchange, Repeat | None]]) -> int:
    mesh, moves = schedule.mesh, dict[str, list[Exchange]](x=[], y=[])
    for one, turning in ways:
        everywhere = one.lines is None or (turning is not None and turning.first_time(one.lines).max() < turning.times)
        if one.send.ndim > 1 or not everywhere:
            return routes(schedule).colours
        moves[one.axis].append(one)
    return _meeting(moves["x"], mesh.fold[1], mesh.cols) + _meeting(moves["y"], mesh.fold[0], mesh.rows)


def _meeting(moves: Sequence[Exchange], fold: int, along: int) -> int:
    """The most circuits of a line that meet at one router, which is how many colours first fit takes (see above)."""
    pairs, several = [np.zeros((2, 0), np.int64)], set[Circuit]()
    for send, recv in {(id(move.send), id(move.recv)): (move.send, move.recv) for move in moves}.values():
        ends = np.stack([send, recv])[:, send >= 0] // fold
        if np.bincount(ends[0], minlength=1).max() <= 1:
            pairs.append(ends[:, ends[0] != ends[1]])
        else:
            several.update(_circuits(send, recv, fold))
    pairs += [np.array([[one.sender], [one.receivers[0]]]) for one in several if len(one.receivers) == 1]
    ends = np.concatenate(pairs, 1)
    ends = np.stack(np.divmod(np.unique(ends[0] * along + ends[1]), along))
    spans = [(ends.min(0), ends.max(0)), *(one.span for one in several if len(one.receivers) > 1)]
    low, high = (np.concatenate([np.atleast_1d(end) for end in side]) for side in zip(*spans, strict=True))
    begun, ended = np.bincount(low, minlength=along), np.bincount(high + 1, minlength=along + 1)[:along]
    return int((begun - ended).cumsum().max(initial=0))


_Way = tuple[str, int, int, int, int]
# Colours of a mesh by the identity of the index arrays of all moves, with what keeps these alive.
_WAYS: dict[
    tuple[tuple[int, int], tuple[int, int], frozenset[_Way]], tuple[list[tuple[Exchange, Repeat | None]], int]
] = {}


@dataclass(frozen=True, eq=False)
class Routing:
    """How a schedule gets along with a device's routes, and what that costs."""

    routes: Routes
    relayed: bool
    stages: tuple[int, ...]  # routing stages of every round: 1, or if relayed the hops of its longest move

    @property
    def extra_stages(self) -> int:
        """Routing stages that relaying adds to the critical path; each costs a device's beta."""
        return sum(max(0, stages - 1) for stages in self.stages)


def limit(schedule: Schedule, policy: str = "refuse") -> Routing:
    """Hold a schedule to its device's number of routes; over it, by `policy`, "relay" core by core or "refuse".

    Raises ScheduleError, with the count, the limit, the fullest core and the round, when refused or when even
    neighbours need too many.
    """
    if policy not in ("relay", "refuse"):
        raise ScheduleError(f"{schedule.name}: policy {policy!r} is neither 'relay' nor 'refuse'")
    needed = routes(schedule)
    over = excess(schedule, needed)
    if over is None:
        return Routing(needed, False, tuple(int(bool(round_.exchanges)) for round_ in schedule.rounds))
    if policy == "refuse":
        hint = "relay it core by core (policy='relay'), which costs routing stages, or use an algorithm with fewer"
        raise ScheduleError(f"{over.message}; {hint}")
    needed = routes(schedule, relayed=True)
    over = excess(schedule, needed)
    if over is not None:
        raise ScheduleError(f"{over.message}, with every message relayed core by core already")
    traffic = Traffic(schedule)
    # any exchange costs a stage, even one inside cores
    stages = {
        id(round_): max((max(1, traffic.moves(exchange).hops) for exchange in round_.exchanges), default=0)
        for round_ in schedule.rounds
    }
    return Routing(needed, True, tuple(stages[id(round_)] for round_ in schedule.rounds))


def excess(schedule: Schedule, needed: Routes | None = None) -> Finding | None:
    """What to say if the routes, `needed` or the schedule's own, are more than its device has; None if they fit."""
    needed, device = needed or routes(schedule), schedule.mesh.device
    if device.routes is None or needed.colours <= device.routes:
        return None
    core, number = needed.exceeds(device.routes)
    message = (
        f"{title(schedule, number)}: core {core} needs {needed.maximum} routes, the mesh {needed.colours} colours in "
        f"all; {device.name} has {device.routes}"
    )
    return Finding("routes", message, number, core)


def _groups(exchange: Exchange, mesh: Mesh) -> list[tuple[Index, Index, Index]]:
    """The moves of an exchange as (logical lines, senders, receivers), lines that share an array together."""
    across = mesh.length("y" if exchange.axis == "x" else "x")
    lines = np.arange(across) if exchange.lines is None else exchange.lines
    if exchange.recv.ndim == 1:
        return [(lines, exchange.send, exchange.recv)]
    return [(lines[i : i + 1], exchange.send[i], exchange.recv[i]) for i in range(len(lines))]


def _circuits(send: Index, recv: Index, fold: int) -> list[Circuit]:
    """The circuits of one line's moves; a tile that stays in its physical core needs none."""
    receivers: dict[int, set[int]] = {}
    for start, end in zip((send // fold).tolist(), (recv // fold).tolist(), strict=True):
        if start >= 0 and start != end:
            receivers.setdefault(start, set()).add(end)
    return [Circuit(start, tuple(sorted(ends))) for start, ends in receivers.items()]


def _steps(circuit: Circuit) -> list[Circuit]:
    """The circuit core by core."""
    low, high = circuit.span
    up = [Circuit(at, (at + 1,)) for at in range(circuit.sender, high)]
    return up + [Circuit(at, (at - 1,)) for at in range(circuit.sender, low, -1)]


def _collect(schedule: Schedule, axis: str, relayed: bool) -> Lines:
    """All circuits along an axis and when they first run, uncoloured."""
    mesh = schedule.mesh
    across = mesh.rows if axis == "x" else mesh.cols
    fold, fold_across = mesh.fold[::-1] if axis == "x" else mesh.fold
    lines = Lines()
    # exchanges that move alike share one pattern: its circuits and, for every line, its first round
    patterns: dict[tuple[bytes, bytes], tuple[list[int], NDArray[np.int32]]] = {}
    seen: set[tuple[int, int]] = set()
    for number, round_, _, turning in comings(schedule.rounds.steps):
        if (id(round_), id(turning)) in seen:
            continue
        seen.add((id(round_), id(turning)))
        for exchange in round_.exchanges:
            for at, send, recv in _groups(exchange, mesh) if exchange.axis == axis else ():
                key = (send.tobytes(), recv.tobytes())
                if key not in patterns:
                    circuits = _circuits(send, recv, fold)
                    if relayed:
                        circuits = [step for circuit in circuits for step in _steps(circuit)]
                    ids = [lines.circuits.setdefault(circuit, len(lines.circuits)) for circuit in circuits]
                    patterns[key] = (ids, np.full(across, NEVER, np.int32))
                first = patterns[key][1]
                if turning is not None and axis == "x":
                    times = turning.first_time(at)
                    rows = np.flatnonzero(times < turning.times)
                    np.minimum.at(first, rows // fold_across, number + turning.each * times[rows])
                    continue
                here = at // fold_across
                first[here] = np.minimum(first[here], number)
    lines.first = np.full((len(lines.circuits), across), NEVER, np.int32)
    for ids, first in patterns.values():
        lines.first[ids] = np.minimum(lines.first[ids], first)
    lines.colour = np.full_like(lines.first, -1)
    return lines


def _colour(lines: Lines, across: int, along: int) -> tuple[Index, Index]:
    """Colour the circuits; returns how many touch each router and how many colours suffice it, [across, along]."""
    spans = np.array([circuit.span for circuit in lines.circuits], np.int64).reshape(-1, 2)
    order = np.argsort(spans[:, 0], kind="stable")
    load, top = np.zeros((across, along), np.int64), np.zeros((across, along), np.int64)
    alike: dict[bytes, list[int]] = {}
    for line, held in enumerate((lines.first != NEVER).T):
        alike.setdefault(held.tobytes(), []).append(line)
    for members in alike.values():
        here = order[lines.first[order, members[0]] != NEVER]
        chosen, free, busy, used = list[int](), list[int](), list[tuple[int, int]](), 0
        for low, high in spans[here].tolist():
            while busy and busy[0][0] < low:
                heapq.heappush(free, heapq.heappop(busy)[1])
            colour = heapq.heappop(free) if free else used
            used = max(used, colour + 1)
            heapq.heappush(busy, (high, colour))
            chosen.append(colour)
        lines.colour[np.ix_(here, members)] = np.array(chosen, np.int32)[:, None]
        ends = np.zeros((used, along + 1), np.int32)  # where circuits of each colour, of which none overlap, begin, end
        np.add.at(ends, (chosen, spans[here, 0]), 1)
        np.add.at(ends, (chosen, spans[here, 1] + 1), -1)
        there = ends[:, :-1].cumsum(1)
        load[members], top[members] = there.sum(0), (there * np.arange(1, used + 1)[:, None]).max(0, initial=0)
    return load, top
