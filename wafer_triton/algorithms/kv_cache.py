"""The KV cache on a mesh (WaferLLM, OSDI'25, section 4.3), by two policies with one interface.

The cache is cut along y: row 0 holds the oldest entries, the last row the newest. A new entry enters at the last row.
`concat` leaves it there, so that the last row fills up. `shift` first lets the fuller rows hand their oldest entry one
row up. Rows never differ by more than one entry, order is kept, and only neighbours exchange. On R rows the cache holds
R times as many entries. Entry e lies in slot e mod slots of its row: entries move between rows, never inside one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wafer_triton.errors import MOST, CacheError, check_counts, plain, shown
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Index, Round, Slot

POLICIES = ("shift", "concat")


@dataclass(frozen=True)
class KvCache:
    """A cache of `entries` tokens on each of `rows` rows; a prompt of `prefilled` tokens was spread over them evenly.

    Raises CacheError for an unknown policy, ShapeError for sizes that are not positive whole numbers.
    """

    rows: int
    entries: int
    policy: str = "shift"
    prefilled: int = 0

    def __post_init__(self) -> None:
        for name in ("rows", "entries", *(["prefilled"] if self.prefilled else [])):  # numpy's numbers become Python's
            object.__setattr__(self, name, *check_counts(**{name: getattr(self, name)}))
        if self.policy not in POLICIES:
            raise CacheError(f"KV policy {self.policy!r}: choose one of {', '.join(POLICIES)}")

    @property
    def slots(self) -> int:
        """Slots of a row: one more than its entries lets a full row receive while it sends."""
        return self.entries + 1

    @property
    def capacity(self) -> int:
        """Tokens that the cache holds before it overflows."""
        if self.policy == "shift":
            return self.rows * self.entries
        return self.prefilled + self.entries - -(-self.prefilled // self.rows)

    def windows(self, count: int) -> Index:
        """Return [rows + 1]: of `count` entries row r holds windows[r] up to windows[r + 1], the last rows the most.

        Raises CacheError for a count that is no whole number, or below 0; so do the other methods.
        """
        if not _is_count(count):
            raise CacheError(f"KvCache: count = {shown(count)} must be a whole number from 0 to {MOST:,}")
        spread = count if self.policy == "shift" else min(count, self.prefilled)
        sizes = spread // self.rows + (np.arange(self.rows) >= self.rows - spread % self.rows)
        edges = np.concatenate([[0], np.cumsum(sizes)])
        edges[-1] = count
        return edges

    def row_of(self, count: int) -> Index:
        """Return [count]: the row of each entry."""
        return np.searchsorted(self.windows(count), np.arange(count), side="right") - 1

    def positions(self, count: int) -> Index:
        """Return [rows, slots]: the entry in each slot of a cache of `count` entries, -1 for an empty slot."""
        table, rows = np.full((self.rows, self.slots), -1, np.int64), self.row_of(count)
        entries = np.arange(count)
        table[rows, entries % self.slots] = entries
        return table

    def room(self, count: int) -> None:
        """Raise CacheError unless `count` entries fit."""
        if self.windows(count)[-1] > self.capacity:
            where = f"the last of {self.rows} rows" if self.policy == "concat" else f"each of {self.rows} rows"
            remedy = ", or policy 'shift'" if self.policy == "concat" else ""
            raise CacheError(
                f"the KV cache ({self.policy}) is full: it holds {self.capacity} tokens, {self.entries} on {where}; "
                f"{count} are wanted. Give a larger max_length{remedy}"
            )

    def append(self, b: Builder, caches: Mapping[str, str | Slot], count: int) -> None:
        """Add the round that appends entry number `count` (from 0): the last row copies the values into cache buffers.

        `caches` maps cache buffers, of `slots` slots of one entry each, to values. Raises CacheError when the cache is
        full.
        """
        if not _is_count(count):
            raise CacheError(f"{b.name}: entry number {shown(count)} is appended; give a whole number from 0")
        self.room(count + 1)
        before, after = self.windows(count), self.windows(count + 1)
        handing = np.flatnonzero(after[:-1] > before[:-1])  # their first entry moves one row up
        oldest = before[:-1] % self.slots
        moves = [
            b.exchange("y", Slot(name, oldest, "y"), Slot(name, np.roll(oldest, -1), "y"), handing, handing - 1)
            for name in caches
            if self.policy == "shift"
        ]
        last = Cores("y", np.array([self.rows - 1]))
        puts = [
            b.local("copy", Slot(name, count % self.slots), value, last, size=b.buffers[name].numel)
            for name, value in caches.items()
        ]
        # moves without senders stay, so that all appends differ in their indices alone
        b.steps.append(Round(tuple(moves), tuple(puts), "kv shift" if handing.size else "kv append"))


def _is_count(value: object) -> bool:
    return type(plain(value)) is int and 0 <= plain(value) <= MOST
