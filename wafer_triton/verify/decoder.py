"""Plain computations of a decoder's sub-layers: the references of the intents with which `check` compares values.

A reference works on whole tensors with their padding, which has random values, too. The axis of mesh columns comes
before the axes of a core's part of a head: a core's projections are [all heads, head].
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from wafer_triton.decoder import decode, prefill
from wafer_triton.decoder.block import Block, SubLayer, draft
from wafer_triton.verify import mixtures
from wafer_triton.verify.intent import Intent
from wafer_triton.verify.plain import (
    Formula,
    concat,
    head_norm,
    plain_intent,
    rms_norm,
    segment_widths,
    swiglu,
)
from wafer_triton.verify.specs import Tiles

if TYPE_CHECKING:
    from torch import Tensor


def sub_layer_intent(sub_layer: SubLayer, block: Block, *args: int) -> Intent:
    """Return the intent of the schedule that `block.schedule` builds for a sub-layer; raises as it does."""
    schedule = draft(sub_layer, block, *args)
    intent = plain_intent(schedule, partial(_FORMULAS[sub_layer], block, *args))
    return mixtures.with_routing_draws(intent, sub_layer, schedule, block, *args)


def _heads(block: Block, qkv: Tensor, more: Tiles) -> tuple[Tensor, ...]:
    """Return q, k and v [tokens, heads, width] of projections [tokens, width of all columns].

    `more` has cos and sin [tokens, pairs] for RoPE and, if the model has them, the bias, of the projections' shape, and
    the weights of head norms [query and key heads, width].
    """
    c = block.shape
    if c.qkv_bias:
        qkv = qkv + more["bqkv"]
    qkv = qkv.unflatten(-1, (-1, block.all_heads, block.head_width))  # [tokens, columns, heads, head]
    if c.qk_norm:
        heads, v = qkv.split((block.query_heads + block.kv_heads, block.kv_heads), 2)
        weight = more["qk_norm"].unflatten(-1, (-1, block.head_width)).transpose(0, 1)
        qkv = concat([head_norm(block, heads, weight), v], 2)
    if c.clip_qkv is not None:
        qkv = qkv.clamp(-c.clip_qkv, c.clip_qkv)
    q, k, v = qkv.split((block.query_heads, block.kv_heads, block.kv_heads), 2)
    if c.rotary:
        angles = [
            more[name].unflatten(-1, (-1, 1, block.pairs)) for name in decode.ANGLES
        ]  # [tokens, columns, 1, pairs]
        q, k = _rope(q, *angles), _rope(k, *angles)
    return tuple(part.transpose(1, 2).flatten(2) for part in (q, k, v))


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return RoPE of [tokens, columns, heads, head]; on a column the first half of the head pairs with the second."""
    low, high = x.chunk(2, -1)
    return concat([low * cos - high * sin, high * cos + low * sin], -1)


