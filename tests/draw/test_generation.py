"""The tables of a generated text: predicted time apart from emulated time."""

import re
from dataclasses import replace

import pytest

from wafer_triton.count.account import account
from wafer_triton.device import NUMBERS, device
from wafer_triton.device.mesh import Mesh
from wafer_triton.draw.generation import Generation, generation_tables, regions_table
from wafer_triton.place.regions import Region
from wafer_triton.schedule.builder import Builder

MESH = Mesh(2, 2)
PREDICTED = {
    phase: {
        "cycles": cycles, "compute_cycles": cycles / 4, "communication_cycles": cycles * 3 / 4,
        "seconds": cycles / 1.1e9, "tokens_per_second": 5 * 1.1e9 / cycles, "joules_per_token": 0.0625,
    }
    for phase, cycles in {"prefill": 123456.75, "decode": 2345678.25}.items()
}  # fmt: skip


def idle():
    b = Builder(MESH, "idle")
    b.buffer("a", (3,), "fp32", "input")
    b.buffer("b", (3,), "fp32", "output")
    b.round(b.local("copy", "b", "a", size=3))
    return b.build()


@pytest.fixture
def generation():
    region = Region(MESH, ("layer 0 attention", "head"), 40_000, {})
    return Generation(
        text="so",
        tokens=[4, 5],
        prompt_tokens=1,
        steps=1,
        settings={"dtype": "fp16", "accumulate": "fp32", "exchange": "explicit", "backend": "torch"},
        mesh=MESH,
        prefill_mesh=MESH,
        head_groups=2,
        regions=[region],
        account=account(idle()),
        load_seconds=1.0,
        prefill_seconds=0.25,
        decode_seconds=0.5,
    )


def test_predicted_and_emulated_time_never_share_a_table(generation):
    counted, emulated, predicted = map(str, generation_tables(replace(generation, predicted=PREDICTED)))
    assert emulated.splitlines() == [
        "emulated on this machine",
        "emulated prefill  1 token in 250 ms",
        "emulated decode   2 tokens/s",
    ]
    title, head, _, prefill, decode = predicted.splitlines()
    assert title == "predicted on the wafer"
    assert re.split("  +", head) == [
        "phase", "cycles", "compute cycles", "communication cycles", "time", "tokens per second", "energy per token",
    ]  # fmt: skip
    assert re.split("  +", prefill) == [
        "predicted prefill", "123,500", "30,860", "92,590", "112.2 us", "44,550 tokens/s", "62.5 mJ/token",
    ]  # fmt: skip
    assert decode.startswith("predicted decode")
    assert "time" not in counted and "tokens/s" not in counted


def test_without_a_prediction_there_is_no_table_of_it(generation):
    assert all("predicted" not in str(table) for table in generation_tables(generation))
    assert generation.as_json()["predicted"] == {}


def test_json_holds_predictions_in_full(generation):
    assert replace(generation, predicted=PREDICTED).as_json()["predicted"] == PREDICTED


def test_a_record_holds_the_numbers_of_a_device_that_is_no_preset(generation):
    assert "device_numbers" not in generation.as_json()
    own = replace(generation, mesh=Mesh(2, 2, device("wse2,hop_cycles=3"))).as_json()
    assert own["device_numbers"]["hop_cycles"] == 3 and set(own["device_numbers"]) == set(NUMBERS)


def test_regions(generation):
    assert str(regions_table(generation.regions)).splitlines()[-1].split("  ")[-1] == "layer 0 attention to head"
    assert "39.06 KiB" in str(regions_table(generation.regions))
