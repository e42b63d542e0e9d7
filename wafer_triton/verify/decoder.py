"""Plain computations of a decoder's sub-layers: the references of the intents with which `check` compares values.

A reference works on whole tensors with their padding, which has random values, too. The axis of mesh columns comes
before the axes of a core's part of a head: a core's projections are [all heads, head].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from wafer_triton.schedule import decode, prefill
from wafer_triton.schedule.block import Block, SubLayer
from wafer_triton.verify import mixtures
from wafer_triton.verify.intent import Intent
from wafer_triton.verify.plain import fed, head_means, joined, normed, plain_intent, segments, whole_means
from wafer_triton.verify.specs import Tiles

if TYPE_CHECKING:
    from torch import Tensor


def sub_layer_intent(sub_layer: SubLayer, block: Block, *args: int) -> Intent:
    """Return the intent of the schedule that `block.schedule` builds for a sub-layer; raises as it does."""
    return _INTENTS[sub_layer](block, *args)


def _heads(block: Block, qkv: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
    """Return q, k and v [tokens, heads, width] of projections [tokens, width of all columns].

    With RoPE `more` are cos and sin [tokens, pairs]. Then follow, as the model has them, the bias like the projections
    and the norms of heads [query and key heads, width].
    """
    c, rest = block.shape, iter(more)
    kinds = (block.query_heads, block.kv_heads, block.kv_heads)
    if block.apart:
        return tuple(part.unflatten(-1, (-1, block.head)).transpose(1, 2).flatten(2) for part in _thirds(qkv, block))
    angles = [next(rest).unflatten(-1, (-1, 1, block.pairs)) for _ in range(2)]  # [tokens, columns, 1, pairs]
    if c.qkv_bias:
        qkv = qkv + next(rest)
    qkv = qkv.unflatten(-1, (-1, block.all_heads, block.head))  # [tokens, columns, heads, head]
    if c.qk_norm:
        scaled = block.query_heads + block.kv_heads
        weight = next(rest).unflatten(-1, (-1, block.head)).transpose(0, 1)
        means = whole_means(block, qkv) if c.qk_norm_whole else head_means(block, qkv)
        qkv = qkv.clone()
        qkv[:, :, :scaled] *= (means[:, :, :scaled] + c.rms_norm_eps).rsqrt() * weight
    if c.clip_qkv is not None:
        qkv = qkv.clamp(-c.clip_qkv, c.clip_qkv)
    q, k, v = qkv.split(kinds, 2)
    return tuple(part.transpose(1, 2).flatten(2) for part in (_rotated(q, *angles), _rotated(k, *angles), v))


def _thirds(qkv: Tensor, block: Block) -> tuple[Tensor, ...]:
    """Return queries, keys and values, from [tokens, columns, heads * head] with the three one after the other."""
    return qkv.unflatten(-1, (-1, block.qkv)).split(block.qkv // 3, -1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return RoPE of [tokens, columns, heads, head]; on a column the first half of the head pairs with the second."""
    low, high = x.chunk(2, -1)
    rotated = x.clone()
    rotated[..., : low.shape[-1]], rotated[..., low.shape[-1] :] = low * cos - high * sin, high * cos + low * sin
    return rotated


