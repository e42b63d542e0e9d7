"""Distributed GEMM (WaferLLM, OSDI'25, section 5): MeshGEMM, GEMM-T, and the rivals Cannon, SUMMA and all-gather.

Tile (i, j) of a matrix starts on core (i, j). Compute-shift skews both operands along a closed ring first: core (i, j)
then holds A[i, k] and B[k, j] with position(k) = position(i) + position(j), where positions count along the ring. Each
round moves A one ring step along x and B one along y. A step of MeshGEMM's ring takes at most two hops; the wrap-around
of Cannon's crosses the whole line. SUMMA multicasts one column of A and one row of B a round. All-gather collects a
core's whole row of A and column of B before it multiplies.

The grid is square: `Mesh.square` folds a rectangular mesh to its lcm grid. m, k and n are sizes of local tiles:
a [heads, m, k], w [k, kv_heads, n], c [m, heads, n]. With op="gemm_t" the tiles of w are [n, k] and lie where tiles
[k, n] would lie: for A B^T `matmul` first moves tile (j, k) of B to core (k, j). Only `meshgemm_t` needs no such move.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from wafer_triton.errors import MeshError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.collectives import all_gather, multicast, transpose
from wafer_triton.schedule.reduce import reduce
from wafer_triton.schedule.repeat import Section
from wafer_triton.schedule.ring import Ring, ring, ring_ends, ring_position, ring_rows, ring_step, wrapped_line
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Pattern, Round, Slot


def align(
    b: Builder, name: str, axis: str, order: Ring = ring, by: Index | None = None, region: int | None = None
) -> None:
    """Skew the buffer `name`: along x, the tiles of row i move position(i) ring steps backwards; along y likewise.

    `by` [lines] has the ring steps of every line where they are others. Each line moves in its shorter direction, by
    half a ring at most. Lines that moved an odd number of times copy back from the second buffer. With `region` every
    square of `region` cores a side is skewed alone.
    """
    _align(b, ((name, axis),), order, f"align {name}", by, region)


def align_both(b: Builder, a: str, w: str, order: Ring = ring) -> None:
    """Skew a along x and w along y (see `align`) in the same rounds: they take different links."""
    _align(b, ((a, "x"), (w, "y")), order, f"align {a} and {w}")


def _align(
    b: Builder, skewed: tuple[tuple[str, str], ...], order: Ring, label: str, by: Index | None = None,
    region: int | None = None,
) -> None:  # fmt: skip
    size = side(b)
    width = size if region is None else region
    steps = (np.tile(ring_position(width, order), size // width) if by is None else by).tobytes()
    spares = [b.like(f"{name}.next", name) for name, _ in skewed]
    slots = tuple(b.buffers[name].slots for name, _ in skewed)
    moves = _skewing(b.mesh.shape, width, skewed, slots, order, steps, label)
    b.steps += [moves] if moves.count else []
    odd = _skewed_lines(width, steps)[1]
    if odd.size:
        back = (
            b.local("copy", name, spare, Cores(axis, np.arange(size), odd), size=b.buffers[name].numel)
            for (name, axis), spare in zip(skewed, spares, strict=True)
        )
        b.round(*back, label=label)


@lru_cache(maxsize=256)
def _skewing(
    mesh: tuple[int, int], width: int, skewed: tuple[tuple[str, str], ...], slots: tuple[int, ...], order: Ring,
    steps: bytes, label: str,
) -> Section:  # fmt: skip
    """Return the rounds that skew buffers along axes, on rings of `region` cores.

    Schedules that align alike share the rounds, which are then read once.

    `slots` is part of the key: exchanges are planned for a mesh and the buffers' numbers of slots.
    """
    del slots
    times, each = mesh[0] // width, _skewed_lines(width, steps)[0]
    names = [end for name, _ in skewed for end in (name, f"{name}.next")]

    pattern = Pattern("relay", tuple(names))

    def make(number: int) -> Round:
        moves = []
        for name, axis in skewed:
            src, dst = Slot(name), Slot(f"{name}.next")
            ends = (src, dst) if number % 2 == 0 else (dst, src)
            for step, lines in each[number]:
                moves.append(Exchange(axis, *ends, *ring_ends(width, step, order, times), lines))
        return Round(tuple(moves), (), label, pattern)

    alike = "skew", mesh, width, tuple(axis for _, axis in skewed), order, steps
    return Section(len(each), dict.fromkeys(names, (0, len(each) - 1)), make, alike)


@lru_cache(maxsize=128)
def _skewed_lines(size: int, by: bytes) -> tuple[list[list[tuple[int, Index]]], Index]:
    """Return the ring steps of each round of an alignment with their lines, and lines with an odd number of steps."""
    position = np.frombuffer(by, np.int64)
    backwards = position <= size // 2
    steps = np.where(backwards, position, size - position)
    count = int(steps.max())
    rounds: list[list[tuple[int, Index]]] = [[] for _ in range(count)]
    for way, side in ((-1, backwards), (1, ~backwards)):
        number, lines = np.nonzero((steps > np.arange(count)[:, None]) & side)
        for own, together in enumerate(np.split(lines, np.searchsorted(number, np.arange(1, count)))):
            if together.size:
                rounds[own].append((way, together))
    return rounds, np.flatnonzero(steps % 2)


def meshgemm(
    b: Builder,
    a: str,
    w: str,
    c: str | Slot,
    *,
    m: int,
    k: int,
    n: int,
    heads: int = 1,
    kv_heads: int = 1,
    accumulate: str = "fp32",
    label: str = "gemm",
    order: Ring = ring,
    op: str = "gemm",
    again: bool = False,
) -> None:
    """Add C = A B for aligned A and B (see `align`), in P rounds on P x P cores: shifts of both beside a product.

    The last shift brings both back where they started. With an odd P a copy of B from the second buffer follows, so
    that weights stay in place between uses. A is copied as well if it is to be used `again`.
    """
    params: dict[str, Any] = {"m": m, "k": k, "n": n, "heads": heads, "kv_heads": kv_heads, "accumulate": accumulate}

    def product(now: tuple[str, str], add: bool) -> Local:
        return b.local(op, c, now, add=add, **params)

    compute_shift(b, a, w, product, label=label, order=order, again=again)


def compute_shift(
    b: Builder, a: str, w: str, product: Callable[[tuple[str, str], bool], Local], *, label: str, order: Ring = ring,
    again: bool = False, region: int | None = None,
) -> None:  # fmt: skip
    """Add the rounds of `meshgemm` around any local product of the two buffers that hold a and w.

    With `region` every square of `region` cores a side has a product of its own.
    """
    size = side(b) if region is None else region
    hands = (a, w)
    spare = (b.like(f"{a}.next", a), b.like(f"{w}.next", w))
    known: dict[tuple[bool, bool], Round] = {}
    pattern = Pattern("ring", (*hands, *spare)) if size > 1 else None

    def iteration(number: int) -> None:
        now, following = (hands, spare) if number % 2 == 0 else (spare, hands)
        kind = (number == 0, number % 2 == 0)
        if kind not in known:
            ways = enumerate("xy") if size > 1 else ()
            shifts = (ring_step(b, axis, now[i], following[i], order=order, segment=region) for i, axis in ways)
            known[kind] = Round(tuple(shifts), (product(now, number > 0),), label, pattern)
        b.steps.append(known[kind])  # equal rounds are one object: they are validated, planned and priced once

    iteration(0)
    b.repeat(size - 1, lambda number: iteration(number + 1), period=2)
    come_home(b, w, spare[1], label, size)
    if again:
        come_home(b, a, spare[0], label, size)


def meshgemm_t(
    b: Builder,
    a: str,
    w: str,
    c: str,
    *,
    m: int,
    k: int,
    n: int,
    heads: int = 1,
    kv_heads: int = 1,
    accumulate: str = "fp32",
    overlap: bool = True,
    label: str = "gemm-t",
) -> None:
    """Add C = A B^T, without transpose or alignment: B circles along y, and products are summed along x.

    In iteration t row i meets block k of B with position(k) = position(i) - t. The sum over the row goes to the core in
    column k, which owns that block of C. B ends where it began. Local tiles are a [m, heads, k], w [n, kv_heads, k],
    c [heads, m, n]. With `overlap` iterations alternate between two buffers of partial sums, so that the reduction of
    one iteration flows beside the product of the next.
    """
    size = side(b)
    spare = b.like(f"{w}.next", w)
    first = b.like(f"{c}.part", c)
    parts = (first, b.like(f"{c}.part.next", c) if overlap and size > 1 else first)
    params: dict[str, Any] = {"m": m, "k": k, "n": n, "heads": heads, "kv_heads": kv_heads, "accumulate": accumulate}
    rows = np.arange(size)

    def iteration(number: int) -> None:
        (now, following), part = ((w, spare) if number % 2 == 0 else (spare, w)), parts[number % 2]
        owner = ring(size)[(ring_position(size) - number) % size]
        shift = [ring_step(b, "y", now, following)] if size > 1 else []
        b.round(b.local("gemm_t", part, (a, now), **params), *shift, label=label)
        reduce(b, part, "x", root=owner, inbox=first, label=label)
        b.round(b.local("copy", c, part, Cores("x", owner[:, None], rows), size=b.buffers[c].numel), label=label)

    b.repeat(size, iteration, period=2, rows=ring_rows(size, 2))
    come_home(b, w, spare, label)


def summa(
    b: Builder, a: str, w: str, c: str, *, m: int, k: int, n: int, accumulate: str = "fp32", op: str = "gemm",
    label: str = "summa",
) -> None:  # fmt: skip
    """C = A B: in round t column t of A crosses the rows and row t of B the columns, by multicast.

    The arriving panels take as much memory as A and B.
    """
    size = side(b)
    for number in range(size):
        panels = []
        moves, keeps = [], []
        for name, axis in ((a, "x"), (w, "y")):
            panel = b.like(f"{name}.panel", name)
            panels.append(panel)
            moves += multicast(b, name, panel, axis, number)
            keeps.append(b.local("copy", panel, name, Cores(axis, np.array([number])), size=b.buffers[name].numel))
        product = b.local(op, c, panels, add=number > 0, m=m, k=k, n=n, accumulate=accumulate)
        b.round(*moves, *keeps, product, label=label)


def allgather_gemm(
    b: Builder, a: str, w: str, c: str, *, m: int, k: int, n: int, accumulate: str = "fp32", op: str = "gemm",
    label: str = "all-gather gemm",
) -> None:  # fmt: skip
    """C = A B: every core collects its row of A and its column of B, then multiplies."""
    size = side(b)
    hands = []
    for name, axis in ((a, "x"), (w, "y")):
        buffer = b.buffers[name]
        hands.append(b.buffer(f"{name}.all", buffer.tile, buffer.dtype, "scratch", size))
        all_gather(b, name, hands[-1], axis, label=label)
    for number in range(size):
        tiles = [Slot(name, number) for name in hands]
        b.round(b.local(op, c, tiles, add=number > 0, m=m, k=k, n=n, accumulate=accumulate), label=label)


def matmul(
    b: Builder, a: str, w: str, c: str, *, algorithm: str = "mesh", transposed: bool = False, skew: str = "mesh",
    m: int, k: int, n: int, accumulate: str = "fp32",
) -> None:  # fmt: skip
    """C = A B, or A B^T with tiles w [n, k], by "mesh", "cannon", "summa" or "allgather", alignment included.

    MeshGEMM has GEMM-T for A B^T; the other algorithms transpose B on the mesh first. With skew="host" the host gives
    the tiles of B as compute-shift needs them, and A alone is aligned here. Raises MeshError for an unknown algorithm.
    """
    if algorithm not in ALGORITHMS:
        raise MeshError(f"{b.name}: algorithm {algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
    sizes: dict[str, Any] = {"m": m, "k": k, "n": n, "accumulate": accumulate}
    if transposed and algorithm == "mesh":
        meshgemm_t(b, a, w, c, **sizes)
        return
    if transposed:
        turned = b.like(f"{w}.turned", w)
        transpose(b, w, turned)
        w, sizes["op"] = turned, "gemm_t"
    if algorithm not in RINGS:
        ALGORITHMS[algorithm](b, a, w, c, **sizes)
        return
    order = RINGS[algorithm]
    if skew == "host":
        align(b, a, "x", order)
    else:
        align_both(b, a, w, order)
    meshgemm(b, a, w, c, order=order, **sizes)


RINGS: dict[str, Ring] = {"mesh": ring, "cannon": wrapped_line}  # compute-shift: the ring that tiles circle on
ALGORITHMS: dict[str, Callable[..., None]] = {
    "mesh": meshgemm,
    "cannon": meshgemm,
    "summa": summa,
    "allgather": allgather_gemm,
}


def come_home(b: Builder, name: str, spare: str, label: str, size: int | None = None) -> None:
    """After an odd number of shifts the tiles that came full circle, of `size` cores, lie in the second buffer."""
    size = side(b) if size is None else size
    if size % 2 and size > 1:
        b.round(b.local("copy", name, spare, size=b.buffers[name].numel), label=label)


def side(b: Builder) -> int:
    """Return the side of the builder's square grid; MeshError for any other."""
    rows, cols = b.mesh.shape
    if rows != cols:
        raise MeshError(f"{b.name}: compute-shift needs a square grid, not {rows} x {cols}; use mesh.square()")
    return rows


