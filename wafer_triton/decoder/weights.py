"""The weights of a decoder's blocks as buffers: their tiles, and which parameters they hold, cut how.

Parameters have their Hugging Face names and shapes, a projection [out, in]. Decode cuts the output and down projections
along the opposite axes of the other matrices, so that consecutive MeshGEMVs alternate axes. Prefill cuts all alike, and
its MeshGEMMs take them skewed along y. Which heads a column holds is the block's layout (see
`decoder.heads`). `axis` is the mesh axis that cuts the model's width: "y" in decode, "x" in prefill.
"""

from __future__ import annotations

import numpy as np

from wafer_triton.decoder.block import ROWS, Block
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Index, Parameter
from wafer_triton.shape.moe import SHARED, SHARED_GATE, names_of

LAYER = "model.layers.{}."
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
NORM = "model.norm.weight"
SECOND_NORM = f"{LAYER}post_attention_layernorm.weight"


def norm(b: Builder, block: Block, axis: str, name: str) -> None:
    """Declare the weight of a norm of the model's width."""
    width = block.shape.hidden_size
    held = Parameter(name, (width,), f"({axis} d)")
    b.buffer("norm", (block.share(width, axis),), block.dtype, "weight", holds=(held,))


def attention(b: Builder, block: Block, axis: str, tokens: int) -> None:
    """Declare an attention block's weights; the bias has `tokens` rows.

    The projections lie side by side, or in prefill of the paper-benchmark program in buffers of their own.
    """
    c, layout, skew = block.shape, block.layout, _skew(block, axis)
    width, d, names = c.hidden_size, block.share(c.hidden_size, axis), f"{LAYER}self_attn."
    heads = {"q": block.query_heads, "k": block.kv_heads, "v": block.kv_heads}
    widths = {"q": c.q_width, "k": c.kv_width, "v": c.kv_width}
    # the one head of the paper-benchmark program is cut evenly
    rows: dict[str, Index | None] = {part: layout.rows(part) if c.rotary else None for part in "qkv"}
    projections = {
        part: Parameter(f"{names}{part}_proj.weight", (widths[part], width), "(x n) (y d) -> d n", rows[part])
        for part in rows
    }
    norm(b, block, axis, f"{LAYER}input_layernorm.weight")
    for parts in "qkv" if block.unfused and skew else ("qkv",):
        size = sum([heads[part] for part in parts]) * block.head_width
        holds = [projections[part] for part in parts]
        b.buffer(f"w{parts}", (d, size), block.weight_dtype, "weight", holds=holds, skew=skew)
    cut = f"({axis} d) ({_across(axis)} n) -> n d"
    output = Parameter(f"{names}o_proj.weight", (width, c.q_width), cut, rows["q"], 1)
    tile = (block.query_heads * block.head_width, d)
    b.buffer("wo", tile, block.weight_dtype, "weight", holds=(output,), skew=skew)
    if c.qkv_bias:
        biases = [
            Parameter(f"{names}{part}_proj.bias", (widths[part],), "(x n)", rows[part], repeated=True) for part in rows
        ]
        cut = f"{ROWS[axis]} (x n)"
        b.buffer("bqkv", (tokens, block.qkv_width), block.dtype, "weight", pattern=cut, holds=biases)
    if c.qk_norm:  # of all heads, or of a head alone, repeated for all of them
        norms = []
        for part in "qk":
            own, size = layout.rows(part), widths[part]
            if not c.qk_norm_whole:
                own, size = np.where(own < 0, -1, own % c.head_dim), c.head_dim
            norms.append(Parameter(f"{names}{part}_norm.weight", (size,), "(x n)", own))
        tile = (block.query_heads + block.kv_heads, block.head_width)
        b.buffer("qk_norm", tile, block.dtype, "weight", holds=norms)


def ffn(b: Builder, block: Block, axis: str) -> None:
    """Declare a feed-forward block's weights, gate and up as the projections of `attention`."""
    norm(b, block, axis, SECOND_NORM)
    _dense(b, block, axis, block.shape.intermediate_size, "mlp.", apart=block.unfused and axis == "x")


def _dense(
    b: Builder, block: Block, axis: str, inner: int, names: str, suffix: str = "", apart: bool = False
) -> None:  # fmt: skip
    """Declare gate, up and down projection of a dense block; gate and up lie side by side, or `apart`.

    The parameters' names begin with `names`, those of the buffers end with `suffix`.
    """
    width, skew = block.shape.hidden_size, _skew(block, axis)
    d, f = block.share(width, axis), block.share(inner, "x")
    gate, up = (
        Parameter(f"{LAYER}{names}{part}_proj.weight", (inner, width), "(x f) (y d) -> d f") for part in ("gate", "up")
    )
    down = Parameter(f"{LAYER}{names}down_proj.weight", (width, inner), f"({axis} d) ({_across(axis)} f) -> f d")
    for name, held in {"wg": (gate,), "wu": (up,)}.items() if apart else [("wgu", (gate, up))]:
        b.buffer(f"{name}{suffix}", (d, len(held) * f), block.weight_dtype, "weight", holds=held, skew=skew)
    b.buffer(f"wdown{suffix}", (f, d), block.weight_dtype, "weight", holds=(down,), skew=skew)


