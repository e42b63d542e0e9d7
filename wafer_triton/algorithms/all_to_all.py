"""All-to-all on an open mesh: every core has a tile for every other, and each axis is crossed once.

Tiles go along one axis to the mesh row or column of their destination, then along the other. They pass from neighbour
to neighbour (see `algorithms.lines`), so two routes an axis serve all of them. Direct circuits would need one for every
pair of cores.

If the mesh is cut into rectangular regions, a core has one tile for each region, which one core of the region gets. On
a line of n cores in regions of w, core s sends to core s // (n / w) of each region, so neighbours' tiles lie together.

With dimension-ordered routes the busiest link of R x C cores carries R floor(C/2) ceil(C/2) tiles, or the same with R
and C exchanged if that is more. No all-to-all has less, as so many tiles must cross the middle. Of the tiles that wait
at a core, the one with the farthest to go leaves first, which keeps the middle links always busy. With two parts, one
along x first and one along y first, the middle links of both axes are busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import zip_longest

import numpy as np

from wafer_triton.algorithms.lines import MeshLine, exchange_plan
from wafer_triton.errors import MeshError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Exchange, Local, Moves, Slot

STAGES = ("begin", "crossed", "turned", "end")
RoundParts = Iterator[tuple[Exchange | Local, ...]]


def all_to_all(
    b: Builder, x: str, out: str, *, size: int, parts: int = 1, regions: tuple[int, int] | None = None,
    back: bool = False, label: str = "all-to-all",
) -> None:  # fmt: skip
    """Send tile (row, column) of each core's x to core (row, column), whose out has it at the sender's row and column.

    x and out are [parts, row, column, size], a part in a slot. The first part goes along x first, the second, if there
    is one, along y first.

    With `regions`, their numbers along y and x, x has a tile for each region, and out the tiles of the cores that send
    to this core of its region. `back` sends these the way back: x is then laid out as the forward out, and out as the
    forward x.

    Raises MeshError for more parts, and for regions that the mesh cannot be cut into.
    """
    if parts not in (1, 2):
        raise MeshError(f"{b.name}: all-to-all in {parts!r} parts; give 1, or 2 that cross the axes in both orders")
    regions = b.mesh.shape if regions is None else regions
    for axis, number in zip("yx", regions, strict=True):
        if number < 1 or b.mesh.length(axis) % number:
            raise MeshError(
                f"{b.name}: mesh {b.mesh} cannot be cut into {number} equal regions along {axis}; give a divisor of "
                f"{b.mesh.length(axis)}"
            )
    lines = {axis: MeshLine(b.mesh.length(axis), b.mesh.length(axis) // number, back)
             for axis, number in zip("yx", regions, strict=True)}  # fmt: skip
    ways = [
        _part_rounds(b, Slot(x, part), Slot(out, part), f"{x}.{part}", size, "xy"[part], lines) for part in range(parts)
    ]
    for together in zip_longest(*ways, fillvalue=()):
        steps = tuple(step for part in together for step in part)
        b.round(*steps, label=label)


def _part_rounds(
    b: Builder, x: Slot, out: Slot, name: str, size: int, first: str, along: dict[str, MeshLine]
) -> RoundParts:
    """Yield the steps of each round of one part, along the axis `first` and then along the other."""
    rows, cols = along["y"].regions, along["x"].regions
    buffers = []
    for number, axis in enumerate(("x", "x", "y", "y") if first == "x" else ("y", "y", "x", "x")):
        lines, slots = (rows, cols) if axis == "x" else (cols, rows)
        dtype = b.buffers[x.buffer].dtype
        buffers.append(b.buffer(f"{name}.{STAGES[number]}", (lines, size), dtype, "scratch", slots))
    begin, crossed, turned, end = buffers
    whole, numel = {buffer: Slot(buffer, None) for buffer in buffers}, rows * cols * size
    if first == "x":  # given row by row, they go column by column
        yield (b.local("swap", whole[begin], x, rows=rows, cols=cols, size=size),)
        yield from _line_rounds(b, begin, crossed, f"{name}.x", "x", along["x"])
        yield (b.local("swap", whole[turned], whole[crossed], rows=cols, cols=rows, size=size),)
        yield from _line_rounds(b, turned, end, f"{name}.y", "y", along["y"])
        yield (b.local("copy", out, whole[end], size=numel),)
        return
    yield (b.local("copy", whole[begin], x, size=numel),)
    yield from _line_rounds(b, begin, crossed, f"{name}.y", "y", along["y"])
    yield (b.local("swap", whole[turned], whole[crossed], rows=rows, cols=cols, size=size),)
    yield from _line_rounds(b, turned, end, f"{name}.x", "x", along["x"])
    yield (b.local("swap", out, whole[end], rows=cols, cols=rows, size=size),)


def _line_rounds(b: Builder, src: str, dst: str, name: str, axis: str, line: MeshLine) -> RoundParts:
    """Yield the steps of each round that moves tiles along an axis, from src of their senders to dst of receivers."""
    pairs = line.slots
    own = [core for core in range(line.length) if (core, core) in pairs]
    sent, kept = np.zeros((2, line.length), np.int64)
    for core in own:
        sent[core], kept[core] = pairs[core, core]
    where = None if len(own) == line.length else Cores(axis, np.array(own))
    keep = b.local("copy", Slot(dst, kept, axis), Slot(src, sent, axis), where, size=b.buffers[src].numel)
    rounds, slots = exchange_plan(line)
    if not rounds:
        yield (keep,)
        return
    waiting = b.buffer(f"{name}.waiting", b.buffers[src].tile, b.buffers[src].dtype, "scratch", max(1, slots))
    first, *others = _exchanges(line, axis, (src, dst, waiting))
    yield (*first, keep)
    yield from others


@lru_cache(maxsize=4)  # there and back along both axes
def _exchanges(line: MeshLine, axis: str, names: tuple[str, str, str]) -> tuple[tuple[Exchange, ...], ...]:
    """Return the exchanges of every round; `names` are the buffers of source, target and tiles in transit."""
    ends = dict(zip(("src", "dst", "waiting"), names, strict=True))
    return tuple(
        tuple(
            Exchange(Moves(axis, send, recv), Slot(ends[source], held, axis), Slot(ends[target], placed, axis))
            for ((source, held), (target, placed)), send, recv in moves
        )
        for moves in exchange_plan(line)[0]
    )
