"""MeshGEMM and GEMM-T (WaferLLM, OSDI'25, section 5): compute-shift along a closed two-hop ring.

The ring interleaves a line of P cores, 0, 2, 4, ..., 5, 3, 1 and back to 0, so that no neighbours on it are more than
two hops apart; two is the least for a closed ring on a line. Both axes use it. Tile (i, j) of a matrix starts on core
(i, j); `position` counts along the ring. After Cannon's skew along the ring core (i, j) holds A[i, k] and B[k, j] with
position(k) = position(i) + position(j), and each round moves A one ring step along x and B one along y.

Rectangular meshes are folded to their square lcm grid first (`Mesh.square`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from wafer_triton.errors import MeshError
from wafer_triton.schedule.reduce import reduce
from wafer_triton.schedule.rounds import Builder, Cores, Exchange, Index, Round


@cache
def ring(size: int) -> Index:
    """The cores of a line of `size` in ring order: evens upwards, then odds downwards."""
    order = np.concatenate([np.arange(0, size, 2), np.arange(1, size, 2)[::-1]])
    order.flags.writeable = False
    return order


@cache
def ring_position(size: int) -> Index:
    """Where on the ring each core of the line lies."""
    position = np.argsort(ring(size))
    position.flags.writeable = False
    return position


def ring_step(b: Builder, axis: str, src: str, dst: str, step: int = 1, lines: Index | None = None) -> Exchange:
    """Every core sends its tile one ring step forwards (step = 1) or backwards (-1)."""
    order = ring(b.mesh.length(axis))
    return b.exchange(axis, src, dst, order, np.roll(order, -step), lines)


def align(b: Builder, name: str, axis: str) -> None:
    """Skew the buffer `name`: along x, the tiles of row i move position(i) ring steps backwards; along y likewise.

    Half a ring at most, each line in its shorter direction; lines that moved an odd number of times copy back from the
    second buffer.
    """
    size = _side(b)
    spare = b.like(f"{name}.next", name)
    position = ring_position(size)
    backwards = position <= size // 2
    steps = np.where(backwards, position, size - position)
    for number in range(int(steps.max())):
        src, dst = (name, spare) if number % 2 == 0 else (spare, name)
        moving = steps > number
        b.round(
            *(
                ring_step(b, axis, src, dst, step, np.flatnonzero(moving & side))
                for step, side in ((-1, backwards), (1, ~backwards))
                if (moving & side).any()
            ),
            label=f"align {name}",
        )
    odd = np.flatnonzero(steps % 2)
    if odd.size:
        where = Cores(axis, np.arange(size), odd)
        b.round(b.local("copy", name, spare, where, size=b.buffers[name].numel), label=f"align {name}")


def meshgemm(
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
    label: str = "gemm",
) -> None:
    """C = A B for aligned A and B (see `align`): P rounds, each a shift of both beside a local product.

    The shift of the last round brings B back where it started, so that weights stay in place between uses; with an
    odd P from the second buffer. Local tiles: a [heads, m, k], w [k, kv_heads, n], c [m, heads, n].
    """
    size = _side(b)
    params: dict[str, Any] = {"m": m, "k": k, "n": n, "heads": heads, "kv_heads": kv_heads, "accumulate": accumulate}
    hands = (a, w)
    spare = (b.like(f"{a}.next", a), b.like(f"{w}.next", w))
    made: dict[tuple[bool, bool], Round] = {}
    for number in range(size):
        now, following = (hands, spare) if number % 2 == 0 else (spare, hands)
        kind = (number == 0, number % 2 == 0)
        if kind not in made:
            product = b.local("gemm", c, now, add=number > 0, **params)
            shifts = [ring_step(b, axis, now[i], following[i]) for i, axis in enumerate("xy")] if size > 1 else []
            made[kind] = Round(tuple(shifts), (product,), label)
        b.rounds.append(made[kind])  # equal rounds are one object: they are validated, planned and priced once
    _come_home(b, w, spare[1], label)


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
    label: str = "gemm-t",
) -> None:
    """C = A B^T without a transpose: B circles along y; each round's partial products are summed along x.

    No alignment: in round t row i meets block k of B, position(k) = position(i) - t, and the sum over its row goes to
    the core in column k, which owns that block of C. B ends where it began. Local tiles: a [m, heads, k],
    w [n, kv_heads, k], c [heads, m, n].
    """
    size = _side(b)
    spare = b.like(f"{w}.next", w)
    part = b.like(f"{c}.part", c)
    params: dict[str, Any] = {"m": m, "k": k, "n": n, "heads": heads, "kv_heads": kv_heads, "accumulate": accumulate}
    rows = np.arange(size)
    for number in range(size):
        now, following = (w, spare) if number % 2 == 0 else (spare, w)
        owner = ring(size)[(ring_position(size) - number) % size]
        shift = [ring_step(b, "y", now, following)] if size > 1 else []
        b.round(b.local("gemm_t", part, (a, now), **params), *shift, label=label)
        reduce(b, part, "x", root=owner, label=label)
        b.round(b.local("copy", c, part, Cores("x", owner[:, None], rows), size=b.buffers[c].numel), label=label)
    _come_home(b, w, spare, label)


def _come_home(b: Builder, name: str, spare: str, label: str) -> None:
    """After an odd number of shifts the tiles that came full circle lie in the second buffer."""
    if _side(b) % 2 and _side(b) > 1:
        b.round(b.local("copy", name, spare, size=b.buffers[name].numel), label=label)


def _side(b: Builder) -> int:
    rows, cols = b.mesh.shape
    if rows != cols:
        raise MeshError(f"{b.name}: compute-shift needs a square grid, not {rows} x {cols}; use mesh.square()")
    return rows