def _attention(block: Block, q: Tensor, keys: Tensor, values: Tensor, biases: Sequence[Tensor | None]) -> Tensor:
    """Return attention of q [tokens, heads, width] to keys and values [entries, key heads, width], with score biases.

    The columns of each segment attend for themselves, with a bias of their own. A column without a bias returns q.
    """
    keys, values = (t.repeat_interleave(block.query_heads // block.kv_heads, 1) for t in (keys, values))
    widths = [columns * block.head_width for columns in segment_widths(block)]
    attended = []
    for query, key, value, bias in zip(*(t.split(widths, -1) for t in (q, keys, values)), biases, strict=True):
        if bias is None:
            attended.append(query)
            continue
        scores = query.transpose(0, 1) @ key.permute(1, 2, 0) * block.shape.head_dim**-0.5 + bias
        attended.append((scores.softmax(-1) @ value.transpose(0, 1)).transpose(0, 1))
    return concat(attended, -1)


def _merged(block: Block, att: Tensor) -> Tensor:
    """Return attention [tokens, heads, width] as [tokens, rows of the output projection], mesh column by column."""
    return att.unflatten(-1, (-1, block.head_width)).transpose(1, 2).flatten(1)


def _project(block: Block, /, x: Tensor, norm: Tensor, wqkv: Tensor, **more: Tensor) -> Tiles:
    return dict(zip("qkv", _heads(block, rms_norm(block, x, norm) @ wqkv, more), strict=True))


def _append(
    block: Block, sequence: int, count: int, prefilled: int, /, k: Tensor, v: Tensor, **caches: Tensor
) -> Tiles:  # fmt: skip
    """Return the caches, NaN where no entry lies."""
    cache, results = block.cache(prefilled), {}
    before, after = cache.positions(count), cache.positions(count + 1)
    for which, new in zip("kv", (k, v), strict=True):
        name = decode.cache_name(which, sequence)
        held = caches[name].unflatten(0, after.shape)  # [rows, slots, ...]
        result = held.new_full(held.shape, float("nan"))
        for entry in range(count):
            result[after == entry] = held[before == entry]
        result[-1, count % cache.slots] = new[sequence]
        results[name] = result.flatten(0, 1)
    return results


def _attend(block: Block, sequence: int, /, q: Tensor, bias: Tensor, **caches: Tensor) -> Tiles:
    keys, values = (caches[decode.cache_name(which, sequence)] for which in "kv")
    att = q.new_full(q.shape, float("nan"))  # another sequence's part
    att[sequence] = _attention(block, q[sequence][None], keys, values, [bias] * len(segment_widths(block)))[0]
    return {"att": att}


def _output(block: Block, /, x: Tensor, att: Tensor, wo: Tensor) -> Tiles:
    return {"x": x + _merged(block, att) @ wo}


def _ffn(block: Block, *_: int, x: Tensor, norm: Tensor, wdown: Tensor, **gates: Tensor) -> Tiles:
    if "wgu" in gates:
        gate_up, columns = gates["wgu"], block.mesh.shape[1]
    else:
        gate_up, columns = concat([gates["wg"], gates["wu"]], 1), 1
    return {"x": x + swiglu(rms_norm(block, x, norm), gate_up, wdown, columns)}


def _embed(block: Block, tokens: int, /, ids: Tensor, first_id: Tensor, table: Tensor) -> Tiles:
    columns = table.unflatten(-1, (-1, block.share(block.shape.vocab_size, "x")))  # [width, columns, rows]
    numbers = ids.new_tensor(range(columns.shape[-1]))
    chosen = ((ids - first_id[:, None]).floor()[..., None] == numbers).to(table.dtype)  # [columns, tokens, rows]
    return {"x": (columns.transpose(0, 1) @ chosen.mT).sum(0).mT}


def _head(block: Block, tokens: int, /, x: Tensor, norm: Tensor, table: Tensor) -> Tiles:
    return {"logits": rms_norm(block, x, norm) @ table}


def _prefill_attention(
    block: Block, tokens: int, past: int, /, x: Tensor, norm: Tensor, wo: Tensor, bias: Tensor, **more: Tensor
) -> Tiles:
    h, size = rms_norm(block, x, norm), block.mesh.shape[0]

    def seen(new: Tensor, old: Tensor) -> Tensor:
        """Return the entries of every row: the new ones first, then the old ones."""
        new, old = (t.unflatten(0, (size, -1)) for t in (new, old))
        return concat([new, old[:, tokens:]], 1).flatten(0, 1)

    names = ("wq", "wk", "wv") if block.unfused else ("wqkv",)
    wqkv = concat([more[name].unflatten(-1, (size, -1)) for name in names], -1).flatten(1)
    q, k, v = _heads(block, h @ wqkv, more)
    keys, values = (seen(k, more["keys"]), seen(v, more["values"])) if past else (k, v)
    y = _merged(block, _attention(block, q, keys, values, _biases(block, bias))) @ wo
    # values end where their product leaves them, which no one reads
    held = {"keys": keys, "values": values.new_full(values.shape, float("nan"))} if past else {}
    return {"x": x + y, "q": q, "k": k, "v": v, **held}


def _biases(block: Block, bias: Tensor) -> list[Tensor | None]:
    """Return, for every head group's columns in prefill, the bias of its scores [all tokens, all entries], or None.

    `bias` is the whole bias, or with several head groups the tiles [rows, cols, slots, tokens, entries] of a ring's
    places. A column left over without a head has None.
    """
    if block.head_groups == 1:
        return [bias]
    blocks, start = block.block_ring, 0
    bias = bias.reshape(*block.mesh.shape, blocks.slots, *bias.shape[-2:])
    biases: list[Tensor | None] = []
    for columns in segment_widths(block):
        tiles, row_of = bias[:, start : start + columns].flatten(1, 2), blocks.row_of[:, start : start + columns]
        start += columns
        if (row_of < 0).all():
            biases.append(None)
            continue
        # the places of a row in the order of their rows, after the places that hold none
        order = tiles.new_tensor(row_of.reshape(len(row_of), -1).argsort(1)[:, -len(row_of) :]).long()
        biases.append(tiles.take_along_dim(order[..., None, None], 1).transpose(1, 2).flatten(2).flatten(0, 1))
    return biases


_FORMULAS: dict[SubLayer, Formula] = {
    decode.project: _project,
    decode.append: _append,
    decode.attend: _attend,
    decode.output: _output,
    decode.ffn: _ffn,
    decode.embed: _embed,
    decode.head: _head,
    prefill.attention: _prefill_attention,
    prefill.ffn: _ffn,
    **mixtures.FORMULAS,
}
