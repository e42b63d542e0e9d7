"""Blocks of experts as schedules: every expert is cut over the whole mesh, so a core has a tile of each.

All cores of a token have its router's logits after one all-reduce. So each chooses alone, and multiplies by its own
tiles of the chosen experts. No message depends on expert ids. Rounds, hops and bytes are the sum of the router's and of
a dense block as wide as a token's experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wafer_triton.algorithms.align import align
from wafer_triton.algorithms.gemm import compute_shift
from wafer_triton.algorithms.reduce import all_reduce
from wafer_triton.decoder import weights
from wafer_triton.decoder.block import HEADS, HIDDEN_SPECS, ROWS, Block, sub_layer
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Local

Product = Callable[[str, str], Local]  # of the buffers of both operands


@sub_layer("decode experts", "decode", HEADS)
def decode_experts(b: Builder, block: Block) -> None:
    """Add to x the chosen experts' outputs times their shares; the choice is expert_ids [tokens, per_token]."""

    def reduced(product: Product, w: str, y: str, axis: str, label: str) -> None:
        b.round(product("h" if axis == "y" else "act", w), label=label)
        all_reduce(b, y, axis, groups=block.groups, label=label)

    _experts(b, block, "y", block.batch, reduced)


@sub_layer("prefill experts", ignores=HEADS)
def prefill_experts(b: Builder, block: Block, tokens: int, past: int) -> None:
    """Add to x the chosen experts' outputs times their shares; `past` is ignored.

    The tiles of all experts circle along y, and each core multiplies by the experts of its row's tokens.
    """

    def shifted(product: Product, w: str, y: str, axis: str, label: str) -> None:
        a = "h" if w == "wgu" else "act"
        align(b, a, "x")
        compute_shift(b, a, w, product(a, w), label=label)

    _experts(b, block, "x", tokens, shifted)


def _experts(b: Builder, block: Block, axis: str, m: int, add_product: Callable[..., None]) -> None:
    """Add the block for m tokens a core, the model's width cut along `axis`.

    `add_product(product, w, y, axis, label)` adds the rounds of a local product with weights w into buffer y: of h, its
    width cut along y, or of act along x.
    """
    c, e = block.shape, block.experts
    d, f, per_token = block.share(c.hidden_size, axis), block.share(e.width, "x"), e.per_token
    b.buffer("x", (m, d), block.dtype, "state", pattern=HIDDEN_SPECS[axis])
    weights.experts(b, block, axis)
    b.buffer("h", (m, d), block.dtype)
    b.buffer("shares", (m, per_token), "fp32")
    b.buffer("gu", (m, per_token, 2 * f), block.sum_dtype)
    b.buffer("act", (m, per_token, f), block.dtype)
    b.buffer("y", (m, d), block.sum_dtype)
    add_router(b, block, axis, m)
    sizes: dict[str, Any] = {"m": m, "per_token": per_token, "experts": e.tiles, "accumulate": block.accumulate}

    def gate_up(a: str, w: str) -> Local:
        return b.local("expert_gemm", "gu", (a, w, "expert_ids"), k=d, n=2 * f, **sizes)

    def down(a: str, w: str) -> Local:
        return b.local("expert_sum", "y", (a, w, "expert_ids", "shares"), k=f, n=d, **sizes)

    add_product(gate_up, "wgu", "gu", "y", "gate and up")
    b.round(b.local("silu_mul", "act", "gu", m=m * per_token, n=f), label="silu")
    add_product(down, "wdown", "y", "x", "down")
    b.round(b.local("add", "x", ("x", "y"), size=m * d), label="residual")


def add_router(b: Builder, block: Block, axis: str, m: int) -> None:
    """Add the norm h of x and the router, in fp32: expert_ids and shares of m tokens a core."""
    e = block.experts
    d = block.share(block.shape.hidden_size, axis)
    # fp32 for any dtype of other sums
    b.buffer("logits", (m, e.logits), "fp32")
    b.buffer("expert_ids", (m, e.per_token), "fp32", "output", pattern=f"{ROWS[axis]} k")
    block.norm(b, axis)
    b.round(b.local("gemm", "logits", ("h", "router"), m=m, k=d, n=e.logits), label="router")
    all_reduce(b, "logits", axis, groups=block.groups, label="router")
    choice: dict[str, Any] = {"m": m, "experts": e.count, "k": e.top_k, "shared": e.shared, "normalized": e.normalized}
    b.round(b.local("top_k", ("expert_ids", "shares"), "logits", **choice), label="router")
