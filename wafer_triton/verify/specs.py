"""Partition specs of buffers: a tile's index of each letter, and tiles put together and cut again.

A spec is an einops pattern as in `layout`, such as "(y m) (x k)", or a mapping from letters. A letter maps to "y", "x",
"slot", a number, or an array [rows, cols]. Under "(y m) (x k)" the tile of core (2, 3) is m=2, k=3, and under
"(y m) (x k) (slot s)" that in its slot 1 has s=1 too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wafer_triton.device.layout import MESH_AXES, dimensions, letters
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ScheduleError, shown

if TYPE_CHECKING:
    from torch import Tensor

PartitionSpec = str | Mapping[str, ArrayLike]
Tiles = Mapping[str, "Tensor"]  # or whole tensors, by the names of buffers
EVERY_CORE = {"row": "y", "column": "x"}  # the spec of tiles that no pattern names
AXES = (*MESH_AXES, "slot")  # that cut a letter


def cuts(name: str, spec: PartitionSpec) -> Mapping[str, ArrayLike]:
    """Return what cuts each letter of the partition spec of buffer `name`: an axis of `AXES`, a number or an array.

    Letters that nothing cuts are left out. Raises ScheduleError for another axis, and for a text that is no pattern.
    """
    of = f"Intent: {shown(spec)}, the partition spec of {name!r},"
    pattern = "a pattern such as '(y m) (x k) (slot s)'"
    if not isinstance(spec, str | Mapping):
        raise ScheduleError(
            f"Intent: the partition spec of {name!r} is {shown(spec)}; give a pattern such as '(y m) (x k)', "
            f"or a mapping from letters to 'y', 'x', 'slot', a number or an array"
        )
    if isinstance(spec, Mapping):
        for letter, at in spec.items():
            if isinstance(at, str) and at not in AXES:
                raise ScheduleError(f"{of} cuts {letter} by {at!r}, which is no axis; axes are {', '.join(AXES)}")
        return spec
    if not re.fullmatch(r"[^()]*(\([^()]*\)[^()]*)*", spec):
        raise ScheduleError(
            f"Intent: the brackets of {spec!r}, the partition spec of {name!r}, do not match; write {pattern}"
        )
    words = re.findall(r"[^\s()]+", spec)
    if wrong := [word for word in words if not word.isidentifier()]:
        raise ScheduleError(f"{of} has {wrong[0]!r}, which is no letter; write {pattern}")
    if len(set(words)) < len(words):
        raise ScheduleError(f"{of} names an axis twice; give each its own letter")
    for group in dimensions(spec):
        axes = [word for word in group if word in AXES]
        if len(group) > 1 and not axes:
            raise ScheduleError(f"{of} cuts {group[-1]} by {group[0]!r}, which is no axis; axes are {', '.join(AXES)}")
        if len(axes) > 1:
            raise ScheduleError(f"{of} cuts one dimension by {' and '.join(axes)}; give each a dimension of its own")
        if axes and group[-1] == axes[0]:
            raise ScheduleError(
                f"{of} has no letter after {axes[0]}; write {pattern}, or a mapping such as {{'m': '{axes[0]}'}}"
            )
    return {letter: axis for group in dimensions(spec) for axis, letter in pairwise(group) if axis in AXES}


def cuts_slots(name: str, spec: PartitionSpec) -> bool:
    """Return whether a spec tells the slots of a core apart; else they all hold the same tile."""
    return any(isinstance(at, str) and at == "slot" for at in cuts(name, spec).values())


def indices(name: str, spec: PartitionSpec, mesh: Mesh, slots: int) -> dict[str, NDArray[np.int64]]:
    """Return the index of each letter of a buffer's spec at every core and slot, [rows, cols, slots].

    Raises ScheduleError for numbers that are not whole or do not fit the mesh, and as `cuts`.
    """
    shape = (*mesh.shape, slots)
    places = {}
    for letter, at in cuts(name, spec).items():
        try:
            if isinstance(at, str):
                places[letter] = np.indices(shape)[AXES.index(at)]
            else:
                array = np.asarray(at)
                if array.dtype.kind not in "iu" or array.min(initial=0) < 0:
                    raise ValueError
                places[letter] = np.broadcast_to(array.astype(np.int64)[..., None], shape)
        except (TypeError, ValueError):
            raise ScheduleError(
                f"partition spec {shown(spec)} of {name!r} on mesh {mesh}: {letter} is neither 'y', 'x', 'slot', a "
                f"number nor an array {list(mesh.shape)}, and of shape {list(np.shape(at))}; numbers are whole, from 0"
            ) from None
    return places


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
