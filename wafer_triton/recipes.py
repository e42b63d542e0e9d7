"""Recipes: the operands' shapes and dtype to a schedule, and how operands are cut for it.

A recipe is made once for a mesh, a dtype and shapes, and serves every call with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from wafer_triton.dtype import accumulator
from wafer_triton.layout import scatter
from wafer_triton.mesh import Mesh
from wafer_triton.schedule import reduce as reduce_schedules
from wafer_triton.schedule import sram
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.gemm import matmul
from wafer_triton.schedule.gemv import meshgemv
from wafer_triton.schedule.norm import rms_norm as rms_norm_rounds
from wafer_triton.schedule.norm import softmax_parts
from wafer_triton.schedule.rounds import Schedule

Shape = tuple[int, ...]
Groups = tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class Recipe:
    """A schedule with its input buffers and how each is cut, and its output buffer, cut and whole shape.

    The cut "" means that the operand is given as tiles [rows, cols, ...].
    """

    schedule: Schedule
    inputs: tuple[tuple[str, str], ...]
    output: tuple[str, str, Shape]
    constants: Mapping[str, Tensor] = field(default_factory=dict)


@lru_cache(maxsize=256)
def recipe(
    name: str, mesh: Mesh, dtype: str, shapes: tuple[Shape, ...], options: tuple[tuple[str, Any], ...]
) -> Recipe:
    """The recipe of an operation; if it overflows SRAM, the SramError names the smallest mesh that fits."""
    return sram.fitting(lambda one: _RECIPES[name](one, dtype, *shapes, **dict(options)), mesh)


def _gemm(
    mesh: Mesh, dtype: str, a: Shape, b: Shape, algorithm: str = "mesh", transposed: bool = False,
    accumulate: str = "fp32",
) -> Recipe:  # fmt: skip
    (m, k), n = a, b[0 if transposed else 1]
    square = mesh.square()
    side = square.shape[0]
    tm, tk, tn = (-(-size // side) for size in (m, k, n))
    made = Builder(square, f"{algorithm} gemm [{m}, {k}] x [{', '.join(map(str, b))}]{'^T' if transposed else ''}")
    made.buffer("a", (tm, tk), dtype, "input")
    made.buffer("b", (tn, tk) if transposed else (tk, tn), dtype, "input")
    made.buffer("c", (tm, tn), accumulator(dtype, accumulate))
    matmul(made, "a", "b", "c", algorithm=algorithm, transposed=transposed, m=tm, k=tk, n=tn, accumulate=accumulate)
    cut = "(y n) (x k)" if transposed else "(y k) (x n)"
    return Recipe(_rounded(made, "c", dtype), (("a", "(y m) (x k)"), ("b", cut)), ("out", "(y m) (x n)", (m, n)))


def _gemv(
    mesh: Mesh, dtype: str, x: Shape, w: Shape, axis: str = "y", algorithm: str = "ktree", groups: Groups = None,
    accumulate: str = "fp32",
) -> Recipe:  # fmt: skip
    (m, k), n = x, w[1]
    other = "x" if axis == "y" else "y"
    tk, tn = -(-k // mesh.length(axis)), -(-n // mesh.length(other))
    made = Builder(mesh, f"mesh_gemv [{m}, {k}] x [{k}, {n}]")
    made.buffer("x", (m, tk), dtype, "input")
    made.buffer("w", (tk, tn), dtype, "input")
    made.buffer("y", (m, tn), accumulator(dtype, accumulate))
    meshgemv(made, "x", "w", "y", axis, m=m, k=tk, n=tn, groups=groups, algorithm=algorithm, accumulate=accumulate)
    return Recipe(
        _rounded(made, "y", dtype),
        (("x", f"m ({axis} k)"), ("w", f"({axis} k) ({other} n)")),
        ("out", f"m ({other} n)", (m, n)),
    )


def _all_reduce(
    mesh: Mesh, dtype: str, x: Shape, axis: str = "x", op: str = "add", algorithm: str = "ktree", groups: Groups = None
) -> Recipe:
    made = Builder(mesh, f"all_reduce along {axis}")
    made.buffer("x", x[2:] or (1,), dtype, "output")
    reduce_schedules.all_reduce(made, "x", axis, op=op, algorithm=algorithm, groups=groups)
    return Recipe(made.build(), (("x", ""),), ("x", "", x))


def _rms_norm(mesh: Mesh, dtype: str, x: Shape, weight: Shape, eps: float = 1e-6) -> Recipe:
    m, n = x
    tm, tn = -(-m // mesh.shape[0]), -(-n // mesh.shape[1])
    made = Builder(mesh, f"rms_norm [{m}, {n}]")
    made.buffer("x", (tm, tn), dtype, "input")
    made.buffer("weight", (tn,), dtype, "input")
    made.buffer("out", (tm, tn), dtype, "output")
    rms_norm_rounds(made, "x", "weight", "out", "x", width=n, eps=eps)
    return Recipe(made.build(), (("x", "(y m) (x n)"), ("weight", "(x n)")), ("out", "(y m) (x n)", x))


def _softmax(mesh: Mesh, dtype: str, x: Shape, scale: float = 1.0) -> Recipe:
    m, n = x
    tm, tn = -(-m // mesh.shape[0]), -(-n // mesh.shape[1])
    made = Builder(mesh, f"softmax [{m}, {n}]")
    made.buffer("x", (1, tm, tn), dtype, "input")
    made.buffer("bias", (tm, tn), "fp32", "input")
    made.buffer("p", (1, tm, tn), "fp32")
    made.buffer("out", (tm, tn), dtype, "output")
    z = softmax_parts(made, "x", "bias", "p", "x", scale=scale)
    made.round(made.local("normalize", "out", ("p", z), m=tm, heads=1, n=tn), label="softmax")
    # columns of padding must not count
    bias = torch.zeros(m, tn * mesh.shape[1])
    bias[:, n:] = float("-inf")
    cut = scatter(bias, mesh, "(y m) (x n)").tiles
    return Recipe(made.build(), (("x", "(y m) (x n)"),), ("out", "(y m) (x n)", x), {"bias": cut})


def _rounded(made: Builder, acc: str, dtype: str) -> Schedule:
    """The schedule with a last step that rounds the sums to the operands' dtype."""
    tile = made.buffers[acc].tile
    made.buffer("out", tile, dtype, "output")
    made.round(made.local("copy", "out", acc, size=made.buffers[acc].numel), label="round")
    return made.build()


_RECIPES: dict[str, Callable[..., Recipe]] = {
    "gemm": _gemm,
    "gemv": _gemv,
    "all_reduce": _all_reduce,
    "rms_norm": _rms_norm,
    "softmax": _softmax,
}
