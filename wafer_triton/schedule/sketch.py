"""Abstract schedules: builders that keep one of several equal costs, for pricing and for SRAM. None of them runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np

from wafer_triton.mesh import Mesh
from wafer_triton.schedule.block import Block, Part, added
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Index

_STAGES = 2  # of a stream in a sketch


class Sketch(Builder):
    """A builder for pricing alone: it leaves out what costs the same again. It is never run.

    Of turns that are alike but for which line does what it adds three, of stages that are alike two. Where every line
    has a root of its own, it uses the first and the last root for all lines: the path is still the longest, and the
    words on links are the same.
    """

    def __init__(self, mesh: Mesh, name: str, family: str = "kernel") -> None:
        super().__init__(mesh, name, family)
        # the rounds of a second turn, from and to, and how many turns are left out
        self.loops: list[tuple[int, int, int]] = []
        self.left_out: dict[int, int] = {}  # stages left out of a stream, by the number of its first round

    def repeat(self, times: int, turn: Callable[[int], None]) -> None:
        ends = []
        for number in range(min(times, 3)):
            turn(number)
            ends.append(len(self.rounds))
        if times > 3:
            self.loops.append((ends[0], ends[1], times - 3))

    def roots(self, place: Index) -> Index:
        return np.where(np.arange(len(place)) % 2, place.max(), place.min())

    def stages(self, count: int) -> int:
        if count <= _STAGES or self.mesh.fold != (1, 1):  # where cores fold, a stage may cross no link
            return count
        self.left_out[len(self.rounds)] = count - _STAGES
        return _STAGES

    def stations(self, kinds: Sequence[int], turns: Sequence[int]) -> Iterable[tuple[int, int]]:
        alike: dict[int, tuple[int, int]] = {}
        for station, (like, count) in enumerate(zip(kinds, turns, strict=True)):
            first, before = alike.get(like, (station, 0))
            alike[like] = first, before + count
        return alike.values()


class Ways(Sketch):
    """A sketch with all the ways that messages take, for routes alone: it has every station."""

    def stations(self, kinds: Sequence[int], turns: Sequence[int]) -> Iterable[tuple[int, int]]:
        return enumerate(turns)


class Outline(Sketch):
    """A sketch of buffers and of what follows what, for SRAM alone: of stations it has those of two kinds."""

    def stations(self, kinds: Sequence[int], turns: Sequence[int]) -> Iterable[tuple[int, int]]:
        return [(station, turns[station]) for station in sorted({0, int(np.argmin(kinds)), int(np.argmax(kinds))})]


@lru_cache(maxsize=64)
def sketched(part: Part, block: Block, *args: int) -> Sketch:
    """A part's rounds as a `Sketch`, for pricing and for SRAM."""
    return added(Sketch, part, block, *args)


@lru_cache(maxsize=64)
def outlined(part: Part, block: Block, *args: int) -> Outline:
    """A part's rounds as an `Outline`, for SRAM alone."""
    return added(Outline, part, block, *args)
