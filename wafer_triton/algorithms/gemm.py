"""Distributed GEMM (WaferLLM, OSDI'25, section 5): MeshGEMM, GEMM-T, and the rivals Cannon, SUMMA and all-gather.

Tile (i, j) of a matrix starts on core (i, j). Compute-shift skews both operands along a closed ring first: core (i, j)
then holds A[i, k] and B[k, j] with position(k) = position(i) + position(j), where positions count along the ring. Each
round moves A one ring step along x and B one along y. A step of MeshGEMM's ring takes at most two hops; the wrap-around
of Cannon's crosses the whole line. SUMMA multicasts one column of A and one row of B a round. All-gather collects a
core's whole row of A and column of B before it multiplies.

The grid is square: `Mesh.square` folds a rectangular mesh to its lcm grid. m, k and n are sizes of local tiles:
a [heads, m, k], w [k, kv_heads, n], c [m, heads, n]. With op="gemm_t" the tiles of w are [n, k] and lie where tiles
[k, n] would lie: for A B^T `matmul` first moves tile (j, k) of B to core (k, j), and for A^T B likewise one of A. Only
`meshgemm_t` needs no such move.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wafer_triton.algorithms.align import align, align_both, side
from wafer_triton.algorithms.collectives import all_gather, multicast, transpose
from wafer_triton.algorithms.reduce import reduce
from wafer_triton.algorithms.ring import Order, ring, ring_position, ring_rows, ring_step, wrapped_line
from wafer_triton.errors import MeshError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Local, Slot, as_slot
from wafer_triton.schedule.steps import Ring


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
    reuse_a: bool = False,
) -> None:
    """Add the rounds of C = A B for aligned A and B (see `align`): P on P x P cores, each a product and both shifts.

    The last shift brings both back where they started. With an odd P a copy of B from the second buffer follows, so
    that weights stay in place between uses. With `reuse_a` A is copied back, too.
    """
    params: dict[str, Any] = {"m": m, "k": k, "n": n, "heads": heads, "kv_heads": kv_heads, "accumulate": accumulate}
    compute_shift(b, a, w, b.local("gemm", c, (a, w), **params), label=label, reuse_a=reuse_a)


def compute_shift(
    b: Builder, a: str, w: str, product: Local, *, label: str, order: Order = ring, reuse_a: bool = False,
    region: int | None = None,
) -> None:  # fmt: skip
    """Add the rounds of `meshgemm` around any local product of a and w.

    With `region` every square of `region` x `region` cores has a product of its own.
    """
    size = side(b) if region is None else region
    buffers = tuple((as_slot(name), as_slot(b.like(f"{name}.next", name))) for name in (a, w))
    steps = [ring_step(b, axis, *ends, order=order, segment=region) for axis, ends in zip("xy", buffers, strict=True)]
    shifts = tuple(step.moves for step in steps) if size > 1 else ()
    b.steps.append(Ring(product, buffers if size > 1 else (), shifts, size, label))
    copy_back(b, w, buffers[1][1].buffer, label, size)
    if reuse_a:
        copy_back(b, a, buffers[0][1].buffer, label, size)


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
    axis: str = "x",
    label: str = "gemm-t",
) -> None:
    """Add the rounds of C = A B^T, without transpose or alignment: B circles along y, products are summed along x.

    In iteration t row i has block k of B with position(k) = position(i) - t. The sum over the row goes to the core in
    column k, which owns that block of C. B ends where it began. Local tiles are a [m, heads, k], w [n, kv_heads, k],
    c [heads, m, n]. With `overlap` iterations alternate between two buffers of partial sums, so that the reduction of
    one iteration flows beside the product of the next.

    With `axis` "y" it is the mirror, C = A^T B: A circles along x, products are summed along y, and the sum goes to the
    core in row k. Local tiles are a [k, m], w [k, n], c [m, n], without heads.
    """
    size = side(b)
    circling, around = (w, "y") if axis == "x" else (a, "x")
    spare = b.like(f"{circling}.next", circling)
    first = b.like(f"{c}.part", c)
    parts = (first, b.like(f"{c}.part.next", c) if overlap and size > 1 else first)
    params: dict[str, Any] = {"m": m, "k": k, "n": n, "accumulate": accumulate}
    params |= {"heads": heads, "kv_heads": kv_heads} if axis == "x" else {}
    lines = np.arange(size)

    def iteration(number: int) -> None:
        now, following = (circling, spare) if number % 2 == 0 else (spare, circling)
        operands, part = ((a, now) if axis == "x" else (now, w)), parts[number % 2]
        owner = ring(size)[(ring_position(size) - number) % size]
        shift = [ring_step(b, around, now, following)] if size > 1 else []
        b.round(b.local(PRODUCTS["b" if axis == "x" else "a"], part, operands, **params), *shift, label=label)
        reduce(b, part, axis, root=owner, inbox=first, label=label)
        b.round(b.local("copy", c, part, Cores(axis, owner[:, None], lines), size=b.buffers[c].numel), label=label)

    lines_turn = {"rows" if axis == "x" else "cols": ring_rows(size, 2)}
    with b.loop(size // 2, **lines_turn):  # a line repeats what the line two ring steps behind it did
        iteration(0)
        iteration(1)
    if size % 2:
        iteration(size - 1)
    copy_back(b, circling, spare, label)


def summa(
    b: Builder, a: str, w: str, c: str, *, m: int, k: int, n: int, accumulate: str = "fp32", op: str = "gemm",
    label: str = "summa",
) -> None:  # fmt: skip
    """C = A B: round t multicasts column t of A along the rows and row t of B along the columns.

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
    gathered = []
    for name, axis in ((a, "x"), (w, "y")):
        buffer = b.buffers[name]
        gathered.append(b.buffer(f"{name}.all", buffer.tile, buffer.dtype, "scratch", size))
        all_gather(b, name, gathered[-1], axis, label=label)
    for number in range(size):
        tiles = [Slot(name, number) for name in gathered]
        b.round(b.local(op, c, tiles, add=number > 0, m=m, k=k, n=n, accumulate=accumulate), label=label)


