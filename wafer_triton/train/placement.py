"""Placements: the dies of a wafer that form the groups of each parallel axis, and the transfers of their rings.

A rectangular placement gives every axis a rectangle of dies, axes nested in an order: the first lies on neighbouring
dies, the next strides over it. The fixed placement numbers dies row by row, first axis innermost, and runs each ring in
the order of numbers, without regard to links. Transfers of all groups of an axis are routed at once: along rows first,
then columns, and for rectangular placements on a wafer with failed links as `wafer_triton.train.mapping.route` finds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import permutations, product
from math import prod
from operator import le

import numpy as np
from numpy.typing import NDArray

from wafer_triton.algorithms.stream import Group, path, stream
from wafer_triton.errors import MeshError
from wafer_triton.train.dies import Wafer
from wafer_triton.train.mapping import Pair, dimension_ordered, route

AXES = ("data", "tensor", "context", "stream")
NESTED = (0, 2, 3, 1)  # axes of the fixed placement, the last on neighbouring dies
RINGS = ("cycle", "interleaved", "wrap")
Loads = NDArray[np.float64]


@dataclass(frozen=True)
class RingStep:
    """The transfers of all rings of an axis, of which every die sends a block in each.

    `transfers` counts them by (hops of the longest path, blocks over the busiest link). `loads` are blocks over every
    link of `Wafer.edges`, in a transfer on average.
    """

    kind: str
    rings: tuple[Group, ...] = field(default=(), compare=False)
    transfers: tuple[tuple[tuple[int, int], int], ...] = ()
    loads: Loads = field(default_factory=lambda: np.zeros(2), compare=False)

    @cached_property
    def links(self) -> float:
        """Return the links that a block crosses on average."""
        return float(self.loads.sum()) / max(1, sum(map(len, self.rings)))

    @cached_property
    def most(self) -> float:
        """Return blocks over the busiest link, in a transfer on average."""
        return float(self.loads.max())

    @cached_property
    def worst(self) -> tuple[int, int]:
        """Return the most hops and the most blocks over a link."""
        hops, loads = zip(*(pair for pair, _ in self.transfers), strict=True) if self.transfers else ((0,), (0,))
        return max(hops), max(loads)


IDLE = RingStep("none")


@dataclass(frozen=True)
class GroupPlacement:
    """The rectangle (rows, columns) and stride (rows, columns) of every axis, none if fixed; and their fastest rings.

    `steps[axis]` is a ring's; on the axis of the stream it may be a relay's, if that is the fastest.
    """

    sides: tuple[tuple[int, int], ...]
    strides: tuple[tuple[int, int], ...]
    steps: tuple[RingStep, ...]

    @cached_property
    def links(self) -> float:
        """Return the links that a block crosses on average in a step, summed over the axes."""
        return sum(step.links for step in self.steps)

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """Return the numbers by which placements are compared: seconds and joules grow with them."""
        return tuple(number for step in self.steps for number in (*step.worst, step.links))

    @cached_property
    def loads(self) -> Loads:
        """Return blocks over every link [8, links], in a transfer of each axis forwards, then of each backwards."""
        size = max(len(step.loads) for step in self.steps)
        ways = np.array([np.resize(step.loads, size) for step in self.steps])
        return np.concatenate([ways, ways.reshape(4, -1, 2)[..., ::-1].reshape(4, -1)])

    def __str__(self) -> str:
        named = [
            f"{axis} {rows}x{cols}" + (f" every {down}x{right}" if (down, right) != (1, 1) else "")
            for axis, (rows, cols), (down, right) in zip(AXES, self.sides, self.strides, strict=False)
            if rows * cols > 1
        ]
        return ", ".join(named) or ("one die" if self.sides else "row by row")


@lru_cache(maxsize=4096)  # tuples that differ in what is sharded or moves take the same
def placements(wafer: Wafer, sizes: tuple[int, ...], prune: bool = True) -> tuple[GroupPlacement, ...]:
    """Return every rectangular placement of axes of `sizes` (as `AXES`).

    With `prune` those are left out which another beats on every axis, in hops, blocks over a link and links of a block.
    Raises MeshError unless four sizes multiply to the wafer's dies.
    """
    _demand(wafer, sizes)
    placed: dict[object, GroupPlacement] = {}
    for order in permutations(axis for axis, size in enumerate(sizes) if size > 1):
        for nested in _sides([sizes[axis] for axis in order], wafer.rows):
            sides, strides, down, right = [(1, 1)] * 4, [(1, 1)] * 4, 1, 1
            for axis, (rows, cols) in zip(order, nested, strict=True):
                sides[axis], strides[axis] = (rows, cols), (down if rows > 1 else 1, right if cols > 1 else 1)
                down, right = down * rows, right * cols
            steps = (_step(wafer, *sides[axis], *strides[axis], axis == 3) for axis in range(4))
            placed.setdefault((*sides, *strides), GroupPlacement(tuple(sides), tuple(strides), tuple(steps)))
    if not prune:
        return tuple(placed.values())
    kept: list[GroupPlacement] = []
    for one in sorted(placed.values(), key=lambda one: (one.numbers, one.links)):
        if not any(all(map(le, better.numbers, one.numbers)) for better in kept):
            kept.append(one)
    return tuple(kept)


@lru_cache(maxsize=1024)  # three baselines take the same: 1.3 of 12 s of a plan of all
def fixed(wafer: Wafer, sizes: tuple[int, ...]) -> GroupPlacement:
    """Return dies numbered row by row, axes nested as in `NESTED`, rings in the order of numbers.

    Raises MeshError unless four sizes multiply to the wafer's dies.
    """
    _demand(wafer, sizes)
    steps, numbers = [IDLE] * 4, np.arange(wafer.dies).reshape([sizes[axis] for axis in NESTED])
    for place, axis in enumerate(NESTED):
        if sizes[axis] > 1:
            rings = np.moveaxis(numbers, place, -1).reshape(-1, sizes[axis]).tolist()
            dies = tuple(tuple(divmod(die, wafer.cols) for die in ring) for ring in rings)
            steps[axis] = _measured(wafer, "wrap", dies, mapped=False)
    return GroupPlacement((), (), tuple(steps))


@lru_cache(maxsize=64)
def exchange(wafer: Wafer) -> RingStep:
    """Return the transfer by which every die sends a block to each other one.

    On a wafer without failed links it takes its bisection bound.
    """
    dies = tuple(sorted(wafer.links))
    return _routed(wafer, "all-to-all", (dies,), [list(permutations(dies, 2))], False) if dies[1:] else IDLE


def _demand(wafer: Wafer, sizes: tuple[int, ...]) -> None:
    if len(sizes) != len(AXES) or prod(sizes) != wafer.dies:
        named = " x ".join(f"{axis} {size}" for axis, size in zip(AXES, sizes, strict=False))
        raise MeshError(
            f"{named} on wafer {wafer.name} of {wafer.dies} dies: give sizes of {', '.join(AXES)} that multiply "
            f"to the dies"
        )


def _sides(sizes: Sequence[int], rows: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Return rectangles of axes in order whose rows multiply to `rows`."""
    for downs in product(*([down for down in range(1, size + 1) if size % down == 0] for size in sizes)):
        if prod(downs) == rows:
            yield tuple((down, size // down) for down, size in zip(downs, sizes, strict=True))


@lru_cache(maxsize=8192)
def _step(wafer: Wafer, rows: int, cols: int, down: int, right: int, stream: bool) -> RingStep:
    """Return the fastest kind for a rectangle at strides: fewest hops, then the least load, then the fewest links.

    Streams may take the relay; other axes do only in a rectangle of odd by odd dies, which has no ring of neighbours.
    """
    if rows * cols == 1:
        return IDLE
    steps: list[RingStep] = []
    for kind in (*RINGS, "relay"):
        if kind == "relay" and steps and not stream:
            continue
        try:
            inner = path(kind, rows, cols)
        except MeshError:
            continue
        rings = tuple(
            tuple((top + row * down, left + col * right) for row, col in inner)
            for top in range(wafer.rows)
            for left in range(wafer.cols)
            if top // down % rows == 0 and left // right % cols == 0
        )
        steps.append(_measured(wafer, kind, rings))
    return min(steps, key=lambda step: (prod(step.worst), step.worst, step.links))


def _measured(wafer: Wafer, kind: str, rings: tuple[Group, ...], mapped: bool = True) -> RingStep:
    """Return the transfers of the stream of a kind, without the sends that no die needs."""
    sends = stream(kind, len(rings[0])).without_unused_sends().sends
    pairs = [[(ring[send.sender], ring[send.receiver]) for ring in rings for send in sent] for sent in sends]
    return _routed(wafer, kind, rings, pairs, mapped)


def _routed(
    wafer: Wafer, kind: str, rings: tuple[Group, ...], transfers: Sequence[Sequence[Pair]], mapped: bool
) -> RingStep:
    """Return transfers whose pairs are all routed together."""
    pairs = dict.fromkeys(pair for sent in transfers for pair in sent)
    paths = route(wafer, pairs) if wafer.failed and mapped else dimension_ordered(wafer, pairs)
    loads, counts = np.zeros(len(wafer.edges)), Counter[tuple[int, int]]()
    number = {link: at for at, link in enumerate(wafer.edges)}
    for sent in transfers:
        own = Counter(number[link] for pair in sent for link in paths[pair])
        loads[list(own)] += list(own.values())
        counts[max(len(paths[pair]) for pair in sent), max(own.values())] += 1
    return RingStep(kind, rings, tuple(sorted(counts.items())), loads / len(transfers))
