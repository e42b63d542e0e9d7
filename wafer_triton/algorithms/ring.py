"""Closed rings on a line of cores.

MeshGEMM's ring interleaves the line: 0, 2, 4, ..., 5, 3, 1 and back to 0. Neighbours on it are at most two hops apart,
which is the least for a closed ring on a line (WaferLLM, OSDI'25, section 5). Cannon's ring runs along the line, and
its wrap-around crosses the whole line.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Exchange, Index, Moves, Slot, as_slot, frozen

Order = Callable[[int], Index]  # the cores of a line of a given size in ring order


def ring(size: int) -> Index:
    """Return the interleaved ring: evens upwards, then odds downwards."""
    return frozen(np.concatenate([np.arange(0, size, 2), np.arange(1, size, 2)[::-1]]))


def wrapped_line(size: int) -> Index:
    """Return the plain ring: upwards, and from the last core back to the first."""
    return frozen(np.arange(size))


def ring_position(size: int, order: Order = ring) -> Index:
    """Return [size]: the position of each core of a line on the ring."""
    return frozen(np.argsort(order(size)))


def ring_rows(size: int, steps: int) -> Index:
    """Return, for each core of a mesh line [size], the core `steps` further on the interleaved ring."""
    return frozen(ring(size)[(ring_position(size) + steps) % size])


def ring_step(
    b: Builder,
    axis: str,
    src: str | Slot,
    dst: str | Slot,
    step: int = 1,
    lines: Index | None = None,
    order: Order = ring,
    segment: int | None = None,
) -> Exchange:
    """Return an exchange in which every core sends its tile one ring step forwards (step = 1) or backwards (-1).

    With `segment` each segment of `segment` cores has a ring of its own.
    """
    length = b.mesh.length(axis)
    send, recv = ring_ends(segment or length, step, order, length // (segment or length))
    return Exchange(Moves(axis, send, recv, lines), as_slot(src), as_slot(dst))


def ring_ends(size: int, step: int, order: Order, times: int = 1) -> tuple[Index, Index]:
    """Return who sends and who receives, both [times * size], in a step on `times` rings side by side along an axis.

    Receivers ascend.
    """
    if times > 1:
        send, recv = ring_ends(size, step, order)
        starts = np.arange(times)[:, None] * size
        return frozen((starts + send).reshape(-1)), frozen((starts + recv).reshape(-1))
    send = order(size)
    recv = np.roll(send, -step)
    ascending = np.argsort(recv)
    return frozen(send[ascending]), frozen(recv[ascending])


def alignment_sources(side: int, region: int | None = None) -> Index:
    """Return [side * side]: the core whose tile core i of a square mesh has after `align.align` along y.

    With `region` each square of `region` x `region` cores is aligned alone.
    """
    width, cores = region or side, np.arange(side)
    position = ring_position(width)[cores % width]
    rows = ring(width)[(position[:, None] + position) % width] + (cores // width * width)[:, None]
    return frozen((rows * side + cores).reshape(-1))
