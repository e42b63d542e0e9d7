"""Programs that are both run and priced: whole schedules of one product, with tiles as large as the mesh requires.

As on silicon, the host skews the weights of compute-shift products before they start, and activations are skewed on
the mesh.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from wafer_triton.errors import MeshError, ShapeError
from wafer_triton.mesh import Mesh
from wafer_triton.schedule import gemm as gemm_schedules
from wafer_triton.schedule import sram
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.gemv import meshgemv
from wafer_triton.schedule.ring import ring, wrapped_line
from wafer_triton.schedule.rounds import Schedule

_SHIFTED = {"mesh": ring, "cannon": wrapped_line}  # compute-shift: the ring that tiles circle on
GEMM_ALGORITHMS = tuple(gemm_schedules.ALGORITHMS)


def tiles(length: int, *sizes: int) -> tuple[int, ...]:
    """Each size's share of one core when it is cut over a line; ShapeError unless all are positive."""
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ShapeError(f"size {size!r} must be a whole number of at least 1")
    return tuple(-(-size // length) for size in sizes)


@lru_cache(maxsize=64)
def gemm(mesh: Mesh, m: int, k: int, n: int, dtype: str = "fp16", algorithm: str = "mesh") -> Schedule:
    """C [m, n] = A [m, k] B [k, n]: buffers a, b (for "mesh" and "cannon" skewed by the host) and c.

    Raises MeshError for an unknown algorithm, SramError with the smallest mesh that fits.
    """
    if algorithm not in GEMM_ALGORITHMS:
        raise MeshError(f"GEMM algorithm {algorithm!r}: choose one of {', '.join(GEMM_ALGORITHMS)}")

    def build(on: Mesh) -> Schedule:
        square = on.square()
        tm, tk, tn = tiles(square.shape[0], m, k, n)
        made = Builder(square, f"{algorithm} gemm [{m}, {k}] x [{k}, {n}]")
        for name, tile, role in (("a", (tm, tk), "input"), ("b", (tk, tn), "input"), ("c", (tm, tn), "output")):
            made.buffer(name, tile, dtype, role)
        sizes: dict[str, Any] = {"m": tm, "k": tk, "n": tn}
        if algorithm in _SHIFTED:
            gemm_schedules.align(made, "a", "x", _SHIFTED[algorithm])
            gemm_schedules.meshgemm(made, "a", "b", "c", order=_SHIFTED[algorithm], **sizes)
        else:
            gemm_schedules.ALGORITHMS[algorithm](made, "a", "b", "c", **sizes)
        return made.build()

    return sram.fitting(build, mesh)


@lru_cache(maxsize=64)
def gemv(
    mesh: Mesh, k: int, n: int, dtype: str = "fp16", algorithm: str = "ktree", groups: tuple[int, ...] | None = None,
    axis: str = "y",
) -> Schedule:  # fmt: skip
    """y [n] = x [k] W [k, n], x cut along `axis`: buffers x, w and y, which every core of a line gets.

    Raises MeshError for an unknown algorithm or unfit groups, SramError with the smallest mesh that fits.
    """

    def build(on: Mesh) -> Schedule:
        other = "x" if axis == "y" else "y"
        (tk,), (tn,) = tiles(on.length(axis), k), tiles(on.length(other), n)
        made = Builder(on, f"{algorithm} gemv [1, {k}] x [{k}, {n}]")
        for name, tile, role in (("x", (1, tk), "input"), ("w", (tk, tn), "input"), ("y", (1, tn), "output")):
            made.buffer(name, tile, dtype, role)
        meshgemv(made, "x", "w", "y", axis, m=1, k=tk, n=tn, algorithm=algorithm, groups=groups)
        return made.build()

    return sram.fitting(build, mesh)
