"""Blocks of experts as schedules in which every expert lives in a region of cores.

The mesh is cut into squares of cores, and a square holds some experts, tiled over it. Rows of tokens go to the experts
that they chose by an all-to-all, and come back by another. The tiles of an expert circle within its square alone.

A row of cores sends `capacity` rows of tokens to every region, and what it has more goes in a further pass. All rows of
cores make as many passes as the fullest needs, which each knows after one all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import Any

from wafer_triton.errors import MeshError, check_counts
from wafer_triton.experts import Experts
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.all_to_all import all_to_all
from wafer_triton.schedule.block import Block, part
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.experts import routed
from wafer_triton.schedule.gemm import align, compute_shift, meshgemm
from wafer_triton.schedule.reduce import all_reduce
from wafer_triton.schedule.rounds import Local

MOST_HELD = 256  # experts of a region, whose numbers travel in the dtype of tiles


@dataclass(frozen=True)
class ExpertRegions:
    """Experts in `side` x `side` regions, and the rows that a row of cores sends to each of them in a pass.

    `copies` are experts that live in one region more, once for each time that they stand there. Raises ShapeError for
    sizes that are not positive whole numbers.
    """

    side: int
    capacity: int
    copies: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_counts(side=self.side, capacity=self.capacity)

    @property
    def count(self) -> int:
        """Regions of the mesh."""
        return self.side * self.side

    def living(self, experts: Experts) -> tuple[tuple[int, ...], ...]:
        """The experts of every region: one after the other in turn, then copies where the fewest live.

        Raises MeshError for a copy of an expert that there is not, or that lives in every region.
        """
        living = [list(range(region, experts.count, self.count)) for region in range(self.count)]
        for expert in self.copies:
            free = [own for own in living if expert not in own]
            if not 0 <= expert < experts.count or not free:
                why = "lives in all of them" if 0 <= expert < experts.count else f"is none of {experts.count}"
                raise MeshError(
                    f"{experts.name}: no further copy of expert {expert} in {self.count} regions, it {why}; leave it "
                    f"out"
                )
            min(free, key=len).append(expert)
        return tuple(map(tuple, living))

    def held(self, experts: Experts) -> int:
        """The most experts of a region, copies among them."""
        return max(map(len, self.living(experts)))

    def homes(self, experts: Experts) -> tuple[tuple[int, int], ...]:
        """The slot of every copy, as (expert, slot): `held` slots of a region follow one another."""
        held = self.held(experts)
        return tuple(
            (expert, region * held + place)
            for region, own in enumerate(self.living(experts))
            for place, expert in enumerate(own)
            if expert % self.count != region
        )

    def expected_passes(self, block: Block, tokens: int) -> int:
        """Passes of `tokens` tokens a row if each expert is as likely as any other, see `expected_demand`."""
        assert block.shape.experts is not None, "regions are of a model that has experts"
        demand = expected_demand(block.shape.experts.chosen, self.count, tokens, block.mesh.shape[0])
        return -(-demand // self.capacity)

    def check(self, block: Block) -> None:
        """Raise MeshError unless a block's mesh can be cut so, for the experts of its model."""
        side, e = block.mesh.shape[0], block.shape.experts
        assert e is not None, "regions are of a model that has experts"
        if side % self.side:
            raise MeshError(
                f"{e.name}: {self.side} x {self.side} regions of experts on mesh {block.mesh}: give a divisor of its "
                f"side {side}"
            )
        if self.held(e) > MOST_HELD:
            raise MeshError(
                f"{e.name}: {self.held(e)} experts in each of {self.side} x {self.side} regions; {MOST_HELD} are the "
                f"most, give more regions"
            )
        self.homes(e)


def fewest_regions(mesh: Mesh) -> ExpertRegions:
    """The fewest regions, of several, that a square mesh can be cut into, or one."""
    side = mesh.shape[0]
    return ExpertRegions(next((count for count in range(2, side + 1) if side % count == 0), 1), 1)


