"""Rows of a table that is cut over the cores of a line, for ids that are known when it runs.

No exchange depends on the ids, so one schedule serves all of them. A row is on one core, so what other cores add to it
is zero, and values are exact.
"""

from __future__ import annotations

from functools import partial

from wafer_triton.algorithms.collectives import segment_size_and_count
from wafer_triton.algorithms.reduce import all_reduce
from wafer_triton.algorithms.ring import ring_step
from wafer_triton.errors import MeshError, shown
from wafer_triton.schedule.builder import Builder

ALGORITHMS = ("sum", "ring")


def gather(
    b: Builder, table: str, ids: str, first: str, out: str, axis: str, *, algorithm: str = "sum",
    groups: tuple[int, ...] | None = None, segment: int | None = None, label: str = "gather",
) -> None:  # fmt: skip
    """Set `out` [m, d] of each core to the rows `ids` [m] of a table of width d; zeros for an id that no core has.

    A core holds v rows as the columns of `table` [d, v], from row number `first` [1] on. Ids and `first` are fp32, so a
    table has up to 2^24 rows. With "sum" all cores of a line along `axis` have the same ids: each looks up, and a
    K-tree with `groups` adds. With "ring" each has ids of its own, which go round the two-hop ring with their rows; it
    overwrites `ids`. Its m is that of "sum" over the length of the line, so the lower price of the two depends on m d.

    With `segment` the table is cut over that many cores, and each segment of a line has a copy. Raises MeshError for
    another algorithm, and for a segment longer than the line.
    """
    if algorithm not in ALGORITHMS:
        raise MeshError(f"{b.name}: gather algorithm {shown(algorithm)}: choose one of {', '.join(ALGORITHMS)}")
    (m,), (d, v) = b.buffers[ids].tile, b.buffers[table].tile
    size, _ = segment_size_and_count(b, axis, segment)
    look_up = partial(b.local, "lookup", m=m, d=d, v=v)
    if algorithm == "sum" or size == 1:
        b.round(look_up(out, (table, ids, first)), label=label)
        all_reduce(b, out, axis, groups=groups, segment=segment, label=label)
        return
    numbers, rows = [ids, b.like(f"{ids}.next", ids)], [out, b.like(f"{out}.next", out)]
    if size % 2:  # rows move `size` times, and end in `out`
        rows.reverse()
    b.round(look_up(rows[0], (table, ids, first)), label=label)
    for _ in range(size - 1):
        moves = [ring_step(b, axis, now, then, segment=segment) for now, then in (numbers, rows)]
        numbers.reverse()
        rows.reverse()
        b.round(*moves, look_up(rows[0], (table, numbers[0], first), add=True), label=label)
    b.round(ring_step(b, axis, rows[0], rows[1], segment=segment), label=label)
