"""Parameters of tests in pairs: a property that holds for each of two parameters needs no product of three."""

from collections.abc import Collection, Sequence
from typing import Any


def in_turn(every: Collection[Any], *others: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return each of `every` once, with the values of each of `others` in turn."""
    return [(one, *(values[number % len(values)] for values in others)) for number, one in enumerate(every)]


def pairs(first: Collection[Any], second: Collection[Any], third: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
    """Return each pair of `first` and `second` with one of `third`, which comes in turn along both."""
    return [(one, two, third[(i + j) % len(third)]) for i, one in enumerate(first) for j, two in enumerate(second)]
