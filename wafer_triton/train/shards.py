"""The shards of parameters and tokens on dies: whole tensors to [rows, cols, ...] in HBM, and back.

Every parameter is cut into N blocks, one for each position of a group; all groups hold the same. Matrices are cut by
columns. With "xy" the second of a pair of products is cut by rows. The first is cut by columns so that a position has
whole heads, or the same columns of the gate and of the up-projection. Vectors lie one after the other in one block.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from wafer_triton.errors import ConfigError, ShapeError, check_counts, shown
from wafer_triton.train.model import Parameters, Sizes
from wafer_triton.train.product import Team

Blocks = dict[str, Tensor]


@dataclass(frozen=True)
class DieGroups:
    """Data parallel groups of dies, and the division of a model and its batch over each group.

    `moving` is the streamed operand: "w" for weights; with "xy" the input of the first product of a pair, and the
    result of the second. `split`: a position of a group has whole samples ("sample") or consecutive tokens
    ("sequence"). `recompute` is the part of forward that backward computes again: "none", "selective" (attention's
    weights) or "full" (layers). Each group takes its part of a batch in `micro_batches`. Raises ConfigError for other
    names, ShapeError for `micro_batches` below 1.
    """

    team: Team
    moving: str = "w"
    split: str = "sequence"
    recompute: str = "none"
    micro_batches: int = 1

    def __post_init__(self) -> None:
        choices = {
            "moving": ("w", "xy"),
            "split": ("sequence", "sample"),
            "recompute": ("none", "selective", "full"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} = {shown(getattr(self, name))}: choose one of {', '.join(known)}")
        check_counts(micro_batches=self.micro_batches)

    def demand(self, sizes: Sizes) -> None:
        """Raise ShapeError unless the sizes of a model divide over the groups."""
        if self.moving == "xy":
            for name in ("heads", "kv_heads", "hidden"):
                if getattr(sizes, name) % self.team.size:
                    raise ShapeError(
                        f"moving 'xy' cuts {name} = {getattr(sizes, name)} over groups of {self.team.size} dies, which "
                        f"does not divide; take groups of other sides, or moving 'w'"
                    )


@dataclass
class Shards:
    """The blocks of a model's parameters, cut over `die_groups`."""

    sizes: Sizes
    die_groups: DieGroups
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of whole parameters

    def blocks(self, p: Parameters) -> Blocks:
        """Return [N, ...] for every fused matrix ("0.qkv"), "embed", "head" and "vectors"."""
        self.shapes = {name: tuple(value.shape) for name, value in p.items()}
        found = {"embed": self._by_columns(p["embed"].T), "head": self._by_columns(p["head"])}
        for layer in range(self.sizes.layers):
            for matrix, names in self.sizes.matrices.items():
                parts = [p[f"{layer}.{name}"] for name in names]
                found[f"{layer}.{matrix}"] = self._matrix(matrix, parts)
        flat = torch.cat([p[name].flatten() for name in self.sizes.vectors])
        return found | {"vectors": self._by_columns(flat[None])[:, 0]}

    def joined(self, blocks: Blocks, like: Parameters) -> Parameters:
        """Return whole parameters of the shapes of `like`, from blocks."""
        starts, numbered, start = {}, {}, 1
        for name, value in like.items():
            starts[name], numbered[name] = start, torch.arange(start, start + value.numel()).view(value.shape)
            start += value.numel()
        flat = next(iter(blocks.values())).new_zeros(start)
        for name, at in self.blocks(numbered).items():  # padding has number 0
            flat[at.flatten()] = blocks[name].flatten()
        return {name: flat[begin:][: like[name].numel()].view(like[name].shape) for name, begin in starts.items()}

    def _matrix(self, matrix: str, parts: list[Tensor]) -> Tensor:
        size = self.die_groups.team.size
        if self.die_groups.moving == "w":
            return self._by_columns(torch.cat(parts, 1))
        if matrix in ("o", "out"):
            return torch.stack(parts[0].chunk(size, 0))
        return torch.stack([torch.cat(own, 1) for own in zip(*(part.chunk(size, 1) for part in parts), strict=True)])

    def _by_columns(self, whole: Tensor) -> Tensor:
        """Return [N, rows, columns / N], padded with zeros."""
        size = self.die_groups.team.size
        width = -(-whole.shape[1] // size)
        return padded(whole, size * width).unflatten(1, (size, width)).transpose(0, 1).contiguous()

    def bias_columns(self, names: tuple[str, ...]) -> Tensor:
        """Return [N, columns]: for each position, the columns of the joined weights that it computes with "xy"."""
        starts, own = 0, []
        for name in names:
            columns = torch.arange(self.sizes.columns(name)) + starts
            own.append(columns.view(self.die_groups.team.size, -1))
            starts += self.sizes.columns(name)
        return torch.cat(own, 1)


def spread(team: Team, blocks: Tensor) -> Tensor:
    """Return blocks as tiles of dies [rows, cols, ...]: [N, ...] for all groups alike, or [groups, N, ...].

    Raises ShapeError for tensors of other shapes.
    """
    if blocks.shape[:1] != (team.size,) and blocks.shape[:2] != (team.count, team.size):
        raise ShapeError(f"spread: blocks are {list(blocks.shape)}; give [{team.size}, ...], one for each position")
    each = blocks if blocks.dim() > 1 and blocks.shape[:2] == (team.count, team.size) else None
    shape = blocks.shape[2:] if each is not None else blocks.shape[1:]
    tiles = blocks.new_zeros(*team.mesh.shape, *shape)
    for number, group in enumerate(team.groups):
        for position, die in enumerate(group):
            tiles[die] = blocks[position] if each is None else each[number, position]
    return tiles


def padded(flat: Tensor, size: int) -> Tensor:
    """Return a tensor whose last dimension is `size`, with zeros after the given elements."""
    return torch.nn.functional.pad(flat, (0, size - flat.shape[-1]))


def first_group(team: Team, tiles: Tensor) -> Tensor:
    """Return [N, ...]: the tiles of the dies of the first group."""
    return torch.stack([tiles[die] for die in team.groups[0]])


@dataclass
class Rows:
    """The tokens of one micro-batch on dies, one a row: tensors [rows, cols, m], with padding if rows do not divide.

    `ids` and `targets` are -1 for padding. In attention row number `at` attends to the rows `low` to `high`. `position`
    is the row's position in its sample.
    """

    m: int
    ids: Tensor
    targets: Tensor
    at: Tensor
    low: Tensor
    high: Tensor
    position: Tensor


def micro_batches(die_groups: DieGroups, tokens: Tensor, targets: Tensor) -> list[Rows]:
    """Return the rows of every micro-batch of a batch [samples, length].

    Raises ShapeError if samples do not divide by groups and micro-batches or, with `split` "sample", by positions.
    """
    team, pieces = die_groups.team, die_groups.team.count * die_groups.micro_batches
    samples, length = tokens.shape
    if samples % pieces:
        raise ShapeError(
            f"a batch of {samples} samples does not divide by {team.count} groups x {die_groups.micro_batches} "
            f"micro-batches; give a multiple of {pieces}"
        )
    each = samples // pieces
    if die_groups.split == "sample" and each % team.size:
        raise ShapeError(
            f"{each} samples of a micro-batch do not divide by the {team.size} dies of a group; split by sequence, or "
            f"give a multiple of {pieces * team.size} samples"
        )
    m = -(-each * length // team.size)
    whole = m * team.size

    def cut(values: Tensor, fill: int) -> Tensor:  # [micro-batches, groups, N, m]
        flat = values.reshape(die_groups.micro_batches, team.count, each * length)
        flat = torch.nn.functional.pad(flat, (0, whole - each * length), value=fill)
        return flat.unflatten(-1, (team.size, m))

    at = torch.arange(whole)
    real = at < each * length
    low, high = torch.where(real, at // length * length, 1), torch.where(real, at, 0)
    same = [spread(team, values.view(team.size, m)) for values in (at, low, high, at % length)]
    return [
        Rows(m, spread(team, own), spread(team, wanted), *same)
        for own, wanted in zip(cut(tokens, -1), cut(targets, -1), strict=True)
    ]
