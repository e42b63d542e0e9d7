"""Terms: the parts of a value, as counts of tiles' indices, letter by letter.

A value is, for each letter, how many of its terms have each index: a tile has one term. A count above the number of
combinations of the other letters shows a term that entered twice. The counts are kept per letter, not per combination
of letters, so P cores a side cost P bytes times a few a slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int16]  # [..., indices of all letters]
PART = "#"  # the letter of a tile's parts: a tile may move in parts, one in each slot of another buffer


class Letters:
    """The letters of a schedule's tiles, each with its number of indices."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        ends = np.cumsum([0, *sizes.values()]).tolist()
        self.places = {letter: slice(*ends[i : i + 2]) for i, letter in enumerate(sizes)}
        self.sizes = np.array(list(sizes.values()))
        self.starts = np.array(ends[:-1])
        self.total = int(ends[-1])

    def set(self, counts: Counts, letter: str, at: NDArray[np.int64]) -> None:
        """Give every value [..., indices] the one index `at` of a letter, which is broadcast to [...]."""
        counts[..., self.places[letter]] = at[..., None] == np.arange(counts[..., self.places[letter]].shape[-1])

    def support(self, value: NDArray[Any]) -> NDArray[np.int32]:
        """Return how many indices of each letter a value has, [..., letters]."""
        return np.add.reduceat(value > 0, self.starts, -1, dtype=np.int32)

    def terms(self, support: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return how many terms with one index of a letter differ in the other letters, [..., letters]."""
        present = np.maximum(support, 1)
        return present.prod(-1, keepdims=True) // present

    def twice(self, value: Counts) -> NDArray[np.bool_]:
        """Return whether some term of a value must have entered twice, [...]."""
        return np.asarray((np.maximum.reduceat(value, self.starts, -1) > self.terms(self.support(value))).any(-1))

    def partial(self, value: Counts) -> NDArray[np.bool_]:
        """Return whether a value is a sum that lacks parts, [...]."""
        support = self.support(value)
        return np.asarray(((support > 1) & (support < self.sizes)).any(-1))

    def full(self, value: Counts) -> NDArray[np.bool_]:
        """Return which letters are summed over whole, each term once, [..., letters]."""
        support = self.support(value)
        whole = (support == self.sizes) & (np.minimum.reduceat(value, self.starts, -1) == self.terms(support))
        return np.asarray(whole)

    def closed(self, value: Counts) -> Counts:
        """Return a whole sum as a tile: the letters that it was summed over are gone."""
        return np.where(np.repeat(self.support(value) > 1, self.sizes, -1), 0, value).astype(np.int16)

    def union(self, *values: Counts) -> Counts:
        """Return the terms of all values, each once: for maxima, to which a term that comes twice is as one."""
        present = np.maximum.reduce(values) > 0
        return (present * np.repeat(self.terms(self.support(present)), self.sizes, -1)).astype(np.int16)

    def differ(self, letter: str, a: Counts, b: Counts) -> NDArray[np.bool_]:
        """Return whether two values both have the letter, with other indices, [...]."""
        place = self.places[letter]
        left, right = a[..., place] > 0, b[..., place] > 0
        return np.asarray(left.any(-1) & right.any(-1) & (left != right).any(-1))

    def astray(self, value: Counts) -> NDArray[np.bool_]:
        """Return which parts of tiles [..., parts, indices] are out of place, [..., parts]."""
        numbered = np.zeros_like(value)
        self.set(numbered, PART, np.arange(value.shape[-2]))
        return self.differ(PART, value, numbered)

    def text(self, value: Counts) -> str:
        """Return one value [indices] as text, such as "m=1, k=0 2 3"."""
        shown = {letter: np.flatnonzero(value[place]) for letter, place in self.places.items() if letter != PART}
        return ", ".join(f"{letter}={' '.join(map(str, at))}" for letter, at in shown.items() if at.size)