def transpose_by_rings(b: Builder, src: str, dst: str, label: str = "transpose") -> None:
    """Set `dst` of core (i, j) to the tile of core (j, i) by rings, in two P rounds of neighbours; `src` is used up.

    Positions count along the ring. A skew along x brings the tile of (i, j) to column i + j, and the tile of (j, i) as
    well. The tiles of a column then circle along y, and core i of column s copies the tile of s - i as it passes. A
    skew the other way brings every tile to its core.
    """
    size, numel = side(b), b.buffers[src].numel
    position = ring_position(size)
    align(b, src, "x", by=(-position) % size)
    spare, cores = b.like(f"{src}.next", src), ring(size)

    def pass_on(number: int) -> None:
        now, following = (src, spare) if number % 2 == 0 else (spare, src)
        # a core at position t of column s copies in round 2 t - s
        twice = position + number
        columns = np.arange(size) if size % 2 else np.flatnonzero(twice % 2 == 0)
        half = twice[columns] * ((size + 1) // 2) if size % 2 else twice[columns] // 2
        at = np.stack([half] if size % 2 else [half, half + size // 2], 1) % size
        steps: list[Exchange | Local] = []
        if columns.size:
            steps.append(b.local("copy", dst, now, Cores("y", np.sort(cores[at], 1), columns), size=numel))
        if number + 1 < size:
            steps.append(ring_step(b, "y", now, following))
        b.round(*steps, label=label)

    b.repeat(size - 1, pass_on, period=2, rows=ring_rows(size, 1))
    pass_on(size - 1)
    align(b, dst, "x", by=position)
