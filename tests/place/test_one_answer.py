"""Estimates, plans and runs find the same place, or refuse it with the same words."""

from dataclasses import replace
from itertools import cycle

import pytest

from wafer_triton import estimate, price
from wafer_triton.cost import inference, search
from wafer_triton.cost.constants import constants
from wafer_triton.cost.price import priced
from wafer_triton.device import device
from wafer_triton.errors import WaferError
from wafer_triton.mesh import Mesh, as_mesh
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.place import choice
from wafer_triton.models.random import RandomWeights, config_of
from wafer_triton.place import moves
from wafer_triton.place.regions import Placement
from wafer_triton.shape.published import MODELS

pytestmark = pytest.mark.slow
MESHES = ((248, 248), (330, 330), (360, 660), (720, 720), (200, 250), (375, 375))
CASES = list(zip(MODELS, cycle(("wse2", "wse3")), cycle(MESHES), cycle((1024, 4096, 512)), strict=False))


def answer(place: object) -> object:
    """Return the facts of a placement that both must agree on, or the reason why there is none."""
    try:
        found = place()
    except WaferError as error:
        return str(error)
    assert isinstance(found, Placement)
    alike = [(found.decode.head_groups, found.prefill.head_groups, found.at_once, found.layout, len(found.regions))]
    regions = (found.regions, found.prefill_regions)
    return alike + [(region.mesh, region.blocks, region.sram_by_buffer) for each in regions for region in each]


@pytest.mark.parametrize(("model", "chip", "sides", "context"), CASES, ids=lambda value: str(value))
def test_an_estimate_and_a_run_find_the_same_place(model, chip, sides, context, monkeypatch):
    config, (mesh, other), prompt = config_of(model), sides, context // 2
    monkeypatch.setattr(choice, "with_hint", lambda place, mesh, reason: str(reason))
    run = answer(lambda: choice.place(
        config, mesh=mesh, device=chip, dtype="fp16", accumulate="fp16", max_length=context, max_prompt=prompt,
        kv_policy="shift", batch=1, prefill_mesh=other, groups=None, prefill_groups=None, head_groups=None,
        prefill_head_groups=None, trim=False, experts="spread" if config.experts else None,
    ))  # fmt: skip
    decode, prefill = (Mesh(side, side, device(chip)) for side in sides)
    estimated = answer(lambda: inference.request_placed(
        prefill, decode, config, prompt, context - prompt, constants(device(chip)),
        experts="spread" if config.experts else None,
    ))  # fmt: skip
    assert run == estimated
    if not isinstance(run, str):
        request = estimate.request(
            device=chip, model=config, prefill_mesh=other, decode_mesh=mesh, input=prompt, output=context - prompt,
            experts="spread" if config.experts else None,
        )  # fmt: skip
        assert (request.decode_regions, request.layout) == (run[0][-1], "rectangles")


SMALL = replace(device("wse2"), name="small", rows=9, cols=12, sram_bytes=5 * 1024)
CONFIG = DecoderConfig(
    hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    head_dim=10, vocab_size=31, max_position_embeddings=64, qk_norm=True, name="tiny",
)  # fmt: skip


@pytest.mark.parametrize(("mesh", "other"), [(3, 3), (3, 5), (4, 3), ("3x4", "3x4")])
def test_moves_of_a_run_take_the_cycles_of_its_estimate(mesh, other):
    model = WaferForCausalLM(
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
    handed = sum(price(schedule).cycles for schedule in moves.hand_overs(place.regions, place.decode))
    assert priced(model.hand_off).cycles == pytest.approx(handed, rel=1e-9) and (handed > 0) == (mesh != 4)


def test_a_plan_has_the_place_of_its_request():
    for best in search.plan(model=CONFIG, device=SMALL, input=12, output=8, step=1, best=3):
        request = estimate.request(
            device=SMALL, model=CONFIG, prefill_mesh=best.prefill_mesh, decode_mesh=best.decode_mesh, input=12,
            output=8, head_groups=best.head_groups,
        )  # fmt: skip
        assert (request.decode_regions, request.layout) == (best.regions, best.layout)
        assert request.tokens_per_second == pytest.approx(best.tokens_per_second, rel=1e-9)
