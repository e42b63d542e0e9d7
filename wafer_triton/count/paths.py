"""The moves of tiles on the lines of a mesh, and the links that they cross."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from wafer_triton.schedule.rounds import Index


class Spans(NamedTuple):
    """The links that tiles cross, by physical positions on their lines: all between `low` and `high`, [tiles] each."""

    line: Index
    start: Index
    low: Index
    high: Index

    def loads(self, lines: int, along: int, weights: Index | None = None) -> Index:
        """Return the sum of the tiles' weights, or 1 each, on every link by its sending core, [2, lines, along].

        Moves to higher positions come first, moves to lower ones second.
        """

        def ends(physical: Index) -> Index:
            count = np.bincount(self.line * along + physical, weights, lines * along)
            return count.astype(np.int64).reshape(lines, along)

        start = ends(self.start)
        # between positions i and i + 1, position i has the link upwards and i + 1 the link downwards
        up, down = (start - ends(self.high)).cumsum(1), (ends(self.low) - start).cumsum(1)
        return np.stack([up, np.roll(down, 1, 1)])


@dataclass(frozen=True, eq=False)
class Paths:
    """The moves of some lines along an axis, senders and receivers [lines, n] (-1: none), and the links they cross."""

    send: Index
    recv: Index
    home: Index  # [positions]: the physical position of each logical one

    @cached_property
    def distances(self) -> Index:
        """Hops of every move, [lines, n]."""
        return np.abs(self.home[self.recv] - self.home[self.send])

    @cached_property
    def hops(self) -> int:
        """Hops of the longest move."""
        return int(self.distances.max(initial=0))

    @cached_property
    def unicast(self) -> bool:
        """Whether these are the moves of one line, on which each sender sends to one receiver."""
        return len(self.send) == 1 and bool((np.bincount(self.send[0] + 1, minlength=2)[1:] <= 1).all())

    @cached_property
    def spans(self) -> Spans:
        """The links that the tile of each sender crosses, by physical positions."""
        if self.unicast:
            live = self.send[0] >= 0
            start, end = self.home[self.send[0, live]], self.home[self.recv[0, live]]
            return Spans(np.zeros_like(start), start, np.minimum(start, end), np.maximum(start, end))
        line, move = np.nonzero(self.send >= 0)
        sender = line * len(self.home) + self.send[line, move]
        end = self.home[self.recv[line, move]]
        sends = np.zeros(len(self.send) * len(self.home), bool)
        sends[sender] = True
        senders = np.flatnonzero(sends)
        number = np.empty(sends.size, np.int64)  # set for senders alone
        number[senders] = np.arange(len(senders))
        line, position = np.divmod(senders, len(self.home))
        start = self.home[position]
        low, high = start.copy(), start.copy()
        np.minimum.at(low, number[sender], end)
        np.maximum.at(high, number[sender], end)
        return Spans(line, start, low, high)

    @property
    def messages(self) -> int:
        """Tiles sent on all lines; a multicast counts once."""
        return len(self.spans.start)

    @cached_property
    def crossings(self) -> int:
        """Links that the tiles of all lines cross; a link counts once for each tile."""
        if self.unicast or self.send.shape[1] == 1:  # no multicast
            return int(self.distances[self.send >= 0].sum())
        return int((self.spans.high - self.spans.low).sum())

    @cached_property
    def loads(self) -> Index:
        """Tiles over every link by its sending core, [2, lines, along]: to higher positions, and to lower ones."""
        return self.spans.loads(len(self.send), int(self.home[-1]) + 1)