def experts(b: Builder, block: Block, axis: str) -> None:
    """Declare the weights of a block of experts, a tile of each; the shared expert is last, padded to whole experts."""
    e, skew = block.experts, _skew(block, axis)
    d, f = block.share(block.shape.hidden_size, axis), block.share(e.width, "x")
    ups, downs = _experts(block, axis, shared=e.shared > 0)
    router(b, block, axis)
    b.buffer("wgu", (e.tiles, d, 2 * f), block.weight_dtype, "weight", holds=ups, skew=skew)
    b.buffer("wdown", (e.tiles, f, d), block.weight_dtype, "weight", holds=downs, skew=skew)


def router(b: Builder, block: Block, axis: str) -> None:
    """Declare the norm before a block of experts, and the weights of its router."""
    c, e = block.shape, block.experts
    width, d, cut = c.hidden_size, block.share(c.hidden_size, axis), f"e ({axis} d) -> d e"
    held = [Parameter(LAYER + names_of(c).router, (e.count, width), cut)]
    if e.shared:
        held.append(Parameter(LAYER + SHARED_GATE, (1, width), cut))
    norm(b, block, axis, SECOND_NORM)
    b.buffer("router", (d, e.logits), block.dtype, "weight", holds=held)


def experts_in_regions(b: Builder, block: Block) -> None:
    """Declare the weights of the experts of a core's region, a tile of each; patterns cut over a region's cores."""
    e, regions = block.experts_in_regions
    held, d = regions.held(e), regions.side * block.share(block.shape.hidden_size, "x")
    size = block.mesh.shape[0] // regions.side
    f, (ups, downs) = -(-e.width // size), _experts(block, "x", shared=False)
    b.buffer("wgu", (held, d, 2 * f), block.weight_dtype, "weight", holds=ups, skew=size)
    b.buffer("wdown", (held, f, d), block.weight_dtype, "weight", holds=downs, skew=size)


def shared_expert(b: Builder, block: Block) -> None:
    """Declare the weights of a shared expert that lies over the whole mesh, as a dense block does."""
    _dense(b, block, "x", block.experts.shared_width, SHARED, ".shared")


def _experts(block: Block, axis: str, shared: bool) -> tuple[list[Parameter], list[Parameter]]:
    """Return the gate and up projections of all experts, and the down projections; the `shared` expert is last."""
    e, names, width = block.experts, names_of(block.shape), block.shape.hidden_size
    up, down = "(s x f) (y d) -> s d f", f"({axis} d) (s {_across(axis)} f) -> s f d"
    ups, downs = [], []
    for number in range(e.count):
        *both, last = (LAYER + name for name in names.expert(number))
        own, sizes = (number, number + 1), {"s": 1}
        ups += [Parameter(name, (e.width, width), up, experts=own, sizes=sizes) for name in both]
        downs.append(Parameter(last, (width, e.width), down, experts=own, sizes=sizes))
    if shared:
        rows = np.arange(e.shared * e.width)
        rows, own, sizes = np.where(rows < e.shared_width, rows, -1), (e.count, e.tiles), {"s": e.shared}
        *both, last = (f"{LAYER}{SHARED}{part}_proj.weight" for part in ("gate", "up", "down"))
        ups += [Parameter(name, (e.shared_width, width), up, rows, 0, own, sizes) for name in both]
        downs.append(Parameter(last, (width, e.shared_width), down, rows, 1, own, sizes))
    return ups, downs


def table(b: Builder, block: Block, embedding: bool) -> None:
    """Declare the table of the embedding or of the head, which lie alike, and are one in a tied model."""
    c = block.shape
    d, v = block.share(c.hidden_size, "y"), block.share(c.vocab_size, "x")
    name = EMBEDDING if embedding or c.tie_word_embeddings else HEAD
    held = Parameter(name, (c.vocab_size, c.hidden_size), "(x v) (y d) -> d v")
    b.buffer("table", (d, v), block.weight_dtype, "weight", holds=(held,))


def _across(axis: str) -> str:
    return "x" if axis == "y" else "y"


def _skew(block: Block, axis: str) -> int:
    """Return the side of the squares in which the matrices of prefill are skewed; 0 in decode."""
    return block.mesh.shape[0] if axis == "x" else 0
