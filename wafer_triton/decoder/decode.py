"""Decode as schedules: one token of each sequence (WaferLLM, OSDI'25, section 4).

The activation is cut along y and repeated along x; products are MeshGEMVs whose axes alternate, so nothing is
transposed. Projections and feed-forward take the vectors of all sequences at once; attention takes one sequence at a
time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wafer_triton.algorithms.gather import gather
from wafer_triton.algorithms.gemv import meshgemv
from wafer_triton.algorithms.norm import softmax_parts
from wafer_triton.algorithms.reduce import all_reduce
from wafer_triton.decoder import weights
from wafer_triton.decoder.block import HEADS, HIDDEN_SPECS, Block, SubLayer, SubLayers, draft, sub_layer
from wafer_triton.decoder.experts import decode_experts
from wafer_triton.errors import MeshError, SramError
from wafer_triton.schedule import sram
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Slot

# buffers that a model writes and reads: the activation [tokens, width] and its cut, ids and a shard's first,
# logits, the angles of rotary embedding, the mask of scores, the experts chosen
HIDDEN, HIDDEN_SPEC, IDS, FIRST_ID, LOGITS, ANGLES, MASK, EXPERT_IDS = (
    "x",
    HIDDEN_SPECS["y"],
    "ids",
    "first_id",
    "logits",
    ("cos", "sin"),
    "bias",
    "expert_ids",
)


def cache_name(which: str, sequence: int) -> str:
    """Return the buffer of a sequence's "k" or "v" cache."""
    return f"{which}_cache" + (f".{sequence}" if sequence else "")


def _attention(b: Builder, block: Block) -> None:
    """Declare the buffers that stay on the cores of an attention block."""
    c = block.shape
    b.buffer("x", (block.batch, block.share(c.hidden_size, "y")), block.dtype, "state", pattern=HIDDEN_SPEC)
    weights.attention(b, block, "y", block.batch)
    for sequence in range(block.batch):
        for which in "kv":
            tile = (block.kv_heads, block.head_width)
            b.buffer(cache_name(which, sequence), tile, block.dtype, "cache", block.slots, pattern="(y s) g (x e)")


def _heads(b: Builder, block: Block, role: str, *names: str) -> None:
    for name in names:
        tile = (block.kv_heads if name in "kv" else block.query_heads, block.head_width)
        b.buffer(name, tile, block.dtype, role, block.batch, pattern="b h (x e)")


