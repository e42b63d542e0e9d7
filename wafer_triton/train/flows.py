"""Flows of bytes between dies, a tree of links for each, and the loads of links.

A phase is a set of flows. Each flow takes one directed tree in the graph of working links; a multicast crosses a link
once, and a reduction is a multicast backwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from numbers import Integral

from wafer_triton.errors import MeshError, check_counts, check_positive, shown
from wafer_triton.train.dies import Die, Link, Wafer

Tree = frozenset[Link]


@dataclass(frozen=True)
class Flow:
    """`size` bytes from `source` to every target, or with `reduce` summed from the targets to the source.

    Flows of one source with the same `block` carry the same bytes, and are merged. Raises MeshError for a die that is
    no pair (row, column), ShapeError for a size that is no positive number.
    """

    source: Die
    targets: frozenset[Die]
    size: float
    block: str = ""
    reduce: bool = False

    def __post_init__(self) -> None:
        for die in (self.source, *self.targets):
            if not isinstance(die, tuple) or len(die) != 2 or not all(isinstance(at, Integral) for at in die):
                raise MeshError(f"Flow: {shown(die)} is no die; give a pair of whole numbers (row, column)")
        check_positive(f"Flow from {self.source}", size=self.size)

    def directed(self, tree: Tree) -> Tree:
        """Return a tree from the source with the links that the bytes cross: a reduction's point to the source."""
        return frozenset(link[::-1] for link in tree) if self.reduce else tree


@dataclass(frozen=True)
class RoutedFlows:
    """Flows, each routed along a tree of links; `proved` if no other choice of trees has a better objective."""

    wafer: Wafer
    flows: tuple[Flow, ...]
    trees: tuple[Tree, ...]
    proved: bool = False

    @property
    def loads(self) -> dict[Link, float]:
        """Return bytes over every link in use."""
        loads: dict[Link, float] = defaultdict(float)
        for flow, tree in zip(self.flows, self.trees, strict=True):
            for link in tree:
                loads[link] += flow.size
        return dict(loads)

    @property
    def objective(self) -> tuple[float, float]:
        """Return seconds of the busiest link, and bytes times hops of all flows."""
        loads = self.loads
        return max(loads.values(), default=0.0) / self.wafer.link_bytes_per_second, sum(loads.values())


def merge(flows: Iterable[Flow]) -> tuple[Flow, ...]:
    """Return the flows; flows of one source, block, size and kind are merged into one multicast.

    Flows without a block are not merged.
    """
    joined: dict[tuple[object, ...], Flow] = {}
    for number, flow in enumerate(flows):
        key = (flow.source, flow.size, flow.reduce, flow.block or number)
        targets = flow.targets - {flow.source}
        if key in joined:
            targets |= joined[key].targets
        joined[key] = replace(flow, targets=targets)
    return tuple(flow for flow in joined.values() if flow.targets)


def all_gather(wafer: Wafer, size: float) -> list[Flow]:
    """Return flows by which every die sends its part to every other; all parts together have `size` bytes."""
    dies = sorted(wafer.links)
    return [Flow(die, frozenset(dies) - {die}, size / len(dies), "own") for die in dies]


def all_to_all(wafer: Wafer, size: float) -> list[Flow]:
    """Return flows by which every die sends `size` bytes of its own to each other die."""
    return [Flow(a, frozenset([b]), size) for a in sorted(wafer.links) for b in sorted(wafer.links) if a != b]


def bisection_bytes(rows: int, cols: int, size: float) -> float:
    """Return a lower bound of the bytes over the busiest link of an all-to-all with `size` bytes for each pair of dies.

    Half of the mesh sends to the other half over the links between them.
    """
    check_counts(rows=rows, cols=cols)
    check_positive("bisection_bytes", size=size)
    return max(rows * (cols // 2) * (cols - cols // 2), cols * (rows // 2) * (rows - rows // 2)) * size
