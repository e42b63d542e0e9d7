"""The shift-based KV cache (WaferLLM, OSDI'25, section 4.3): rows of the mesh share one sequence evenly.

The cache is cut along y: row 0 holds the oldest entries, the last row the newest. A new entry always enters at the
last row; if that would make it hold two more than another, the fuller rows first hand their oldest entry one row up.
So rows never differ by more than one entry, order is kept, and only neighbours talk. Entry e lies in slot
e mod slots of its row, so entries move between rows but never inside one. One slot more than a row's capacity lets a
full row receive while it sends.
"""

from __future__ import annotations

import numpy as np

from wafer_triton.errors import CacheError
from wafer_triton.schedule.rounds import Builder, Cores, Index, Slot


def windows(count: int, rows: int) -> Index:
    """[rows + 1]: row r holds the entries from windows[r] up to windows[r + 1] of `count`; the last rows are fuller."""
    sizes = count // rows + (np.arange(rows) >= rows - count % rows)
    return np.concatenate([[0], np.cumsum(sizes)])


def positions(count: int, rows: int, slots: int) -> Index:
    """[rows, slots]: which entry lies in each slot when `count` are held, -1 where none does."""
    edges = windows(count, rows)
    table = np.full((rows, slots), -1, np.int64)
    entries = np.arange(count)
    table[np.searchsorted(edges, entries, side="right") - 1, entries % slots] = entries
    return table


def append(b: Builder, caches: dict[str, str], count: int) -> None:
    """Append entry number `count` (from 0): each cache buffer takes the tile of its value's buffer at the last row.

    Cache buffers have `slots` of one entry each. Raises CacheError when all rows are full.
    """
    rows = b.mesh.shape[0]
    slots = b.buffers[next(iter(caches))].slots
    if count >= rows * (slots - 1):
        raise CacheError(
            f"the KV cache is full: {rows} rows of {slots - 1} entries hold {rows * (slots - 1)} tokens; "
            f"give a larger max_length or mesh"
        )
    oldest = windows(count, rows)[:-1] % slots
    fuller = np.arange(rows - count % rows, rows)
    moves = [
        b.exchange("y", Slot(name, oldest, "y"), Slot(name, np.roll(oldest, -1), "y"), fuller, fuller - 1)
        for name in caches
    ]
    last = Cores("y", np.array([rows - 1]))
    puts = [
        b.local("copy", Slot(name, count % slots), value, last, size=b.buffers[name].numel)
        for name, value in caches.items()
    ]
    b.round(*moves, *puts, label="kv shift")
