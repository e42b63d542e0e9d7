"""Mesh tensors: a tensor cut into one tile per core by an einops pattern.

In a pattern `y` and `x` are the mesh axes. "(y m) (x k)" cuts a matrix both ways; "(y k)" cuts a vector along y and
repeats it along x. The axis right behind y or x is the tile's and is padded with zeros to whole tiles. A right side
orders the tile's own dimensions: "(h two x p) (y d) -> d (h two p)". Sizes other than the tile's are given by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from einops import rearrange, repeat

from wafer_triton.errors import ShapeError
from wafer_triton.mesh import Mesh

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class MeshTensor:
    """Tiles [rows, cols, *tile] of a tensor of the given shape, cut by `pattern` with axis `sizes`."""

    mesh: Mesh
    tiles: torch.Tensor
    pattern: str
    shape: tuple[int, ...]
    sizes: dict[str, int]

    def gather(self) -> torch.Tensor:
        """The whole tensor, padding removed; of repeated tiles the first copy is taken."""
        plan = _Plan(self.pattern, self.mesh, self.shape, self.sizes)
        held = " ".join(axis for axis in ("y", "x") if axis in plan.axes)
        tiles = self.tiles
        for number, axis in reversed(list(enumerate("yx"))):
            if axis not in plan.axes:
                tiles = tiles.select(number, 0)
        whole = rearrange(tiles, f"{held} {plan.tile} -> {plan.flat}", **plan.known(without_mesh=len(held) < 3))
        for number, pad in plan.pads:
            whole = whole.narrow(number, 0, pad[0])
        return whole.reshape(self.shape)


def scatter(tensor: torch.Tensor, mesh: Mesh, pattern: str, **sizes: int) -> MeshTensor:
    """Cut a tensor into tiles [rows, cols, *tile] of its dtype.

    Raises ShapeError when the pattern does not name the tensor's dimensions or a size does not divide.
    """
    plan = _Plan(pattern, mesh, tuple(tensor.shape), sizes)
    padded = plan.pad(tensor)
    known = plan.known()
    tiles = repeat(padded, f"{plan.flat} -> y x {plan.tile}", **{"y": mesh.shape[0], "x": mesh.shape[1], **known})
    return MeshTensor(mesh, tiles.contiguous(), pattern, tuple(tensor.shape), dict(sizes))


class _Plan:
    """A pattern matched to a shape: every elementary axis with its size, and which are padded."""

    def __init__(self, pattern: str, mesh: Mesh, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
        left, _, right = pattern.partition("->")
        self.pattern, self.mesh, self.shape = pattern, mesh, shape
        groups = [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\S+", left)]
        if len(groups) != len(shape):
            raise ShapeError(f"pattern {pattern!r} has {len(groups)} dimensions, the tensor {list(shape)}")
        self.axes: dict[str, int] = {}
        self.pads: list[tuple[int, tuple[int, int]]] = []  # (dimension of the merged form, (size, padded size))
        self.merged: list[int] = []
        for group, total in zip(groups, shape, strict=True):
            self._group(group, total, sizes)
        self.flat = " ".join(self._flat)
        self.tile = right.strip() or " ".join(axis for axis in self.axes if axis not in ("y", "x"))

    _flat: list[str]

    def _group(self, group: list[str], total: int, sizes: dict[str, int]) -> None:
        self._flat = getattr(self, "_flat", [])
        meshed = next((axis for axis in group if axis in ("y", "x")), None)
        if meshed is not None and group.index(meshed) + 1 == len(group):
            raise ShapeError(f"pattern {self.pattern!r}: behind {meshed!r} must stand the axis that it cuts")
        tile = group[group.index(meshed) + 1] if meshed else None
        open_ = [axis for axis in group if axis not in (meshed, tile) and axis not in sizes]
        if len(open_) > (0 if meshed else 1):
            raise ShapeError(f"pattern {self.pattern!r}: give the sizes of {', '.join(open_)}")
        rest = prod(sizes.get(axis, 1) for axis in group if axis not in (meshed, tile))
        if total % rest or (not meshed and not open_ and total != rest):
            raise ShapeError(f"pattern {self.pattern!r}: a dimension of {total} is not made of {rest}s")
        for axis in group:
            if axis == meshed:
                length = self.mesh.length(axis)
                padded = -(-(total // rest) // length) * length
                self.pads.append((len(self.merged), (total // rest, padded)))
                self.merged.append(total // rest)
                self.axes[axis], self.axes[str(tile)] = length, padded // length
                self._flat.append(f"({axis} {tile})")
            elif axis != tile:
                self.axes[axis] = sizes.get(axis, total // rest)
                self.merged.append(self.axes[axis])
                self._flat.append(axis)

    def known(self, without_mesh: bool = False) -> dict[str, int]:
        """Sizes for einops; mesh axes that the tensor repeats are not among them."""
        return {axis: size for axis, size in self.axes.items() if not (without_mesh and axis in ("y", "x"))}

    def pad(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in merged form, zeros behind its ragged ends."""
        tensor = tensor.reshape(self.merged)
        for number, (size, padded) in self.pads:
            if padded > size:
                extra = tensor.new_zeros((*tensor.shape[:number], padded - size, *tensor.shape[number + 1 :]))
                tensor = _cat(tensor, extra, number)
        return tensor


def _cat(one: torch.Tensor, two: torch.Tensor, dim: int) -> torch.Tensor:
    import torch

    return torch.cat([one, two], dim)
