"""Mesh tensors: a tensor cut into one tile per core by an einops pattern.

In a pattern `y` and `x` are the mesh axes. "(y m) (x k)" cuts a matrix both ways; "(y k)" cuts a vector along y and
repeats it along x. The axis right behind y or x is the tile's and is padded with zeros to whole tiles. A right side
orders the tile's own dimensions: "(h two x p) (y d) -> d (h two p)". Sizes other than the tile's are given by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from wafer_triton.errors import ShapeError, check_type
from wafer_triton.mesh import Mesh

if TYPE_CHECKING:
    import torch

MESH_AXES = ("y", "x")


@dataclass(frozen=True, eq=False)
class MeshTensor:
    """Tiles [rows, cols, *tile] of a tensor of the given shape, cut by `pattern` with axis `sizes`."""

    mesh: Mesh
    tiles: torch.Tensor
    pattern: str
    shape: tuple[int, ...]
    sizes: Mapping[str, int]

    def gather(self) -> torch.Tensor:
        """The whole tensor, padding removed; of repeated tiles the first copy is taken."""
        from einops import rearrange  # patterns are parsed where there is no torch

        plan = _plan(self.pattern, self.shape, self.mesh.shape, tuple(self.sizes.items()))
        tiles = self.tiles
        for dim, axis in ((1, "x"), (0, "y")):
            if axis not in plan.axes:
                tiles = tiles.select(dim, 0)
        held = " ".join(axis for axis in MESH_AXES if axis in plan.axes)
        whole = rearrange(tiles, f"{held} {plan.tile} -> {plan.whole}", **plan.axes)
        return whole[tuple(slice(size) for size in plan.sizes)].reshape(self.shape)


def scatter(tensor: torch.Tensor, mesh: Mesh, pattern: str, **sizes: int) -> MeshTensor:
    """Cut a tensor into tiles [rows, cols, *tile] of its dtype.

    Raises ShapeError when the pattern does not name the tensor's dimensions or a size does not divide.
    """
    import torch  # patterns are parsed where there is no torch
    from einops import repeat

    for what, value, kind in (("tensor", tensor, torch.Tensor), ("mesh", mesh, Mesh), ("pattern", pattern, str)):
        check_type(f"scatter: {what}", value, kind, ShapeError)
    for name, size in sizes.items():
        if type(size) is not int or size < 1 or name not in re.findall(r"\w+", pattern):
            raise ShapeError(f"scatter: {name} = {size!r} must be the positive size of an axis of {pattern!r}")
    shape = tuple(tensor.shape)
    plan = _plan(pattern, shape, mesh.shape, tuple(sizes.items()))
    whole = tensor.reshape(plan.sizes)
    if plan.padded != plan.sizes:
        padded = whole.new_zeros(plan.padded)
        padded[tuple(slice(size) for size in plan.sizes)] = whole
        whole = padded
    every = {**dict(zip(MESH_AXES, mesh.shape, strict=True)), **plan.axes}
    tiles = repeat(whole, f"{plan.whole} -> y x {plan.tile}", **every)
    return MeshTensor(mesh, tiles.contiguous(), pattern, shape, sizes)


def letters(pattern: str) -> dict[str, str]:
    """The tile axes that a pattern cuts, each with its mesh axis: {"m": "y", "k": "x"} of "(y m) (x k)"."""
    cut: dict[str, str] = {}
    for group in _groups(pattern.partition("->")[0]):
        cut |= {letter: axis for axis, letter in pairwise(group) if axis in MESH_AXES}
    return cut


def axes(pattern: str) -> list[str]:
    """The tile's axes in the order of the tensor's dimensions; ShapeError unless every dimension has one."""
    named = [[axis for axis in group if axis not in MESH_AXES] for group in _groups(pattern)]
    if "->" in pattern or any(len(group) != 1 for group in named):
        raise ShapeError(f"pattern {pattern!r}: each dimension must have one axis, as in '(y m) (x k)'")
    return [group[0] for group in named]


def _groups(left: str) -> list[list[str]]:
    """The axes of each dimension that the left side of a pattern names."""
    return [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\S+", left)]


@dataclass(frozen=True)
class _Plan:
    """A pattern matched to a shape: the tensor viewed as `sizes`, one dimension for each cut and each named axis.

    `whole` writes these dimensions for einops and `tile` the tile's; `padded` are the sizes in whole tiles.
    """

    whole: str
    tile: str
    sizes: tuple[int, ...]
    padded: tuple[int, ...]
    axes: Mapping[str, int]


@lru_cache(maxsize=1024)
def _plan(pattern: str, shape: tuple[int, ...], mesh: tuple[int, int], named: tuple[tuple[str, int], ...]) -> _Plan:
    left, _, right = pattern.partition("->")
    groups = _groups(left)
    if len(groups) != len(shape):
        raise ShapeError(f"pattern {pattern!r} has {len(groups)} dimensions, the tensor {list(shape)}")
    lengths, known = dict(zip(MESH_AXES, mesh, strict=True)), dict(named)
    whole: list[str] = []
    sizes: list[int] = []
    padded: list[int] = []
    axes: dict[str, int] = {}
    for group, total in zip(groups, shape, strict=True):
        cut = next((number for number, axis in enumerate(group) if axis in MESH_AXES), None)
        if cut is not None and cut + 1 == len(group):
            raise ShapeError(f"pattern {pattern!r}: behind {group[cut]!r} must stand the axis that it cuts")
        # one axis may have any size: the tile's if the mesh cuts this dimension, else one that is not named
        unknown = [axis for axis in group if axis not in MESH_AXES and axis not in known]
        free = group[cut + 1] if cut is not None else unknown[0] if unknown else None
        missing = [axis for axis in unknown if axis != free]
        if missing:
            raise ShapeError(f"pattern {pattern!r}: give the sizes of {', '.join(missing)}")
        rest = prod(known[axis] for axis in group if axis in known and axis != free)
        if total % rest or (free is None and total != rest):
            raise ShapeError(f"pattern {pattern!r}: a dimension of {total} is not made of {rest}s")
        for axis in group:
            if axis in MESH_AXES:
                axes[axis] = lengths[axis]
                axes[str(free)] = -(-(total // rest) // lengths[axis])
                whole.append(f"({axis} {free})")
                sizes.append(total // rest)
                padded.append(axes[axis] * axes[str(free)])
            elif axis != free or cut is None:
                axes[axis] = total // rest if axis == free else known[axis]
                whole.append(axis)
                sizes.append(axes[axis])
                padded.append(axes[axis])
    written = re.findall(r"[^\s()]+", right)
    kept = [axis for axis in axes if axis not in MESH_AXES]
    if len(set(re.findall(r"[^\s()]+", left))) < len(re.findall(r"[^\s()]+", left)):
        raise ShapeError(f"pattern {pattern!r} names an axis twice")
    if right.strip() and sorted(written) != sorted(kept):
        raise ShapeError(f"pattern {pattern!r}: the right side must order the tile's axes {', '.join(kept)}")
    tile = right.strip() or " ".join(axis for axis in axes if axis not in MESH_AXES)
    return _Plan(" ".join(whole), tile, tuple(sizes), tuple(padded), axes)