def _attended(block: Block, q: Tensor, keys: Tensor, values: Tensor, biases: Sequence[Tensor | None]) -> Tensor:
    """Return attention of q [tokens, heads, width] to keys and values [entries, key heads, width], with score biases.

    The columns of each segment attend for themselves, with a bias of their own. A column without a bias returns q.
    """
    keys, values = (t.repeat_interleave(block.query_heads // block.kv_heads, 1) for t in (keys, values))
    widths = [columns * block.head for columns in segments(block)]
    attended = []
    for query, key, value, bias in zip(*(t.split(widths, -1) for t in (q, keys, values)), biases, strict=True):
        if bias is None:
            attended.append(query)
            continue
        scores = query.transpose(0, 1) @ key.permute(1, 2, 0) * block.shape.head_dim**-0.5 + bias
        attended.append((scores.softmax(-1) @ value.transpose(0, 1)).transpose(0, 1))
    return joined(attended, -1)


def _merged(block: Block, att: Tensor) -> Tensor:
    """Return attention [tokens, heads, width] by the output projection's rows, column by column: [tokens, all]."""
    return att.unflatten(-1, (-1, block.head)).transpose(1, 2).flatten(1)


def _slots(block: Block, pattern: str) -> str:
    """Return the pattern of a buffer with a slot for each sequence; for a single sequence, without an axis of slots."""
    return f"b {pattern}" if block.batch > 1 else pattern


def _rotary(block: Block, rows: str) -> dict[str, str]:
    """Return the patterns of the further operands of `_heads`."""
    c = block.shape
    if block.apart:
        return {}
    more = {"cos": f"{rows} (x p)", "sin": f"{rows} (x p)"}
    return more | ({"bqkv": f"{rows} (x w)"} if c.qkv_bias else {}) | ({"qk_norm": "g (x e)"} if c.qk_norm else {})


def _project(block: Block) -> Intent:
    def compute(x: Tensor, norm: Tensor, wqkv: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        heads = _heads(block, normed(block, x, norm) @ wqkv, *more)
        return heads if block.batch > 1 else tuple(each[0] for each in heads)

    given = {"x": "m (y d)", "norm": "(y d)", "wqkv": "(y d) (x w)"} | _rotary(block, "m")
    return plain_intent(block, given, dict.fromkeys("qkv", _slots(block, "h (x e)")), compute)


def _append(block: Block, sequence: int, count: int, prefilled: int) -> Intent:
    cache = block.cache(prefilled)
    before, after = cache.positions(count), cache.positions(count + 1)

    def appended(held: Tensor, new: Tensor) -> Tensor:
        """Return the cache [rows, cols, slots, ...], NaN where no entry lies."""
        result = held.new_full(held.shape, float("nan"))
        for entry in range(count):
            (to, slot), (source, _) = (np.argwhere(table == entry)[0] for table in (after, before))
            result[to, :, slot] = held[source, :, slot]
        result[-1, :, count % cache.slots] = new[-1, :, sequence] if block.batch > 1 else new[-1]
        return result

    names = {which: decode.cache_name(which, sequence) for which in "kv"}

    def reference(tiles: Tiles) -> Tiles:
        return {name: appended(tiles[name], tiles[which]) for which, name in names.items()}

    return Intent({}, {}, reference=reference)


def _attend(block: Block, sequence: int) -> Intent:
    def compute(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        biases = [bias] * len(segments(block))
        if block.batch == 1:
            return _attended(block, q[None], keys, values, biases)[0]
        att = q.new_full(q.shape, float("nan"))  # another sequence's part
        att[sequence] = _attended(block, q[sequence][None], keys, values, biases)[0]
        return att

    heads = _slots(block, "h (x e)")
    caches = {decode.cache_name(which, sequence): "(y s) g (x e)" for which in "kv"}
    return plain_intent(block, {"q": heads, **caches, "bias": "one (y s)"}, {"att": heads}, compute)


def _output(block: Block) -> Intent:
    def compute(x: Tensor, att: Tensor, wo: Tensor) -> Tensor:
        return x + _merged(block, att if block.batch > 1 else att[None]) @ wo

    x = "m (y d)"
    return plain_intent(block, {"x": x, "att": _slots(block, "h (x e)"), "wo": "(x w) (y d)"}, {"x": x}, compute)


def _ffn(block: Block) -> Intent:
    def compute(x: Tensor, norm: Tensor, wgu: Tensor, wdown: Tensor) -> Tensor:
        return x + fed(normed(block, x, norm) @ wgu, block.share(block.shape.intermediate_size, "x")) @ wdown

    x = "m (y d)"
    return plain_intent(
        block, {"x": x, "norm": "(y d)", "wgu": "(y d) (x w)", "wdown": "(x f) (y d)"}, {"x": x}, compute
    )


def _embed(block: Block, tokens: int) -> Intent:
    def compute(ids: Tensor, table: Tensor) -> Tensor:
        columns = table.unflatten(-1, (-1, block.share(block.shape.vocab_size, "x")))  # [width, columns, rows]
        numbers = ids.new_tensor(range(columns.shape[-1]))
        chosen = (ids.floor().view(-1, tokens, 1) == numbers).to(table.dtype)
        return (columns.transpose(0, 1) @ chosen.mT).sum(0).mT

    return plain_intent(block, {"ids": "(x t)", "table": "(y d) (x v)"}, {"x": "t (y d)"}, compute)


def _head(block: Block, tokens: int) -> Intent:
    given = {"x": "m (y d)", "norm": "(y d)", "table": "(y d) (x v)"}
    return plain_intent(block, given, {"logits": "m (x v)"}, lambda x, norm, table: normed(block, x, norm) @ table)


def _prefill_attention(block: Block, tokens: int, past: int) -> Intent:
    projections = ("wq", "wk", "wv") if block.apart else ("wqkv",)
    size = block.mesh.shape[0]

    def seen(new: Tensor, old: Tensor) -> Tensor:
        """Return the entries of every row: the new ones first, then the old ones."""
        new, old = (t.unflatten(0, (size, -1)) for t in (new, old))
        kept = old.clone()
        kept[:, :tokens] = new
        return kept.flatten(0, 1)

    def compute(x: Tensor, norm: Tensor, wo: Tensor, bias: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        weights, more = rest[: len(projections)], rest[len(projections) :]
        h = normed(block, x, norm)
        if block.apart:
            q, k, v = ((h @ w).unflatten(-1, (-1, w.shape[-1] // size // block.head, block.head)) for w in weights)
            q, k, v = (t.transpose(1, 2).flatten(2) for t in (q, k, v))
        else:
            split = len(more) - (2 if past else 0)
            q, k, v = _heads(block, h @ weights[0], *more[:split])
        keys, values = (seen(k, more[-2]), seen(v, more[-1])) if past else (k, v)
        att = _attended(block, q, keys, values, _biases(block, bias))
        # values end where their product leaves them, which no one reads
        held = (keys, values.new_full(values.shape, float("nan"))) if past else ()
        return (x + _merged(block, att) @ wo, q, k, v, *held)

    x, heads = "(y m) (x d)", "(y m) h (x e)"
    given = {"x": x, "norm": "(x d)", "wo": "(y w) (x d)", "bias": "(y m) (x n)" if block.head_groups == 1 else ""}
    given |= dict.fromkeys(projections, "(y d) (x w)") | _rotary(block, "(y m)")
    held = dict.fromkeys(("keys", "values"), "(y n) g (x e)") if past else {}
    results = {"x": x, **dict.fromkeys("qkv", heads), **held}
    return plain_intent(block, given | held, results, compute, ("wo", *projections))


def _biases(block: Block, bias: Tensor) -> list[Tensor | None]:
    """Return, for every head group's columns in prefill, the bias of its scores [all tokens, all entries], or None.

    `bias` is the whole bias, or with several head groups the tiles [rows, cols, slots, tokens, entries] of a ring's
    places. A column left over without a head has None.
    """
    if block.head_groups == 1:
        return [bias]
    blocks, start = block.blocks, 0
    bias = bias.reshape(*block.mesh.shape, blocks.slots, *bias.shape[-2:])
    biases: list[Tensor | None] = []
    for columns in segments(block):
        tiles, row_of = bias[:, start : start + columns].flatten(1, 2), blocks.row_of[:, start : start + columns]
        start += columns
        if (row_of < 0).all():
            biases.append(None)
            continue
        # the places of a row in the order of their rows, after the places that hold none
        order = tiles.new_tensor(row_of.reshape(len(row_of), -1).argsort(1)[:, -len(row_of) :]).long()
        biases.append(tiles.take_along_dim(order[..., None, None], 1).transpose(1, 2).flatten(2).flatten(0, 1))
    return biases


def _prefill_ffn(block: Block, tokens: int, past: int) -> Intent:
    gates = ("wg", "wu") if block.apart else ("wgu",)

    def compute(x: Tensor, norm: Tensor, wdown: Tensor, *weights: Tensor) -> Tensor:
        h, width = normed(block, x, norm), block.share(block.shape.intermediate_size, "x")
        if not block.apart:
            return x + fed(h @ weights[0], width) @ wdown
        gate, up = (h @ weight for weight in weights)
        return x + gate * gate.sigmoid() * up @ wdown

    x = "(y m) (x d)"
    given = {"x": x, "norm": "(x d)", "wdown": "(y f) (x d)", **dict.fromkeys(gates, "(y d) (x w)")}
    return plain_intent(block, given, {"x": x}, compute, ("wdown", *gates))


_INTENTS: dict[SubLayer, Callable[..., Intent]] = {
    decode.project: _project,
    decode.append: _append,
    decode.attend: _attend,
    decode.output: _output,
    decode.ffn: _ffn,
    decode.embed: _embed,
    decode.head: _head,
    prefill.attention: _prefill_attention,
    prefill.ffn: _prefill_ffn,
    **mixtures.INTENTS,
}
