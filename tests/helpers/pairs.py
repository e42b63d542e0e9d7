"""Parameters of tests by pairs: each pair of values is in some case, without the product of all values."""

from collections.abc import Collection, Sequence
from typing import Any


def in_turn(every: Collection[Any], *others: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return each of `every` once, with the values of each of `others` in turn."""
    return [(one, *(values[number % len(values)] for values in others)) for number, one in enumerate(every)]


def pairs(first: Collection[Any], second: Collection[Any], third: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
    """Return each pair of `first` and `second` with one of `third`, which comes in turn along both."""
    return [(one, two, third[(i + j) % len(third)]) for i, one in enumerate(first) for j, two in enumerate(second)]
