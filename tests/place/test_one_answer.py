"""Estimates, plans and runs find the same place, or refuse it with the same words."""

from dataclasses import replace
from itertools import product

import pytest

from wafer_triton import estimate, price
from wafer_triton.cost import inference, search
from wafer_triton.cost.constants import constants
from wafer_triton.cost.price import priced
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.errors import SramError, WaferError
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.options import PlaceOptions
from wafer_triton.models.place import choice
from wafer_triton.models.random import RandomWeights, config_of
from wafer_triton.place import moves
from wafer_triton.place.fitting import with_hint
from wafer_triton.place.regions import Placement
from wafer_triton.shape.published import MODELS

pytestmark = pytest.mark.slow
CHIPS, CONTEXTS = ("wse2", "wse3"), (512, 4096, 16384)
MESHES = ((200, 200), (330, 330), (450, 450), (600, 600), (720, 720), (248, 360), (360, 660))  # of decode, of prefill


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


def run_place(config: DecoderConfig, chip: str, mesh: int, other: int | None, context: int) -> Placement:
    """Return the place that `generate` finds, for a prompt of half the context."""
    options = PlaceOptions(
        mesh=mesh, device=chip, dtype="fp16", accumulate="fp16", max_length=context, max_prompt=context // 2,
        prefill_mesh=other, experts=experts_of(config),
    )  # fmt: skip
    return choice.place(config, options)


def estimated_place(config: DecoderConfig, decode: Mesh, prefill: Mesh, context: int) -> Placement:
    prompt, c = context // 2, constants(decode.device)
    return inference.request_placed(
        prefill, decode, config, prompt, context - prompt, c, experts=experts_of(config)
    )  # fmt: skip


def experts_of(config: DecoderConfig) -> str | None:
    return "spread" if config.experts else None


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("model", MODELS)
def test_an_estimate_and_a_run_find_the_same_place(model, chip, monkeypatch):
    """Check for the same regions, buffers and bytes of a core, or the same refusal, on every mesh and context."""
    config, on = config_of(model), device(chip)
    monkeypatch.setattr(choice, "with_hint", lambda place, mesh, reason: str(reason))
    for (side, other), context in product(MESHES, CONTEXTS):
        run = answer(lambda: run_place(config, chip, side, other, context))  # noqa: B023
        meshes = Mesh(side, side, on), Mesh(other, other, on)
        assert run == answer(lambda: estimated_place(config, *meshes, context)), (side, other, context)  # noqa: B023
        if context == CONTEXTS[0] and not isinstance(run, str):
            request = estimate.request(
                device=chip, model=config, prefill_mesh=other, decode_mesh=side, input=context // 2,
                output=context // 2, experts=experts_of(config),
            )  # fmt: skip
            assert (request.decode_regions, request.layout) == (run[0][-1], "rectangles"), (side, other)


@pytest.mark.parametrize(
    ("model", "chip", "side", "smallest"),
    [("smollm2-135m", "wse2", 8, 14), ("llama3.2-1b", "wse3", 24, 60), ("olmoe-1b-7b", "wse2", 40, 187)],
)
def test_estimates_and_plans_have_the_same_smallest_mesh(model, chip, side, smallest):
    config, on = config_of(model), device(chip)

    def place(mesh: Mesh) -> Placement:
        return estimated_place(config, mesh, mesh, 256)

    with pytest.raises(SramError, match=f"that fits is {smallest}x{smallest}$") as refusal:
        run_place(config, chip, side, None, 256)
    small = Mesh(side, side, on)
    with pytest.raises(SramError) as estimated:
        place(small)
    assert str(refusal.value) == with_hint(place, small, estimated.value)
    asked = {"model": config, "device": on, "input": 128, "output": 128, "experts": experts_of(config)}
    (best,) = search.plan(**asked, sides=(smallest,), best=1)
    assert best.regions == len(place(Mesh(smallest, smallest, on)).regions)
    with pytest.raises(WaferError, match=r"no (mesh|two meshes) that .* hold"):
        search.plan(**asked, sides=(smallest - 1,), best=1)


SMALL = replace(device("wse2"), name="small", rows=9, cols=12, sram_bytes=5 * 1024)
CONFIG = DecoderConfig(
    hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    head_dim=10, vocab_size=31, max_position_embeddings=64, qk_norm=True, name="tiny",
)  # fmt: skip


@pytest.mark.parametrize(("mesh", "other"), [(3, 3), (3, 5), (4, 3), ("3x4", "3x4")])
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


def test_a_plan_has_the_place_of_its_request():
    for best in search.plan(model=CONFIG, device=SMALL, input=12, output=8, step=1, best=3):
        request = estimate.request(
            device=SMALL, model=CONFIG, prefill_mesh=best.prefill_mesh, decode_mesh=best.decode_mesh, input=12,
            output=8, head_groups=best.head_groups,
        )  # fmt: skip
        assert (request.decode_regions, request.layout) == (best.regions, best.layout)
        assert request.tokens_per_second == pytest.approx(best.tokens_per_second, rel=1e-9)
