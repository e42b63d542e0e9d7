"""Placements: the dies of a wafer that form the groups of each parallel axis, and the cost of one step of their rings.

A rectangular placement gives every axis a rectangle of dies, axes nested in an order: the first lies on neighbouring
dies, the next strides over it. The fixed placement numbers dies row by row, first axis innermost, and runs each ring in
the order of numbers, without regard to links. Steps of all groups of an axis are routed along rows first, then columns.
On a wafer with failed links the steps of rectangular placements are mapped around these
(`wafer_triton.train.mapping.route`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from math import prod

from wafer_triton.algorithms.stream import path
from wafer_triton.errors import MeshError, check_counts, shown
from wafer_triton.train.dies import Die, Wafer
from wafer_triton.train.flows import ring_flows
from wafer_triton.train.mapping import dimension_ordered, route

AXES = ("data", "tensor", "context", "stream")
NESTED = (1, 3, 2, 0)  # axes of the fixed placement, from neighbouring dies outwards
REROUTES = 8  # without gain, after which the mapping of a step ends
RINGS = ("cycle", "interleaved", "wrap")


@dataclass(frozen=True)
class RingStep:
    """One step of all rings of an axis: the most hops of a block, blocks over the busiest link, and the mean hops."""

    kind: str
    hops: int
    load: int
    links: float  # that a block crosses on average

    def seconds(self, wafer: Wafer, size: float) -> float:
        """Return seconds of a step with blocks of `size` bytes."""
        return wafer.transfer_seconds(self.hops, size, self.load)


IDLE = RingStep("none", 0, 0, 0.0)


@dataclass(frozen=True)
class GroupPlacement:
    """The rectangle (rows, columns) and stride (rows, columns) of every axis, or `fixed`; and their fastest steps.

    `steps[axis]` is a ring's; on the axis of the stream it may be a relay's, if that is the fastest.
    """

    sides: tuple[tuple[int, int], ...]
    strides: tuple[tuple[int, int], ...]
    steps: tuple[RingStep, ...]
    fixed: bool = False

    @property
    def links(self) -> float:
        """Return the links that a block crosses on average in a step, summed over the axes."""
        return sum(step.links for step in self.steps)

    def __str__(self) -> str:
        if self.fixed:
            return "row by row"
        named = [
            f"{axis} {rows}x{cols}" + (f" every {down}x{right}" if (down, right) != (1, 1) else "")
            for axis, (rows, cols), (down, right) in zip(AXES, self.sides, self.strides, strict=True)
            if rows * cols > 1
        ]
        return ", ".join(named) or "one die"


def placements(wafer: Wafer, sizes: tuple[int, ...], prune: bool = True) -> tuple[GroupPlacement, ...]:
    """Return every rectangular placement of axes of `sizes` (as `AXES`); `prune` drops each that another beats.

    Raises MeshError unless four sizes multiply to the wafer's dies.
    """
    _demand(wafer, sizes)
    return _placements(wafer, sizes, prune)


@lru_cache(maxsize=4096)
def _placements(wafer: Wafer, sizes: tuple[int, ...], prune: bool) -> tuple[GroupPlacement, ...]:
    used = [axis for axis, size in enumerate(sizes) if size > 1]
    found: dict[object, GroupPlacement] = {}
    for order in permutations(used):
        for sides in _sides([sizes[axis] for axis in order], wafer.rows, wafer.cols):
            rectangles, strides = [(1, 1)] * 4, [(1, 1)] * 4
            down, right = 1, 1
            for axis, (rows, cols) in zip(order, sides, strict=True):
                rectangles[axis] = rows, cols
                strides[axis] = down if rows > 1 else 1, right if cols > 1 else 1
                down, right = down * rows, right * cols
            steps = [
                _step(wafer, *rectangles[axis], *strides[axis], name == "stream") for axis, name in enumerate(AXES)
            ]
            placed = GroupPlacement(tuple(rectangles), tuple(strides), tuple(steps))
            found.setdefault((placed.sides, placed.strides), placed)
    if not prune:
        return tuple(found.values())
    kept: list[GroupPlacement] = []
    for placed in sorted(found.values(), key=lambda placed: (_numbers(placed), placed.links)):
        if not any(all(a <= b for a, b in zip(_numbers(other), _numbers(placed), strict=True)) for other in kept):
            kept.append(placed)
    return tuple(kept)


def fixed(wafer: Wafer, sizes: tuple[int, ...]) -> GroupPlacement:
    """Return dies numbered row by row, axes nested as in `NESTED`, rings in the order of numbers.

    Raises MeshError unless four sizes multiply to the wafer's dies.
    """
    _demand(wafer, sizes)
    dies = [(row, col) for row in range(wafer.rows) for col in range(wafer.cols)]
    steps = [IDLE] * 4
    stride = 1
    for axis in NESTED:
        size = sizes[axis]
        if size > 1:
            starts = [start for start in range(len(dies)) if start // stride % size == 0]
            rings = [tuple(dies[start + number * stride] for number in range(size)) for start in starts]
            steps[axis] = _measured(wafer, "wrap", tuple(rings), mapped=False)
        stride *= size
    return GroupPlacement(((0, 0),) * 4, ((0, 0),) * 4, tuple(steps), fixed=True)


def groups_of(wafer: Wafer, placed: GroupPlacement, axis: int) -> list[tuple[Die, ...]]:
    """Return the rings of an axis in a rectangular placement, each with its dies in order.

    Raises MeshError for another axis than 0 to 3, for a fixed placement, and for one of another wafer.
    """
    if not 0 <= axis < len(AXES):
        raise MeshError(f"axis {shown(axis)}: choose from 0 to 3, of {', '.join(AXES)}")
    rows, cols = (prod(sides[side] for sides in placed.sides) for side in (0, 1))
    if placed.fixed or (rows, cols) != (wafer.rows, wafer.cols):
        raise MeshError(
            f"groups_of: the placement ({placed}) is no rectangular one of the {wafer.rows} x {wafer.cols} dies of "
            f"{wafer.name}; give one that `placements` returns for this wafer"
        )
    step = placed.steps[axis]
    if step is IDLE:
        return []
    return list(_rings(wafer, step.kind, *placed.sides[axis], *placed.strides[axis]))


def _demand(wafer: Wafer, sizes: tuple[int, ...]) -> None:
    if len(sizes) != len(AXES):
        raise MeshError(f"sizes = {shown(sizes)}: give {len(AXES)} of them, of {', '.join(AXES)}; 1 without groups")
    check_counts(**dict(zip(AXES, sizes, strict=True)))
    dies = prod(sizes)
    if dies != wafer.dies:
        named = " x ".join(f"{axis} {size}" for axis, size in zip(AXES, sizes, strict=True))
        raise MeshError(
            f"{named} are {dies} dies, wafer {wafer.name} has {wafer.dies}; the sizes must multiply to that"
        )


def _sides(sizes: Sequence[int], rows: int, cols: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Return rectangles of axes in order whose rows multiply to `rows` and whose columns to `cols`."""
    if not sizes:
        if rows == cols == 1:
            yield ()
        return
    for down in range(1, sizes[0] + 1):
        if sizes[0] % down == 0 and rows % down == 0 and cols % (sizes[0] // down) == 0:
            for rest in _sides(sizes[1:], rows // down, cols // (sizes[0] // down)):
                yield ((down, sizes[0] // down), *rest)


def _numbers(placed: GroupPlacement) -> tuple[float, ...]:
    """Return the numbers by which placements are compared: seconds grow with each of them."""
    return tuple(number for step in placed.steps for number in (step.hops, step.load))


@lru_cache(maxsize=8192)
def _step(wafer: Wafer, rows: int, cols: int, down: int, right: int, stream: bool) -> RingStep:
    """Return the fastest kind for a rectangle at strides: fewest hops, then the least load, then the fewest links."""
    if rows * cols == 1:
        return IDLE
    found = []
    for kind in (("relay",) if stream else ()) + RINGS:
        try:
            rings = _rings(wafer, kind, rows, cols, down, right)
        except MeshError:
            continue
        found.append(_measured(wafer, kind, rings))
    if not found:  # an odd by odd rectangle has no ring of neighbours: the relay's snake, closed by a longer way
        found.append(_measured(wafer, "snake", _rings(wafer, "snake", rows, cols, down, right)))
    return min(found, key=lambda step: (step.hops * step.load, step.hops, step.links))


def _rings(wafer: Wafer, kind: str, rows: int, cols: int, down: int, right: int) -> tuple[tuple[Die, ...], ...]:
    inner = path("relay" if kind == "snake" else kind, rows, cols)
    return tuple(
        tuple((top + row * down, left + col * right) for row, col in inner)
        for top in range(wafer.rows)
        for left in range(wafer.cols)
        if top // down % rows == 0 and left // right % cols == 0
    )


def _measured(wafer: Wafer, kind: str, rings: tuple[tuple[Die, ...], ...], mapped: bool = True) -> RingStep:
    """Return a step of rings, routed; a relay takes its links both ways, N (3 N / 2 - 2) block-hops in all."""
    if kind == "relay":
        lines = [*rings, *(tuple(reversed(ring)) for ring in rings)]
        flows = [flow for line in lines for flow in ring_flows([line], 1.0)[:-1]]
        size = len(rings[0])
        each = (3 * size / 2 - 2) / (size - 1) if size > 2 else 1.0
    else:
        flows, each = ring_flows(rings, 1.0), 1.0
    routing = route(wafer, flows, REROUTES) if wafer.failed and mapped else dimension_ordered(wafer, flows)
    hops = max(len(tree) for tree in routing.trees)
    load = round(max(routing.loads.values()))
    mean = sum(map(len, routing.trees)) / len(routing.trees)
    return RingStep(kind, hops, load, mean * each)
