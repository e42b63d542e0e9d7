"""Grids of estimates: rows, masks, shared counts; and counts on any device."""

from dataclasses import dataclass

import pytest

from wafer_triton import estimate
from wafer_triton.algorithms.product import recipe
from wafer_triton.compare.grid import MOST_POINTS, REASON, feasible, parsed, points, size, write_csv
from wafer_triton.compare.sweep import KINDS, own, sweep, unmoved
from wafer_triton.cost.constants import constants
from wafer_triton.cost.layers import decode_block, decode_sub_layers, phases_by_kind
from wafer_triton.cost.price import price
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import DeviceError, MeshError, ShapeError, SramError
from wafer_triton.place.need import decode_need
from wafer_triton.serve.batch import batch
from wafer_triton.shape.read import shape_of

DECODE = {"model": "smollm2-135m", "context": 64}


def test_a_grid_is_every_combination_with_the_last_parameter_first():
    over = {"a": [1, 2], "b": "xyz"}
    assert points(over) == [{"a": a, "b": b} for a in (1, 2) for b in "xyz"]
    assert size(over) == "2 x 3 = 6 points" and size({"a": [1]}) == "1 point"


def test_values_without_end_are_too_many():
    taken = []

    def endless():
        for value in range(20 * MOST_POINTS):
            taken.append(value)
            yield value

    with pytest.raises(ShapeError, match="at most 10,000 are taken"):
        sweep("decode", {"context": endless()}, model="smollm2-135m", mesh=8)
    assert len(taken) <= MOST_POINTS + 1


@dataclass
class Figures:
    a: int
    c: float = 1.5


