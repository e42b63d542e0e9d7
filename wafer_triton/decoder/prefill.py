"""Prefill as schedules: a chunk of a prompt at once (WaferLLM, OSDI'25, section 4).

Tokens are cut along y, widths along x; products are MeshGEMMs on the square grid, scores GEMM-T. With several head
groups attention is both within the columns of each. A chunk attends to itself and to the chunks before it, whose keys
and values lie along y too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wafer_triton.algorithms.align import align, align_both
from wafer_triton.algorithms.gemm import meshgemm, meshgemm_t
from wafer_triton.algorithms.norm import softmax_parts
from wafer_triton.algorithms.segment_gemm import segment_gemm, segment_gemm_t
from wafer_triton.decoder import weights
from wafer_triton.decoder.block import HEADS, HIDDEN_SPECS, Block, SubLayers, sub_layer
from wafer_triton.decoder.expert_regions import prefill_pass, prefill_routing
from wafer_triton.decoder.experts import prefill_experts
from wafer_triton.decoder.heads import distinct_head_groups, most_groups
from wafer_triton.errors import plain
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Slot

# Buffers that a model writes and reads: the activation, the angles of rotary embedding, the mask of scores. Then the
# keys and values of earlier and of new tokens, and expert ids; with experts in regions real rows, demand and ranks.
HIDDEN, HIDDEN_SPEC, ANGLES, MASK, PAST, NEW = (
    "x",
    HIDDEN_SPECS["x"],
    ("cos", "sin"),
    "bias",
    ("keys", "values"),
    ("k", "v"),
)
WIDEST_GROUP = 100  # columns of a head group, if there are several and their number is not given
EXPERT_IDS, REAL, DEMAND, RANKS = "expert_ids", "real", "demand", "ranks"


@sub_layer("prefill attention", ignores=("entries", "policy", "expert_regions"))
def attention(b: Builder, block: Block, tokens: int, past: int) -> None:
    """Add to x the attention block's output; a row has `tokens` new and `past` old tokens.

    The buffers `keys` and `values` hold the new entries first, then the old ones. bias [tokens, tokens + past] masks
    the future and the padding. With several head groups a core has one for each of its blocks, see `block.block_ring`.
    """
    c = block.shape
    width, d, q_heads, entries = block.head_width, block.share(c.hidden_size, "x"), block.query_heads, tokens + past
    run: dict[str, Any] = {"m": tokens, "accumulate": block.accumulate}
    b.buffer("x", (tokens, d), block.dtype, "state", pattern=HIDDEN_SPEC)
    weights.attention(b, block, "x", tokens)
    if not block.unfused:
        for name in ANGLES:
            b.buffer(name, (tokens, block.pairs), block.dtype, "input", pattern="(y m) (x p)")
        b.buffer("qkv", (tokens, block.qkv_width), block.sum_dtype)
    b.like("h", "x")
    b.buffer("q", (tokens, q_heads, width), block.dtype, "output", pattern="(y m) h (x e)")
    for name in ("k", "v"):
        b.buffer(name, (tokens, block.kv_heads, width), block.dtype, "output", pattern="(y m) g (x e)")
    for name in ("keys", "values"):
        role = "state" if past else "scratch"
        b.buffer(name, (entries, block.kv_heads, width), block.dtype, role, pattern="(y n) g (x e)")
    b.buffer("o", (tokens, q_heads, width), block.sum_dtype)
    b.buffer("att", (tokens, q_heads * width), block.dtype)
    b.buffer("y", (tokens, d), block.sum_dtype)

    block.norm(b, "x")
    align(b, "h", "x")
    # the copies take as many elements as there are new ones, at the front
    new = b.buffers["k"].numel
    copies = [b.local("copy", to, name, size=new) for to, name in (("keys", "k"), ("values", "v"))]
    if block.unfused:
        for name, heads in (("q", q_heads), ("k", block.kv_heads), ("v", block.kv_heads)):
            meshgemm(b, "h", f"w{name}", name, k=d, n=heads * width, label="qkv", reuse_a=name != "v", **run)
        b.round(*copies, label="qkv")
    else:
        meshgemm(b, "h", "wqkv", "qkv", k=d, n=block.qkv_width, label="qkv", **run)
        block.rotate(b, tokens, ("q", "k", "v"), *copies)
    (_attend if block.head_groups == 1 else _attend_in_groups)(b, block, tokens, entries)
    align(b, "att", "x")
    meshgemm(b, "att", "wo", "y", k=q_heads * width, n=d, label="output projection", **run)
    block.residual(b)


def _attend(b: Builder, block: Block, m: int, entries: int) -> None:
    """Set att from q, keys, values and bias, over all columns (WaferLLM, OSDI'25, section 4.1)."""
    heads, width = block.query_heads, block.head_width
    run: dict[str, Any] = {"m": m, "accumulate": block.accumulate, **block.head_counts}
    b.buffer("bias", (m, entries), "fp32", "input", pattern="(y m) (x n)")
    b.buffer("s", (heads, m, entries), block.sum_dtype)
    b.buffer("p", (heads, m, entries), block.dtype)
    meshgemm_t(b, "q", "keys", "s", k=width, n=entries, overlap=block.overlap, label="scores", **run)
    z = softmax_parts(b, "s", "bias", "p", "x", scale=block.scale, sums=block.sum_dtype, groups=block.groups)
    align_both(b, "p", "values")
    meshgemm(b, "p", "values", "o", k=entries, n=width, label="attention", **run)
    b.round(b.local("normalize", "att", ("o", z), m=m, heads=heads, n=width), label="attention")


def _attend_in_groups(b: Builder, block: Block, m: int, entries: int) -> None:
    """Set att from q, keys, values and bias, over the columns of each head group.

    The softmax weights overwrite the scores, if both have one dtype. The bias is 0 or -inf, for which the dtype of
    tiles is enough. Columns left over copy q, which is padding there.
    """
    heads, width, blocks = block.query_heads, block.head_width, block.block_ring
    run: dict[str, Any] = {"m": m, "accumulate": block.accumulate, **block.head_counts}
    p = "s" if block.sum_dtype == block.dtype else "p"
    b.buffer("bias", (m, entries), block.dtype, "input", blocks.slots)
    b.buffer("s", (heads, m, entries), block.sum_dtype, slots=blocks.rotating_slots)
    b.buffer(p, (heads, m, entries), block.dtype, slots=blocks.rotating_slots)
    segment_gemm_t(b, "q", "keys", "s", blocks, k=width, n=entries, overlap=block.overlap, label="scores", **run)
    slots = [blocks.columns_with_slot(slot) for slot in range(blocks.slots)]
    z = softmax_parts(
        b, "s", "bias", p, "x", scale=block.scale, sums=block.sum_dtype, slots=slots, **block.head_reduce_options
    )
    segment_gemm(b, p, "values", "o", blocks, k=entries, n=width, label="attention", **run)
    ends = [b.local("normalize", "att", ("o", z), blocks.segment_columns, m=m, heads=heads, n=width)]
    if blocks.leftover_columns is not None:
        ends.append(b.local("copy", "att", "q", blocks.leftover_columns, size=m * heads * width))
    b.round(*ends, label="attention")


@sub_layer("prefill feed-forward", ignores=HEADS)
def ffn(b: Builder, block: Block, tokens: int, past: int) -> None:
    """Add to x the feed-forward block's output; `past` is ignored."""
    c = block.shape
    d, f = block.share(c.hidden_size, "x"), block.share(c.intermediate_size, "x")
    run: dict[str, Any] = {"m": tokens, "accumulate": block.accumulate}
    b.buffer("x", (tokens, d), block.dtype, "state", pattern=HIDDEN_SPEC)
    weights.ffn(b, block, "x")
    b.like("h", "x")
    gates = 2 if block.unfused else 1  # each in a slot, or side by side
    b.buffer("gu", (tokens, 2 * f // gates), block.sum_dtype, slots=gates)
    b.buffer("act", (tokens, f), block.dtype)
    b.buffer("y", (tokens, d), block.sum_dtype)
    block.norm(b, "x")
    align(b, "h", "x")
    if block.unfused:
        for slot, name in enumerate(("wg", "wu")):
            meshgemm(b, "h", name, Slot("gu", slot), k=d, n=f, label="gate and up", reuse_a=slot == 0, **run)
        b.round(b.local("silu_mul", "act", Slot("gu", None), m=1, n=tokens * f), label="silu")
    else:
        meshgemm(b, "h", "wgu", "gu", k=d, n=2 * f, label="gate and up", **run)
        b.round(b.local("silu_mul", "act", "gu", m=tokens, n=f), label="silu")
    align(b, "act", "x")
    meshgemm(b, "act", "wdown", "y", k=f, n=d, label="down", **run)
    block.residual(b)


SUB_LAYERS = {"attention": attention, "ffn": ffn, "experts": prefill_experts}  # by the kind of block


def sub_layers_of(block: Block, kind: str, tokens: int, past: int) -> SubLayers:
    """Return the sub-layers of a kind of block: one, or of experts in regions the routing and a pass, which may repeat.

    Kinds are "attention", "ffn" and "experts". A core has room for the buffers of all of them together.
    """
    if kind == "experts" and block.expert_regions is not None:
        return (prefill_routing, (tokens, 0)), (prefill_pass, (tokens, 0, 0))
    return ((SUB_LAYERS[kind], (tokens, past if kind == "attention" else 0)),)


def layer(block: Block, tokens: int, past: int = 0, kind: str = "ffn") -> SubLayers:
    """Return the sub-layers of a layer in order, each with its arguments: `tokens` new, `past` old tokens on each row.

    `kind` is the kind of the block after attention, "ffn" or "experts". Experts in regions have the expected number of
    passes if all experts are equally likely.
    """
    first, *passes = sub_layers_of(block, kind, tokens, past)
    repeated = passes * block.expected_passes(tokens) if passes else []
    return (*sub_layers_of(block, "attention", tokens, past), first, *repeated)


def head_group_blocks(block: Block, count: int | None) -> list[Block]:
    """Return a prefill block with each number of head groups that is tried (`count` None), or with `count`."""
    columns = block.mesh.shape[1]
    if count is not None:
        count = plain(count)
        fits = type(count) is int and min(count, columns) <= most_groups(block.shape, columns)
        return [in_head_groups(block, min(count, columns) if fits else count)]  # a refusal names `count` as given
    kinds = distinct_head_groups(block.shape, columns)
    return [in_head_groups(block, kind.count) for kind in kinds if kind.count == 1 or kind.width <= WIDEST_GROUP]


def in_head_groups(block: Block, count: int) -> Block:
    """Return a block with `count` head groups; they reduce maxima and sums by chains, on the routes of scores."""
    return replace(block, head_groups=count, head_tree=None if count == 1 else ())
