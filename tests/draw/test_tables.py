"""Tables for people: aligned, with units, and predicted time apart from emulated time."""

import re
from dataclasses import replace

import pytest

from wafer_triton.compare.algorithms import AlgorithmRow
from wafer_triton.cost.results import Kernel, Layered
from wafer_triton.count.account import account
from wafer_triton.device.mesh import Mesh
from wafer_triton.draw import tables
from wafer_triton.draw.generation import Generation, generation_tables, regions_table
from wafer_triton.place.regions import Region
from wafer_triton.schedule.builder import Builder
from wafer_triton.text.quantity import Legend

MESH = Mesh(2, 2)
LEGEND = Legend(AlgorithmRow, Layered, Kernel)
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


def test_columns_are_aligned():
    assert tables.table(("name", "B"), [("a", "1"), ("long name", "1,000")], title="sizes").splitlines() == [
        "sizes",
        "name           B",
        "----------------",
        "a              1",
        "long name  1,000",
    ]


def test_a_record_shows_a_field_a_line():
    record = {"cycles": 2.0, "assumed": None, "steps": {"qkv": 12341.0}, "fits": True}
    assert tables.fields(record, LEGEND, title="decode").splitlines() == [
        "decode",
        "cycles                     2",
        "cycles of a layer by step",
        "  qkv                      12,340 cycles",
        "fits                       yes",
    ]


def test_a_unit_stands_in_the_head_or_in_every_cell():
    records = [{"rounds": 1, "sram_peak_bytes": 2048, "algorithm": "ring", "verdict": {"P": True, "L": False}}]
    head, _, row = tables.records(records, Legend(AlgorithmRow)).splitlines()
    assert head.split() == ["algorithm", "rounds", "SRAM", "peak", "PLMR"]
    assert row.split() == ["ring", "1", "2", "KiB", "P", "-"]


def test_cycles_of_counted_rows_are_called_predicted():
    row = {"algorithm": "ring", "hops": 12345, "cycles": 2345.75}
    without = {name: value for name, value in row.items() if name != "cycles"}
    head, _, cells = tables.records([row], Legend(AlgorithmRow)).splitlines()
    assert (re.split("  +", head)[-1], re.split("  +", cells)[-1]) == ("predicted cycles", "2,346")
    assert "cycles" not in tables.records([without], Legend(AlgorithmRow))


def test_predicted_and_emulated_time_never_share_a_table(generation):
    text = generation_tables(replace(generation, predicted=PREDICTED))
    counted, emulated, predicted = text.split("\n\n")
    assert emulated.splitlines() == [
        "emulated on this machine",
        "emulated prefill  1 token in 250 ms",
        "emulated decode   2 tokens/s",
    ]
    title, head, _, prefill, decode = predicted.splitlines()
    assert title == "predicted on the wafer"
    assert re.split("  +", head) == [
        "", "cycles", "compute cycles", "communication cycles", "time", "tokens per second", "energy per token",
    ]  # fmt: skip
    assert re.split("  +", prefill) == [
        "predicted prefill", "123,500", "30,860", "92,590", "112.2 us", "44,550 tokens/s", "62.5 mJ/token",
    ]  # fmt: skip
    assert decode.startswith("predicted decode")
    assert "time" not in counted and "tokens/s" not in counted


def test_without_a_prediction_there_is_no_table_of_it(generation):
    assert "predicted" not in generation_tables(generation)
    assert generation.as_json()["predicted"] == {}


def test_json_holds_predictions_in_full(generation):
    assert replace(generation, predicted=PREDICTED).as_json()["predicted"] == PREDICTED


def test_regions(generation):
    assert regions_table(generation.regions).splitlines()[-1].split("  ")[-1] == "layer 0 attention to head"
    assert "39.06 KiB" in regions_table(generation.regions)
