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


def sent(
    block: Block, x: Tensor, h: Tensor, router: Tensor, real: Tensor, wgu: Tensor, wdown: Tensor, *shared: Tensor
) -> tuple[Tensor, ...]:
    """x plus what experts in regions make of its tokens, their numbers, and the most rows for a region.

    wgu and wdown are [regions, experts of a region, ...]. The tokens of each row of cores that choose an expert with
    copies take its homes in turn. Tokens that are not `real` go to no region. All is NaN where rounding may decide.
    """
    e, regions = block.shape.experts, block.expert_regions
    assert e is not None and regions is not None, "a block whose experts have regions"
    logits, rows, demand = h @ router, block.mesh.shape[0], 0
    ranked = logits[:, : e.count].sort(-1, True)
    own = ranked.indices[:, : e.chosen].sort(-1).values
    shares = logits[:, : e.count].softmax(-1).gather(-1, own)
    if e.normalized:
        shares = shares / shares.sum(-1, True)
    homes = [[(expert % regions.count, expert // regions.count)] for expert in range(e.count)]
    for region, living in enumerate(regions.living(e)):
        for place, expert in enumerate(living):
            if (region, place) not in homes[expert]:
                homes[expert].append((region, place))
    y, tokens = x.clone(), len(x) // rows
    for row in range(rows):
        seen, sent_to = [0] * e.count, [0] * regions.count
        for token in range(row * tokens, (row + 1) * tokens):
            for pick, expert in enumerate(own[token].tolist() if real[token] > 0 else ()):
                region, place = homes[expert][seen[expert] % len(homes[expert])]
                seen[expert], sent_to[region] = seen[expert] + 1, sent_to[region] + 1
                up, down = wgu[region, place], wdown[region, place]
                y[token] += shares[token, pick] * (fed(h[token][None] @ up, len(down) // _cols(block)) @ down)[0]
        demand = max(demand, *sent_to)
    if shared:
        f = block.share(e.shared_width, "x")
        y = y + logits[:, -1:].sigmoid() * (fed(h @ shared[0], f) @ shared[1])
    chosen = joined([own, own.new_tensor([range(e.count, e.tiles)]).expand(len(h), -1)], 1).to(h.dtype)
    edges = ranked.values[:, e.chosen - 1] - ranked.values[:, e.chosen] if e.chosen < e.count else logits[:, 0] * 0 + 1
    if bool((edges <= CLOSE * ranked.values.abs().amax(-1)).any()):
        return tuple(t * float("nan") for t in (y, chosen, y.new_tensor([demand])))
    return y, chosen, y.new_tensor([demand])


def _cols(block: Block) -> int:
    """Columns of a region of experts."""
    assert block.expert_regions is not None
    return block.mesh.shape[1] // block.expert_regions.side
