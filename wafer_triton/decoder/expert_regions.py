"""Blocks of experts as schedules in which every expert lives in a region of cores.

The mesh is cut into squares of cores, and a square holds some experts, tiled over it. Rows of tokens go to the experts
that they chose by an all-to-all, and come back by another. The tiles of an expert circle within its square alone.

A mesh row sends `capacity` rows of tokens to every region; further rows go in a further pass. All mesh rows make as
many passes as the fullest needs. Each core has this number after one all-reduce.
"""

from __future__ import annotations

from typing import Any

from wafer_triton.algorithms.align import align
from wafer_triton.algorithms.all_to_all import all_to_all
from wafer_triton.algorithms.gemm import compute_shift, meshgemm
from wafer_triton.algorithms.reduce import all_reduce
from wafer_triton.decoder import weights
from wafer_triton.decoder.block import HEADS, HIDDEN_SPECS, Block, sub_layer
from wafer_triton.decoder.experts import add_router
from wafer_triton.schedule.builder import Builder


@sub_layer("prefill routing", ignores=HEADS)
def prefill_routing(b: Builder, block: Block, tokens: int, past: int) -> None:
    """Find the slot and rank in their region's queue for all rows of tokens, and add the shared expert's output to x.

    demand [1] is the most rows that any mesh row has for a region. `past` is ignored.
    """
    _routing(b, block, tokens, "state")


@sub_layer("prefill experts in regions", ignores=HEADS)
def prefill_pass(b: Builder, block: Block, tokens: int, past: int, number: int) -> None:
    """Add to x the outputs of the experts that pass `number` takes rows to, times their shares; `past` is ignored."""
    _queues(b, block, tokens, "state")
    _pass(b, block, tokens, number)


@sub_layer("prefill experts in regions, whole", ignores=HEADS)
def prefill_experts_in_regions(b: Builder, block: Block, tokens: int, past: int, passes: int) -> None:
    """Add to x the chosen experts' outputs times their shares, in `passes` passes; `past` is ignored."""
    _routing(b, block, tokens, "scratch")
    for number in range(passes):
        _pass(b, block, tokens, number)


def _queues(b: Builder, block: Block, m: int, role: str) -> None:
    """Declare the buffers of routing that the passes need."""
    e = block.experts
    for name, ends in (("x", "state"), ("h", role)):
        b.buffer(name, (m, block.share(block.shape.hidden_size, "x")), block.dtype, ends, pattern=HIDDEN_SPECS["x"])
    for name, width in (("shares", e.per_token), ("slots", e.top_k), ("ranks", e.top_k)):
        b.buffer(name, (m, width), "fp32", role, pattern="(y m) k")


def _routing(b: Builder, block: Block, m: int, role: str) -> None:
    e, regions = block.experts_in_regions
    regions.check(e, block.mesh)
    _queues(b, block, m, role)
    weights.router(b, block, "x")
    b.buffer("real", (m,), "fp32", "input", pattern="(y m)")
    b.buffer("demand", (1,), "fp32", "output", pattern="n")
    add_router(b, block, "x", m)
    queued: dict[str, Any] = {"m": m, "k": e.top_k, "per_token": e.per_token}
    queued |= {"regions": regions.count, "held": regions.held(e)}
    b.round(b.local("enqueue", ("slots", "ranks", "demand"), ("expert_ids", "real"), **queued), label="queue")
    all_reduce(b, "demand", "y", op="maximum", groups=block.groups, label="queue")
    if e.shared:
        _shared(b, block, m)


def _shared(b: Builder, block: Block, m: int) -> None:
    """Add to x the shared expert's output times the token's share of it; it is a dense block over the whole mesh."""
    e = block.experts
    d, f = block.share(block.shape.hidden_size, "x"), block.share(e.shared_width, "x")
    weights.shared_expert(b, block)
    b.like("h.shared", "h")
    b.buffer("gu.shared", (m, 2 * f), block.sum_dtype)
    b.buffer("act.shared", (m, f), block.dtype)
    b.buffer("y", (m, d), block.sum_dtype)
    b.like("y.shared", "y")
    run: dict[str, Any] = {"m": m, "accumulate": block.accumulate}
    b.round(b.local("copy", "h.shared", "h", size=m * d), label="shared expert")
    align(b, "h.shared", "x")
    meshgemm(b, "h.shared", "wgu.shared", "gu.shared", k=d, n=2 * f, label="shared expert", **run)
    b.round(b.local("silu_mul", "act.shared", "gu.shared", m=m, n=f), label="silu")
    align(b, "act.shared", "x")
    meshgemm(b, "act.shared", "wdown.shared", "y.shared", k=f, n=d, label="shared expert", **run)
    scaled = b.local("scale_rows", "y", ("y.shared", "shares"), m=m, n=d, per_token=e.per_token, column=e.top_k)
    block.residual(b, scaled)


def _pass(b: Builder, block: Block, m: int, number: int) -> None:
    e, regions = block.experts_in_regions
    side, capacity, held = regions.side, regions.capacity, regions.held(e)
    size, d = block.mesh.shape[0] // side, block.share(block.shape.hidden_size, "x")
    f, rows, whole = -(-e.width // size), side * capacity, side * d
    weights.experts_in_regions(b, block)
    sums, dtype = block.sum_dtype, block.dtype
    b.buffer("sent", (side, side, capacity * (d + 1)), dtype)
    b.like("arrived", "sent")
    b.buffer("a", (rows, whole), dtype)
    b.buffer("arrived_ids", (rows,), "fp32")
    b.buffer("gu", (rows, 2 * f), sums)
    b.buffer("act", (rows, f), dtype)
    b.buffer("yr", (rows, whole), sums)
    b.buffer("returned", (side, side, capacity * d), dtype)
    b.like("back", "returned")
    b.buffer("y", (m, d), sums)
    taken: dict[str, Any] = {"m": m, "k": e.top_k, "n": d, "regions": regions.count, "held": held}
    taken |= {"capacity": capacity, "first": number * capacity}
    moved: dict[str, Any] = {"sources": side, "capacity": capacity, "n": d}
    sizes: dict[str, Any] = {"m": rows, "per_token": 1, "experts": held, "accumulate": block.accumulate}

    gate_up = b.local("expert_gemm", "gu", ("a", "wgu", "arrived_ids"), k=whole, n=2 * f, **sizes)
    down = b.local("expert_gemm", "yr", ("act", "wdown", "arrived_ids"), k=f, n=whole, **sizes)
    b.round(b.local("dispatch", "sent", ("h", "slots", "ranks"), **taken), label="dispatch")
    all_to_all(b, "sent", "arrived", size=capacity * (d + 1), regions=(side, side), label="dispatch")
    b.round(b.local("permute", ("a", "arrived_ids"), "arrived", **moved), label="dispatch")
    align(b, "a", "x", region=size)
    compute_shift(b, "a", "wgu", gate_up, label="gate and up", region=size)
    b.round(b.local("silu_mul", "act", "gu", m=rows, n=f), label="silu")
    align(b, "act", "x", region=size)
    compute_shift(b, "act", "wdown", down, label="down", region=size)
    b.round(b.local("unpermute", "returned", "yr", **moved), label="combine")
    all_to_all(b, "returned", "back", size=capacity * d, regions=(side, side), back=True, label="combine")
    combined = b.local("combine", "y", ("back", "slots", "ranks", "shares"), per_token=e.per_token, **taken)
    block.residual(b, combined)
