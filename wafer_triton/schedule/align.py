"""Tiles of a square grid brought to other cores by rings: alignment before compute-shift, and transposition."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from wafer_triton.errors import MeshError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.repeat import Section
from wafer_triton.schedule.ring import Ring, ring, ring_ends, ring_position, ring_rows, ring_step
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Moves, Pattern, Round, Slot, frozen


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

    ends_of = partial(ring_ends, width, order=order, times=times)
    make = partial(_skew_round, skewed, each, ends_of, label, Pattern("relay", tuple(names)))
    alike = "skew", mesh, width, tuple(axis for _, axis in skewed), order, steps
    return Section(len(each), dict.fromkeys(names, (0, len(each) - 1)), make, alike)


def _skew_round(
    skewed: tuple[tuple[str, str], ...], each: list[list[tuple[int, Index]]],
    ends_of: Callable[[int], tuple[Index, Index]], label: str, pattern: Pattern, number: int,
) -> Round:  # fmt: skip
    """Return one round of an alignment; a function of the module, so that schedules can be pickled."""
    moves = []
    for name, axis in skewed:
        src, dst = Slot(name), Slot(f"{name}.next")
        ends = (src, dst) if number % 2 == 0 else (dst, src)
        moves += [Exchange(Moves(axis, *ends_of(step), lines), *ends) for step, lines in each[number]]
    return Round(tuple(moves), (), label, pattern)


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
                rounds[own].append((way, frozen(together)))
    return rounds, np.flatnonzero(steps % 2)


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


def side(b: Builder) -> int:
    """Return the side of the builder's square grid; MeshError for any other."""
    rows, cols = b.mesh.shape
    if rows != cols:
        raise MeshError(f"{b.name}: compute-shift needs a square grid, not {rows} x {cols}; use mesh.square()")
    return rows
