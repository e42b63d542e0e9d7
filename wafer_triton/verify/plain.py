"""What blocks of a decoder compute, plainly, on whole tensors with their padding: what `verify.decoder` is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wafer_triton.schedule.block import Block

if TYPE_CHECKING:
    from torch import Tensor


def normed(block: Block, x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm of x [..., width], whose padding is not counted as width."""
    c = block.shape
    return x * (x.square().sum(-1, True) / c.hidden_size + c.rms_norm_eps).rsqrt() * weight


def head_means(block: Block, qkv: Tensor) -> Tensor:
    """Of projections [tokens, columns, heads, head] the mean square of each head over the columns that hold it."""
    squares = [part.sum((1, 3), True).expand_as(part) for part in qkv.square().split(segments(block), 1)]
    return joined(squares, 1) / block.shape.head_dim


def whole_means(block: Block, qkv: Tensor) -> Tensor:
    """Of such projections the mean square of all query heads, and of all key heads as often as columns repeat them."""
    c, squares = block.shape, qkv.square().sum((1, 3), True).expand_as(qkv)
    copies = (block.layout.rows("k") >= 0).sum() / c.kv_width
    q, k, v = squares.split((block.query_heads, block.kv_heads, block.kv_heads), 2)
    sums = q.sum(2, True).expand_as(q) / c.q_width, k.sum(2, True).expand_as(k) / (copies * c.kv_width), v
    return joined(list(sums), 2)


def segments(block: Block) -> list[int]:
    """Columns that hold a head together, of each head group, and of the columns left over each by itself."""
    columns, width = block.mesh.shape[1], block.layout.width
    return [width] * (columns // width) + [1] * (columns % width)


def joined(parts: list[Tensor], dim: int) -> Tensor:
    """Tensors one after the other along a dimension, of torch's, which importing this does without."""
    import torch

    return torch.cat(parts, dim)


def fed(gate_up: Tensor, width: int) -> Tensor:
    """silu(gate) * up of [tokens, all columns], of which each holds `width` gates and then as many ups."""
    gate, up = gate_up.unflatten(-1, (-1, 2, width)).unbind(-2)
    return (gate * gate.sigmoid() * up).flatten(1)


def mixed(block: Block, h: Tensor, router: Tensor, wgu: Tensor, wdown: Tensor) -> tuple[Tensor, Tensor]:
    """What the chosen experts make of h [tokens, width], and their numbers [tokens, picks], with wgu [experts, ...].

    A token of which two experts' logits are as good as equal, so that rounding decides, has NaN in place of both.
    """
    e = block.shape.experts
    assert e is not None, "a block of experts is one of a model that has some"
    logits, picked = h @ router, h.new_zeros(len(h), e.count)
    ranked = logits[:, : e.count].sort(-1, True)
    shares = logits[:, : e.count].softmax(-1)
    picked.scatter_(1, ranked.indices[:, : e.chosen], 1.0)
    shares = shares * picked
    if e.normalized:
        shares = shares / shares.sum(-1, True)
    every = [shares[:, number] for number in range(e.count)] + [logits[:, -1].sigmoid()] * e.shared
    f = block.share(e.width, "x")
    y = sum(share[:, None] * (fed(h @ up, f) @ down) for share, up, down in zip(every, wgu, wdown, strict=True))
    own = ranked.indices[:, : e.chosen].sort(-1).values.to(h.dtype)
    chosen = joined([own, own.new_tensor([range(e.count, e.tiles)]).expand(len(h), -1)], 1)
    edges = ranked.values[:, e.chosen - 1] - ranked.values[:, e.chosen] if e.chosen < e.count else logits[:, 0] * 0 + 1
    close = (edges <= CLOSE * ranked.values.abs().amax(-1))[:, None]
    return y.masked_fill(close, float("nan")), chosen.masked_fill(close, float("nan"))


CLOSE = 1e-9  # of the largest logit
