"""The counted numbers that every room shares and adds up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from operator import add
from typing import Any, Self

from wafer_triton.text.quantity import unit


@dataclass(frozen=True)
class Additive:
    """A dataclass of numbers with `+` for one after the other and `*` for repetition.

    A field whose metadata has `join` is joined by that function and does not grow by repetition; every other adds up.
    """

    def __add__(self, other: Self) -> Self:
        if not isinstance(other, type(self)):
            return NotImplemented
        of: Any = type(self)
        joined = zip(_joins(of), vars(self).values(), vars(other).values(), strict=True)
        return self._with([join(own, more) for join, own, more in joined])

    def __mul__(self, times: float) -> Self:
        of: Any = type(self)
        scaled = zip(_joins(of), vars(self).values(), strict=True)
        return self._with([number * times if join is add else number for join, number in scaled])

    def _with(self, numbers: list[Any]) -> Self:
        """Return an object with other numbers, all set at once: a plan adds tens of thousands of costs."""
        made = object.__new__(type(self))
        vars(made).update(zip(vars(self), numbers, strict=True))
        return made


@dataclass(frozen=True)
class Counts(Additive):
    """Counts of a schedule, which add up as `Additive` says.

    Products alone have multiply-adds, `heads * m * k * n` for each local product of a physical core, padding included.
    A vector operation has elements. The same schedule has the same counts in its `Account` and in its `Cost`.
    """

    rounds: int = field(default=0, metadata=unit("rounds"))
    stages: int = field(default=0, metadata=unit("stages"))  # set-ups of an exchange on the critical path, see `runs`
    hops: int = field(default=0, metadata=unit("hops"))  # critical path: the longest paths of data, see `traffic`
    link_bytes: int = field(default=0, metadata=unit("B", "over links"))  # bytes times links crossed, whole mesh
    macs: int = field(default=0, metadata=unit("multiply-adds", "multiply-adds"))  # of a core
    sram_peak_bytes: int = field(default=0, metadata=unit("B", "SRAM peak", join=max))  # of a core


@cache  # listing them for each sum took 4 % of an estimate that was made before
def _joins(of: type[Additive]) -> tuple[Callable[[Any, Any], Any], ...]:
    return tuple(each.metadata.get("join", add) for each in fields(of))
