"""Terms: the summands of a value, as counts. A letter is an axis of a partition spec, see `wafer_triton.verify.specs`.

A given tile is one term and has one index of each letter, such as m=2, k=3. A value is an array that holds, for each
index of each letter, the number of its terms with that index. A count above the number of combinations of the other
letters' indices shows that a term was added twice. Counts are kept for each letter, not for each combination of
letters: a slot of one core takes a few times P counts on a mesh of P x P cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int16]  # [..., indices of all letters]
PART = "#"  # the letter that numbers the parts of a tile: it may move in parts, one in each slot of another buffer


class Letters:
    """The letters of a schedule's tiles, each with its number of indices."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        ends = np.cumsum([0, *sizes.values()]).tolist()
        self.places = {letter: slice(*ends[i : i + 2]) for i, letter in enumerate(sizes)}
        self.sizes = np.array(list(sizes.values()))
        self.starts = np.array(ends[:-1])
        self.total = int(ends[-1])

    def set(self, counts: Counts, letter: str, at: NDArray[np.int64]) -> None:
        """Set every value [..., indices] to index `at` of `letter` alone; `at` is broadcast to [...]."""
        counts[..., self.places[letter]] = at[..., None] == np.arange(counts[..., self.places[letter]].shape[-1])

    def support(self, value: NDArray[Any]) -> NDArray[np.int32]:
        """Return the number of different indices of each letter in a value, [..., letters]."""
        return np.add.reduceat(value > 0, self.starts, -1, dtype=np.int32)

    def terms(self, support: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return for each letter the most distinct terms with one of its indices, [..., letters].

        This is the product of the other letters' `support`.
        """
        present = np.maximum(support, 1)
        return present.prod(-1, keepdims=True) // present

    def double_counted(self, value: Counts) -> NDArray[np.bool_]:
        """Return whether a value has more terms with an index than are distinct: one was added twice, [...]."""
        return np.asarray((np.maximum.reduceat(value, self.starts, -1) > self.terms(self.support(value))).any(-1))

    def incomplete(self, value: Counts) -> NDArray[np.bool_]:
        """Return whether a value is a sum over some indices of a letter, but not over all, [...]."""
        support = self.support(value)
        return np.asarray(((support > 1) & (support < self.sizes)).any(-1))

    def full(self, value: Counts) -> NDArray[np.bool_]:
        """Return for each letter whether a value has every index of it, and each term once, [..., letters]."""
        support = self.support(value)
        whole = (support == self.sizes) & (np.minimum.reduceat(value, self.starts, -1) == self.terms(support))
        return np.asarray(whole)

    def reduced(self, value: Counts) -> Counts:
        """Return a complete sum as a tile, without the letters that it was summed over."""
        return np.where(np.repeat(self.support(value) > 1, self.sizes, -1), 0, value).astype(np.int16)

    def union(self, *values: Counts) -> Counts:
        """Return the terms of all values, each once: a maximum may take a term twice without a change."""
        present = np.maximum.reduce(values) > 0
        return (present * np.repeat(self.terms(self.support(present)), self.sizes, -1)).astype(np.int16)

    def misaligned(self, letter: str, a: Counts, b: Counts) -> NDArray[np.bool_]:
        """Return whether two values both have the letter, but different indices of it, [...]."""
        place = self.places[letter]
        left, right = a[..., place] > 0, b[..., place] > 0
        return np.asarray(left.any(-1) & right.any(-1) & (left != right).any(-1))

    def misplaced(self, value: Counts) -> NDArray[np.bool_]:
        """Return for each part of tiles [..., parts, indices] whether it lies in another part's place, [..., parts]."""
        numbered = np.zeros_like(value)
        self.set(numbered, PART, np.arange(value.shape[-2]))
        return self.misaligned(PART, value, numbered)

    def text(self, value: Counts) -> str:
        """Return one value [indices] as text, such as "m=1, k=0 2 3"."""
        shown = {letter: np.flatnonzero(value[place]) for letter, place in self.places.items() if letter != PART}
        return ", ".join(f"{letter}={' '.join(map(str, at))}" for letter, at in shown.items() if at.size)
