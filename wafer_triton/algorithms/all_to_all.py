"""All-to-all on an open mesh: every core has a tile for every other, and each axis is crossed once.

Tiles go along one axis to the mesh row or column of their destination, then along the other. They pass from neighbour
to neighbour (see `algorithms.lines`), so two routes an axis serve all of them. Direct circuits would need one for every
pair of cores.

Where the mesh is cut into square or oblong regions, a core has a tile for each region alone. It goes to one core there,
so that neighbours' tiles lie together: of a line of n cores in regions of w, core s sends to core s // (n / w) of each.

With dimension-ordered routes the busiest link of R x C cores carries R floor(C/2) ceil(C/2) tiles. If the number
is larger with R and C exchanged, that holds. No all-to-all has less: this many tiles must cross the middle. Of the
tiles that wait at a core, the one with the farthest to go leaves first, which keeps the middle links busy all the time.
With two parts, one along x first and one along y first, the middle links of both axes are busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import zip_longest

import numpy as np

from wafer_triton.algorithms.lines import MeshLine, planned
from wafer_triton.errors import MeshError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Exchange, Local, Moves, Slot

STAGES = ("begin", "crossed", "turned", "end")
Steps = Iterator[tuple[Exchange | Local, ...]]


def all_to_all(
    b: Builder, x: str, out: str, *, size: int, parts: int = 1, regions: tuple[int, int] | None = None,
    back: bool = False, label: str = "all-to-all",
) -> None:  # fmt: skip
    """Set out [parts, row, column, size] to the tiles of all cores' x [parts, row, column, size] for this core.

    Rows and columns of x are destinations, of out sources; a part is a slot. The first part goes
    along x first, the second, if there is one, along y first.

    With `regions`, their numbers along y and x, x has a tile for each region. Then out has the tiles of the cores that
    send to this core of its region. `back` is the return: its x is as the forward out, and its out as the forward x.

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
    ways = [_along(b, Slot(x, part), Slot(out, part), f"{x}.{part}", size, "xy"[part], lines) for part in range(parts)]
    for together in zip_longest(*ways, fillvalue=()):
        steps = tuple(step for part in together for step in part)
        b.round(*steps, label=label)


def _along(b: Builder, x: Slot, out: Slot, name: str, size: int, first: str, along: dict[str, MeshLine]) -> Steps:
    """Add the rounds of one part, along the axis `first` and then along the other."""
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
        yield from _line(b, begin, crossed, f"{name}.x", "x", along["x"])
        yield (b.local("swap", whole[turned], whole[crossed], rows=cols, cols=rows, size=size),)
        yield from _line(b, turned, end, f"{name}.y", "y", along["y"])
        yield (b.local("copy", out, whole[end], size=numel),)
        return
    yield (b.local("copy", whole[begin], x, size=numel),)
    yield from _line(b, begin, crossed, f"{name}.y", "y", along["y"])
    yield (b.local("swap", whole[turned], whole[crossed], rows=rows, cols=cols, size=size),)
    yield from _line(b, turned, end, f"{name}.x", "x", along["x"])
    yield (b.local("swap", out, whole[end], rows=cols, cols=rows, size=size),)


def _line(b: Builder, src: str, dst: str, name: str, axis: str, line: MeshLine) -> Steps:
    """Move the tiles of src to dst of their destinations along an axis, into the slots of `line`."""
    pairs = line.slots
    own = [core for core in range(line.length) if (core, core) in pairs]
    sent, kept = np.zeros((2, line.length), np.int64)
    for core in own:
        sent[core], kept[core] = pairs[core, core]
    where = None if len(own) == line.length else Cores(axis, np.array(own))
    keep = b.local("copy", Slot(dst, kept, axis), Slot(src, sent, axis), where, size=b.buffers[src].numel)
    rounds, slots = planned(line)
    if not rounds:
        yield (keep,)
        return
    waiting = b.buffer(f"{name}.waiting", b.buffers[src].tile, b.buffers[src].dtype, "scratch", max(1, slots))
    first, *others = _exchanges(line, axis, (src, dst, waiting))
    yield (*first, keep)
    yield from others


@lru_cache(maxsize=4)  # there and back along both axes
def _exchanges(line: MeshLine, axis: str, names: tuple[str, str, str]) -> tuple[tuple[Exchange, ...], ...]:
    """Return the exchanges of every round between buffers `names`: of departure, of arrival, and for waiting tiles."""
    ends = dict(zip(("src", "dst", "waiting"), names, strict=True))
    return tuple(
        tuple(
            Exchange(Moves(axis, send, recv), Slot(ends[source], held, axis), Slot(ends[target], placed, axis))
            for ((source, held), (target, placed)), send, recv in moves
        )
        for moves in planned(line)[0]
    )
