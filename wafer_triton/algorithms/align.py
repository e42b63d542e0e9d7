"""Alignment (skew) before compute-shift, and transposition of a square grid of tiles, both by ring steps."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wafer_triton.algorithms.ring import Order, ring, ring_ends, ring_position, ring_rows, ring_step
from wafer_triton.errors import MeshError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Moves, Round, Slot
from wafer_triton.schedule.steps import Loop


def align(
    b: Builder, name: str, axis: str, order: Order = ring, by: Index | None = None, region: int | None = None
) -> None:
    """Skew the buffer `name`: along x, the tiles of row i move position(i) ring steps backwards; along y likewise.

    `by` [lines] gives the ring steps of each line in place of its position. Each line goes the shorter way round, half
    a ring at most. After an odd number of steps its tiles are copied back from the second buffer. With `region` each
    square of `region` x `region` cores is skewed alone.
    """
    _align(b, ((name, axis),), order, f"align {name}", by, region)


def align_both(b: Builder, a: str, w: str, order: Order = ring) -> None:
    """Skew a along x and w along y (see `align`) in the same rounds: they take different links."""
    _align(b, ((a, "x"), (w, "y")), order, f"align {a} and {w}")


def _align(
    b: Builder, skewed: tuple[tuple[str, str], ...], order: Order, label: str, by: Index | None = None,
    region: int | None = None,
) -> None:  # fmt: skip
    size = side(b)
    width = size if region is None else region
    steps = (np.tile(ring_position(width, order), size // width) if by is None else by).tobytes()
    spares = [b.like(f"{name}.next", name) for name, _ in skewed]
    moves = _skew_loop(b.mesh.shape[0] // width, width, skewed, order, steps, label)
    b.steps += [moves] if moves.body else []
    odd = np.flatnonzero(_skew_steps(width, steps)[0] % 2)
    if odd.size:
        back = (
            b.local("copy", name, spare, Cores(axis, np.arange(size), odd), size=b.buffers[name].numel)
            for (name, axis), spare in zip(skewed, spares, strict=True)
        )
        b.round(*back, label=label)


@lru_cache(maxsize=8)
def _skew_loop(
    times: int, width: int, skewed: tuple[tuple[str, str], ...], order: Order, steps: bytes, label: str
) -> Loop:  # fmt: skip
    """Return the rounds that skew each (buffer, axis), on `times` rings of `width` cores a line.

    Schedules with the same alignment share the rounds, which are then read once.
    """
    rounds, moves = [], {axis: _skew_moves(axis, times, width, order, steps) for _, axis in skewed}
    buffers = [(Slot(name), Slot(f"{name}.next")) for name, _ in skewed]
    for number in range(len(moves[skewed[0][1]])):
        exchanges = []
        for (_, axis), (first, second) in zip(skewed, buffers, strict=True):
            ends = (first, second) if number % 2 == 0 else (second, first)
            exchanges += [Exchange(each, *ends) for each in moves[axis][number]]
        rounds.append(Round(tuple(exchanges), (), label))
    return Loop(tuple(rounds), 1)


@lru_cache(maxsize=2)
def _skew_moves(axis: str, times: int, width: int, order: Order, by: bytes) -> list[list[Moves]]:
    """Return the moves of each round of an alignment along `axis`, by `by` ring steps a line (int64 as bytes)."""
    steps, backwards = _skew_steps(width, by)
    rounds: list[list[Moves]] = [[] for _ in range(steps.max())]
    for step, chosen in ((-1, backwards), (1, ~backwards)):
        ends = ring_ends(width, step, order, times)
        for number, moves in enumerate(rounds):
            lines = np.flatnonzero(chosen & (steps > number))
            moves += [Moves(axis, *ends, lines)] if lines.size else []
    return rounds


def _skew_steps(size: int, by: bytes) -> tuple[Index, NDArray[np.bool_]]:
    """Return the ring steps that each line moves in its shorter direction, and whether this is backwards."""
    position = np.frombuffer(by, np.int64)
    backwards = position <= size // 2
    return np.where(backwards, position, size - position), backwards


def transpose_by_rings(b: Builder, src: str, dst: str, label: str = "transpose") -> None:
    """Set `dst` of core (i, j) to the tile of core (j, i), in about 2 P rounds of ring steps; `src` is overwritten.

    In positions on the ring: a skew along x brings the tiles of (i, j) and of (j, i) to column s = i + j. The tiles of
    a column then circle along y, and core i copies the tile of row s - i as it passes. The opposite skew brings every
    tile to its core.
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

    with b.loop((size - 1) // 2, ring_rows(size, 1)):
        pass_on(0)
        pass_on(1)
    for number in range((size - 1) // 2 * 2, size):
        pass_on(number)
    align(b, dst, "x", by=position)


def side(b: Builder) -> int:
    """Return the side of the builder's square grid; MeshError for any other."""
    rows, cols = b.mesh.shape
    if rows != cols:
        raise MeshError(f"{b.name}: compute-shift needs a square grid, not {rows} x {cols}; use mesh.square()")
    return rows
