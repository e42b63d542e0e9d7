"""Hand-over: the schedule that brings the activation of decode from one region of a model to the next."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import numpy as np

from wafer_triton.device.mesh import Mesh
from wafer_triton.place.transfers import at_cores, ranks_of
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Slot
from wafer_triton.schedule.schedule import Schedule


def from_corner(source: Mesh, target: Mesh) -> tuple[Mesh, Mesh]:
    """Return two regions moved together so that the smallest rectangle with both begins at the device's first core."""
    top, left = (min(ends) for ends in zip(source.origin, target.origin, strict=True))
    here, there = (
        replace(mesh, origin=(mesh.origin[0] - top, mesh.origin[1] - left)) for mesh in (source, target)
    )  # fmt: skip
    return here, there


def hand_over(source: Mesh, target: Mesh, width: int, tokens: int, dtype: str) -> Schedule:
    """Return the schedule that moves the activation of decode, cut along y and repeated along x, between regions.

    The regions lie as `from_corner` returns them. If rows of cores differ, a tile moves along y first. The tile of row
    r moves in column r, so in a square region no two tiles take the same link. It is then multicast along x to all
    columns.
    """
    rows = max(mesh.origin[0] + mesh.rows for mesh in (source, target))
    cols = max(mesh.origin[1] + mesh.cols for mesh in (source, target))
    b = Builder(Mesh(rows, cols, source.device), "hand over", "decode")
    shares = [-(-width // mesh.rows) for mesh in (source, target)]
    unit = gcd(*shares)
    slots = [share // unit for share in shares]
    b.buffer("from", (tokens * unit,), dtype, "input", slots[0])
    b.buffer("to", (tokens * unit,), dtype, "output", slots[1])
    units = np.arange(-(-width // unit))
    source_rows, target_rows = source.origin[0] + units // slots[0], target.origin[0] + units // slots[1]
    along_y = bool((source_rows != target_rows).any())
    for number in range(max(slots)):
        chosen = units[units % max(slots) == number]
        _hand_over(
            b, source, target, source_rows[chosen], target_rows[chosen], chosen % slots[0], chosen % slots[1], along_y
        )
    return b.build(draft=True)


def _hand_over(
    b: Builder, source: Mesh, target: Mesh, source_rows: Index, target_rows: Index, source_slots: Index,
    target_slots: Index, along_y: bool,
) -> None:  # fmt: skip
    """Add the rounds of units: each goes from its source row and slot to its target row and slot.

    A row of cores sends one unit at most, and receives one. With `along_y` some units change rows.
    """
    (left, right), (first, last) = ((mesh.origin[1], mesh.origin[1] + mesh.cols) for mesh in (source, target))
    numel, label = b.buffers["to"].numel, "hand over"
    src, dst = (
        Slot(name, at_cores(b.mesh.length("y"), cores, slots), "y")
        for name, cores, slots in (("from", source_rows, source_slots), ("to", target_rows, target_slots))
    )
    columns = np.arange(first, last)
    if not along_y:  # no row changes
        nearest = right - 1 if first >= right else left if last <= left else None
        if nearest is None:
            b.round(b.local("copy", dst, src, Cores("y", source_rows, columns), size=numel), label=label)
            return
        rest = columns[columns != nearest]
        b.round(b.exchange("x", src, dst, np.full(len(rest), nearest), rest, lines=source_rows), label=label)
        return
    via = b.buffer("via", b.buffers["to"].tile, b.buffers["to"].dtype)
    column = left + source_rows % source.cols  # the column of each unit
    most = int(np.bincount(column).max())
    lines, place = np.unique(column, return_inverse=True)
    send, recv = (np.full((len(lines), most), -1) for _ in range(2))
    rank = ranks_of(column)
    send[place, rank], recv[place, rank] = source_rows, target_rows
    moving = (send != recv) & (send >= 0)
    send, recv = np.where(moving, send, -1), np.where(moving, recv, -1)
    b.round(b.exchange("y", src, via, send, recv, lines=lines), label=label)
    stay = source_rows == target_rows
    if stay.any():
        b.round(b.local("copy", via, src, Cores("x", column[stay, None], source_rows[stay]), size=numel), label=label)
    senders = np.broadcast_to(column[:, None], (len(target_rows), len(columns)))
    receivers = np.broadcast_to(columns, senders.shape)
    others = senders != receivers
    steps: list[Exchange | Local] = [
        b.exchange("x", via, dst, np.where(others, senders, -1), np.where(others, receivers, -1), lines=target_rows)
    ]
    inside = (column >= first) & (column < last)
    if inside.any():
        steps.append(b.local("copy", dst, via, Cores("x", column[inside, None], target_rows[inside]), size=numel))
    b.round(*steps, label=label)
