"""Estimates, plans and runs find the same place, or refuse it with the same words."""

from dataclasses import replace

import numpy as np
import pytest

from answers import Case, difference, experts_of, planned, run_place
from tiny import DEEP as CONFIG
from wafer_triton import estimate, price
from wafer_triton.cost import inference, search
from wafer_triton.cost.constants import constants
from wafer_triton.cost.price import priced
from wafer_triton.device import device
from wafer_triton.device.mesh import as_mesh
from wafer_triton.errors import SramError, WaferError
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.random import RandomWeights, config_of
from wafer_triton.place import moves
from wafer_triton.place.need import ENDS
from wafer_triton.place.regions import FullError
from wafer_triton.place.transfers import Shift

# One model of each make: many or few heads of keys, biases, head norms, shared tables, and four kinds of mixtures.
MAKES = [
    Case("smollm2-135m", "wse3", "720x720", "240x240", 2048), Case("llama2-13b", "wse2", "360x720", "360x720", 4096),
    Case("llama3.2-1b", "wse3", "320x320", "520x520", 4096), Case("qwen2.5-0.5b", "wse3", "480x320", "480x320", 2048),
    Case("qwen2-72b", "wse3", "320x320", "320x320", 4096), Case("qwen3-8b", "wse2", "360x360", "480x480", 8192),
    Case("mixtral-8x7b", "wse3", "720x720", "720x720", 2048), Case("olmoe-1b-7b", "wse2", "360x720", "360x720", 4096),
    Case("qwen1.5-moe-a2.7b", "wse3", "720x720", "480x480", 2048),
    Case("qwen3-30b-a3b", "wse3", "320x320", "320x320", 4096),
]  # fmt: skip


@pytest.mark.parametrize("case", MAKES, ids=lambda case: case.model)
def test_an_estimate_and_a_run_find_the_same_place(case):
    """Check for the same regions, buffers and bytes of a core, or the same refusal."""
    assert difference(case) is None


@pytest.mark.parametrize(
    ("model", "chip", "side", "context"),
    [("codellama-34b", "wse3", 320, 4096), ("qwen2.5-0.5b", "wse3", 400, 2048), ("llama3.2-1b", "wse2", 480, 4096)],
)
def test_a_plan_and_a_request_find_the_same_place(model, chip, side, context):
    assert planned(Case(model, chip, f"{side}x{side}", f"{side}x{side}", context)) is None


@pytest.mark.parametrize(
    ("model", "chip", "smallest"),
    [("smollm2-135m", "wse2", 14), ("olmoe-1b-7b", "wse2", 187)],
)
def test_estimates_plans_and_runs_have_the_same_smallest_mesh(model, chip, smallest):
    config, on = config_of(model), device(chip)
    asked = {"model": config, "device": on, "input": 128, "output": 128, "experts": experts_of(config)}
    for side in (smallest - 1, smallest):
        case = Case(model, chip, f"{side}x{side}", f"{side}x{side}", 256)
        assert difference(case) is None
        if side == smallest:
            (best,) = search.plan(**asked, sides=(side,), best=1)
            assert best.regions == len(run_place(config, case).regions)
            continue
        with pytest.raises((SramError, FullError)):
            run_place(config, case)
        with pytest.raises(WaferError, match=r"no (mesh|two meshes) that .* hold"):
            search.plan(**asked, sides=(side,), best=1)


SMALL = replace(device("wse2"), name="small", rows=9, cols=12, sram_bytes=5 * 1024)


