"""What a run of rounds puts on the links of a mesh, and how far its data travels.

Everything is counted on lines, never core by core, so a 720 x 720 mesh takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np
import numpy.ma  # numpy loads it at the first `unique`, which an estimate shall not wait for

from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Exchange, Index, Round, Schedule

WORD_BYTES = 4


class Traffic:
    """The traffic of a run of rounds along one axis: hops and words of its busiest line, bytes of the whole mesh."""

    def __init__(self, schedule: Schedule | Builder, axis: str, run: list[Round]) -> None:
        mesh, x = schedule.mesh, axis == "x"
        along = mesh.cols if x else mesh.rows
        fold, across = mesh.fold[::-1] if x else mesh.fold
        self.hops, self.busiest, self.mean, self.link_bytes = 0, 0, 0.0, 0
        moves = [[one for one in round_.exchanges if one.axis == axis] for round_ in run]
        flat = [one for group in moves for one in group]
        if not flat:
            return
        line = _busiest_line(flat)
        here = {id(one): _pairs(one, line) for one in flat}
        path = np.zeros(mesh.length(axis), np.int64)
        for group in moves:
            before = path.copy()
            for one in group:
                send, recv = here[id(one)]
                np.maximum.at(path, recv, before[send] + np.abs(recv // fold - send // fold))
        self.hops = int(path.max())
        size = [schedule.buffers[one.src.buffer].tile_bytes for one in flat]
        words = np.array([ceil(one / WORD_BYTES) for one in size]) * across
        for way in (1, -1):
            number, low, high = _crossed([here[id(one)] for one in flat], fold, way)
            steps = np.zeros(along + 1, np.int64)
            np.add.at(steps, low, words[number])
            np.add.at(steps, high, -words[number])
            used = steps.cumsum()
            if used.any():
                self.busiest = max(self.busiest, int(used.max()))
                self.mean = max(self.mean, float(used.sum() / np.count_nonzero(used)))
            for ends, lines in _all_lines(flat, mesh.length("y" if x else "x")):
                number, low, high = _crossed(ends, fold, way)
                self.link_bytes += int(((high - low) * (np.array(size) * lines)[number]).sum())


def _all_lines(flat: list[Exchange], across: int) -> Iterator[tuple[list[tuple[Index, Index]], Index]]:
    """Senders and receivers of the exchanges on all lines, with the number of lines that each stands for."""
    empty = np.zeros(0, np.int64)
    alike = [(one.send, one.recv) if one.send.ndim == 1 else (empty, empty) for one in flat]
    yield alike, np.array([across if one.lines is None else len(one.lines) for one in flat])
    for number, one in enumerate(flat):
        if one.send.ndim == 2:
            for send, recv in zip(one.send, one.recv, strict=True):
                ends = [(empty, empty)] * number + [(send[send >= 0], recv[recv >= 0])]
                yield ends, np.ones(len(flat), np.int64)


def _crossed(ends: list[tuple[Index, Index]], fold: int, way: int) -> tuple[Index, Index, Index]:
    """The links that messages cross in one direction: number of the exchange, first link, last link + 1.

    A multicast crosses each link once: of every sender only the farthest receiver counts.
    """
    number = np.repeat(np.arange(len(ends)), [len(send) for send, _ in ends])
    send, recv = (np.concatenate(side) for side in zip(*ends, strict=True))
    there = (recv // fold - send // fold) * way > 0
    number, send, recv = _farthest(number[there], send[there], recv[there], way)
    one, other = send // fold, recv // fold
    return number, np.minimum(one, other), np.maximum(one, other)


def _farthest(number: Index, send: Index, recv: Index, way: int) -> tuple[Index, Index, Index]:
    """Of every sender of an exchange the farthest receiver only."""
    order = np.lexsort((recv * way, send, number))
    number, send, recv = number[order], send[order], recv[order]
    last = np.ones(len(send), bool)
    last[:-1] = (send[1:] != send[:-1]) | (number[1:] != number[:-1])
    return number[last], send[last], recv[last]


def _busiest_line(moves: list[Exchange]) -> int:
    """The line that takes part in most exchanges; the first of them."""
    some = [one.lines for one in moves if one.lines is not None]
    return int(np.bincount(np.concatenate(some)).argmax()) if some else 0


def _pairs(exchange: Exchange, line: int) -> tuple[Index, Index]:
    """Senders and receivers on one line."""
    send, recv = exchange.send, exchange.recv
    if exchange.lines is not None:
        at = np.flatnonzero(exchange.lines == line)
        if not at.size:
            return send[..., :0].reshape(-1)[:0], recv[..., :0].reshape(-1)[:0]
        line = int(at[0])
    if send.ndim == 2:
        valid = send[line] >= 0
        return send[line][valid], recv[line][valid]
    return send, recv
