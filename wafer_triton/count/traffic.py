"""Traffic of rounds: the bytes on the links of a mesh and the hops of its data, by one walk over exchanges.

A multicast crosses each link once: only the farthest receiver of a tile counts, in either direction. All is counted on
lines, never core by core, and exchanges that move alike are walked once; so a 720 x 720 mesh takes milliseconds. On a
mesh that is folded to its lcm grid, links and hops lie between physical cores.

A hop is one link from a core to its neighbour. The hops of a round are the links of its longest move. The hops of a run
(see `wafer_triton.count.runs`) are the longest path that data can take through its rounds. On that path data continues
from the core that the round before has brought it to; it need not wait for longer moves of other data. Paths along x
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

from wafer_triton.count.paths import Paths, Spans
from wafer_triton.count.runs import RoundRun, axes
from wafer_triton.schedule.rounds import Exchange, Index, Moves, Round
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
        self._known: dict[Moves, Paths] = {}

    def folds(self, axis: str) -> tuple[int, int]:
        """Logical positions of a physical core along and across an axis."""
        return self.mesh.fold[::-1] if axis == "x" else self.mesh.fold

    def paths(self, moves: Moves) -> Paths:
        """Return the paths of moves: as one line where all lines move alike, else of every line."""
        found = self._known.get(moves)
        if found is None:
            alike = moves if moves.paired else moves.line
            send, recv, _ = alike.table
            found = self._known.get(alike) or Paths(*np.atleast_2d(send, recv), self.homes[moves.axis])
            self._known[alike] = self._known[moves] = found
        return found

    def hops(self, run: Sequence[Round]) -> int:
        """Return the hops of a run (see above)."""
        return sum(
            max((self._longest_path(own, axis) for axis in together), default=0)
            for together, own in ((together, list(rounds)) for together, rounds in groupby(run, axes))
        )

    def lines(self, moves: Moves, fold: int) -> Index:
        """Return how many lines move like these among each `fold` neighbouring ones."""
        across = self.mesh.length("y" if moves.axis == "x" else "x") // fold
        return np.full(across, fold) if moves.lines is None else np.bincount(moves.lines // fold, minlength=across)

    def loads_of(self, exchange: Exchange) -> Index:
        """Return tiles over links, by direction: [2, along] of each line, or [2, across, along] of the whole mesh."""
        moves = self.paths(exchange.moves)
        if not exchange.moves.paired:
            return moves.loads[:, 0]
        fold, lines = self.folds(exchange.axis)[1], exchange.lines
        assert lines is not None
        across = self.mesh.length("y" if exchange.axis == "x" else "x") // fold
        whole = np.zeros((2, across, moves.loads.shape[-1]), np.int64)
        for total, loads in zip(whole, moves.loads, strict=True):
            np.add.at(total, lines // fold, loads)
        return whole

    def run(self, run: Sequence[Round]) -> RunTraffic:
        """Return the traffic of a run.

        If all tiles that move along an axis are equally large, the loads of its links are in proportion to that size.
        Then the run is walked once, for tiles of one word. A run along y alone is the run along x of a turned mesh.
        """
        tree = run.tree if isinstance(run, RoundRun) else None
        exchanges = list(_exchanges(run) if tree is None else tree.ends[0].exchanges)
        sizes: dict[str, set[int]] = {}
        for exchange in exchanges:
            sizes.setdefault(exchange.axis, set()).add(self.buffers[exchange.src.buffer].slot_bytes(exchange.src))
        if any(len(size) > 1 for size in sizes.values()):
            return self._walked(run, unit=False).of([WORD_BYTES] * len(sizes))
        turn = -1 if set(sizes) == {"y"} else 1
        key: tuple[Any, ...] = self.mesh.shape[::turn], self.mesh.fold[::turn]
        if tree is None:
            ends = (one.moves if len(sizes) > 1 else one.moves.content[1:] for one in exchanges)  # but for the axis
            key += tuple(len(round_.exchanges) for round_ in run), tuple(ends)
        else:
            key += tree.stages, len(tree.parts)
        if key not in _UNITS:
            if len(_UNITS) >= _MOST:
                _UNITS.clear()
            _UNITS[key] = self._walked(run, unit=True)
        return _UNITS[key].of([size for _, (size,) in sorted(sizes.items())])

    def _walked(self, run: Sequence[Round], unit: bool) -> _Walk:
        """Return the walk of a run, with tiles of their buffers' size or, if `unit`, of one word."""
        self._walk_together(run)
        walked = list[tuple[int, float, int]]()
        for axis in sorted({exchange.axis for exchange in _exchanges(run)}):
            words, link_bytes = Counter[Moves](), 0
            for exchange in _exchanges(run):
                if exchange.axis == axis:
                    size = WORD_BYTES if unit else self.buffers[exchange.src.buffer].slot_bytes(exchange.src)
                    link_bytes += size * self._alike(exchange.moves) * self.paths(exchange.moves).crossings
                    words[exchange.moves] += ceil(size / WORD_BYTES)
            walked.append((*self._words(run, axis, words), link_bytes))
        return _Walk(self.hops(run), tuple(walked))

    def _walk_together(self, run: Sequence[Round]) -> None:
        """Walk the exchanges of a run whose lines all move alike in one step, which is faster than one by one."""
        for axis, home in self.homes.items():
            alike = {one.moves for one in _exchanges(run) if one.axis == axis and not one.moves.paired}
            fresh = [line for line in {moves.line for moves in alike} if line not in self._known]
            if len(fresh) < 2:
                continue
            send, recv = (np.concatenate(ends) for ends in zip(*((one.send, one.recv) for one in fresh), strict=True))
            cuts = np.cumsum([0, *(one.send.size for one in fresh)])
            number = np.repeat(np.arange(len(fresh)), np.diff(cuts))
            several = np.zeros(len(fresh), bool)
            if send.size:
                several[np.flatnonzero(np.bincount(number * len(home) + send) > 1) // len(home)] = True
            start, end = home[send], home[recv]
            parts = np.zeros_like(start), start, np.minimum(start, end), np.maximum(start, end), np.abs(end - start)
            hops = np.concatenate([[0], np.cumsum(parts[4])])[cuts]
            for at, one in enumerate(fresh):
                moves = Paths(one.send[None], one.recv[None], home)
                if not several[at]:
                    own = [part[cuts[at] : cuts[at + 1]] for part in parts]
                    known = {"unicast": True, "spans": Spans(*own[:4]), "distances": own[4][None]}
                    vars(moves).update(known, crossings=int(hops[at + 1] - hops[at]))
                self._known[one] = moves

    def _alike(self, moves: Moves) -> int:
        """Return the number of lines that move as each line of the `paths`."""
        if moves.paired:
            return 1
        return self.mesh.length("y" if moves.axis == "x" else "x") if moves.lines is None else len(moves.lines)

    def _loads(self, axis: str, words: Counter[Paths]) -> Index:
        """Return words over the links of one line, [2, along], given the words of every tile of its moves."""
        along = int(self.homes[axis][-1]) + 1
        spans = Spans(*(np.concatenate(part) for part in zip(*(moves.spans for moves in words), strict=True)))
        weights = np.repeat(list(words.values()), [moves.messages for moves in words])
        return spans.loads(1, along, weights)[:, 0]

    def _words(self, run: Sequence[Round], axis: str, words: Counter[Moves]) -> tuple[int, float]:
        """Return the words on the busiest and on the mean link of an axis, by words of a tile.

        The mean is that of a logical line, times their number on a physical one; more than the busiest it is not.
        Without a fold, the line that takes part in most rounds stands for all.
        """
        fold, lines = self.folds(axis)[1], dict[Paths, Index]()
        if self.mesh.fold == (1, 1) or all(one.lines is None for one in words):
            line, alike = self._of_most_rounds(run, axis), Counter[Paths]()
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
                moves = self.paths(one)
                if one.paired:
                    loads[:, one.table[2]] += moves.loads * word
                else:
                    lines[moves] = lines.get(moves, 0) + self.lines(one, 1) * word
            for moves, times in lines.items():
                for way, load in zip(loads, moves.loads[:, 0], strict=True):
                    if load.any():
                        first, last = np.flatnonzero(load)[[0, -1]]
                        way[:, first : last + 1] += times[:, None] * load[first : last + 1]
            busiest = int(loads.reshape(2, -1, fold, loads.shape[2]).sum(2).max())
        mean = float((loads.sum(2) / np.maximum(np.count_nonzero(loads, 2), 1)).max()) * fold
        return busiest, min(mean, float(busiest))

    def _of_most_rounds(self, run: Sequence[Round], axis: str) -> int:
        """Return the line that takes part in most rounds, as an index among the lines of an axis; the first of them."""
        rounds = np.zeros(self.mesh.length("y" if axis == "x" else "x"), np.int64)
        if all(one.moves.lines is None for one in _exchanges(run)):
            return 0
        for round_ in run:
            takes_part = np.zeros(len(rounds), bool)
            for exchange in round_.exchanges:
                if exchange.axis == axis:
                    takes_part[slice(None) if exchange.moves.lines is None else exchange.moves.lines] = True
            rounds += takes_part
        return int(rounds.argmax())

    def _on(self, moves: Moves, line: int) -> Paths | None:
        """Return the paths on one logical line, if it has any."""
        if moves.lines is None:
            return self.paths(moves)
        mine = moves.lines == line
        if not mine.any():
            return None
        return self.paths(Moves(moves.axis, moves.send[mine], moves.recv[mine]) if moves.paired else moves)

    def _longest_path(self, rounds: Sequence[Round], axis: str) -> int:
        """Return the longest path that data can take on a line of an axis."""
        exchanges = [[one for one in round_.exchanges if one.axis == axis] for round_ in rounds]
        every = [one for together in exchanges for one in together]
        if all(one.moves.lines is None for one in every):
            return self._path(exchanges, axis, 0)
        across = self.mesh.length("y" if axis == "x" else "x")
        most, apart = np.zeros(across, np.int64), np.zeros(across, bool)
        for together in exchanges:
            longest = np.zeros(across, np.int64)
            for one in together:
                here, moves = slice(None) if one.moves.lines is None else one.lines, self.paths(one.moves)
                hops = moves.distances.max(1, initial=0) if one.moves.paired else moves.hops
                longest[here] = np.maximum(longest[here], hops)
                apart[here] |= one.moves.paired
            most += longest
        if len(rounds) == 1:
            return int(most.max())
        path = 0
        while most.max() > path:
            line = int(most.argmax())
            path = max(path, self._path(exchanges, axis, line))
            other = apart.copy()  # lines with a move that this one has not
            for one in every:
                lines = one.moves.lines
                if lines is not None and not (lines == line).any():
                    other[lines] = True
            most = np.where(other, most, 0)
            most[line] = 0
        return path

    def _path(self, exchanges: Sequence[Sequence[Exchange]], axis: str, line: int) -> int:
        """Return the longest path that data can take on one line in the exchanges of each round."""
        path = np.zeros(self.mesh.length(axis), np.int64)
        for together in exchanges:
            before = path.copy()
            for one in together:
                moves = self._on(one.moves, line)
                if moves is not None:
                    np.maximum.at(path, moves.recv[0], before[moves.send[0]] + moves.distances[0])
        return int(path.max())


# Runs of one-word tiles by their moves.
_UNITS: dict[tuple[Any, ...], _Walk] = {}
_MOST = 4096


def _exchanges(run: Sequence[Round]) -> Iterator[Exchange]:
    return (exchange for round_ in run for exchange in round_.exchanges)