@pytest.mark.parametrize(("mesh", "other"), [(3, 5), (4, 3), ("3x4", "3x4")])
def test_moves_of_a_run_take_the_cycles_of_its_estimate(mesh, other):
    model = WaferForCausalLM.from_weights(
        CONFIG, RandomWeights(CONFIG), mesh=mesh, prefill_mesh=other, device=SMALL, dtype="fp16", accumulate="fp16",
        max_length=20, max_prompt=12,
    )  # fmt: skip
    model.prefill(list(range(12)))
    model.step(1)
    request = estimate.request(device=SMALL, model=CONFIG, prefill_mesh=other, decode_mesh=mesh, input=12, output=8)
    replaced = model.predicted()["replacement"].seconds
    assert replaced == pytest.approx(request.replacement_seconds, rel=1e-9) and replaced > 0
    place = inference.request_placed(
        as_mesh(other, SMALL), as_mesh(mesh, SMALL), CONFIG, 12, 8, constants(SMALL)
    )  # fmt: skip
    assert len(place.regions) == len(model.regions) > (mesh != 4)
    meshes = [region.mesh for region in place.regions]
    handed = sum(price(schedule).cycles for schedule in moves.hand_overs(meshes, place.decode))
    assert priced(model.hand_off).cycles == pytest.approx(handed, rel=1e-9) and (handed > 0) == (mesh != 4)


@pytest.mark.parametrize(("mesh", "other"), [(2, 3), (3, 2)])
def test_weights_move_from_the_region_of_their_block_in_decode_to_its_region_in_prefill(mesh, other):
    """On a device of few columns, so that the regions of a block differ in rows and in columns."""
    narrow, deep = replace(SMALL, cols=6), replace(CONFIG, num_hidden_layers=9)
    place = inference.request_placed(as_mesh(other, narrow), as_mesh(mesh, narrow), deep, 12, 8, constants(narrow))
    regions = place.regions, place.prefill_regions
    origins = [{name: region.mesh.origin for region in phase for name in region.blocks} for phase in regions]

    def hops(shifts):
        """Return the hops of all elements together, on square meshes."""
        return sum(
            one.times * one.numel * np.abs(one.source - one.target).sum() * one.mesh.length("yx"[one.axis == "y"])
            for one in shifts
            if isinstance(one, Shift)
        )

    total = 0
    for name, origin in origins[0].items():
        offset, kind = np.subtract(origin, origins[1][name]).tolist(), name.split()[-1]
        if kind in ENDS:
            moved = moves.weight_moves(place.head, place.prefill_head, kind, "decode", offset=offset)
        else:
            moved = moves.weight_moves(place.decode, place.prefill, kind, offset=offset)
        total += sum(map(hops, moved.values()))
    assert hops(moves._weight_shifts(place)) == total > 0


@pytest.mark.parametrize("output", [1, 8])
def test_a_generated_text_takes_the_time_of_its_request(output):
    """Prefill makes the first token, each step another; for one token nothing moves to decode."""
    model = WaferForCausalLM.from_weights(
        CONFIG, RandomWeights(CONFIG), mesh=4, device=SMALL, dtype="fp16", accumulate="fp16", max_length=20,
        max_prompt=12,
    )  # fmt: skip
    assert len(list(model.generate(list(range(12)), output))) == output
    request = estimate.request(device=SMALL, model=CONFIG, prefill_mesh=4, decode_mesh=4, input=12, output=output)
    parts = {"prefill": request.prefill_seconds, "replacement": request.replacement_seconds,
             "decode": request.decode_seconds}  # fmt: skip
    ran = {phase: each.seconds for phase, each in model.predicted().items()}
    assert ran == pytest.approx({phase: seconds for phase, seconds in parts.items() if seconds}, rel=0.01)


def test_a_plan_has_the_place_of_its_request():
    for best in search.plan(model=CONFIG, device=SMALL, input=12, output=8, step=1, best=3):
        request = estimate.request(
            device=SMALL, model=CONFIG, prefill_mesh=best.prefill_mesh, decode_mesh=best.decode_mesh, input=12,
            output=8, head_groups=best.head_groups,
        )  # fmt: skip
        assert (request.decode_regions, request.layout) == (best.regions, best.layout)
        assert request.tokens_per_second == pytest.approx(best.tokens_per_second, rel=1e-9)
