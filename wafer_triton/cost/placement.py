"""Placement of experts in prefill: each over the whole mesh or in a region of cores, whichever is predicted faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wafer_triton.cost.constants import Constants
from wafer_triton.cost.phases import region_products
from wafer_triton.cost.price import sum_cycles
from wafer_triton.decoder.block import Block
from wafer_triton.decoder.expert_places import ExpertRegions, expected_demand
from wafer_triton.errors import ConfigError, MeshError, shown
from wafer_triton.shape.decoder import DecoderShape

PLACEMENTS = ("spread", "regions")
MOST = 8  # the most regions along an axis that are tried
PASSES = (1, 2, 3)  # capacities are tried for these expected numbers of passes

ExpertPlacement = str | ExpertRegions | None


def checked(experts: ExpertPlacement, shape: DecoderShape) -> None:
    """Raise ConfigError unless `experts` is a placement; one other than None needs a model with experts."""
    named = experts is None or (isinstance(experts, str) and experts in PLACEMENTS)
    if not isinstance(experts, ExpertRegions) and not named:
        raise ConfigError(f"experts {shown(experts)}: choose 'spread', 'regions' or ExpertRegions(side, capacity)")
    if experts is not None and shape.experts is None:
        raise ConfigError(f"{shape.name} has no experts to place; leave experts out")


def placed(choices: Sequence[Block], tokens: int, c: Constants, experts: ExpertPlacement) -> list[Block]:
    """Return blocks of prefill with the placement `experts`, for `tokens` tokens a row.

    "spread" has each expert over the whole mesh. "regions" has the regions whose products are predicted to take the
    fewest cycles first. None has "spread", then the first of "regions", if the mesh has any: `place_prefill` takes the
    faster. Raises MeshError for a mesh that cannot be cut into regions, ConfigError as `checked`.
    """
    checked(experts, choices[0].shape)
    ways = _ways(choices[0], tokens, c, experts)
    return [replace(choice, expert_regions=way) for way in ways for choice in choices]


def _ways(block: Block, tokens: int, c: Constants, experts: ExpertPlacement) -> tuple[ExpertRegions | None, ...]:
    if block.shape.experts is None or experts == "spread":
        return (None,)
    if isinstance(experts, ExpertRegions):
        experts.check(block.shape.experts, block.mesh)
        return (experts,)
    tried = _tried(block, tokens, c)
    if experts is not None:
        if not tried:
            side, count = block.mesh.shape[0], block.shape.experts.count
            raise MeshError(
                f"{block.shape.name}: no regions for {count} experts on mesh {block.mesh}: its side {side} has no "
                f"divisor from 2 to {MOST} whose square is at most {count}; take another mesh"
            )
        return tuple(tried)
    return (None, *tried[:1])


def _tried(block: Block, tokens: int, c: Constants) -> list[ExpertRegions]:
    """Return regions and capacities, ordered by the cycles of their products, the fewest first.

    Numbers of regions along an axis divide its cores.
    """
    e = block.shape.experts
    assert e is not None, "regions are of a model that has experts"
    tried = dict.fromkeys(
        ExpertRegions(side, -(-expected_demand(e.top_k, side * side, tokens, block.mesh.shape[0]) // passes))
        for side in range(2, MOST + 1)
        if block.mesh.shape[0] % side == 0 and side * side <= e.count  # no more regions in all than experts
        for passes in PASSES
    )

    def cycles(regions: ExpertRegions) -> float:
        region = replace(block, expert_regions=regions)
        size, passes = block.mesh.shape[0] // regions.side, region.expected_passes(tokens)
        return sum_cycles(region_products(region), c) * size * passes

    return sorted(tried, key=cycles)


def where(block: Block, tokens: int) -> str | None:
    """Return the placement of experts in prefill of `tokens` tokens, in words; None for a dense model."""
    if block.shape.experts is None:
        return None
    regions = block.expert_regions
    if regions is None:
        return "spread"
    passes = block.expected_passes(-(-tokens // block.mesh.shape[0]))
    return f"{regions.side} x {regions.side} regions, {regions.capacity} rows a pass, {passes} expected"
