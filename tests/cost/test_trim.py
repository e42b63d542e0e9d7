"""The part of a mesh that a phase takes: less padding, no more cycles."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from wafer_triton import estimate
from wafer_triton.cost import inference, layers, padding
from wafer_triton.cost.constants import constants
from wafer_triton.cost.padding import decode_ratio, prefill_ratio
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import WaferError
from wafer_triton.place.layouts import endless
from wafer_triton.place.need import prefill_need, size_of
from wafer_triton.schedule.block import Block
from wafer_triton.shape.read import shape_of

pytestmark = pytest.mark.slow

ROWS = Path(__file__).resolve().parents[2] / "docs" / "head-groups.csv"
C = constants(device("wse2"))


def test_the_four_models_have_little_padding_on_every_mesh():
    """Read the study's rows, which `tests/docs/test_head_groups.py` compares with computed values."""
    rows = list(csv.DictReader(ROWS.read_text(encoding="utf-8").splitlines()))
    for phase, most in (("decode", 0.9), ("prefill", 1.1)):
        own = [row for row in rows if row["phase"] == phase]
        assert len({(row["model"], row["mesh"]) for row in own}) == 20
        assert all(float(row["padding, best"]) <= 1.25 for row in own)
        assert all(float(row["over benchmark"]) <= most for row in own)


@pytest.mark.parametrize(("model", "side", "rows"), [("llama3-8b", 660, 586), ("qwen2-72b", 360, 357)])
def test_decode_takes_fewer_rows_and_no_more_of_anything(model, side, rows):
    shape, whole = shape_of(model), Mesh(side, side)
    part = padding.trimmed_decode(shape, whole, 4096)
    assert part == replace(whole, rows=rows)
    before, after = (layers.decode_block(shape, mesh, 4096, C) for mesh in (whole, part))
    assert layers.decode_bytes(after) == layers.decode_bytes(before)
    assert decode_ratio(after, 4096) <= 1.25 and decode_ratio(after, 4096) < decode_ratio(before, 4096)
    cycles = [layers.total(layers.decode_steps(block, 4096, C)).cycles for block in (before, after)]
    assert cycles[1] <= cycles[0]


@pytest.mark.parametrize(("model", "side"), [("llama3-8b", 660), ("codellama-34b", 660)])
def test_prefill_takes_fewer_multiply_adds_and_no_more_cycles(model, side):
    shape, whole = shape_of(model), Mesh(side, side)
    part = padding.trimmed_prefill(lambda mesh: layers.prefill_block(shape, mesh, C), whole, 4096, C)
    assert part.mesh.rows == part.mesh.cols < side
    before = layers.prefill_head_group_choices(layers.prefill_block(shape, whole, C), -(-4096 // side), C)[0]
    cycles, paddings = [], []
    for block in (before, part):
        rows = -(-4096 // block.mesh.rows)
        cycles.append(layers.total(layers.prefill_steps(block, rows, C)).cycles)
        paddings.append(prefill_ratio(block, 4096, rows))
    assert cycles[1] <= cycles[0] and paddings[1] <= 1.25 < paddings[0]


def test_sizes_that_divide_are_not_trimmed():
    shape = shape_of("llama3-8b")
    assert padding.trimmed_decode(shape, Mesh(256, 256), 4096) == Mesh(256, 256)
    whole = padding.trimmed_prefill(lambda mesh: layers.prefill_block(shape, mesh, C), Mesh(256, 256), 4096, C)
    assert whole.mesh == Mesh(256, 256)
    folded = Mesh(12, 18).square()
    block = padding.trimmed_prefill(lambda mesh: layers.prefill_block(shape, mesh, C), folded, 64, C, 4)
    assert block.mesh == folded and block.head_groups == 4


def test_an_estimate_names_the_cores_that_compute():
    asked = {"model": "smollm2-135m", "mesh": 100}
    decode = [estimate.decode(context=150, trim=trimmed, **asked) for trimmed in (False, True)]
    prefill = [estimate.prefill(tokens=150, trim=trimmed, **asked) for trimmed in (False, True)]
    assert [one.cores for one in (*decode, prefill[0])] == ["100x100", "96x100", "100x100"]
    part = padding.trimmed_prefill(
        lambda mesh: layers.prefill_block(shape_of(asked["model"]), mesh, C), Mesh(100, 100), 150, C
    )
    assert prefill[1].cores == str(part.mesh) and prefill[1].head_groups == part.head_groups
    for before, after in (decode, prefill):
        assert after.padding < before.padding and after.cycles_per_layer <= before.cycles_per_layer


def test_a_part_that_does_not_hold_the_model_leaves_it_on_the_mesh():
    """Check a device that lacks a few bytes for the larger tiles of the trimmed mesh."""
    shape, mesh = replace(shape_of("llama3-8b"), vocab_size=0), Mesh(660, 660, endless(device("wse2")))

    def block(on: Mesh, trimmed: bool) -> Block:
        return inference.prefill_placed(on, shape, 600, C, "full", 32, trimmed)[0].block

    part, whole = block(mesh, True), block(mesh, False)
    assert part.mesh.rows < whole.mesh.rows == 660
    limit = max(size_of(prefill_need(replace(whole, overlap=False), kind, 1, 0, True)) for kind in shape.layers_of)
    tight = replace(mesh, device=replace(mesh.device, name="tight", sram_bytes=limit))
    assert block(tight, True) == block(tight, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trim": "no"}, "trim = 'no' must be true or false"),
        ({"trim": True, "program": "paper-benchmark"}, "the paper-benchmark program ran on all cores of its mesh; "),
    ],
)
def test_a_trim_that_cannot_be(options, message):
    for run in (
        lambda: estimate.decode(model="smollm2-135m", mesh=24, context=8, **options),
        lambda: estimate.prefill(model="smollm2-135m", mesh=24, tokens=8, **options),
    ):
        with pytest.raises(WaferError, match=message):
            run()