@lru_cache(maxsize=1024)
def expected_demand(chosen: int, regions: int, tokens: int, rows: int) -> int:
    """The most rows of tokens that one of `rows` rows of cores has for a region, if each region is as likely.

    Every token chooses so many experts. It is the number that fewer than one of all rows and regions exceeds, if the
    picks of a token were independent.
    """
    picks, odds, above = tokens * chosen, 1 / regions, 1.0
    for most in range(picks):
        above -= comb(picks, most) * odds**most * (1 - odds) ** (picks - most)
        if rows * regions * above < 1:
            return max(1, most)
    return picks


@part("prefill routing")
def prefill_routing(b: Builder, block: Block, tokens: int, past: int) -> None:
    """x -> where its tokens' rows go, and x plus the output of the shared expert; `past` is ignored.

    demand [1] is the most rows that any row of cores has for a region.
    """
    _routing(b, block, tokens, "resident")


@part("prefill experts in regions")
def prefill_pass(b: Builder, block: Block, tokens: int, past: int, number: int) -> None:
    """x -> x plus the shares of the experts that pass `number` takes the rows to; `past` is ignored."""
    _queues(b, block, tokens, "resident")
    _pass(b, block, tokens, number)


@part("prefill experts in regions, whole")
def prefill_experts_in_regions(b: Builder, block: Block, tokens: int, past: int, passes: int) -> None:
    """x -> x plus the sum of the chosen experts' outputs by their shares, in so many passes; `past` is ignored."""
    _routing(b, block, tokens, "scratch")
    for number in range(passes):
        _pass(b, block, tokens, number)


def _regions(block: Block) -> tuple[Experts, ExpertRegions]:
    assert block.shape.experts is not None and block.expert_regions is not None, "a block whose experts have regions"
    return block.shape.experts, block.expert_regions


def _queues(b: Builder, block: Block, m: int, role: str) -> None:
    """Declare what the passes need of routing."""
    e, _ = _regions(block)
    b.buffer("x", (m, block.share(block.shape.hidden_size, "x")), block.dtype, "resident")
    b.buffer("h", (m, block.share(block.shape.hidden_size, "x")), block.dtype, role)
    for name, picks in (("shares", e.picks), ("slots", e.chosen), ("ranks", e.chosen)):
        b.buffer(name, (m, picks), "fp32", role)


def _routing(b: Builder, block: Block, m: int, role: str) -> None:
    e, regions = _regions(block)
    regions.check(block)
    d = block.share(block.shape.hidden_size, "x")
    _queues(b, block, m, role)
    b.buffer("norm", (d,), block.dtype, "resident")
    b.buffer("router", (d, e.logits), block.dtype, "resident")
    b.buffer("real", (m,), "fp32", "input")
    b.buffer("demand", (1,), "fp32", "output")
    routed(b, block, "x", m)
    queued: dict[str, Any] = {"m": m, "k": e.chosen, "picks": e.picks, "regions": regions.count}
    queued |= {"held": regions.held(e), "copies": regions.homes(e)}
    b.round(b.local("enqueue", ("slots", "ranks", "demand"), ("chosen", "real"), **queued), label="queue")
    all_reduce(b, "demand", "y", op="maximum", groups=block.groups, label="queue")
    if e.shared:
        _shared(b, block, m)