def matmul(
    b: Builder, a: str, w: str, c: str, *, algorithm: str = "mesh", transposed: str = "", skew: str = "mesh",
    m: int, k: int, n: int, accumulate: str = "fp32",
) -> None:  # fmt: skip
    """C = A B by "mesh", "cannon", "summa" or "allgather", alignment included.

    With `transposed` "b" it is A B^T with tiles w [n, k], with "a" A^T B with tiles a [k, m]: "mesh" computes them by
    GEMM-T, the other algorithms transpose that operand on the mesh first. With skew="host" the tiles of B are given
    skewed, so A alone is aligned. Raises MeshError for an unknown algorithm, and another `transposed`.
    """
    if algorithm not in ALGORITHMS:
        raise MeshError(f"{b.name}: algorithm {algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
    if transposed not in PRODUCTS:
        raise MeshError(f"{b.name}: transposed {transposed!r}: choose 'a', 'b' or '' for neither")
    sizes: dict[str, Any] = {"m": m, "k": k, "n": n, "accumulate": accumulate}
    if transposed and algorithm == "mesh":
        meshgemm_t(b, a, w, c, **sizes, axis="x" if transposed == "b" else "y")
        return
    if transposed:
        operand = a if transposed == "a" else w
        turned = b.like(f"{operand}.turned", operand)
        transpose(b, operand, turned)
        a, w = (turned, w) if transposed == "a" else (a, turned)
    if algorithm not in RINGS:
        ALGORITHMS[algorithm](b, a, w, c, op=PRODUCTS[transposed], **sizes)
        return
    order = RINGS[algorithm]
    if skew == "host":
        align(b, a, "x", order)
    else:
        align_both(b, a, w, order)
    compute_shift(b, a, w, b.local(PRODUCTS[transposed], c, (a, w), **sizes), label="gemm", order=order)


PRODUCTS = {"": "gemm", "a": "gemm_tn", "b": "gemm_t"}  # local products by the operand that is transposed
RINGS: dict[str, Order] = {"mesh": ring, "cannon": wrapped_line}  # compute-shift: the ring that tiles circle on
ALGORITHMS: dict[str, Callable[..., None]] = {
    "mesh": meshgemm,
    "cannon": meshgemm,
    "summa": summa,
    "allgather": allgather_gemm,
}


def copy_back(b: Builder, name: str, spare: str, label: str, size: int | None = None) -> None:
    """Copy tiles back from the second buffer `spare`, where a full circle of an odd number of cores leaves them."""
    size = side(b) if size is None else size
    if size % 2 and size > 1:
        b.round(b.local("copy", name, spare, size=b.buffers[name].numel), label=label)
