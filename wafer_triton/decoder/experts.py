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


@sub_layer("decode experts", "decode", HEADS)
def decode_experts(b: Builder, block: Block) -> None:
    """Add to x the chosen experts' outputs times their shares; the choice is expert_ids [tokens, per_token]."""

    def reduced(product: Local, a: str, w: str, y: str, axis: str, label: str) -> None:
        b.round(product, label=label)
        all_reduce(b, y, axis, groups=block.groups, label=label)

    _experts(b, block, "y", block.batch, reduced)


@sub_layer("prefill experts", ignores=HEADS)
def prefill_experts(b: Builder, block: Block, tokens: int, past: int) -> None:
    """Add to x the chosen experts' outputs times their shares; `past` is ignored.

    The tiles of all experts circle along y, and each core multiplies by the experts of its row's tokens.
    """

    def shifted(product: Local, a: str, w: str, y: str, axis: str, label: str) -> None:
        align(b, a, "x")
        compute_shift(b, a, w, product, label=label)

    _experts(b, block, "x", tokens, shifted)


def _experts(b: Builder, block: Block, axis: str, m: int, add_product: Callable[..., None]) -> None:
    """Add the block for m tokens a core, the model's width cut along `axis`.

    `add_product(product, a, w, y, axis, label)` adds the rounds of a local product of a, whose width is cut along an
    axis in decode, with weights w into buffer y.
    """
    c, e = block.shape, block.experts
    d, f, per_token = block.share(c.hidden_size, axis), block.share(e.width, "x"), e.per_token
    b.buffer("x", (m, d), block.dtype, "state", pattern=HIDDEN_SPECS[axis])
    weights.experts(b, block, axis)
    b.like("h", "x")
    b.buffer("shares", (m, per_token), "fp32")
    b.buffer("gu", (m, per_token, 2 * f), block.sum_dtype)
    b.buffer("act", (m, per_token, f), block.dtype)
    b.buffer("y", (m, d), block.sum_dtype)
    add_router(b, block, axis, m)
    sizes: dict[str, Any] = {"m": m, "per_token": per_token, "experts": e.tiles, "accumulate": block.accumulate}
    gate_up = b.local("expert_gemm", "gu", ("h", "wgu", "expert_ids"), k=d, n=2 * f, **sizes)
    down = b.local("expert_sum", "y", ("act", "wdown", "expert_ids", "shares"), k=f, n=d, **sizes)
    add_product(gate_up, "h", "wgu", "gu", "y", "gate and up")
    b.round(b.local("silu_mul", "act", "gu", m=m * per_token, n=f), label="silu")
    add_product(down, "act", "wdown", "y", "x", "down")
    block.residual(b)


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
