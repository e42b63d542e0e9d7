"""Routes (PLMR's R): the circuits that meet at each router, and an assignment of colours to them.

A circuit is one sender's path along a line, through the routers in between, to its receiver or receivers. Two logical
cores that send from one physical core have two circuits. A router holds one configuration per colour: the side that
words come from, and the sides that they go to. It is set once for the whole kernel, so SUMMA and all-gather need O(P)
colours. Two different circuits that touch one router need different configurations of it: a sender takes words from its
own core, a receiver hands them to its own core, a router in between does neither. So circuits share a colour exactly
when they have no router in common, over all rounds. Equal circuits, of any rounds and exchanges, are one route. The
words that a core sends over a route in one round follow one another.

No assignment has fewer colours than circuits meet at the fullest router (`maximum`). Along a line, which is the
colouring of intervals, first fit by left end needs no more. Circuits along x take their colours from 0 upwards,
circuits along y from the last downwards; at no router do the two overlap. Lines with the same circuits are coloured
once, so a 720 x 720 mesh takes a second. That is more than `maximum` where both are not at their most at one router.
Then a tabu search (Hertz and de Werra, Computing 39, 1987) takes the last colour away, as often as it can, on meshes
with up to `SEARCHED` circuits. Of 5,000 random schedules on up to 6 x 6 cores it left none above `maximum`. On larger
meshes `colours` may be more than are needed.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wafer_triton.count.spans import ContentKey, Sides, by_sender, content_key, on_lines, sends, starts
from wafer_triton.count.times import Turn, Turns, along
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.rounds import Index, Moves, Round
from wafer_triton.schedule.rules import Finding, title
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Rounds, occurrences
from wafer_triton.text.quantity import Legend, unit
from wafer_triton.text.table import Result, Table

Circuit = tuple[int, tuple[int, ...]]  # from a physical position of a line to ascending receivers
Multicasts = dict[tuple[int, bytes], int]  # codes of circuits to several receivers, see `_codes`
SEARCHED = 1000  # circuits on all lines, at most, whose colours are searched
STARTS = 20  # of a search for one colour less, each with 5 steps a circuit, at most 500


class Kind(NamedTuple):
    """Lines that have the same circuits: the circuits' numbers and colours, for each line or alike for all."""

    lines: Index
    circuits: Index
    colours: Index  # [circuits, lines] or [circuits, 1]