def test_only_errors_of_the_user_are_reasons():
    def run(*, device, a):
        if a == 2:
            raise MeshError("no such mesh")
        return Figures(10 // a * a)

    seen = []
    rows = sweep(run, {"a": [1, 2]}, lambda *each: seen.append(each))
    assert rows == [{"a": 1, "estimated_a": 10, "c": 1.5}, {"a": 2, REASON: "no such mesh"}]
    assert feasible(rows) == rows[:1] and seen == [("points", 1, 2), ("points", 2, 2)]
    with pytest.raises(ZeroDivisionError):
        sweep(run, {"a": [0]})


def test_a_table_has_a_column_for_every_name_and_reasons_last(tmp_path):
    write_csv([{"a": 1, REASON: "none, at all"}, {"a": 2, "c": 1.5}], tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text().splitlines() == ["a,c,reason", '1,,"none, at all"', "2,1.5,"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mesh=8,16", ("mesh", [8, 16])),
        ("--hop-cycles=0.5:2:0.5", ("hop_cycles", [0.5, 1.0, 1.5, 2.0])),
        ("mesh=8:16:4", ("mesh", [8, 12, 16])),
        ("mesh=8:8:4", ("mesh", [8])),
        ("algorithm=mesh,cannon", ("algorithm", ["mesh", "cannon"])),
        ("flag=true,false", ("flag", [True, False])),
        ("mesh=48x64,64x64", ("mesh", ["48x64", "64x64"])),
    ],
)
def test_values_are_written_as_lists_or_ranges(text, found):
    assert parsed(text) == found


def test_a_number_outside_of_the_fit_has_no_band():
    here, there = sweep("decode", {"hop_cycles": [1, 8]}, mesh=32, **DECODE)
    assert here["error_band"] > 0 and "error_band" not in there


def test_a_parameter_that_no_figure_depends_on_is_named():
    over = {"routes": [24, 48], "hop_cycles": [1, 2]}
    with pytest.warns(UserWarning, match="^sweep: no figure changes with routes: "):
        rows = sweep("decode", over, mesh=32, **DECODE)
    assert not unmoved([row for row in rows if row["routes"] == 24], over)
    assert not unmoved([{"a": 1, "b": 3.0}, {"a": 2, REASON: "too large"}], ["a"])


def test_counts_of_a_block_are_the_same_on_every_device():
    shape = shape_of("smollm2-135m")
    own_blocks = [
        decode_block(shape, Mesh(16, 16, device(name)), 64, constants(device("wse2"))) for name in ("wse2", "wse3")
    ]
    kinds = ("attention", "ffn")
    assert own_blocks[0] != own_blocks[1] and own_blocks[0].anywhere == own_blocks[1].anywhere
    for kind in kinds:
        assert decode_need(own_blocks[0], kind) == decode_need(own_blocks[1], kind)
    first, second = (phases_by_kind(block, decode_sub_layers(block, 64)) for block in own_blocks[:2])
    assert first == second


def made(side=4, algorithm="star"):
    return recipe("gemv", Mesh(side, side), "fp16", ((1, 64), (64, 64)), (("algorithm", algorithm),)).schedule


def test_a_function_that_returns_a_schedule_is_swept():
    rows = sweep(own(made), {"side": [4, 8], "algorithm": ["star", "ring"]}, device="wse3")
    assert len({row["cycles"] for row in rows}) == 4
    slower = sweep(own(made), {"hop_cycles": [1, 4]})
    assert slower[0]["cycles"] < slower[1]["cycles"]
    assert sweep(own(made), {"side": [4]})[0]["cycles"] == price(made()).cycles, "without a device, its own"


@pytest.mark.parametrize(
    ("over", "fixed", "error", "message"),
    [
        ({}, {"mesh": 8}, DeviceError, "no parameter is swept; give one or two, each with its values"),
        ({"mesh": [8]}, {"mesh": 8}, DeviceError, "mesh is swept and given; leave one out"),
        ({"context": [1.5]}, {"mesh": 8}, ShapeError, "context = 1.5 must be a whole number of at least 1"),
        ({"hop_cycles": [float("nan")]}, {"mesh": 8}, ShapeError, "hop_cycles = nan must be a finite number"),
        ({"hop_cycles": ["a"]}, {"mesh": 8}, ShapeError, "hop_cycles = 'a' must be a finite number"),
        ({"mesh": [4]}, {}, SramError, "every core needs"),
    ],
)
def test_a_wrong_sweep_is_refused(over, fixed, error, message):
    with pytest.raises(error, match=message):
        sweep("decode", over, **({} if "context" in over else {"context": 64}), model="smollm2-135m", **fixed)


def test_a_training_step_is_swept_as_it_is_estimated():
    given = {"model": "dim=64,ffn=96,heads=4,kv_heads=2,layers=2,vocab=256", "mesh": 8}
    found = {row["tokens"]: row["cycles"] for row in sweep("training", {"tokens": [16, 64]}, **given)}
    assert found == {tokens: estimate.training(tokens=tokens, **given).cycles for tokens in (16, 64)}
    assert found[16] < found[64]


def test_decode_answers_what_its_options_ask_for():
    model = "dim=64,ffn=96,heads=4,kv_heads=2,layers=2,vocab=256"
    decode, whole = KINDS["decode"], {"mesh": 8, "model": model, "context": 64}
    assert decode(**whole, groups=2) == estimate.decode(**whole, groups=2)
    assert decode(**whole, batch=2, at_once=1) == batch(**whole, batch=2, at_once=1)
    measures = estimate.cap(**whole, batch=2, routing="uniform")
    assert decode(**whole, batch=2, routing="uniform") == measures and measures.s_mbu > 0
    assert decode(model=model, mesh=8) == estimate.kv(model=model, mesh=8)


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        ({"context": None, "batch": 2}, "batch beside a full cache; give context, or leave batch out"),
        ({"context": None, "routing": "uniform", "at_once": 2}, "at_once, routing beside a full cache"),
        ({"routing": "uniform", "at_once": 2}, "at_once beside a routing"),
        ({"batch": 2, "groups": 2}, "groups beside a batch"),
    ],
)
def test_options_of_decode_that_do_not_go_together(options, extra):
    with pytest.raises(ShapeError, match=f"decode: {extra}"):
        KINDS["decode"](mesh=16, **DECODE | options)


def test_a_function_of_a_schedule_is_swept_through_own():
    with pytest.raises(DeviceError, match=r"an estimate takes a device; give own\(tree\)"):
        sweep(tree, {"side": [4, 8]})


def tree(side: int = 4) -> None:
    """Stand for a function of a schedule; it never runs."""
