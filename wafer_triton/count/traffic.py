"""Traffic of rounds: the bytes on the links of a mesh and the hops of its data, by one walk over exchanges.

A multicast crosses each link once: only the farthest receiver of a tile counts, in either direction. All is counted on
lines, never core by core, and exchanges that move alike are walked once; so a 720 x 720 mesh takes milliseconds. On a
mesh that is folded to its lcm grid, links and hops lie between physical cores.

A hop is one link from a core to its neighbour. The hops of a round are the links of its longest move. The hops of a run
(see `wafer_triton.count.runs`) are the longest path that data can take through its rounds. On that path data continues
from the core that the round before has brought it to; it need not wait for longer moves of other data. Moves along x
and y in one round happen at the same time, so the larger counts; distances of rounds along one axis and then the other
add up. The line with the longest path decides. A line whose moves another line has as well need not be walked, since
more moves never shorten a path; nor one whose longest moves together are shorter than a path that was found. The hops
of a schedule are the sum over its runs. These are the hops of the closed forms of Luczynski et al., "Near-Optimal
Wafer-Scale Reduce" (HPDC'24).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from typing import Any

import numpy as np

from wafer_triton.count.runs import axes
from wafer_triton.count.spans import Moves, Spans
from wafer_triton.schedule.repeat import Section
from wafer_triton.schedule.rounds import Exchange, Index, Round
from wafer_triton.schedule.schedule import Schedule

WORD_BYTES = 4


@dataclass(frozen=True)
class RunTraffic:
    """The traffic of a run of rounds. Words are 32 bits; loads are of one mesh line, in one direction."""

    hops: int = 0  # longest path of data
    busiest_words: int = 0  # over the busiest link
    mean_words: float = 0.0  # over the links in use
    link_bytes: int = 0  # bytes times links crossed, on the whole mesh


@dataclass(frozen=True)
class _Walk:
    """The hops of a run; of each axis in use, x first, words on the busiest and mean link and bytes on all links."""

    hops: int
    loads: tuple[tuple[int, float, int], ...]

    def of(self, sizes: Sequence[int]) -> RunTraffic:
        """Return the traffic of tiles of `sizes` bytes along these axes, by a walk of tiles of one word."""
        words = [ceil(size / WORD_BYTES) for size in sizes]
        return RunTraffic(
            self.hops,
            max((load[0] * word for load, word in zip(self.loads, words, strict=True)), default=0),
            max((load[1] * word for load, word in zip(self.loads, words, strict=True)), default=0.0),
            sum(load[2] * size // WORD_BYTES for load, size in zip(self.loads, sizes, strict=True)),
        )


class Traffic:
    """The walk over exchanges of a schedule, built or not; moves that lines or exchanges share are walked once."""

    def __init__(self, schedule: Schedule) -> None:
        self.buffers = schedule.buffers
        self.mesh = schedule.mesh
        self.homes = {axis: np.arange(self.mesh.length(axis)) // self.folds(axis)[0] for axis in "xy"}
        self._shared: dict[tuple[str, bytes, bytes], Moves] = {}
        # by identity of the arrays, which is quicker; the exchange is kept, so that its arrays stay alive
        self._known: dict[tuple[str, int, int], tuple[Moves, Exchange]] = {}

    def folds(self, axis: str) -> tuple[int, int]:
        """Logical positions of a physical core along and across an axis."""
        return self.mesh.fold[::-1] if axis == "x" else self.mesh.fold

    def moves(self, exchange: Exchange) -> Moves:
        """Return the moves of an exchange: as one line where all its lines move alike, else of every line."""
        if exchange.send.ndim == 2:
            return Moves(exchange.send, exchange.recv, self.homes[exchange.axis])
        key = (exchange.axis, id(exchange.send), id(exchange.recv))
        if key not in self._known:
            self._known[key] = self._line(exchange.axis, exchange.send, exchange.recv), exchange
        return self._known[key][0]

    def hops(self, run: Sequence[Round] | Section) -> int:
        """Return the hops of a run (see above)."""
        return sum(
            max((self._longest_path(own, axis) for axis in together), default=0)
            for together, own in ((together, list(rounds)) for together, rounds in groupby(run, axes))
        )

    def lines(self, exchange: Exchange, fold: int) -> Index:
        """Return how many of an exchange's lines there are among each `fold` neighbouring ones."""
        across = self.mesh.length("y" if exchange.axis == "x" else "x") // fold
        if exchange.lines is None:
            return np.full(across, fold)
        return np.bincount(exchange.lines // fold, minlength=across)

    def loads_of(self, exchange: Exchange) -> Index:
        """Return tiles over links, by direction: [2, along] of each line, or [2, across, along] of the whole mesh."""
        moves = self.moves(exchange)
        if exchange.send.ndim == 1:
            return moves.loads[:, 0]
        fold = self.folds(exchange.axis)[1]
        lines = np.arange(len(exchange.send)) if exchange.lines is None else exchange.lines
        across = self.mesh.length("y" if exchange.axis == "x" else "x") // fold
        whole = np.zeros((2, across, moves.loads.shape[-1]), np.int64)
        for total, loads in zip(whole, moves.loads, strict=True):
            np.add.at(total, lines // fold, loads)
        return whole

    def run(self, run: Sequence[Round] | Section) -> RunTraffic:
        """Return the traffic of a run.

        If all tiles that move along an axis are equally large, the loads of its links are in proportion to that size.
        Then the run is walked once, for tiles of one word. A run along y alone is the run along x of a turned mesh.
        """
        section = run if isinstance(run, Section) else None
        exchanges = list(_exchanges(run if section is None else [section[number] for number in section.works]))
        sizes: dict[str, set[int]] = {}
        for exchange in exchanges:
            sizes.setdefault(exchange.axis, set()).add(self.buffers[exchange.src.buffer].slot_bytes(exchange.src))
        if any(len(size) > 1 for size in sizes.values()):
            return self._walked(run, unit=False).of([WORD_BYTES] * len(sizes))
        key: tuple[Any, ...]
        if section is None:
            turn = -1 if set(sizes) == {"y"} else 1
            ends = ((one.axis * (len(sizes) > 1), id(one.send), id(one.recv), id(one.lines)) for one in exchanges)
            rounds = tuple(len(round_.exchanges) for round_ in run)
            key = self.mesh.shape[::turn], self.mesh.fold[::turn], rounds, tuple(ends)
        else:
            key = self.mesh.shape, self.mesh.fold, section.moves
        if key not in _UNITS:
            if len(_UNITS) >= _MOST:
                _UNITS.clear()
            _UNITS[key] = exchanges, self._walked(run, unit=True)
        return _UNITS[key][1].of([size for _, (size,) in sorted(sizes.items())])

    def _walked(self, run: Sequence[Round] | Section, unit: bool) -> _Walk:
        """Return the walk of a run, with tiles of their buffers' size or, if `unit`, of one word."""
        self._walk_together(run)
        walked = list[tuple[int, float, int]]()
        for axis in sorted({exchange.axis for exchange in _exchanges(run)}):
            words, link_bytes = Counter[Exchange](), 0
            for exchange in _exchanges(run):
                if exchange.axis == axis:
                    size = WORD_BYTES if unit else self.buffers[exchange.src.buffer].slot_bytes(exchange.src)
                    link_bytes += size * self._alike(exchange) * self.moves(exchange).crossings
                    words[exchange] += ceil(size / WORD_BYTES)
            walked.append((*self._words(run, axis, words), link_bytes))
        return _Walk(self.hops(run), tuple(walked))

    def _walk_together(self, run: Sequence[Round] | Section) -> None:
        """Walk the exchanges of a run whose lines all move alike in one step, which is faster than one by one."""
        for axis, home in self.homes.items():
            fresh = {(axis, id(one.send), id(one.recv)): one for one in _exchanges(run)
                     if one.axis == axis and one.send.ndim == 1}  # fmt: skip
            fresh = {key: one for key, one in fresh.items() if key not in self._known}
            if len(fresh) < 2:
                continue
            send, recv = (
                np.concatenate(ends) for ends in zip(*((one.send, one.recv) for one in fresh.values()), strict=True)
            )
            cuts = np.cumsum([0, *(one.send.size for one in fresh.values())])
            number = np.repeat(np.arange(len(fresh)), np.diff(cuts))
            several = np.zeros(len(fresh), bool)
            if send.size:
                several[np.flatnonzero(np.bincount(number * len(home) + send) > 1) // len(home)] = True
            start, end = home[send], home[recv]
            parts = np.zeros_like(start), start, np.minimum(start, end), np.maximum(start, end), np.abs(end - start)
            hops = np.concatenate([[0], np.cumsum(parts[4])])[cuts]
            for at, (key, one) in enumerate(fresh.items()):
                moves = Moves(one.send[None], one.recv[None], home)
                if not several[at]:
                    own = [part[cuts[at] : cuts[at + 1]] for part in parts]
                    known = {"unicast": True, "spans": Spans(*own[:4]), "distances": own[4][None]}
                    vars(moves).update(known, crossings=int(hops[at + 1] - hops[at]))
                self._known[key] = moves, one

    def _line(self, axis: str, send: Index, recv: Index) -> Moves:
        """Return moves [n] of one line, shared by equal arrays."""
        key = (axis, send.tobytes(), recv.tobytes())
        if key not in self._shared:
            self._shared[key] = Moves(send[None], recv[None], self.homes[axis])
        return self._shared[key]

    def _alike(self, exchange: Exchange) -> int:
        """Return the number of lines that move as each line of the exchange's `moves`."""
        if exchange.send.ndim == 2:
            return 1
        across = self.mesh.length("y" if exchange.axis == "x" else "x")
        return across if exchange.lines is None else len(exchange.lines)

    def _loads(self, axis: str, words: Counter[Moves]) -> Index:
        """Return words over the links of one line, [2, along], given the words of every tile of its moves."""
        along = int(self.homes[axis][-1]) + 1
        spans = Spans(*(np.concatenate(part) for part in zip(*(moves.spans for moves in words), strict=True)))
        weights = np.repeat(list(words.values()), [moves.messages for moves in words])
        return spans.loads(1, along, weights)[:, 0]

    def _words(self, run: Sequence[Round] | Section, axis: str, words: Counter[Exchange]) -> tuple[int, float]:
        """Return the words on the busiest and on the mean link of an axis, by words of a tile.

        The mean is that of a logical line, times their number on a physical one; more than the busiest it is not.
        Without a fold, the line that takes part in most rounds stands for all.
        """
        fold, lines = self.folds(axis)[1], dict[Moves, Index]()
        if self.mesh.fold == (1, 1) or all(one.lines is None and one.send.ndim == 1 for one in words):
            line, alike = self._of_most_rounds(run, axis), Counter[Moves]()
            for one, word in words.items():
                moves = self._on(one, line)
                if moves is not None:
                    alike[moves] += word
            loads = self._loads(axis, alike)[:, None] if alike else np.zeros((2, 1, 1), np.int64)
            busiest = int(loads.max()) * fold
        else:
            across = self.mesh.length("y" if axis == "x" else "x")
            loads = np.zeros((2, across, int(self.homes[axis][-1]) + 1), np.int64)
            for one, word in words.items():
                moves = self.moves(one)
                if one.send.ndim == 1:
                    lines[moves] = lines.get(moves, 0) + self.lines(one, 1) * word
                else:
                    loads[:, slice(None) if one.lines is None else one.lines] += moves.loads * word
            for moves, times in lines.items():
                for way, load in zip(loads, moves.loads[:, 0], strict=True):
                    if load.any():
                        first, last = np.flatnonzero(load)[[0, -1]]
                        way[:, first : last + 1] += times[:, None] * load[first : last + 1]
            busiest = int(loads.reshape(2, -1, fold, loads.shape[2]).sum(2).max())
        mean = float((loads.sum(2) / np.maximum(np.count_nonzero(loads, 2), 1)).max()) * fold
        return busiest, min(mean, float(busiest))

    def _of_most_rounds(self, run: Sequence[Round] | Section, axis: str) -> int:
        """Return the line that takes part in most rounds, as an index among the lines of an axis; the first of them."""
        rounds = np.zeros(self.mesh.length("y" if axis == "x" else "x"), np.int64)
        if all(one.lines is None for one in _exchanges(run)):
            return 0
        for round_ in run:
            takes_part = np.zeros(len(rounds), bool)
            for exchange in round_.exchanges:
                if exchange.axis == axis:
                    takes_part[slice(None) if exchange.lines is None else exchange.lines] = True
            rounds += takes_part
        return int(rounds.argmax())

    def _on(self, exchange: Exchange, line: int) -> Moves | None:
        """Return the moves of an exchange on one logical line, if it has any there."""
        if exchange.lines is not None and line not in exchange.lines:
            return None
        if exchange.send.ndim == 1:
            return self.moves(exchange)
        row = line if exchange.lines is None else exchange.lines.tolist().index(line)
        live = exchange.send[row] >= 0
        return self._line(exchange.axis, exchange.send[row][live], exchange.recv[row][live]) if live.any() else None

    def _longest_path(self, rounds: Sequence[Round], axis: str) -> int:
        """Return the longest path that data can take on a line of an axis."""
        exchanges = [[one for one in round_.exchanges if one.axis == axis] for round_ in rounds]
        every = [one for together in exchanges for one in together]
        if all(one.lines is None and one.send.ndim == 1 for one in every):
            return self._path(exchanges, axis, 0)
        across = self.mesh.length("y" if axis == "x" else "x")
        most, apart = np.zeros(across, np.int64), np.zeros(across, bool)
        for together in exchanges:
            longest = np.zeros(across, np.int64)
            for one in together:
                here, moves = slice(None) if one.lines is None else one.lines, self.moves(one)
                hops = moves.hops if one.send.ndim == 1 else moves.distances.max(1, initial=0)
                longest[here] = np.maximum(longest[here], hops)
                apart[here] |= one.send.ndim == 2
            most += longest
        if len(rounds) == 1:
            return int(most.max())
        path = 0
        while most.max() > path:
            line = int(most.argmax())
            path = max(path, self._path(exchanges, axis, line))
            other = apart.copy()  # lines with a move that this one has not
            for one in every:
                if one.lines is not None and line not in one.lines:
                    other[one.lines] = True
            most = np.where(other, most, 0)
            most[line] = 0
        return path

    def _path(self, exchanges: Sequence[Sequence[Exchange]], axis: str, line: int) -> int:
        """Return the longest path that data can take on one line in the exchanges of each round."""
        path = np.zeros(self.mesh.length(axis), np.int64)
        for together in exchanges:
            before = path.copy()
            for one in together:
                moves = self._on(one, line)
                if moves is not None:
                    np.maximum.at(path, moves.recv[0], before[moves.send[0]] + moves.distances[0])
        return int(path.max())


# Runs of one-word tiles by the identity of their index arrays, which algorithms share, and the arrays to keep alive.
_UNITS: dict[tuple[Any, ...], tuple[list[Exchange], _Walk]] = {}
_MOST = 4096


def _exchanges(run: Sequence[Round] | Section) -> Iterator[Exchange]:
    return (exchange for round_ in run for exchange in round_.exchanges)
