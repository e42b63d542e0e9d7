"""Mesh tensors: a tensor cut into one tile per core by an einops pattern.

In a pattern `y` and `x` are the mesh axes. "(y m) (x k)" cuts a matrix both ways; "(y k)" cuts a vector along y and
repeats it along x. The axis right after y or x is the tile's and is padded with zeros to whole tiles. A right side
orders the tile's own dimensions: "(h two x p) (y d) -> d (h two p)". Sizes other than the tile's are given by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from wafer_triton.device.mesh import Mesh, MeshLike, as_mesh
from wafer_triton.device.modes import WITHOUT_VALUES, check_eager
from wafer_triton.errors import DtypeError, ShapeError, plain, shown

if TYPE_CHECKING:
    import torch

MESH_AXES = ("y", "x")


@dataclass(frozen=True, eq=False, repr=False)
class MeshTensor:
    """Tiles [rows, cols, *tile] of a tensor of the given shape, cut by `pattern` with axis `sizes`; see `gather`."""

    mesh: Mesh
    tiles: torch.Tensor
    pattern: str
    shape: tuple[int, ...]
    sizes: Mapping[str, int]

    def __repr__(self) -> str:
        return f"MeshTensor {list(self.shape)} of {self.tiles.dtype}, cut by {self.pattern!r} on mesh {self.mesh}"

    def gather(self) -> torch.Tensor:
        """Return the whole tensor, padding removed; of repeated tiles the first copy is taken."""
        made = sharding(self.pattern, self.shape, self.mesh.shape, tuple(self.sizes.items()))
        if tuple(self.tiles.shape) != (*self.mesh.shape, *made.tile):
            held, wanted = list(self.tiles.shape), [*self.mesh.shape, *made.tile]
            raise ShapeError(f"tiles {held} of a tensor {list(self.shape)} cut by {self.pattern!r} must be {wanted}")
        return made.plan_gather(self.tiles)()


def scatter(tensor: torch.Tensor, mesh: MeshLike, pattern: str, **sizes: int) -> MeshTensor:
    """Cut a tensor into tiles [rows, cols, *tile] of its dtype, padded with zeros where the mesh does not divide it.

    `sizes` are of axes that a pattern groups, such as `d=2` in "(y h d) (x k)". Raises ShapeError when the pattern does
    not name the tensor's dimensions, or one of the `sizes` does not divide its dimension.
    """
    import torch  # patterns are parsed where there is no torch

    mesh, sizes = as_mesh(mesh), {name: plain(size) for name, size in sizes.items()}
    for name, size in sizes.items():
        if type(size) is not int or size < 1 or name not in re.findall(r"\w+", pattern):
            raise ShapeError(f"scatter: {name} = {shown(size)} must be the positive size of an axis of {pattern!r}")
    if torch.jit.is_tracing():  # in which sizes are tensors
        check_eager("scatter")
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise ShapeError("scatter: the tensor is sparse or nested; give a dense one")
    shape = tuple(tensor.shape)
    into = sharding(pattern, shape, mesh.shape, tuple(sizes.items()))
    tiles = tensor.new_empty(*mesh.shape, *into.tile)
    into.plan_scatter(tiles)(tensor)
    return MeshTensor(mesh, tiles, pattern, shape, sizes)


@dataclass(frozen=True)
class Sharding:
    """A pattern matched to a tensor's `shape` and a mesh: how the whole tensor lies in tiles [rows, cols, *tile].

    The tensor is viewed as `sizes`, which has a dimension for each axis that is cut. It is `padded` to whole tiles, and
    `split` into mesh axes and tile axes. `order` are the dimensions of tiles in that order, after the `repeated` mesh
    axes; `inner` are the sizes of the tile axes, which `tile` groups as the pattern does.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    padded: tuple[int, ...]
    split: tuple[int, ...]
    tile: tuple[int, ...]
    inner: tuple[int, ...]
    order: tuple[int, ...]
    repeated: int

    def plan_scatter(self, tiles: torch.Tensor) -> Callable[[torch.Tensor], object]:
        """Return a function that writes a tensor into contiguous tiles, rounded to their dtype, and zeros as padding.

        It raises DtypeError for a tensor on the meta device and tiles on another.
        """
        into = tiles.view(*tiles.shape[:2], *self.inner).permute(self.order)

        def fill(tensor: torch.Tensor) -> None:
            if tensor.is_meta and not into.is_meta:
                raise DtypeError(f"a tensor {list(self.shape)} to cut into tiles is {WITHOUT_VALUES}")
            whole = tensor
            if self.padded != self.sizes:
                whole = tensor.new_zeros(self.padded)
                whole[tuple(map(slice, self.sizes))] = tensor.reshape(self.sizes)
            into.copy_(whole.reshape(*self.split or (1,)))  # torch reads sizes in a tuple in 1.5 times the time

        return fill

    def plan_gather(self, tiles: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Return a function that makes a tensor of tiles, without the padding; of repeated tiles it takes the first."""
        apart = tiles.reshape(*tiles.shape[:2], *self.inner).permute(self.order)[(0,) * self.repeated]
        copy = apart.clone if apart.is_contiguous() else apart.contiguous

        def join() -> torch.Tensor:
            if self.padded == self.sizes:
                return copy().view(*self.shape) if self.shape else copy()
            return copy().view(self.padded)[tuple(map(slice, self.sizes))].reshape(self.shape).contiguous()

        return join


def letters(pattern: str) -> dict[str, str]:
    """Return the tile axes that a pattern cuts, each with its mesh axis: {"m": "y", "k": "x"} of "(y m) (x k)"."""
    found: dict[str, str] = {}
    for group in dimensions(pattern.partition("->")[0]):
        found |= {letter: axis for axis, letter in pairwise(group) if axis in MESH_AXES}
    return found


def lettered(pattern: str) -> str:
    """Return a pattern with its tile axes named by their order, as "(y m) (x n)" cuts what "(y m) (x k)" does."""
    names: dict[str, str] = {axis: axis for axis in MESH_AXES}
    return re.sub(r"[^\s()]+", lambda name: names.setdefault(name[0], str(len(names))), " ".join(pattern.split()))


def axes(pattern: str) -> list[str]:
    """Return the tile's axes in the order of the tensor's dimensions; ShapeError unless every dimension has one."""
    named = [[axis for axis in group if axis not in MESH_AXES] for group in dimensions(pattern)]
    if "->" in pattern or any(len(group) != 1 for group in named):
        raise ShapeError(f"pattern {pattern!r}: each dimension must have one axis, as in '(y m) (x k)'")
    return [group[0] for group in named]


def dimensions(left: str) -> list[list[str]]:
    """Return the axes of each dimension of one side of a pattern; ShapeError for a parenthesis without its pair."""
    if rest := re.sub(r"^(?:[^()]|\([^()]*\))*", "", left.strip()):
        kind = "opened" if rest[0] == ")" else "closed"
        raise ShapeError(f"pattern {left.strip()!r}: the parenthesis at {rest!r} is not {kind}; write unnested pairs")
    if odd := re.search(r"\b\d\w*", left):
        raise ShapeError(f"pattern {left.strip()!r}: {odd[0]!r} is no name of an axis; write letters, sizes by name")
    return [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\S+", left)]


@lru_cache(maxsize=1024)
def sharding(
    pattern: str, shape: tuple[int, ...], mesh: tuple[int, int], named: tuple[tuple[str, int], ...] = ()
) -> Sharding:
    """Return the sharding of a tensor over a mesh by a pattern; `named` are sizes of axes. Raises as `scatter` does."""
    left, _, right = pattern.partition("->")
    groups = dimensions(left)
    if len(groups) != len(shape):
        raise ShapeError(f"pattern {pattern!r} has {len(groups)} dimensions, the tensor {list(shape)}")
    lengths, known = dict(zip(MESH_AXES, mesh, strict=True)), dict(named)
    whole: list[str] = []
    sizes: list[int] = []
    padded: list[int] = []
    axes: dict[str, int] = {}
    for group, total in zip(groups, shape, strict=True):
        at = next((number for number, axis in enumerate(group) if axis in MESH_AXES), None)
        if set(MESH_AXES) <= set(group):
            raise ShapeError(f"pattern {pattern!r}: y and x both cut one dimension; give each a dimension of its own")
        if at is not None and at + 1 == len(group):
            raise ShapeError(f"pattern {pattern!r}: after {group[at]!r} must stand the axis that it cuts")
        # one axis may have any size: the tile's if the mesh cuts this dimension, else one that is not named
        unknown = [axis for axis in group if axis not in MESH_AXES and axis not in known]
        free = group[at + 1] if at is not None else unknown[0] if unknown else None
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
                whole += [axis, str(free)]
                sizes.append(total // rest)
                padded.append(axes[axis] * axes[str(free)])
            elif axis != free or at is None:
                axes[axis] = total // rest if axis == free else known[axis]
                whole.append(axis)
                sizes.append(axes[axis])
                padded.append(axes[axis])
    written = re.findall(r"[^\s()]+", right)
    kept = [axis for axis in axes if axis not in MESH_AXES]
    if len(set(re.findall(r"[^\s()]+", left))) < len(re.findall(r"[^\s()]+", left)):
        raise ShapeError(f"pattern {pattern!r} names an axis twice")
    for axis, size in named:
        if axes.get(axis, size) != size:
            raise ShapeError(f"pattern {pattern!r}: {axis} = {size}, but {axes[axis]} of {list(shape)} lie on a core")
    if right.strip() and sorted(written) != sorted(kept):
        raise ShapeError(f"pattern {pattern!r}: the right side must order the tile's axes {', '.join(kept)}")
    tile = written or kept
    grouped = dimensions(right) if written else [[axis] for axis in kept]
    repeated = [axis for axis in MESH_AXES if axis not in axes]
    held = [*MESH_AXES, *tile]
    return Sharding(
        shape, tuple(sizes), tuple(padded), tuple(axes[axis] for axis in whole),
        tuple(prod(axes[axis] for axis in group) for group in grouped), tuple(axes[axis] for axis in tile),
        tuple(held.index(axis) for axis in (*repeated, *whole)), len(repeated),
    )  # fmt: skip
