"""Steps of a transformer layer, priced without building all their rounds.

The rounds of an all-reduce do not depend on the tile, so one unit schedule for each line serves all tiles; the
alignment's rounds are alike, so one serves for all. On a mesh of one core a step is its local work. These pieces are
read off builders, not validated again; the tests hold each to `cost(schedule)` of the whole schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, cast

import numpy as np

from wafer_triton.cost.constants import Constants
from wafer_triton.cost.phases import Phase, Product, phases
from wafer_triton.cost.price import Cost, price
from wafer_triton.count.routes import routes
from wafer_triton.count.traffic import WORD_BYTES
from wafer_triton.device import Device
from wafer_triton.dtype import BYTES
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.gemm import align, meshgemm
from wafer_triton.schedule.gemv import meshgemv
from wafer_triton.schedule.reduce import all_reduce
from wafer_triton.schedule.ring import ring_step
from wafer_triton.schedule.rounds import Index, Schedule

Groups = tuple[int, ...] | None


def total(parts: Iterable[Phase], c: Constants, relayed: bool = False) -> Cost:
    """The cost of phases one after another."""
    return sum((price(part, c, relayed) for part in parts), Cost())


@lru_cache(maxsize=256)
def _unit_reduce(device: Device, length: int, groups: Groups) -> tuple[list[Phase], int]:
    """Phases and routes of an all-reduce of one fp32 element over one line."""
    across = length <= device.cols
    b = Builder(Mesh(1, length, device) if across else Mesh(length, 1, device), "all-reduce of one element")
    b.buffer("x", (1,), "fp32", "output")
    all_reduce(b, "x", "x" if across else "y", groups=groups)
    return phases(b), _routes(b)


def reduce_routes(mesh: Mesh, groups: dict[str, Groups]) -> int:
    """Routes that all-reduces along both axes need in one router."""
    return sum(_unit_reduce(mesh.device, mesh.length(axis), groups[axis])[1] for axis in "xy")


@cache
def gemm_routes() -> int:
    """Routes that MeshGEMM with its alignment needs in one router, on every mesh but the smallest."""
    b = Builder(Mesh(8, 8), "mesh gemm")
    for name in "abc":
        b.buffer(name, (1, 1), "fp32", "input")
    align(b, "a", "x")
    meshgemm(b, "a", "b", "c", m=1, k=1, n=1)
    return _routes(b)


def _routes(b: Builder) -> int:
    return routes(cast(Schedule, b)).colours  # they follow from mesh and rounds alone


def reduced(mesh: Mesh, axis: str, elements: int, groups: Groups, dtype: str = "fp16") -> list[Phase]:
    """An all-reduce along an axis of a tile of `elements` on every core."""
    unit, _ = _unit_reduce(mesh.device, mesh.length(axis), groups)
    lines = mesh.length("y" if axis == "x" else "x")
    return [phase.scaled(elements, dtype, lines) for phase in unit]


def work(build: Callable[[Builder], None], device: Device) -> list[Phase]:
    """What is local in the rounds that `build` adds: those of one core."""
    b = Builder(Mesh(1, 1, device), "local work")
    build(b)
    return phases(b)


@lru_cache(maxsize=64)
def _unit_shift(mesh: Mesh, axis: str) -> Phase:
    b = Builder(mesh, "one ring step")
    for name in ("a", "a.next"):
        b.buffer(name, (1,), "fp32", "input")
    b.round(ring_step(b, axis, "a", "a.next"))
    return phases(b)[0]


def aligned(mesh: Mesh, elements: int, dtype: str = "fp16") -> list[Phase]:
    """The skew of an activation's tiles on a square mesh: half a ring's steps, and a copy back on odd lines."""
    side = mesh.shape[0]
    rounds = side // 2
    if not rounds:
        return []
    step = _unit_shift(mesh, "x").scaled(elements, dtype, 1)
    moved = replace(
        step,
        rounds=rounds,
        stages=rounds,
        hops=(side - 1) // mesh.fold[1] if side > 2 else 1,  # two a step, but for the turn at one end of the line
        busiest_words=step.busiest_words * rounds,
        mean_words=step.mean_words * rounds,
        link_bytes=step.link_bytes * (side * side // 4) // side,  # lines move position(i) steps, the shorter way
        packed=int(elements > 1 and dtype != "fp32"),
    )

    def back(b: Builder) -> None:
        for name in ("a", "a.next"):
            b.buffer(name, (elements,), dtype, "input")
        b.round(b.local("copy", "a", "a.next", size=elements))

    return [moved, *(replace(one, fold=mesh.fold[0] * mesh.fold[1]) for one in work(back, mesh.device))]


def multiplied(mesh: Mesh, m: int, k: int, n: int, dtype: str = "fp16") -> list[Phase]:
    """The compute-shift rounds of a MeshGEMM with these tiles."""
    if mesh.fold != (1, 1) or mesh.shape == (1, 1):  # folded, links of x and y carry different numbers of lines
        return _multiplied(mesh, m, k, n, dtype)
    sizes = [BYTES[dtype] * one for one in (m * k, k * n, m * n)]
    words = max(-(-size // WORD_BYTES) for size in sizes[:2])
    made = []
    for phase in _multiplied(mesh, 1, 1, 1, "fp32"):
        shape: dict[str, Any] = {"elements": phase.elements * k * n, "sram_bytes": phase.elements * 2 * sizes[1]}
        if phase.kind == "product":
            shape = {
                "busiest_words": phase.busiest_words * words,
                "mean_words": phase.mean_words * words,
                "link_bytes": phase.link_bytes * sum(sizes[:2]) // (2 * WORD_BYTES),
                "packed": 0 if dtype == "fp32" else (m * k > 1) + (k * n > 1),
                "products": (Product(m, k, n, 1, dtype),),
                "macs": m * k * n,
                "sram_bytes": sum(sizes),
            }
        made.append(replace(phase, **shape))
    return made


@lru_cache(maxsize=256)
def _multiplied(mesh: Mesh, m: int, k: int, n: int, dtype: str) -> list[Phase]:
    b = Builder(mesh, "mesh gemm")
    for name, tile in (("a", (m, k)), ("b", (k, n)), ("c", (m, n))):
        b.buffer(name, tile, dtype, "input")
    meshgemm(b, "a", "b", "c", m=m, k=k, n=n)
    return phases(b)


@lru_cache(maxsize=1024)
def product(mesh: Mesh, k: int, n: int, dtype: str = "fp16") -> list[Phase]:
    """The local product of a MeshGEMV with these tiles."""

    def build(b: Builder) -> None:
        for name, tile in (("x", (1, k)), ("w", (k, n)), ("y", (1, n))):
            b.buffer(name, tile, dtype, "input")
        meshgemv(b, "x", "w", "y", "y", m=1, k=k, n=n)

    return work(build, mesh.device)


def best_groups(length: int, c: Constants) -> tuple[int, ...]:
    """The number of groups on the first of two levels that makes an all-reduce of one word fastest."""
    return _best_groups(length, c.stage_cycles, c.hop_cycles)


@lru_cache(maxsize=1024)
def _best_groups(length: int, stage: float, hop: float) -> tuple[int, ...]:
    """The least set-ups and hops of a two-level tree over a line, and of the multicast from its root.

    As `wafer_triton.schedule.reduce.ktree` groups: the first `length % count` groups are one core larger, roots lie in
    the middle.
    """
    if length <= 4:
        return ()
    count = np.arange(1, length + 1)
    size, larger = np.divmod(length, count)

    def root(group: Index | int) -> Index:
        return group * size + np.minimum(group, larger) + (size + (group < larger)) // 2

    top, depth = count // 2, (size + (larger > 0)) // 2
    middle = root(top)
    hops = depth + np.maximum(middle - root(0), root(count - 1) - middle) + np.maximum(middle, length - 1 - middle)
    return (int(count[np.argmin((depth + top) * stage + hops * hop)]),)
