from dataclasses import replace

import pytest

from wafer_triton import price
from wafer_triton.algorithms.product import recipe
from wafer_triton.device import MEASURED, NUMBERS, PRESETS, device
from wafer_triton.device.keys import MOST
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import DeviceError, SramError, WaferError

LATENCIES = ("hop_cycles", "stage_cycles")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_go_by_their_own_name(name):
    assert device(name) is PRESETS[name]
    assert device(name).name == name


def test_wse2_is_the_chip_of_the_paper():
    wse2 = device("wse2")
    assert (wse2.rows, wse2.cols, wse2.cores) == (750, 994, 745_500)
    assert (wse2.sram_bytes, wse2.routes) == (49_152, 24)
    assert wse2.hop_cycles < wse2.stage_cycles  # alpha < beta


def test_a_device_passes_through():
    mine = replace(device("wse2"), name="mine", sram_bytes=64 * 1024)
    assert device(mine) is mine
    assert mine.sram_bytes == 65_536


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.slow
def test_an_unbounded_device_differs_in_its_memory_alone_and_says_so(name):
    own, unbounded = device(name), device(name).unbounded()
    assert unbounded.name == f"{name} (unbounded SRAM)" and unbounded.sram_bytes >= 2**40
    assert replace(unbounded, name=name, sram_bytes=own.sram_bytes) == own
    schedule = recipe("gemv", Mesh(2, 3, own), "fp16", ((1, 4000), (4000, 6)), ()).schedule
    huge = recipe("gemv", Mesh(2, 3, unbounded), "fp16", ((1, 4000), (4000, 6)), ()).schedule
    assert price(huge) == price(schedule), "and costs the same"
    shapes = ((1, 10**5), (10**5, 10**5))
    with pytest.raises(SramError):
        recipe("gemv", Mesh(2, 3, own), "fp16", shapes, ())
    recipe("gemv", Mesh(2, 3, unbounded), "fp16", shapes, ())


@pytest.mark.parametrize(
    ("name", "hint"),
    [("wse-2", "did you mean 'wse2'?"), ("WSE3", r"\(presets"), ("wse", "did you mean 'wse[23]'?"), ("", "''")],
)
def test_an_unknown_name_lists_the_presets(name, hint):
    with pytest.raises(DeviceError, match=hint) as caught:
        device(name)
    assert str(caught.value).endswith("(presets: wse2, wse3)")
    assert isinstance(caught.value, WaferError)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (-1, "= -1 must be a (whole )?number from [01].* to"),
        (float("nan"), "= nan must be a (whole )?number from [01].* to"),
        ("16", "= '16' is a text; give a number, its unit in the key"),
        (True, "is of type bool; give a number, its unit in the key"),
        (None, "is of type NoneType; give a number, its unit in the key"),
    ],
)
@pytest.mark.parametrize("field", NUMBERS)
def test_a_number_that_makes_no_sense_is_named(field, value, said):
    if field == "routes" and value is None:
        pytest.skip("None: packets are routed")
    with pytest.raises(DeviceError, match=f"device 'bad': {field} {said}"):
        replace(device("wse2"), name="bad", **{field: value})


@pytest.mark.parametrize("field", NUMBERS)
def test_only_latencies_may_be_zero(field):
    if field in LATENCIES:
        assert getattr(replace(device("wse2"), **{field: 0}), field) == 0
        return
    with pytest.raises(DeviceError, match=f"{field} = 0 must be a (whole )?number from 1"):
        replace(device("wse2"), **{field: 0})


@pytest.mark.parametrize("field", NUMBERS)
def test_no_number_is_absurd(field):
    assert getattr(replace(device("wse2"), **{field: int(MOST[field])}), field) == MOST[field]
    for value in (2 * int(MOST[field]), float("inf")):
        with pytest.raises(DeviceError, match=rf"{field} = {value!r} must be a .*number from .* to {MOST[field]:,.0f}"):
            replace(device("wse2"), name="bad", **{field: value})


def test_the_preset_that_each_device_is_like():
    assert {name: preset.like for name, preset in PRESETS.items()} == {"wse2": "wse2", "wse3": "wse3"}
    assert replace(device("wse3"), name="mine", power_watts=1).like == "wse3"
    assert device("wse2").unbounded().like == "wse2"


@pytest.mark.parametrize("like", ["wse4", "", 2, ["wse2"]], ids=repr)
def test_an_unknown_like_is_refused_with_the_choices(like):
    with pytest.raises(DeviceError) as caught:
        replace(device("wse2"), name="mine", like=like)
    assert str(caught.value) == (
        f"device 'mine': like = {like!r} must be one of 'wse2', 'wse3', on which constants are fitted, or None, to "
        f"derive them from the device's own numbers"
    )
    assert MEASURED == ("wse2", "wse3")