@sub_layer("decode projections", "decode")
def project(b: Builder, block: Block) -> None:
    """Set q, k and v of the new tokens from x, q and k with RoPE; every sequence has a slot of each."""
    m = block.batch
    _attention(b, block)
    d = block.share(block.shape.hidden_size, "y")
    b.like("h", "x")
    _heads(b, block, "output", "q", "k", "v")
    block.norm(b, "y")
    run = block.gemv_options | {"label": "qkv"}
    if block.unfused:  # one product and one reduction, whose thirds q, k and v are slots
        assert m == 1, "thirds of several tokens' projections are no slots"
        b.buffer("qkv", (1, block.qkv_width // 3), block.sum_dtype, slots=3)
        meshgemv(b, "h", "wqkv", Slot("qkv", None), "y", m=m, k=d, n=block.qkv_width, **run)
        size = b.buffers["qkv"].numel
        b.round(*(b.local("copy", name, Slot("qkv", slot), size=size) for slot, name in enumerate("qkv")), label="qkv")
        return
    for name in ("cos", "sin"):
        b.buffer(name, (m, block.pairs), block.dtype, "input", pattern="m (x p)")
    b.buffer("qkv", (m, block.qkv_width), block.sum_dtype)
    meshgemv(b, "h", "wqkv", "qkv", "y", m=m, k=d, n=block.qkv_width, **run)
    block.rotate(b, m, tuple(Slot(name, None) for name in "qkv"))


@sub_layer("kv append", "decode")
def append(b: Builder, block: Block, sequence: int, count: int, prefilled: int) -> None:
    """Append k and v of a sequence to its cache, as entry number `count`; a prompt filled the first `prefilled`."""
    _attention(b, block)
    _heads(b, block, "input", "k", "v")
    values = {cache_name(which, sequence): Slot(which, sequence) for which in "kv"}
    block.cache(prefilled).append(b, values, count)


@sub_layer("decode attention", "decode")
def attend(b: Builder, block: Block, sequence: int) -> None:
    """Set att of a sequence from its q and its cache; bias [1, slots] is -inf on empty slots."""
    q_heads = block.query_heads
    _attention(b, block)
    sizes: dict[str, Any] = {"m": 1, "accumulate": block.accumulate, **block.head_counts}
    _heads(b, block, "input", "q")
    _heads(b, block, "output", "att")
    b.buffer("bias", (1, block.slots), "fp32", "input", pattern="one (y s)")
    b.buffer("s", (q_heads, 1, block.slots), block.sum_dtype)
    b.buffer("p", (q_heads, 1, block.slots), block.dtype)
    b.buffer("o", (1, q_heads, block.head_width), block.sum_dtype)
    keys, values = (Slot(cache_name(which, sequence), None) for which in "kv")
    query = Slot("q", sequence)
    b.round(b.local("gemm_t", "s", (query, keys), k=block.head_width, n=block.slots, **sizes), label="scores")
    all_reduce(b, "s", "x", label="scores", **block.head_reduce_options)
    run: dict[str, Any] = {"sums": block.sum_dtype, "groups": block.groups, "reduce_sums": block.unfused}
    z = softmax_parts(b, "s", "bias", "p", "y", scale=block.scale, **run)
    b.round(b.local("gemm", "o", ("p", values), k=block.slots, n=block.head_width, **sizes), label="attention")
    # the sums of softmax weights are first needed here, so they go with the weighted values
    all_reduce(b, "o" if block.unfused else ("o", z), "y", groups=block.groups, label="attention")
    b.round(
        b.local("normalize", Slot("att", sequence), ("o", z), m=1, heads=q_heads, n=block.head_width), label="attention"
    )


@sub_layer("decode output projection", "decode")
def output(b: Builder, block: Block) -> None:
    """Add to x the output projection of att."""
    m = block.batch
    _attention(b, block)
    d, width = block.share(block.shape.hidden_size, "y"), block.query_heads * block.head_width
    _heads(b, block, "input", "att")
    b.buffer("y", (m, d), block.sum_dtype)
    meshgemv(b, Slot("att", None), "wo", "y", "x", m=m, k=width, n=d, label="output projection", **block.gemv_options)
    block.residual(b)


@sub_layer("decode feed-forward", "decode", HEADS)
def ffn(b: Builder, block: Block) -> None:
    """Add to x the feed-forward block's output."""
    c, m = block.shape, block.batch
    d, f = block.share(c.hidden_size, "y"), block.share(c.intermediate_size, "x")
    b.buffer("x", (m, d), block.dtype, "state", pattern=HIDDEN_SPEC)
    weights.ffn(b, block, "y")
    b.like("h", "x")
    b.buffer("gu", (m, 2 * f), block.sum_dtype)
    b.buffer("act", (m, f), block.dtype)
    b.buffer("y", (m, d), block.sum_dtype)
    block.norm(b, "y")
    run = block.gemv_options | {"m": m}
    meshgemv(b, "h", "wgu", "gu", "y", k=d, n=2 * f, label="gate and up", **run)
    b.round(b.local("silu_mul", "act", "gu", m=m, n=f), label="silu")
    meshgemv(b, "act", "wdown", "y", "x", k=f, n=d, label="down", **run)
    block.residual(b)


@sub_layer("embedding", "decode", HEADS)
def embed(b: Builder, block: Block, tokens: int) -> None:
    """Set x to the rows of the table for the ids of `tokens` tokens; the table is cut as the head's.

    `first_id` is the first row of a core's vocabulary shard.
    """
    c = block.shape
    d = block.share(c.hidden_size, "y")
    b.buffer("ids", (tokens,), "fp32", "input", pattern="t")
    b.buffer("first_id", (1,), "fp32", "input", pattern="(x first)")
    weights.table(b, block, embedding=True)
    b.buffer("x", (tokens, d), block.dtype, "output", pattern=HIDDEN_SPEC)
    gather(b, "table", "ids", "first_id", "x", "x", groups=block.groups, label="embedding")


@sub_layer("head", "decode", HEADS)
def head(b: Builder, block: Block, tokens: int) -> None:
    """Set the logits of `tokens` tokens from x; the vocabulary is cut along x."""
    c = block.shape
    d, v = block.share(c.hidden_size, "y"), block.share(c.vocab_size, "x")
    b.buffer("x", (tokens, d), block.dtype, "state", pattern=HIDDEN_SPEC)
    weights.norm(b, block, "y", weights.NORM)
    weights.table(b, block, embedding=False)
    b.like("h", "x")
    b.buffer("logits", (tokens, v), block.sum_dtype, "output", pattern="m (x v)")
    block.norm(b, "y")
    meshgemv(b, "h", "table", "logits", "y", m=tokens, k=d, n=v, **block.gemv_options)


def sub_layers_of(block: Block, kind: str) -> SubLayers:
    """Return the sub-layers whose buffers a core has room for together, for a kind of block.

    Kinds are "attention", "ffn", "experts", "embedding" and "head". One attention stands for those of all sequences,
    which follow one another; an append needs less.
    """
    if kind in FEED_FORWARD:
        return ((FEED_FORWARD[kind], ()),)
    return {
        "attention": ((project, ()), (attend, (0,)), (output, ())),
        "embedding": ((embed, (block.batch,)),),
        "head": ((head, (block.batch,)),),
    }[kind]


def most_tokens(end: SubLayer, block: Block) -> int:
    """Return the most tokens, a power of two up to 32, that `embed` or `head` takes at once on the block's mesh."""
    limit = block.mesh.device.sram_bytes
    return next((m for m in (32, 16, 8, 4, 2) if sram.account(draft(end, block.anywhere, m)).peak_bytes <= limit), 1)


def batches(end: SubLayer, block: Block, tokens: int) -> dict[int, int]:
    """Return {tokens at once: number of runs} of `embed` or `head` for `tokens` tokens in all."""
    most = most_tokens(end, block)
    return {size: times for size, times in ((most, tokens // most), (tokens % most, 1)) if size and times}


FEED_FORWARD = {"ffn": ffn, "experts": decode_experts}  # by the kind of block


def layer(block: Block, context: int, kind: str = "ffn") -> SubLayers:
    """Return the sub-layers of a layer in order, each with its arguments; the cache ends with `context` tokens.

    `kind` is the kind of the block after attention, "ffn" or "experts".
    """
    sequences = range(block.batch)
    appends = [] if block.policy is None else [(append, (number, context - 1, context - 1)) for number in sequences]
    attends = [(attend, (number,)) for number in sequences]
    return ((project, ()), *appends, *attends, (output, ()), (FEED_FORWARD[kind], ()))


def head_block(block: Block) -> Block:
    """Return the block on the smallest whole multiple of its mesh that holds the LM head.

    Raises MeshError when no multiple on the device does.
    """
    mesh, device = block.mesh, block.mesh.device
    for times in range(1, min(device.rows // mesh.rows, device.cols // mesh.cols) + 1):
        bigger = replace(block, mesh=replace(mesh, rows=mesh.rows * times, cols=mesh.cols * times))
        try:
            sram.check(draft(head, bigger, block.batch))
            return bigger
        except SramError as error:
            reason = error
    raise MeshError(
        f"the model does not fit {device.name}: no multiple of mesh {mesh} there holds its head; "
        f"take another mesh or a larger device ({reason})"
    )
