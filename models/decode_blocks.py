"""Decode as schedules: one token of each sequence (WaferLLM, OSDI'25, section 4).

The activation is cut along y and repeated along x; products are MeshGEMVs whose axes alternate, so nothing is
transposed. Projections and feed-forward take the vectors of all sequences at once; attention goes one by one.
"""

from __future__ import annotations

from typing import Any

from wafer_triton.models.blocks import Block
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.gemv import meshgemv
from wafer_triton.schedule.norm import softmax_parts
from wafer_triton.schedule.reduce import all_reduce
from wafer_triton.schedule.rounds import Schedule, Slot


def cache_name(which: str, sequence: int) -> str:
    """The buffer of a sequence's "k" or "v" cache."""
    return f"{which}_cache" + (f".{sequence}" if sequence else "")


def _attention(block: Block, name: str) -> Builder:
    """A builder with the buffers that stay on the cores of an attention block."""
    b, c = Builder(block.mesh, name), block.config
    b.buffer("x", (block.batch, block.share(c.hidden_size, "y")), block.dtype, "resident")
    block.attention_weights(b, "y", block.batch)
    for sequence in range(block.batch):
        for which in "kv":
            tile = (c.num_key_value_heads, block.head)
            b.buffer(cache_name(which, sequence), tile, block.dtype, "resident", block.slots)
    return b


def _heads(block: Block, b: Builder, role: str, *names: str) -> None:
    heads = {"q": block.config.num_attention_heads, "att": block.config.num_attention_heads}
    for name in names:
        tile = (heads.get(name, block.config.num_key_value_heads), block.head)
        b.buffer(name, tile, block.dtype, role, block.batch)


def project(block: Block) -> Schedule:
    """x -> q, k, v of the new tokens, rotated: one slot each for every sequence."""
    b, m = _attention(block, "decode projections"), block.batch
    d = block.share(block.config.hidden_size, "y")
    for name in ("cos", "sin"):
        b.buffer(name, (m, block.pairs), block.dtype, "input")
    b.buffer("h", (m, d), block.dtype)
    b.buffer("qkv", (m, block.qkv), block.sums)
    _heads(block, b, "output", "q", "k", "v")
    block.norm(b, "y")
    run: dict[str, Any] = {"accumulate": block.accumulate, "groups": block.groups}
    meshgemv(b, "h", "wqkv", "qkv", "y", m=m, k=d, n=block.qkv, label="qkv", **run)
    block.rotate(b, m, tuple(Slot(name, None) for name in "qkv"))
    return b.build()


def append(block: Block, sequence: int, count: int, prefilled: int) -> Schedule:
    """k, v of a sequence -> entry number `count` of its cache, of which a prompt filled `prefilled`."""
    b = _attention(block, "kv append")
    _heads(block, b, "input", "k", "v")
    values = {cache_name(which, sequence): Slot(which, sequence) for which in "kv"}
    block.cache(prefilled).append(b, values, count)
    return b.build()


def attend(block: Block, sequence: int) -> Schedule:
    """q of a sequence and its cache -> its part of att; bias [1, slots] is -inf on empty slots."""
    b, c = _attention(block, "decode attention"), block.config
    q_heads = c.num_attention_heads
    sizes: dict[str, Any] = {"m": 1, "accumulate": block.accumulate, **block.heads}
    _heads(block, b, "input", "q")
    _heads(block, b, "output", "att")
    b.buffer("bias", (1, block.slots), "fp32", "input")
    b.buffer("s", (q_heads, 1, block.slots), block.sums)
    b.buffer("p", (q_heads, 1, block.slots), block.dtype)
    b.buffer("o", (1, q_heads, block.head), block.sums)
    keys, values = (Slot(cache_name(which, sequence), None) for which in "kv")
    query = Slot("q", sequence)
    b.round(b.local("gemm_t", "s", (query, keys), k=block.head, n=block.slots, **sizes), label="scores")
    all_reduce(b, "s", "x", groups=block.groups, label="scores")
    z = softmax_parts(b, "s", "bias", "p", "y", scale=c.head_dim**-0.5, sums=block.sums, groups=block.groups)
    b.round(b.local("gemm", "o", ("p", values), k=block.slots, n=block.head, **sizes), label="attention")
    all_reduce(b, "o", "y", groups=block.groups, label="attention")
    b.round(b.local("normalize", Slot("att", sequence), ("o", z), m=1, heads=q_heads, n=block.head), label="attention")
    return b.build()


def output(block: Block) -> Schedule:
    """x, att -> x plus the attention block's output."""
    b, m = _attention(block, "decode output projection"), block.batch
    d, width = block.share(block.config.hidden_size, "y"), block.config.num_attention_heads * block.head
    _heads(block, b, "input", "att")
    b.buffer("y", (m, d), block.sums)
    run: dict[str, Any] = {"accumulate": block.accumulate, "groups": block.groups, "label": "output projection"}
    meshgemv(b, Slot("att", None), "wo", "y", "x", m=m, k=width, n=d, **run)
    b.round(b.local("add", "x", ("x", "y"), size=m * d), label="residual")
    return b.build()


def ffn(block: Block) -> Schedule:
    """x -> x plus the feed-forward block's output."""
    b, c, m = Builder(block.mesh, "decode feed-forward"), block.config, block.batch
    d, f = block.share(c.hidden_size, "y"), block.share(c.intermediate_size, "x")
    b.buffer("x", (m, d), block.dtype, "resident")
    block.ffn_weights(b, "y")
    b.buffer("h", (m, d), block.dtype)
    b.buffer("gu", (m, 2 * f), block.sums)
    b.buffer("act", (m, f), block.dtype)
    b.buffer("y", (m, d), block.sums)
    block.norm(b, "y")
    run: dict[str, Any] = {"m": m, "accumulate": block.accumulate, "groups": block.groups}
    meshgemv(b, "h", "wgu", "gu", "y", k=d, n=2 * f, label="gate and up", **run)
    b.round(b.local("silu_mul", "act", "gu", m=m, n=f), label="silu")
    meshgemv(b, "act", "wdown", "y", "x", k=f, n=d, label="down", **run)
    b.round(b.local("add", "x", ("x", "y"), size=m * d), label="residual")
    return b.build()


def head(block: Block, tokens: int) -> Schedule:
    """x of some tokens -> their logits, cut along x."""
    b, c = Builder(block.mesh, "head"), block.config
    d, v = block.share(c.hidden_size, "y"), block.share(c.vocab_size, "x")
    b.buffer("x", (tokens, d), block.dtype, "resident")
    b.buffer("norm", (d,), block.dtype, "resident")
    b.buffer("whead", (d, v), block.dtype, "resident")
    b.buffer("h", (tokens, d), block.dtype)
    b.buffer("logits", (tokens, v), block.sums, "output")
    block.norm(b, "y")
    run: dict[str, Any] = {"accumulate": block.accumulate, "groups": block.groups}
    meshgemv(b, "h", "whead", "logits", "y", m=tokens, k=d, n=v, **run)
    return b.build()