def _shared(b: Builder, block: Block, m: int) -> None:
    """x plus the shared expert's output: a dense block over the whole mesh, scaled by the token's share of it."""
    e, _ = _regions(block)
    d, f = block.share(block.shape.hidden_size, "x"), block.share(e.shared_width, "x")
    b.buffer("wgu.shared", (d, 2 * f), block.dtype, "resident")
    b.buffer("wdown.shared", (f, d), block.dtype, "resident")
    b.buffer("h.shared", (m, d), block.dtype)
    b.buffer("gu.shared", (m, 2 * f), block.sums)
    b.buffer("act.shared", (m, f), block.dtype)
    b.buffer("y", (m, d), block.sums)
    b.buffer("y.shared", (m, d), block.sums)
    run: dict[str, Any] = {"m": m, "accumulate": block.accumulate}
    b.round(b.local("copy", "h.shared", "h", size=m * d), label="shared expert")
    align(b, "h.shared", "x")
    meshgemm(b, "h.shared", "wgu.shared", "gu.shared", k=d, n=2 * f, label="shared expert", **run)
    b.round(b.local("silu_mul", "act.shared", "gu.shared", m=m, n=f), label="silu")
    align(b, "act.shared", "x")
    meshgemm(b, "act.shared", "wdown.shared", "y.shared", k=f, n=d, label="shared expert", **run)
    scaled = b.local("scale_rows", "y", ("y.shared", "shares"), m=m, n=d, picks=e.picks, pick=e.chosen)
    b.round(scaled, b.local("add", "x", ("x", "y"), size=m * d), label="residual")


def _pass(b: Builder, block: Block, m: int, number: int) -> None:
    e, regions = _regions(block)
    side, capacity, held = regions.side, regions.capacity, regions.held(e)
    size, d = block.mesh.shape[0] // side, block.share(block.shape.hidden_size, "x")
    f, rows, whole = -(-e.width // size), side * capacity, side * d
    block.expert_weights_in_regions(b)
    sums, dtype = block.sums, block.dtype
    b.buffer("sent", (side, side, capacity * (d + 1)), dtype)
    b.buffer("arrived", (side, side, capacity * (d + 1)), dtype)
    b.buffer("a", (rows, whole), dtype)
    b.buffer("picks", (rows,), "fp32")
    b.buffer("gu", (rows, 2 * f), sums)
    b.buffer("act", (rows, f), dtype)
    b.buffer("yr", (rows, whole), sums)
    b.buffer("returned", (side, side, capacity * d), dtype)
    b.buffer("back", (side, side, capacity * d), dtype)
    b.buffer("y", (m, d), sums)
    taken: dict[str, Any] = {"m": m, "k": e.chosen, "n": d, "regions": regions.count, "held": held}
    taken |= {"capacity": capacity, "first": number * capacity}
    moved: dict[str, Any] = {"sources": side, "capacity": capacity, "n": d}
    sizes: dict[str, Any] = {"m": rows, "picks": 1, "experts": held, "accumulate": block.accumulate}

    def gate_up(now: tuple[str, str], add: bool) -> Local:
        return b.local("expert_gemm", "gu", (*now, "picks"), k=whole, n=2 * f, add=add, **sizes)

    def down(now: tuple[str, str], add: bool) -> Local:
        return b.local("expert_gemm", "yr", (*now, "picks"), k=f, n=whole, add=add, **sizes)

    b.round(b.local("dispatch", "sent", ("h", "slots", "ranks"), **taken), label="dispatch")
    all_to_all(b, "sent", "arrived", size=capacity * (d + 1), regions=(side, side), label="dispatch")
    b.round(b.local("permute", ("a", "picks"), "arrived", **moved), label="dispatch")
    align(b, "a", "x", region=size)
    compute_shift(b, "a", "wgu", gate_up, label="gate and up", region=size)
    b.round(b.local("silu_mul", "act", "gu", m=rows, n=f), label="silu")
    align(b, "act", "x", region=size)
    compute_shift(b, "act", "wdown", down, label="down", region=size)
    b.round(b.local("unpermute", "returned", "yr", **moved), label="combine")
    all_to_all(b, "returned", "back", size=capacity * d, regions=(side, side), back=True, label="combine")
    combined = b.local("combine", "y", ("back", "slots", "ranks", "shares"), picks=e.picks, **taken)
    b.round(combined, b.local("add", "x", ("x", "y"), size=m * d), label="residual")
