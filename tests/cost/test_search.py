"""Plans and sweeps."""

from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest

from wafer_triton import estimate
from wafer_triton.cost import search
from wafer_triton.device import PRESETS
from wafer_triton.errors import MeshError, ShapeError, SramError
from wafer_triton.shape.read import shape_of


def test_a_plan_is_the_best_of_its_sides() -> None:
    sides = (60, 90)
    plans = search.plan(model="smollm2-135m", input=512, output=64, sides=sides)
    speeds = [one.tokens_per_second for one in plans]
    assert speeds == sorted(speeds, reverse=True)
    every = []
    for first, second in product(sides, repeat=2):
        meshes = {"prefill_mesh": first, "decode_mesh": second}
        with suppress(MeshError, SramError):
            every.append(estimate.request(model="smollm2-135m", input=512, output=64, **meshes).tokens_per_second)
    assert speeds[0] == max(every)
    best = plans[0]
    assert best.kv_tokens >= 512 + 64
    assert best.groups >= 1 and best.regions >= 1


def test_one_plan_is_the_first_of_five() -> None:
    asked = {"model": "smollm2-135m", "device": "wse2,rows=400,cols=400", "input": 16, "output": 2, "step": 50}
    (one,), five = (search.plan(**asked, best=best) for best in (1, 5))
    assert one == five[0] and (one.prefill_mesh, one.decode_mesh) == (100, 100)


def test_equal_meshes_are_tried_as_weights_move_least_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phases alone take least time on 360 x 360 cores; moves of weights outweigh that."""
    monkeypatch.setattr(search, "LEAST", 3)
    (one,) = search.plan(model="llama3-8b", input=128, output=16, sides=(360, 460, 720), best=1)
    assert (one.prefill_mesh, one.decode_mesh) == (720, 720)


def test_the_groups_of_a_plan_are_those_that_its_decode_estimate_prices() -> None:
    (one,) = search.plan(model="llama3.2-1b", device="wse3", input=64, output=64, sides=[440])
    wanted = estimate.decode(device="wse3", model="llama3.2-1b", mesh=440, context=100)
    assert estimate.decode(device="wse3", model="llama3.2-1b", mesh=440, context=100, groups=one.groups) == wanted
    assert estimate.decode(device="wse3", model="llama3.2-1b", mesh=440, context=100, groups=33) != wanted


def test_a_model_that_does_not_fit_has_no_plan() -> None:
    with pytest.raises(
        MeshError, match="no mesh that was tried on wse2 holds prefill; .* qwen2-72b, prefill of 10 tokens"
    ):
        search.plan(model="qwen2-72b", input=10, output=10, step=150)


@pytest.mark.parametrize("name, value", [("input", "x"), ("output", 0), ("step", 0), ("step", -1), ("best", 0)])
def test_a_plan_of_nothing(name: str, value: object) -> None:
    with pytest.raises(ShapeError, match=f"{name} = {value!r} must be a whole number of at least 1"):
        search.plan(**({"model": "smollm2-135m", "input": 8, "output": 8} | {name: value}))


def test_phases_that_fit_alone_but_not_together_have_no_plan() -> None:
    shape = replace(shape_of("smollm2-135m"), num_hidden_layers=2, vocab_size=1024)
    small = replace(PRESETS["wse2"], name="small", rows=20, cols=40, sram_bytes=32 * 1024)
    said = (
        "no two meshes that were tried on small hold both phases; of the last: smollm2-135m, decode and prefill of 100"
    )
    with pytest.raises(MeshError, match=f"^{said} .*; give shorter prompts and answers, or a larger device$"):
        search.plan(model=shape, device=small, input=100, output=1500)
