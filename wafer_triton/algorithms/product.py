"""Recipes of whole operations: the schedule for given shapes and dtype, and how the operands are cut for it.

A recipe is built once for a mesh, a dtype and shapes, and serves every call with them. A dtype of `dtype.STORED`
(int8, fp8) is the one in which the second operand is stored. The kernels measured on silicon are these products with
two options: `skew="host"`, with which the host skews the weights of compute-shift, and `sums` of the operands' dtype,
which saves the last rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from inspect import signature
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafer_triton.algorithms import norm as norms
from wafer_triton.algorithms import reduce as reduce_schedules
from wafer_triton.algorithms.all_to_all import all_to_all
from wafer_triton.algorithms.gemm import matmul
from wafer_triton.algorithms.gemv import meshgemv
from wafer_triton.device.dtype import accumulator, tile_dtype
from wafer_triton.device.mesh import Mesh, MeshLike, as_mesh
from wafer_triton.errors import ArgumentError, ShapeError, WaferError, article, shown
from wafer_triton.schedule import sram
from wafer_triton.schedule.builder import Builder, drafting
from wafer_triton.schedule.schedule import Schedule

SMALL = 64 * 64  # cores
Shape = tuple[int, ...]
Groups = tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class Recipe:
    """A schedule, its input buffers with their partition specs, and its output buffer with its spec and whole shape.

    The spec "" stands for an operand that is given as tiles [rows, cols, ...]; `reduce_axis` is the mesh axis over
    which such tiles are combined. `constants` are inputs that follow from the shapes, each with its values and spec.
    `shapes` are the shapes of the inputs; a schedule of the user's own has none. `reference`, if there is one, computes
    the output in plain torch from the whole, padded inputs and then the constants.
    """

    schedule: Schedule
    inputs: tuple[tuple[str, str], ...]
    output: tuple[str, str, Shape]
    reference: Callable[..., Any] | None = None
    constants: Mapping[str, tuple[NDArray[np.float32], str]] = field(default_factory=dict)
    reduce_axis: str = ""
    shapes: tuple[Shape, ...] = ()


def recipe(
    name: str, mesh: MeshLike | None, dtype: str, shapes: tuple[Shape, ...], options: tuple[tuple[str, Any], ...] = ()
) -> Recipe:
    """Return the recipe of an operation: "gemm", "gemv", "all_reduce", "all_to_all", "rms_norm" or "softmax".

    Backward passes add "outer" (the gradient of a GEMV's matrix), "rms_norm_dx", "rms_norm_dw" and "softmax_dx".
    `shapes` are those of the operands, as of `mesh_gemm` and so on; of an all-reduce or an all-to-all they are those of
    the tiles [rows, cols, ...]. `options` are pairs, such as (("algorithm", "cannon"), ("transposed", "b")); the error
    for an unknown one names all. `recipe(...).schedule` is the schedule.

    Raises MeshError or ShapeError for wrong options or sizes, SramError where a core does not hold the buffers.
    """
    mesh = mesh if type(mesh) is int else as_mesh(mesh)  # a side is soon found again
    built = _built[(mesh * mesh if isinstance(mesh, int) else mesh.cores) > SMALL]
    try:
        return built(name, mesh, dtype, shapes, options)
    except TypeError as error:  # a list has no hash
        if isinstance(error, WaferError):
            raise
        plain = tuple(_as_tuples(value) for value in (name, mesh, dtype, shapes, options))
    return built(*plain)


def clear_recipes() -> None:
    """Empty the caches of recipes."""
    for built in _built:
        built.cache_clear()


def _as_tuples(value: Any) -> Any:
    """Return tuples for lists; ArgumentError for a value without a hash."""
    if isinstance(value, list | tuple):
        return tuple(map(_as_tuples, value))
    if not isinstance(value, Hashable):
        raise ArgumentError(
            f"recipe of {shown(value)}, {article(type(value).__name__)}: give names, numbers and tuples of them"
        )
    return value


def _recipe(
    name: str, mesh: Mesh | int, dtype: str, shapes: tuple[Shape, ...], options: tuple[tuple[str, Any], ...]
) -> Recipe:
    if name not in _RECIPES:
        raise ShapeError(f"recipe {shown(name)}: choose one of {', '.join(_RECIPES)}")
    if not isinstance(shapes, tuple) or not all(isinstance(shape, tuple) for shape in shapes):
        raise ShapeError(f"recipe {name!r}: shapes {shown(shapes)}: give a tuple of shapes, as ((8, 4), (4, 2))")
    pairs = isinstance(options, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in options)
    if not pairs or not all(isinstance(key, str) for key, _ in options):
        raise ShapeError(f'recipe {name!r}: options {shown(options)}: give pairs, as (("algorithm", "cannon"),)')
    known = list(signature(_RECIPES[name]).parameters)
    if unknown := [key for key, _ in options if key not in known]:
        others = ", ".join(known[2 + len(shapes) :]) or "none"
        raise ShapeError(f"recipe {name!r}: no option {unknown[0]!r}; options: {others}")
    given = " and ".join(str(list(shape)) for shape in shapes)
    if not all(type(size) is int and size >= 1 for shape in shapes for size in shape):
        raise ShapeError(f"{name} of {given}: every size must be a whole number of at least 1")
    shapes = tuple(map(tuple, shapes))  # torch's sizes are tuples of its own
    if name in _OPERANDS:
        _check_sizes(f"{name} of {given}", shapes, _OPERANDS[name], dict(options).get("transposed", ""))
    with drafting():  # a program checks the rules before it runs; with them an estimate takes 1.35 times as long
        made = replace(_RECIPES[name](as_mesh(mesh), dtype, *shapes, **dict(options)), shapes=shapes)
    sram.check(made.schedule)
    return made


# A recipe that was priced takes up to 1.1 MB on 64 x 64 cores, 3 to 28 on 720 x 720. Prompts of many lengths have a
# recipe each: of 24 shapes in turn a call takes as long as of 10, and 8 times as long if 16 recipes stay.
_built = lru_cache(maxsize=128)(_recipe), lru_cache(maxsize=16)(_recipe)  # on meshes of up to `SMALL` cores, and others


def _check_sizes(title: str, shapes: tuple[Shape, ...], operands: str, transposed: Any) -> None:
    """Raise ShapeError if operands have other dimensions, or sizes of one letter that differ; one may be transposed."""
    wanted = [one.split() for one in operands.split(", ")]
    if transposed not in ("", "a", "b"):
        raise ShapeError(f"{title}: transposed = {shown(transposed)} must be 'a', 'b' or ''")
    if transposed:
        wanted["ab".index(transposed)].reverse()
    said = " and ".join(f"[{', '.join(letters)}]" for letters in wanted)
    if list(map(len, shapes)) != list(map(len, wanted)):
        raise ShapeError(f"{title}: give shapes {said}")
    sizes = dict[str, int]()
    for letter, size in zip(chain(*wanted), chain(*shapes), strict=True):
        if sizes.setdefault(letter, size) != size:
            raise ShapeError(f"{title}: {letter} is {sizes[letter]} and {size}; give shapes {said}")


def _gemm(
    mesh: Mesh, dtype: str, a: Shape, b: Shape, algorithm: str = "mesh", transposed: str = "",
    accumulate: str = "fp32", skew: str = "mesh", sums: str | None = None,
) -> Recipe:  # fmt: skip
    (m, k), n = a[::-1] if transposed == "a" else a, b[0 if transposed == "b" else 1]
    stored, dtype = dtype, tile_dtype(dtype)
    square = mesh.square()
    tm, tk, tn = tile_sizes(square.shape[0], m, k, n)
    named = [f"[{', '.join(map(str, one))}]{'^T' * (transposed == by)}" for by, one in (("a", a), ("b", b))]
    builder = Builder(square, f"{algorithm} gemm {' x '.join(named)}")
    builder.buffer("a", (tk, tm) if transposed == "a" else (tm, tk), dtype, "input")
    builder.buffer("b", (tn, tk) if transposed == "b" else (tk, tn), stored, "input")
    _sums(builder, "c", (tm, tn), dtype, accumulate, sums)
    sizes: dict[str, Any] = {"m": tm, "k": tk, "n": tn, "accumulate": accumulate}
    matmul(builder, "a", "b", "c", algorithm=algorithm, transposed=transposed, skew=skew, **sizes)
    cuts = "(y k) (x m)" if transposed == "a" else "(y m) (x k)", "(y n) (x k)" if transposed == "b" else "(y k) (x n)"
    output = _rounded(builder, "c", dtype, sums)
    return Recipe(
        builder.build(),
        (("a", cuts[0]), ("b", cuts[1])),
        (output, "(y m) (x n)", (m, n)),
        lambda a, b: (a.mT if transposed == "a" else a) @ (b.mT if transposed == "b" else b),
    )


def _gemv(
    mesh: Mesh, dtype: str, x: Shape, w: Shape, axis: str = "y", algorithm: str = "ktree", groups: Groups = None,
    accumulate: str = "fp32", sums: str | None = None, transposed: str = "",
) -> Recipe:  # fmt: skip
    turned = transposed == "b"
    (m, k), n = x, w[0 if turned else 1]
    stored, dtype = dtype, tile_dtype(dtype)
    across = "x" if axis == "y" else "y"
    (tk,), (tn,) = tile_sizes(mesh.length(axis), k), tile_sizes(mesh.length(across), n)
    builder = Builder(mesh, f"{algorithm} gemv [{m}, {k}] x {list(w)}{'^T' * turned}")
    builder.buffer("x", (m, tk), dtype, "input")
    builder.buffer("w", (tn, tk) if turned else (tk, tn), stored, "input")
    _sums(builder, "y", (m, tn), dtype, accumulate, sums)
    tree: dict[str, Any] = {"groups": groups, "algorithm": algorithm, "accumulate": accumulate}
    meshgemv(builder, "x", "w", "y", axis, m=m, k=tk, n=tn, transposed=turned, **tree)
    output = _rounded(builder, "y", dtype, sums)
    return Recipe(
        builder.build(),
        (("x", f"m ({axis} k)"), ("w", f"({across} n) ({axis} k)" if turned else f"({axis} k) ({across} n)")),
        (output, f"m ({across} n)", (m, n)),
        lambda x, w: x @ (w.mT if turned else w),
    )


def _outer(
    mesh: Mesh, dtype: str, x: Shape, y: Shape, axis: str = "y", accumulate: str = "fp32", sums: str | None = None
) -> Recipe:
    """x [m, k]^T @ y [m, n], both as `_gemv` has them, x cut along `axis` and y along the other: no core sends."""
    (m, k), n = x, y[1]
    across = "x" if axis == "y" else "y"
    (tk,), (tn,) = tile_sizes(mesh.length(axis), k), tile_sizes(mesh.length(across), n)
    builder = Builder(mesh, f"outer [{m}, {k}]^T x [{m}, {n}]")
    for name, size in (("x", tk), ("y", tn)):
        builder.buffer(name, (m, size), dtype, "input")
    _sums(builder, "w", (tk, tn), dtype, accumulate, sums)
    builder.round(builder.local("gemm_tn", "w", ("x", "y"), m=tk, k=m, n=tn, accumulate=accumulate), label="outer")
    output = _rounded(builder, "w", dtype, sums)
    return Recipe(
        builder.build(),
        (("x", f"m ({axis} k)"), ("y", f"m ({across} n)")),
        (output, f"({axis} k) ({across} n)", (k, n)),
        lambda x, y: x.mT @ y,
    )


def _all_reduce(
    mesh: Mesh, dtype: str, x: Shape, axis: str = "x", op: str = "add", algorithm: str = "ktree", groups: Groups = None
) -> Recipe:
    builder = Builder(mesh, f"all_reduce along {axis}")
    builder.buffer("x", x[2:] or (1,), dtype, "output")
    reduce_schedules.all_reduce(builder, "x", axis, op=op, algorithm=algorithm, groups=groups)

    def reference(tiles: Any) -> Any:
        line = "yx".index(axis)
        return (tiles.sum(line, True) if op == "add" else tiles.amax(line, True)).expand_as(tiles)

    return Recipe(builder.build(), (("x", ""),), ("x", "", x), reference, reduce_axis=axis)


def _all_to_all(mesh: Mesh, dtype: str, x: Shape) -> Recipe:
    if len(x) != 6 or not x[:2] == x[3:5] == mesh.shape:
        side = f"{mesh.shape[0]}, {mesh.shape[1]}"
        raise ShapeError(f"all_to_all of {list(x)} on mesh {mesh}: give x as [{side}, parts, {side}, elements]")
    _, _, parts, rows, cols, size = x
    builder = Builder(mesh, f"all_to_all of {parts * size} elements a pair of cores")
    for name, role in (("x", "input"), ("out", "output")):
        builder.buffer(name, (rows, cols, size), dtype, role, parts)
    all_to_all(builder, "x", "out", size=size, parts=parts)

    def reference(tiles: Any) -> Any:
        whole = tiles.reshape(rows, cols, parts, rows, cols, size)
        return whole.permute(3, 4, 2, 0, 1, 5).reshape(tiles.shape)

    return Recipe(builder.build(), (("x", ""),), ("out", "", x), reference)


def _rms_norm(mesh: Mesh, dtype: str, x: Shape, weight: Shape, eps: float = 1e-6) -> Recipe:
    builder, width = _on_rows(mesh, dtype, f"rms_norm {list(x)}", x, "x", "weight"), x[1]
    norms.rms_norm(builder, "x", "weight", "out", "x", width=width, eps=eps)
    return Recipe(
        builder.build(),
        (("x", _ROWS), ("weight", "(x n)")),
        ("out", _ROWS, x),
        lambda x, weight: x * _inverse_rms(x, width, eps) * weight,
    )


def _rms_norm_dx(mesh: Mesh, dtype: str, x: Shape, weight: Shape, y: Shape, dy: Shape, eps: float = 1e-6) -> Recipe:
    builder, width = _on_rows(mesh, dtype, f"rms_norm dx {list(x)}", x, "x", "weight", "y", "dy"), x[1]
    norms.rms_norm_dx(builder, "x", "weight", "y", "dy", "out", "x", width=width, eps=eps)

    def reference(x: Any, weight: Any, y: Any, dy: Any) -> Any:
        scale = _inverse_rms(x, width, eps)
        return scale * (dy * weight - x * scale * (dy * y).sum(-1, True) / width)

    cuts = ("x", _ROWS), ("weight", "(x n)"), ("y", _ROWS), ("dy", _ROWS)
    return Recipe(builder.build(), cuts, ("out", _ROWS, x), reference)


def _rms_norm_dw(mesh: Mesh, dtype: str, x: Shape, dy: Shape, eps: float = 1e-6) -> Recipe:
    builder, width = _on_rows(mesh, dtype, f"rms_norm dw {list(x)}", x, "x", "dy", output=False), x[1]
    builder.buffer("dw", (builder.buffers["x"].tile[1],), "fp32")
    norms.rms_norm_dw(builder, "x", "dy", "dw", "x", width=width, eps=eps)
    output = _rounded(builder, "dw", dtype, None)
    return Recipe(
        builder.build(),
        (("x", _ROWS), ("dy", _ROWS)),
        (output, "(x n)", (width,)),
        lambda x, dy: (dy * x * _inverse_rms(x, width, eps)).sum(0),
    )


def _softmax_dx(mesh: Mesh, dtype: str, y: Shape, dy: Shape, scale: float = 1.0) -> Recipe:
    builder = _on_rows(mesh, dtype, f"softmax dx {list(y)}", y, "y", "dy")
    norms.softmax_dx(builder, "y", "dy", "out", "x", scale=scale)
    return Recipe(
        builder.build(),
        (("y", _ROWS), ("dy", _ROWS)),
        ("out", _ROWS, y),
        lambda y, dy: scale * y * (dy - (dy * y).sum(-1, True)),
    )


def _inverse_rms(x: Any, width: int, eps: float) -> Any:
    return (x.square().sum(-1, True) / width + eps).rsqrt()


_ROWS = "(y m) (x n)"  # how a matrix is cut whose rows lie along x


def _on_rows(mesh: Mesh, dtype: str, title: str, shape: Shape, *names: str, output: bool = True) -> Builder:
    """Return a builder with an input of each name, cut as `_ROWS` (the weight as their columns), and the output."""
    builder = Builder(mesh, title)
    tile = tuple(-(-size // cores) for size, cores in zip(shape, mesh.shape, strict=True))
    for name in names:
        builder.buffer(name, tile[1:] if name == "weight" else tile, dtype, "input")
    if output:
        builder.buffer("out", tile, dtype, "output")
    return builder


def _softmax(mesh: Mesh, dtype: str, x: Shape, scale: float = 1.0) -> Recipe:
    m, n = x
    (tm,), (tn,) = tile_sizes(mesh.shape[0], m), tile_sizes(mesh.shape[1], n)
    builder = Builder(mesh, f"softmax [{m}, {n}]")
    builder.buffer("x", (1, tm, tn), dtype, "input")
    builder.buffer("bias", (tm, tn), "fp32", "input")
    builder.buffer("p", (1, tm, tn), "fp32")
    builder.buffer("out", (tm, tn), dtype, "output")
    z = norms.softmax_parts(builder, "x", "bias", "p", "x", scale=scale)
    builder.round(builder.local("normalize", "out", ("p", z), m=tm, heads=1, n=tn), label="softmax")
    # columns of padding must not count
    bias = np.zeros((m, tn * mesh.shape[1]), np.float32)
    bias[:, n:] = -np.inf
    return Recipe(
        builder.build(),
        (("x", _ROWS),),
        ("out", _ROWS, x),
        lambda x, bias: (x * scale + bias).softmax(-1),
        {"bias": (bias, _ROWS)},
    )


def _sums(b: Builder, acc: str, tile: Shape, dtype: str, accumulate: str, sums: str | None) -> None:
    """Declare the buffer of the sums, the result itself if their dtype `sums` is given."""
    b.buffer(acc, tile, sums or accumulator(dtype, accumulate), "scratch" if sums is None else "output")


def _rounded(b: Builder, acc: str, dtype: str, sums: str | None) -> str:
    """Add the rounding of the sums to the operands' dtype, unless `sums` is given; returns the result's buffer."""
    if sums is not None:
        return acc
    out = b.buffer("out", b.buffers[acc].tile, dtype, "output")
    b.round(b.local("copy", out, acc, size=b.buffers[acc].numel), label=f"sums to {dtype}")
    return out


def tile_sizes(length: int, *sizes: int) -> tuple[int, ...]:
    """Return the size of a core's tile for each size that is cut over `length` cores."""
    return tuple(-(-size // length) for size in sizes)


_OPERANDS = {
    "gemm": "m k, k n", "gemv": "m k, k n", "outer": "m k, m n", "rms_norm": "m n, n", "softmax": "m n",
    "rms_norm_dx": "m n, n, m n, m n", "rms_norm_dw": "m n, m n", "softmax_dx": "m n, m n",
}  # fmt: skip
_RECIPES: dict[str, Callable[..., Recipe]] = {
    "gemm": _gemm,
    "gemv": _gemv,
    "outer": _outer,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "rms_norm": _rms_norm,
    "rms_norm_dx": _rms_norm_dx,
    "rms_norm_dw": _rms_norm_dw,
    "softmax": _softmax,
    "softmax_dx": _softmax_dx,
}
