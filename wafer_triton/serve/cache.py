"""The cache entries of a simulation: requests that hold them, and the most that were ever held."""

from __future__ import annotations


class Cache:
    """Entries a row that requests hold of a pool; `peak` is the most so far."""

    def __init__(self, pool: int) -> None:
        self.pool = pool
        self.held: dict[int, int] = {}  # by request
        self.used = self.peak = 0

    def fits(self, entries: int) -> bool:
        """Return whether `entries` entries are free."""
        return self.used + entries <= self.pool

    def hold(self, number: int, entries: int) -> None:
        """Give a request more entries."""
        self.held[number] = self.held.get(number, 0) + entries
        self.used += entries
        self.peak = max(self.peak, self.used)

    def release(self, number: int) -> None:
        """Take all entries of a request back."""
        self.used -= self.held.pop(number)
