"""The price of a placement of experts in prefill: the way taken, and errors."""

import pytest

from commands import answer
from wafer_triton import ExpertRegions, estimate
from wafer_triton.cost import layers, search
from wafer_triton.cost.constants import constants
from wafer_triton.cost.placement import placed
from wafer_triton.device import PRESETS
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.errors import ConfigError, MeshError
from wafer_triton.place.regions import place_prefill
from wafer_triton.shape.read import shape_of

OLMOE = shape_of("olmoe-1b-7b")
C = constants(as_mesh(96).device)


def olmoe(side: int) -> layers.Block:
    return layers.prefill_block(OLMOE, Mesh(side, side, PRESETS["wse2"].unbounded()), C)


def cycles(block: layers.Block, tokens: int) -> float:
    return layers.total(layers.prefill_steps(block, tokens, C)).cycles


@pytest.mark.parametrize("tokens", [1, 12])
def test_the_faster_way_is_taken_if_both_fit(tokens):
    """Few tokens a row leave most rows of a message empty; many share a product with an expert's tile."""
    (spread,), regions = (placed([olmoe(96)], tokens, C, where) for where in ("spread", "regions"))
    assert spread.expert_regions is None and all(block.expert_regions for block in regions)
    both, last = placed([olmoe(96)], tokens, C, None), layers.decode_block(OLMOE, olmoe(96).mesh, 1, C)
    assert [block.expert_regions for block in both] == [None, regions[0].expert_regions]
    best = place_prefill(both, last, 96 * tokens, layers.prefill_price(C)).block
    assert cycles(best, tokens) == min(cycles(spread, tokens), cycles(regions[0], tokens))
    assert (best.expert_regions is None) == (tokens == 1)


def test_an_estimate_says_where_experts_live():
    asked = {"model": OLMOE, "mesh": 360, "tokens": 1024}
    spread, regions, best = (estimate.prefill(**asked, experts=where) for where in ("spread", "regions", None))
    assert spread.experts == "spread" and regions.experts.startswith("4 x 4 regions, ") and best == regions
    assert best.seconds < spread.seconds
    own = estimate.prefill(**asked, experts=ExpertRegions(4, 9))
    assert own.experts == "4 x 4 regions, 9 rows a pass, 1 expected"
    assert estimate.prefill(model="llama3.2-1b", mesh=240, tokens=64).experts is None
    request = {"model": OLMOE, "prefill_mesh": 360, "decode_mesh": 360, "input": 1024, "output": 4}
    assert estimate.request(**request).experts == best.experts


def test_a_plan_has_the_faster_placement_and_its_bound():
    (best,) = search.plan(model=OLMOE, input=1024, output=16, sides=[360])
    spread = estimate.prefill(model=OLMOE, mesh=360, tokens=1024, experts="spread")
    assert best.experts.endswith("expected") and best.prefill_seconds < spread.seconds
    assert 0 < best.s_mbu < best.s_mbu_in_regions == 8 / 64
    with pytest.raises(MeshError, match="take 61,064,245,248 B in fp16, .* hold 36,642,816,000 B"):
        search.plan(model="qwen3-30b-a3b", input=1024, output=16, sides=[700])


def test_a_placement_of_experts_that_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="llama3-8b has no experts to place; leave experts out"):
        estimate.prefill(model="llama3-8b", mesh=360, tokens=64, experts="regions")
    with pytest.raises(ConfigError, match="experts 'tiled': choose 'spread', 'regions' or ExpertRegions"):
        estimate.prefill(model=OLMOE, mesh=360, tokens=64, experts="tiled")
    with pytest.raises(MeshError, match="no regions for 64 experts on mesh 361x361: its side 361 has no div"):
        estimate.prefill(model=OLMOE, mesh=361, tokens=64, experts="regions")


def test_the_command_line_places_experts(capsys):
    found, text = answer("estimate prefill --model olmoe-1b-7b --mesh 360 --tokens 360 --experts regions", capsys)
    assert "regions" in found["experts"] and "experts in prefill" in text
