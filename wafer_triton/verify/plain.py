"""Plain computations of a decoder's blocks on whole tensors with their padding, for `verify.decoder`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.block import Block
from wafer_triton.schedule.ring import aligned
from wafer_triton.verify.intent import Intent
from wafer_triton.verify.specs import whole_reference

if TYPE_CHECKING:
    from torch import Tensor

Patterns = Mapping[str, str]


def plain_intent(
    block: Block, given: Patterns, results: Patterns, compute: Callable[..., Any], skewed: tuple[str, ...] = ()
) -> Intent:
    """Return an intent with a reference alone; the weights in `skewed` are given as the alignment leaves them.

    Tiles that stay tiles (the pattern "") are all different.
    """
    plain = whole_reference(block.mesh, given, results, compute)
    cuts = {name: pattern for name, pattern in given.items() if pattern}
    return Intent(
        cuts, {}, reference=lambda tiles: plain({**tiles, **{n: straight(tiles[n], block.mesh) for n in skewed}})
    )


def straight(tiles: Tensor, mesh: Mesh, region: int | None = None) -> Tensor:
    """Return tiles [rows, cols, ...] of weights as they were before the alignment.

    With `region` every square of `region` cores a side was aligned alone.
    """
    result = tiles.clone()
    result.flatten(0, 1)[aligned(mesh.shape[0], region).tolist()] = tiles.flatten(0, 1)
    return result


def normed(block: Block, x: Tensor, weight: Tensor) -> Tensor:
    """Return RMSNorm of x [..., width], of a mean over the columns without padding."""
    c = block.shape
    return x * (x.square().sum(-1, True) / c.hidden_size + c.rms_norm_eps).rsqrt() * weight


def head_means(block: Block, qkv: Tensor) -> Tensor:
    """Return the mean square of each head of projections [tokens, columns, heads, head], over its columns."""
    squares = [part.sum((1, 3), True).expand_as(part) for part in qkv.square().split(segments(block), 1)]
    return joined(squares, 1) / block.shape.head_dim


def whole_means(block: Block, qkv: Tensor) -> Tensor:
    """Return the mean square of all query heads, and the one of all key heads, repeated as the columns repeat them."""
    c, squares = block.shape, qkv.square().sum((1, 3), True).expand_as(qkv)
    copies = (block.layout.rows("k") >= 0).sum() / c.kv_width
    q, k, v = squares.split((block.query_heads, block.kv_heads, block.kv_heads), 2)
    sums = q.sum(2, True).expand_as(q) / c.q_width, k.sum(2, True).expand_as(k) / (copies * c.kv_width), v
    return joined(list(sums), 2)


def segments(block: Block) -> list[int]:
    """Return the number of columns that hold a head together, for each head group; a column left over counts as 1."""
    columns, width = block.mesh.shape[1], block.layout.width
    return [width] * (columns // width) + [1] * (columns % width)


def joined(parts: list[Tensor], dim: int) -> Tensor:
    """Return tensors joined along a dimension; torch is imported here, as importing this module does without."""
    import torch

    return torch.cat(parts, dim)


def fed(gate_up: Tensor, width: int) -> Tensor:
    """Return silu(gate) * up of [tokens, all columns]; a mesh column holds `width` gates, then `width` ups."""
    gate, up = gate_up.unflatten(-1, (-1, 2, width)).unbind(-2)
    return (gate * gate.sigmoid() * up).flatten(1)
