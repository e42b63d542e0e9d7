"""Experts in regions of cores: the moves of token rows, of which none is lost, and the checker's findings."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from healthy import DEVICE, between_regions
from schedules import MIXTURE, ROOMY, SHAPE
from wafer_triton import ExpertRegions
from wafer_triton.algorithms.all_to_all import all_to_all
from wafer_triton.count.account import account
from wafer_triton.decoder import block, experts
from wafer_triton.decoder.expert_places import expected_demand
from wafer_triton.decoder.expert_regions import prefill_experts_in_regions, prefill_pass
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.errors import MeshError, ShapeError
from wafer_triton.local import find
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.schedule.builder import Builder
from wafer_triton.shape.moe import Experts
from wafer_triton.verify.decoder import sub_layer_intent
from wafer_triton.verify.faults import check

SIX = Experts(6, 2, 8)
CONFIG = DecoderConfig(12, 16, 2, 2, 2, 6, 13, max_position_embeddings=64, model_type="qwen3_moe", experts=SIX)


def test_tiles_go_to_the_core_of_each_region_that_has_their_neighbours_and_back():
    assert all(check(case.schedule, case.intent).ok for case in between_regions(as_mesh("6x8", DEVICE)))


def test_regions_that_a_mesh_cannot_be_cut_into_are_refused():
    b = Builder(Mesh(4, 6, ROOMY), "uneven")
    b.buffer("x", (2, 4, 3), "fp32", "input")
    with pytest.raises(MeshError, match="uneven: mesh 4x6 cannot be cut into 4 equal regions along x; give a divisor"):
        all_to_all(b, "x", "x", size=3, regions=(2, 4))


def test_with_too_few_passes_rows_are_missed_and_found():
    on = block.Block(MIXTURE, Mesh(2, 2, replace(ROOMY, routes=None)), expert_regions=ExpertRegions(2, 1))
    intents = {passes: sub_layer_intent(prefill_experts_in_regions, on, 2, 0, passes) for passes in (1, 4)}
    assert check(block.schedule(prefill_experts_in_regions, on, 2, 0, 4), intents[4]).ok
    (finding,) = check(block.schedule(prefill_experts_in_regions, on, 2, 0, 1), intents[1]).findings
    assert finding.verdict == "wrong-values" and " of x" in finding.message


def test_tiles_of_an_expert_stay_in_its_region():
    """On as many cores, experts over the whole mesh move twice as far as in 2 x 2 regions, as often as all of them."""
    shape = replace(SHAPE, experts=Experts(8, 2, 16))

    def moved(regions: ExpertRegions) -> Counter:
        on = block.Block(shape, Mesh(8, 8, ROOMY), expert_regions=regions)
        built, moves = block.schedule(prefill_pass, on, 1, 0, 0), Counter()
        for round_ in built.rounds:
            for exchange in round_.exchanges:
                if exchange.src.buffer.startswith(("wgu", "wdown")):
                    moves[exchange.src.buffer.split(".")[0]] += built.buffers[exchange.src.buffer].bytes
                    assert regions.side == 1 or (exchange.moves.send // 4 == exchange.moves.recv // 4).all()
        return moves

    whole, halves = moved(ExpertRegions(1, 1)), moved(ExpertRegions(2, 1))
    assert halves["wgu"] == whole["wgu"] / 2 and whole.keys() == halves.keys()


def test_picks_queue_for_regions():
    expert_ids = torch.tensor([[0.0, 1.0, 0.0, 3.0, 0.0, 5.0, 0.0, 2.0]])
    real, slots, ranks, demand = torch.tensor([[1.0, 1.0, 1.0, 0.0]]), *torch.empty(2, 1, 8), torch.empty(1, 1)
    find("enqueue").run(slots, ranks, demand, expert_ids, real, m=4, k=2, per_token=2, regions=2, held=3)
    # even experts live in slots 0 to 2 of region 0, odd ones in slots 3 to 5 of region 1; the last token is padding
    assert slots.tolist() == [[0, 3, 0, 4, 0, 5, -1, -1]]
    assert ranks.tolist() == [[0, 0, 1, 1, 2, 2, 0, 0]] and demand.item() == 3


@pytest.mark.slow
@pytest.mark.parametrize("regions", [ExpertRegions(1, 3), ExpertRegions(2, 1), ExpertRegions(2, 9)], ids=str)
def test_a_prompt_gives_the_same_logits_whatever_the_capacity(regions):
    def model(where) -> WaferForCausalLM:
        return WaferForCausalLM.from_config(CONFIG, mesh=Mesh(4, 4, ROOMY), max_length=24, max_prompt=20, experts=where)

    spread, here = model("spread"), model(regions)
    tokens = torch.arange(19)[None] % 13
    torch.testing.assert_close(here.forward(tokens), spread.forward(tokens), rtol=1e-5, atol=1e-6)
    (ran,) = (each for each in here.passes if each.mode == "prefill")
    assert ran.region_passes >= 2 and spread.passes.ran[0].sent is None
    assert (ran.overflow_rows > 0) == (ran.region_passes > 2), "of two layers"
    assert here.predicted()["prefill"].cycles > 0 and here.account().rounds != spread.account().rounds


def test_wrong_regions_are_refused():
    with pytest.raises(ShapeError, match="capacity = 0 must be a whole number of at least 1"):
        ExpertRegions(2, 0)
    on = block.Block(replace(SHAPE, experts=SIX), Mesh(4, 4, ROOMY))
    with pytest.raises(MeshError, match="3 x 3 regions of experts on mesh 4x4: give a divisor of its side 4"):
        ExpertRegions(3, 1).check(SIX, on.mesh)
    with pytest.raises(MeshError, match="300 experts in each of 1 x 1 regions; 256 are the most, give more regions"):
        ExpertRegions(1, 1).check(Experts(300, 2, 8), on.mesh)


def test_the_demand_that_is_expected_falls_with_regions_and_grows_with_tokens():
    by_regions = [expected_demand(8, count, 4, 240) for count in (1, 4, 16, 64)]
    assert by_regions[0] == 32 and by_regions == sorted(by_regions, reverse=True)
    assert expected_demand(2, 1, 1, 1) == 2 and expected_demand(8, 16, 17, 240) > 8 * 17 / 16


def test_counts_of_a_pass_do_not_depend_on_its_number():
    on = block.Block(replace(SHAPE, experts=SIX), Mesh(4, 4, ROOMY), expert_regions=ExpertRegions(2, 1))
    assert account(block.schedule(prefill_pass, on, 2, 0, 0)) == account(block.schedule(prefill_pass, on, 2, 0, 3))
    assert account(block.schedule(experts.prefill_experts, on, 2, 0)).link_bytes > 0
