"""Traffic of rounds: the bytes on the links of a mesh and the hops of its data, by one walk over exchanges.

A multicast crosses each link once: only the farthest receiver of a tile counts, in either direction. All is counted on
lines, never core by core, and exchanges that move alike are walked once; so a 720 x 720 mesh takes milliseconds. On a
mesh that is folded to its lcm grid, links and hops lie between physical cores.

A hop is one link from a core to its neighbour. The hops of a round are the links of its longest move. The hops of a run
(see `wafer_triton.count.runs`) are those of its longest chain of moves, each of which leaves a core to which an earlier
one along the same axis has come; it need not wait for longer moves elsewhere. Chains along x and y in one round happen
at the same time, so the larger counts; those of rounds along one axis and then the other add up. The line with the
longest chain decides. A line whose moves another line has as well need not be walked, since more moves never shorten a
chain; nor one whose longest moves together are shorter than a chain that was found. The hops of a schedule are the sum
over its runs. These are the hops of the closed forms of Luczynski et al., "Near-Optimal Wafer-Scale Reduce" (HPDC'24).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, groupby
from math import ceil
from operator import add, mul

import numpy as np

from wafer_triton.count.runs import RoundRun, axes, kind
from wafer_triton.count.spans import ContentKey, Crossed, Sides, busiest, content_key, line_loads, sends
from wafer_triton.schedule.rounds import Index, Moves, Round, Slot
from wafer_triton.schedule.schedule import Schedule

WORD_BYTES = 4


@dataclass(frozen=True)
class RunTraffic:
    """The traffic of a run of rounds. Words are 32 bits; loads are of one mesh line, in one direction."""

    hops: int = 0  # longest path of data
    busiest_words: int = 0  # over the busiest link; of whole tiles in every round, on the line that has most
    mean_words: float = 0.0  # over the links in use, or of the largest tile if that has more
    link_bytes: int = 0  # bytes times links crossed, on the whole mesh


@dataclass(frozen=True)
class _Walk:
    """The hops of a run; of each axis in use, x first, words on the busiest and mean link and bytes on all links."""

    hops: int
    busiest: list[int]
    mean: list[float]
    link_bytes: list[int]

    def of(self, sizes: Sequence[int]) -> RunTraffic:
        """Return the traffic of tiles of `sizes` bytes along these axes, by a walk of tiles of one word."""
        words = [ceil(size / WORD_BYTES) for size in sizes]
        return RunTraffic(
            self.hops,
            max(map(mul, self.busiest, words), default=0),
            max(map(mul, self.mean, words), default=0.0),
            sum(map(mul, self.link_bytes, sizes)) // WORD_BYTES,
        )


class Traffic:
    """The traffic of runs of a schedule, built or not."""

    def __init__(self, schedule: Schedule) -> None:
        self.buffers = schedule.buffers
        self.mesh = schedule.mesh
        self.crossed = Crossed(schedule.mesh)

    def run(self, run: RoundRun) -> RunTraffic:
        """Return the traffic of a run.

        If all tiles that move along an axis are equally large, the loads of its links are in proportion to that size.
        Then the run is walked once, for tiles of one word.
        """
        tree, sizes = run.tree, dict[str, set[int]]()
        # the stages of a tree send the same tiles along one axis, and a core sends in one of them alone
        sent = [sends(round_, self.mesh) for round_ in (run if tree is None else tree.ends[:1])]
        for moves, slot in chain(*sent):
            sizes.setdefault(moves.axis, set()).add(self._size(slot))
        if any(len(size) > 1 for size in sizes.values()):
            return self._walked(run, unit=False).of([WORD_BYTES] * len(sizes))
        each = [[moves.digest for moves, _ in one] for one in sent]
        moved = each if tree is None else (tree.stages.digest, len(tree.parts))
        key = content_key(self.mesh, (kind(run.ends[0]), moved))
        if key not in _UNITS:
            if len(_UNITS) >= _MOST:
                _UNITS.clear()
            _UNITS[key] = self._walked(run, unit=True)
        return _UNITS[key].of([size for _, (size,) in sorted(sizes.items())])

    def _size(self, slot: Slot) -> int:
        return self.buffers[slot.buffer].slot_bytes(slot)

    def _words(self, axis: str, moved: Iterable[tuple[Moves, int]]) -> tuple[Index, Index]:
        """Return the words of moves of so many bytes on the links of lines, as of `line_loads`."""
        return line_loads(self.crossed, axis, ((moves, (), ceil(size / WORD_BYTES)) for moves, size in moved))

    def _walked(self, run: RoundRun, unit: bool) -> _Walk:
        """Return the walk of a run, with tiles of their buffers' size or, if `unit`, of one word."""
        if len(self.crossed) > 2048:  # spans of one run of an all-to-all may take 30 MB
            self.crossed.clear()
        sent = [
            tuple([(moves, WORD_BYTES if unit else self._size(slot)) for moves, slot in sends(round_, self.mesh)])
            for round_ in run
        ]
        every = list(chain(*sent))
        waited = Counter(sent) if kind(run.ends[0]) == "tiles" and len(run) > 1 else {}
        walk = _Walk(self.hops(run), [], [], [])
        for axis in sorted({moves.axis for moves, _ in every}):
            sides = Sides.of(self.mesh, axis)
            sums, of_line = self._words(axis, every)
            most = int(busiest(sums, of_line, sides.fold_across).max())
            # Words on a line's mean link; where a mesh is folded, times the logical lines that share a physical one.
            # No more than the busiest link has. No fewer than the largest tile has: its words cross a link in turn.
            mean = float((sums.sum(1) / np.maximum(np.count_nonzero(sums, 1), 1)).max()) * sides.fold_across
            crossing = (size for moves, size in every if moves.axis == axis and self.crossed.of(moves).hops.size)
            largest = ceil(max(crossing, default=0) / WORD_BYTES)
            walk.mean.append(min(max(mean, largest), float(most)))
            if waited:
                each = (busiest(*self._words(axis, moved), sides.fold_across) * of for moved, of in waited.items())
                most = int(reduce(add, each).max())
            walk.busiest.append(most)
            crossed = 0
            for moves, size in every:
                if moves.axis == axis:
                    lines = 1 if moves.paired else len(moves.line_of_each(sides.across))
                    crossed += size * lines * int(self.crossed.of(moves).hops.sum())
            walk.link_bytes.append(crossed)
        return walk

    def hops(self, run: Iterable[Round]) -> int:
        """Return the hops of a run (see above)."""
        hops = 0
        for along, rounds in groupby(run, axes):
            moved = [round_.moves for round_ in rounds]
            hops += max((self._longest_path(moved, axis) for axis in along), default=0)
        return hops

    def _longest_path(self, moved: Sequence[Sequence[Moves]], axis: str) -> int:
        """Return the longest path that data can take on a line of an axis, given the moves of each round."""
        rounds = [[moves for moves in together if moves.axis == axis] for together in moved]
        every = [moves for together in rounds for moves in together]
        across = 1 if all(moves.lines is None for moves in every) else Sides.of(self.mesh, axis).across
        path, most = 0, np.zeros(across, np.int64)  # by line, the longest moves of all rounds together
        for together in rounds:
            longest = np.zeros(across, np.int64)
            for moves in together:
                tiles = self.crossed.of(moves)
                if tiles.line is None:
                    lines = slice(None) if moves.lines is None else moves.lines
                    longest[lines] = np.maximum(longest[lines], tiles.hops.max(initial=0))
                else:
                    np.maximum.at(longest, tiles.line, tiles.hops)
            most += longest
        while most.max() > path:
            line = int(most.argmax())
            path = max(path, self._path(rounds, axis, line))
            apart = np.zeros(across, bool)  # lines with a move that this one has not
            for moves in every:
                if moves.lines is not None and (moves.paired or line not in moves.lines):
                    apart[moves.lines] = True
            most *= apart
            most[line] = 0
        return path

    def _path(self, rounds: Sequence[Sequence[Moves]], axis: str, line: int) -> int:
        """Return the longest path that data can take on one line by the moves of each round."""
        path, fold = np.zeros(self.mesh.length(axis), np.int64), Sides.of(self.mesh, axis).fold
        for together in rounds:
            before = path.copy()
            for moves in together:
                if moves.lines is None or line in moves.lines:
                    at = moves.lines == line if moves.paired else slice(None)
                    send, recv = moves.send[at], moves.recv[at]
                    np.maximum.at(path, recv, before[send] + np.abs(recv // fold - send // fold))
        return int(path.max())


# Runs of one-word tiles by their moves, half a kilobyte each.
_UNITS: dict[ContentKey, _Walk] = {}
_MOST = 4096