@dataclass(frozen=True, eq=False)
class Lines:
    """The circuits along one axis, and the lines that have them."""

    codes: Index  # of the circuits, see `_codes`
    several: Multicasts
    low: Index  # the first and the last router of each circuit
    high: Index
    kinds: list[Kind]
    across: int  # physical lines
    along: int  # routers of each

    @property
    def circuits(self) -> list[Circuit]:
        """All circuits by number."""
        several = {
            code: (start, tuple(np.frombuffer(to, np.int64).tolist())) for (start, to), code in self.several.items()
        }
        return [several.get(code) or (code // self.along, (code % self.along,)) for code in self.codes.tolist()]

    @property
    def colour(self) -> Index:
        """The colour of each circuit on each line (-1: it is not there), [circuits, lines]."""
        colour = np.full((len(self.codes), self.across), -1)
        for kind in self.kinds:
            colour[np.ix_(kind.circuits, kind.lines)] = kind.colours
        return colour


@dataclass(frozen=True, eq=False, repr=False)
class Routes(Result):
    """A conflict-free assignment of colours to the circuits along x and y."""

    mesh: Mesh
    x: Lines
    y: Lines
    per_core: NDArray[np.int64]  # [rows, cols] physical: colours configured at each router
    colours: int  # different ones in all, with which a device can do; no device can with fewer than `maximum`

    def table(self, *_: str) -> Table:
        """Return the colours in all and at the fullest router, and of the device those that a router holds."""
        device = self.mesh.device
        counted = {"colours": self.colours, "colours at the fullest router": self.maximum, "routes": device.routes}
        legend = Legend(dict.fromkeys(counted, unit("")), {"routes": unit("", f"routes of a router of {device.name}")})
        return Table([counted], legend, title=f"Routes, counted, on mesh {self.mesh}", upright=True)

    @property
    def maximum(self) -> int:
        """Colours at the fullest router: a lower bound of those in all."""
        return int(self.per_core.max())


def routes(schedule: Schedule) -> Routes:
    """Return the routes of a schedule: `colours` in all, and those at each physical router, `per_core` [rows, cols]."""
    fitted = _fitted(schedule)
    circuits = sum(kind.lines.size * kind.circuits.size for kind in (*fitted.x.kinds, *fitted.y.kinds))
    return _searched(fitted) if fitted.colours > fitted.maximum and circuits <= SEARCHED else fitted


def _fitted(schedule: Schedule) -> Routes:
    """Return the routes of a schedule, coloured by first fit."""
    mesh = schedule.mesh
    moved = [(moves, turns) for turns, every in _moved(schedule).items() for moves in every]
    (x, routers), (y, by_column) = (
        _lines(mesh, axis, [each for each in moved if each[0].axis == axis]) for axis in "xy"
    )
    routers += by_column.transpose(0, 2, 1)
    per_core, top = routers
    most = int(top.max())
    y = replace(y, kinds=[kind._replace(colours=most - 1 - kind.colours) for kind in y.kinds])
    return Routes(mesh, x, y, per_core, most)


def colours(schedule: Schedule) -> int:
    """Return the number of colours of `routes(schedule)`."""
    ways = sorted((turns, sorted(each.digest for each in moves)) for turns, moves in _moved(schedule).items())
    key = content_key(schedule.mesh, ways)
    if key not in _COLOURS:
        if len(_COLOURS) >= 4096:
            _COLOURS.clear()
        _COLOURS[key] = routes(schedule).colours
    return _COLOURS[key]


# Colours of a mesh by its messages, a quarter of a kilobyte each.
_COLOURS: dict[ContentKey, int] = {}


def _moved(schedule: Schedule) -> dict[Turns, dict[Moves, None]]:
    """Return the different moves of a schedule, in order, by the turns of the lines."""
    found = defaultdict[Turns, dict[Moves, None]](dict)
    for _, step, _, turning in occurrences(schedule.rounds.steps):
        moves = [one for one, _ in sends(step, schedule.mesh)] if isinstance(step, Round) else step.moves
        found[tuple(map(Turn.of, turning))].update(dict.fromkeys(moves))
    return found


def _lines(mesh: Mesh, axis: str, moved: Sequence[tuple[Moves, Turns]]) -> tuple[Lines, Index]:
    """Return the circuits of moves along an axis; lines with the same moves are coloured once.

    The second result is how many circuits touch each router, and how many colours suffice it, [2, lines, along].
    """
    sides, several = Sides.of(mesh, axis), Multicasts()
    across = sides.across // sides.fold_across
    alike, weights = on_lines(sides, [(moves, turns, 1) for moves, turns in moved if not moves.paired])
    codes = [_codes(line, sides, several)[1] for line in alike]
    has = np.asarray(weights.reshape(len(alike), across, sides.fold_across).any(2).T)
    apart = [np.zeros((2, 0), np.int64)]  # lines and codes of circuits that lines have for themselves
    for moves, turns in moved:
        if moves.paired:
            line, own = _codes(moves, sides, several)
            for turn in along(axis, turns)[0]:
                where = np.argsort(turn.all(), 1)  # each line of the first time is in every time
                line, own = where[:, line].ravel(), np.tile(own, turn.times)
            apart.append(np.stack([line // sides.fold_across, own]))
    line, own = np.concatenate(apart, 1)
    most = sides.along**2 + len(several)
    line, own = np.divmod(np.unique(line * most + own), most)
    each = [own[start:end] for start, end in pairwise(np.searchsorted(line, np.arange(across + 1)).tolist())]
    used = np.unique(np.concatenate([own, *codes]))
    low, high = np.sort(np.divmod(used, sides.along), axis=0)
    for (start, to), number in zip(several, np.searchsorted(used, [*several.values()]), strict=True):
        receivers = np.frombuffer(to, np.int64)
        low[number], high[number] = min(start, receivers[0]), max(start, receivers[-1])
    members = defaultdict[tuple[bytes, bytes], list[int]](list)
    for at, (held, alone) in enumerate(zip(has, each, strict=True)):
        members[held.tobytes(), alone.tobytes()].append(at)
    kinds, routers = list[Kind](), np.zeros((2, across, sides.along), np.int64)
    for lines in members.values():
        here = [each[lines[0]], *(codes[number] for number in np.flatnonzero(has[lines[0]]))]
        numbers = np.searchsorted(used, np.unique(np.concatenate(here)))
        numbers = numbers[np.lexsort((high[numbers], low[numbers]))]
        colours, of_line = _first_fit(low[numbers], high[numbers], sides.along)
        kinds.append(Kind(np.array(lines), numbers, colours))
        routers[:, kinds[-1].lines] = of_line[:, None]
    return Lines(used, several, low, high, kinds, across, sides.along), routers


def _codes(moves: Moves, sides: Sides, several: Multicasts) -> tuple[Index, Index]:
    """Return line (see `by_sender`) and code of each circuit: start * along + receiver, or a multicast's own."""
    line, start, end, first = by_sender(moves, sides)
    codes, last = start * sides.along + end[first], np.append(first[1:], len(end))
    for number in np.flatnonzero(last - first > 1).tolist():
        receivers = end[first[number] : last[number]]
        receivers = receivers[starts(receivers)] if sides.fold > 1 else receivers
        if len(receivers) > 1:
            circuit = int(start[number]), receivers.tobytes()
            codes[number] = several.setdefault(circuit, sides.along**2 + len(several))
    return line, codes


def _first_fit(low: Index, high: Index, along: int) -> tuple[Index, Index]:
    """Return the colours of a line's circuits by left ends, and its circuits and colours at each router, [2, along]."""
    chosen, free, busy, used = list[int](), list[int](), list[tuple[int, int]](), 0
    top = np.zeros(along, np.int64)
    for first, last in zip(low.tolist(), high.tolist(), strict=True):
        while busy and busy[0][0] < first:
            heapq.heappush(free, heapq.heappop(busy)[1])
        number = heapq.heappop(free) if free else used
        used = max(used, number + 1)
        heapq.heappush(busy, (last, number))
        chosen.append(number)
    colours = np.array(chosen, np.int64)
    for number in np.argsort(colours, kind="stable").tolist():
        top[low[number] : high[number] + 1] = colours[number] + 1
    begun, ended = (np.bincount(end, minlength=along + 1)[:along] for end in (low, high + 1))
    return colours[:, None], np.stack([(begun - ended).cumsum(), top])


def _searched(fitted: Routes) -> Routes:
    """Return the routes with fewer colours, down to the `maximum`, as far as a search goes."""
    axes, colours = (fitted.x, fitted.y), fitted.colours
    both, low, high = [lines.colour for lines in axes], list[Index](), list[Index]()
    for lines, colour, turned in zip(axes, both, (1, -1), strict=True):
        circuit, line = np.nonzero(colour >= 0)
        low.append(np.stack([line, lines.low[circuit]])[::turned])
        high.append(np.stack([line, lines.high[circuit]])[::turned])
    rows, cols = (
        np.concatenate(low, 1)[:, :, None] <= np.concatenate(high, 1)[:, None]
    )  # one begins before another ends
    meet = rows & rows.T & cols & cols.T
    np.fill_diagonal(meet, False)
    best = np.concatenate([colour[colour >= 0] for colour in both])
    while colours > fitted.maximum and (fewer := _without_last(meet, best, colours - 1)) is not None:
        best, colours = fewer, colours - 1
    for colour, part in zip(both, np.split(best, [low[0].shape[1]]), strict=True):
        colour[colour >= 0] = part
    x, y = (
        replace(lines, kinds=[kind._replace(colours=colour[np.ix_(kind.circuits, kind.lines)]) for kind in lines.kinds])
        for lines, colour in zip(axes, both, strict=True)
    )
    return replace(fitted, x=x, y=y, colours=colours)


def _without_last(meet: NDArray[np.bool_], colour: Index, colours: int) -> Index | None:
    """Return an assignment of `colours` colours to circuits of which some meet, [circuits, circuits], by tabu search.

    Each step gives a circuit in conflict its best colour, which is not one that it had a few steps ago. The search
    starts from an assignment with a colour more, and again from random ones.
    """
    random, before, steps = Random(0), colour, min(5 * colour.size, 500)
    for step in range(STARTS * steps):
        if step % steps == 0:
            drawn = np.array([int(colours * random.random()) for _ in before])
            colour = drawn if step else np.where(before < colours, before, drawn)
            near = np.zeros((colours, colour.size), int)  # circuits of a colour met
            for one, met in zip(colour.tolist(), meet, strict=True):
                near[one] += met
            tabu = np.zeros_like(near)  # the step until which a circuit may not have a colour again
        clashes = near[colour, np.arange(colour.size)]
        wrong = np.flatnonzero(clashes)
        if not wrong.size:
            return colour
        worse = np.where(tabu[:, wrong] > step, colour.size, near[:, wrong] - clashes[wrong])
        worse[colour[wrong], np.arange(wrong.size)] = 2 * colour.size
        best = np.flatnonzero(worse == worse.min())
        new, at = divmod(int(best[int(random.random() * best.size)]), wrong.size)
        moved = wrong[at]
        old = colour[moved]
        near[old] -= meet[moved]
        near[new] += meet[moved]
        colour[moved], tabu[old, moved] = new, step + 0.6 * wrong.size + 10 * random.random()
    return None


def excess(schedule: Schedule) -> Finding | None:
    """Return a finding if the routes of a schedule are more than its device has, else None.

    It names the fullest core, and the round of its first route over the limit, else of its last route.
    """
    needed, device = routes(schedule), schedule.mesh.device
    if device.routes is None or needed.colours <= device.routes:
        return None
    core = np.unravel_index(needed.per_core.argmax(), needed.per_core.shape)

    def met(number: int) -> int:
        """Return the routes of the core in all rounds up to one."""
        return int(_fitted(replace(schedule, rounds=Rounds(schedule.rounds[: number + 1]))).per_core[core])

    number = bisect_left(range(len(schedule.rounds)), min(device.routes + 1, needed.maximum), key=met)
    row, col = map(int, core)
    message = (
        f"{title(schedule, number)}: core {row, col} needs {needed.maximum} routes, the mesh {needed.colours} colours "
        f"in all; {device.name} has {device.routes}"
    )
    return Finding("routes", message, number, (row, col))
