"""Collectives that only move tiles along an axis: broadcast, all-gather, reduce-scatter, shift and transpose.

A multicast crosses each link once; the routes and links of a collective follow from its rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wafer_triton.algorithms.ring import ring_position, ring_step
from wafer_triton.errors import MeshError, ScheduleError, plain, shown
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Moves, Round, Slot, as_slot


def multicast(b: Builder, src: str | Slot, dst: str | Slot, axis: str, root: int) -> list[Exchange]:
    """Return exchanges in which position `root` of every line of `axis` sends its tile to all others of the line."""
    return [Exchange(moves, as_slot(src), as_slot(dst)) for moves in _both_ways(axis, b.mesh.length(axis), root, 1)]


def _both_ways(axis: str, size: int, root: int, times: int) -> list[Moves]:
    """Return the moves of a multicast from `root` to lower positions, and those to higher ones, on `times` segments."""
    sides = (np.arange(root), np.arange(root + 1, size))
    ways = ((np.full_like(side, root), side) for side in sides if side.size)
    return [Moves(axis, on_segments(send, size, times), on_segments(recv, size, times)) for send, recv in ways]


def on_segments(positions: Index, size: int, times: int) -> Index:
    """Return positions on a segment of `size` cores as positions on each of the first `times` segments."""
    return positions if times == 1 else (np.arange(times)[:, None] * size + positions).reshape(-1)


def segment_size_and_count(b: Builder, axis: str, segment: int | None) -> tuple[int, int]:
    """Return the cores of a segment of an axis, and how many whole segments there are; None is the whole axis.

    Raises MeshError for a segment that is longer than the line, or shorter than a core.
    """
    length = b.mesh.length(axis)
    if segment is None:
        return length, 1
    if not 1 <= segment <= length:
        raise MeshError(f"{b.name}: a segment of {shown(segment)} cores on a line of {length}; give from 1 to {length}")
    return segment, length // segment


def broadcast(
    b: Builder, name: str | Slot | Sequence[str], axis: str, root: int, label: str = "broadcast",
    segment: int | None = None,
) -> None:  # fmt: skip
    """Send the tile of position `root` to its whole mesh row or column; `name` and `segment` are as in `reduce`."""
    root = plain(root)
    if type(root) is not int or not 0 <= root < b.mesh.length(axis):
        most = b.mesh.length(axis) - 1
        raise ScheduleError(f"{b.name}: root = {shown(root)} of a broadcast must be a whole number from 0 to {most}")
    names = map(as_slot, name if isinstance(name, list | tuple) else [name])
    slots = [replace(slot, buffer=b.buffers[slot.buffer].name) for slot in names]
    size, times = segment_size_and_count(b, axis, segment)
    ways = _both_ways(axis, size, root, times)
    if exchanges := tuple(Exchange(moves, slot, slot) for slot in slots for moves in ways):
        b.steps.append(Round(exchanges, (), label))


def all_gather(b: Builder, src: str, dst: str, axis: str, label: str = "all-gather") -> None:
    """Slot i of `dst` gets the tile of position i of the line, by one multicast after another."""
    size, numel = b.mesh.length(axis), b.buffers[src].numel
    for number in range(size):
        slot = Slot(dst, number)
        keep = b.local("copy", slot, src, Cores(axis, np.array([number])), size=numel)
        b.round(*multicast(b, src, slot, axis, number), keep, label=label)


def ring_all_gather(b: Builder, chunks: str, axis: str, label: str = "all-gather") -> None:
    """Send all chunks to all cores around the two-hop ring, from where `reduce_scatter` leaves them."""
    size = b.mesh.length(axis)
    position = ring_position(size)
    for number in range(size - 1):
        sent = (position + 1 - number) % size
        arriving = (position - number) % size
        step = ring_step(b, axis, Slot(chunks, sent, axis), Slot(chunks, arriving, axis))
        b.round(step, label=label)


def reduce_scatter(b: Builder, chunks: str, axis: str, *, op: str = "add", label: str = "reduce-scatter") -> None:
    """Slot position(i) + 1 of core i gets the combination of that slot of its whole line, around the two-hop ring.

    `chunks` has one slot for each core of the line; positions count along the ring.
    """
    size, buffer = b.mesh.length(axis), b.buffers[chunks]
    position = ring_position(size)
    inbox = b.buffer(f"{chunks}.inbox", buffer.tile, buffer.dtype)
    for number in range(size - 1):
        sent = Slot(chunks, (position - number) % size, axis)
        here = Slot(chunks, (position - 1 - number) % size, axis)
        b.round(ring_step(b, axis, sent, inbox), b.local(op, here, (here, inbox), size=buffer.numel), label=label)


def shift(
    b: Builder, src: str, dst: str, axis: str, distance: int = 1, wrap: bool = False, label: str = "shift"
) -> None:
    """Send every core's tile `distance` positions on; a tile over the edge is dropped unless `wrap` is set."""
    size = b.mesh.length(axis)
    here = np.arange(size)
    there = here + distance
    stays = (there >= 0) & (there < size) | wrap
    step = b.exchange(axis, src, dst, here[stays], there[stays] % size)
    b.round(step, label=label)


def transpose(b: Builder, src: str, dst: str, label: str = "transpose") -> None:
    """Core (i, j) of `dst` gets the tile of core (j, i), by way of the diagonal; no tile is transposed itself.

    Each distance from the diagonal takes two rounds: along y to the diagonal core, then along x. Raises MeshError on a
    mesh that is not square.
    """
    rows, cols = b.mesh.shape
    if rows != cols:
        raise MeshError(f"{b.name}: only a square mesh can be transposed, not {rows} x {cols}")
    numel = b.buffers[src].numel
    vias = (b.like(f"{dst}.above", src), b.like(f"{dst}.below", src))
    diagonal = np.arange(rows)
    b.round(b.local("copy", dst, src, Cores("x", diagonal[:, None], diagonal), size=numel), label=label)
    for distance in range(1, rows):
        low, high = diagonal[: rows - distance], diagonal[distance:]
        # tile (c - d, c) of column c goes down to (c, c), then left to (c, c - d); tile (c + d, c) up, then right
        legs = ((vias[0], high, low), (vias[1], low, high))
        to = [b.exchange("y", src, via, away[:, None], at[:, None], at) for via, at, away in legs]
        on = [b.exchange("x", via, dst, at[:, None], away[:, None], at) for via, at, away in legs]
        b.round(*to, label=label)
        b.round(*on, label=label)
