"""Traffic of rounds: the bytes on the links of a mesh and the hops of its data, by one walk over exchanges.

A multicast crosses each link once: only the farthest receiver of a tile counts, in either direction. All is counted on
lines, never core by core, and exchanges that move alike are walked once; so a 720 x 720 mesh takes milliseconds. On a
mesh that is folded to its lcm grid, links and hops lie between physical cores.

A hop is one link from a core to its neighbour. The hops of a round are the links of its longest move. The hops of a run
(see `wafer_triton.count.runs`) are the longest path that data can take through its rounds. On that path data continues
from the core that the round before has brought it to; it need not wait for longer moves of other data. Moves along x
and y in one round happen at the same time, so the larger counts; distances of rounds along one axis and then the other
add up. The path lies on the mesh line that takes part in most rounds, since the lines of a mesh work alike. If they do
not, as the rows of a GEMM-T, they take turns. The hops of a schedule are the sum over its runs. These are the hops of
the closed forms of Luczynski et al., "Near-Optimal Wafer-Scale Reduce" (HPDC'24).
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
        return self._path(run, self._on_busiest_lines(run))

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
        moves = self._on_busiest_lines(run)
        words: dict[str, Counter[Moves]] = {"x": Counter(), "y": Counter()}
        link_bytes = dict.fromkeys("xy", 0)
        for exchange in _exchanges(run):
            axis = exchange.axis
            size = WORD_BYTES if unit else self.buffers[exchange.src.buffer].slot_bytes(exchange.src)
            link_bytes[axis] += size * self._alike(exchange) * self.moves(exchange).crossings
            if id(exchange) in moves:
                words[axis][moves[id(exchange)]] += ceil(size / WORD_BYTES) * self.folds(axis)[1]
        walked = list[tuple[int, float, int]]()
        for axis in sorted({exchange.axis for exchange in _exchanges(run)}):
            loads = [load for load in self._loads(axis, words[axis]) if load.any()] if words[axis] else []
            busiest = max((int(load.max()) for load in loads), default=0)
            mean = max((float(load.sum() / np.count_nonzero(load)) for load in loads), default=0.0)
            walked.append((busiest, mean, link_bytes[axis]))
        return _Walk(self._path(run, moves), tuple(walked))

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

    def _on_busiest_lines(self, run: Sequence[Round] | Section) -> dict[int, Moves]:
        """Return, by identity of the exchange, the moves on the line of its axis that takes part in most rounds."""
        moves = {}
        for axis in "xy":
            exchanges = [exchange for exchange in _exchanges(run) if exchange.axis == axis]
            line = self._busiest_line(run, axis) if any(one.lines is not None for one in exchanges) else 0
            for exchange in exchanges:
                if exchange.lines is not None and line not in exchange.lines:
                    continue
                if exchange.send.ndim == 1:
                    moves[id(exchange)] = self.moves(exchange)
                    continue
                row = line if exchange.lines is None else exchange.lines.tolist().index(line)
                live = exchange.send[row] >= 0
                if live.any():
                    moves[id(exchange)] = self._line(axis, exchange.send[row][live], exchange.recv[row][live])
        return moves

    def _busiest_line(self, run: Sequence[Round] | Section, axis: str) -> int:
        """Return the line that takes part in most rounds, as an index among the lines of an axis; the first of them."""
        rounds = np.zeros(self.mesh.length("y" if axis == "x" else "x"), np.int64)
        for round_ in run:
            takes_part = np.zeros(len(rounds), bool)
            for exchange in round_.exchanges:
                if exchange.axis == axis:
                    takes_part[slice(None) if exchange.lines is None else exchange.lines] = True
            rounds += takes_part
        return int(rounds.argmax())

    def _path(self, run: Sequence[Round] | Section, moves: dict[int, Moves]) -> int:
        """Return the longest path that data can take, round by round, in the moves of one line along each axis."""
        hops = 0
        for together, rounds in groupby(run, axes):
            paths = {axis: np.zeros(self.mesh.length(axis), np.int64) for axis in together}
            for round_ in rounds:
                before = {axis: path.copy() for axis, path in paths.items()}
                for exchange in round_.exchanges:
                    if id(exchange) in moves:
                        line = moves[id(exchange)]
                        here = before[exchange.axis][line.send[0]] + line.distances[0]
                        np.maximum.at(paths[exchange.axis], line.recv[0], here)
            hops += max((int(path.max()) for path in paths.values()), default=0)
        return hops


# Runs of one-word tiles by the identity of their index arrays, which algorithms share, and the arrays to keep alive.
_UNITS: dict[tuple[Any, ...], tuple[list[Exchange], _Walk]] = {}
_MOST = 4096


def _exchanges(run: Sequence[Round] | Section) -> Iterator[Exchange]:
    return (exchange for round_ in run for exchange in round_.exchanges)
