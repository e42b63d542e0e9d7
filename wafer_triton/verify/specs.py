"""Partition specs of buffers: a tile's index of each letter, and tiles put together and cut again.

A spec is an einops pattern as in `layout`, such as "(y m) (x k)", or a mapping from letters. A letter maps to "y", "x",
"slot", a number, or an array [rows, cols]. Under "(y m) (x k)" the tile of core (2, 3) is m=2, k=3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wafer_triton.device.layout import MESH_AXES, letters
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ScheduleError, shown

if TYPE_CHECKING:
    from torch import Tensor

PartitionSpec = str | Mapping[str, ArrayLike]
Tiles = Mapping[str, "Tensor"]  # or whole tensors, by the names of buffers
EVERY_CORE = {"row": "y", "column": "x"}  # the spec of tiles that no pattern names


def indices(spec: PartitionSpec, mesh: Mesh, slots: int) -> dict[str, NDArray[np.int64]]:
    """Return the index of each letter of a spec at every core and slot, [rows, cols, slots]; raises ScheduleError."""
    shape = (*mesh.shape, slots)
    places = {}
    for letter, at in (letters(spec) if isinstance(spec, str) else spec).items():
        try:
            if isinstance(at, str):
                places[letter] = np.indices(shape)[("y", "x", "slot").index(at)]
            else:
                array = np.asarray(at)
                if array.dtype.kind not in "iu" or (array.size and array.min() < 0):
                    raise ValueError
                array = array.astype(np.int64)
                places[letter] = np.broadcast_to(array if array.ndim == 0 else array[..., None], shape)
        except (TypeError, ValueError):
            raise ScheduleError(
                f"partition spec {shown(spec)} on mesh {mesh}: {letter} is neither 'y', 'x', 'slot', a number nor an "
                f"array {list(mesh.shape)}, and of shape {list(np.shape(at))}; numbers are whole, from 0"
            ) from None
    return places


def whole_reference(
    mesh: Mesh, given: Mapping[str, str], results: Mapping[str, str], compute: Callable[..., Any]
) -> Callable[[Tiles], Tiles]:
    """Return a reference on tiles, from one on whole tensors.

    `compute` takes the tensors of `given` in order, each put together by its pattern (padding stays). It returns the
    tensor of the one result, or a tuple of all. The pattern "" stands for tiles that stay tiles.
    """

    def reference(tiles: Tiles) -> Tiles:
        computed = compute(*(from_tiles(tiles[name], pattern) for name, pattern in given.items()))
        wholes = computed if isinstance(computed, tuple) else (computed,)
        return {
            name: to_tiles(tensor, mesh, pattern)
            for (name, pattern), tensor in zip(results.items(), wholes, strict=True)
        }  # fmt: skip

    return reference


def from_tiles(tiles: Tensor, pattern: str) -> Tensor:
    """Return the whole tensor of tiles [rows, cols, *tile]; of repeated tiles the first copy is taken."""
    if not pattern:
        return tiles
    from einops import rearrange  # patterns are parsed where there is no torch

    held = [axis for axis in MESH_AXES if axis in letters(pattern).values()]
    for dim, axis in ((1, "x"), (0, "y")):
        if axis not in held:
            tiles = tiles.select(dim, 0)
    axes = _tile(pattern).split()
    # a softmax of one head has an axis more, the tile of a buffer with one slot may have one less
    sizes = (*[1] * len(axes), *tiles.shape[len(held) :])[-len(axes) :]
    return rearrange(tiles.reshape(*tiles.shape[: len(held)], *sizes), f"{' '.join([*held, *axes])} -> {pattern}")


def to_tiles(whole: Tensor, mesh: Mesh, pattern: str) -> Tensor:
    """Return the tiles [rows, cols, *tile] of a tensor, whose sizes are multiples of the tiles'."""
    if not pattern:
        return whole
    from einops import repeat

    rows, cols = mesh.shape
    return repeat(whole, f"{pattern} -> y x {_tile(pattern)}", y=rows, x=cols)


def _tile(pattern: str) -> str:
    """Return the tile's own axes, in the pattern's order."""
    return " ".join(axis for axis in re.findall(r"\w+", pattern) if axis not in MESH_AXES)
