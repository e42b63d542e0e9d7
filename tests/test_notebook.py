"""Output in a notebook: tables with the values, with everything escaped."""

import re
from dataclasses import replace
from html import unescape

import pytest
import torch

from wafer_triton import Builder, Intent, Mesh, account, check, estimate, mesh_gemm, price, routes
from wafer_triton.algorithms.product import recipe
from wafer_triton.compare.algorithms import compare_gemv
from wafer_triton.compare.explain import explain
from wafer_triton.compare.sweep import own
from wafer_triton.cost.constants import constants
from wafer_triton.cost.layers import decode_block, prefill_price
from wafer_triton.cost.search import plan
from wafer_triton.place.regions import place_model
from wafer_triton.shape.read import shape_of
from wafer_triton.text.table import Table
from wafer_triton.train.dies import wafer
from wafer_triton.train.planner import plan as training
from wafer_triton.train.workload import workload

SCHEDULE = recipe("gemm", Mesh(4, 4), "fp16", ((64, 64), (64, 64)), ()).schedule


def rows(html):
    """Return the cells of a table's lines, without tags."""
    lines = re.findall(r"<tr>(.*?)</tr>", html)
    return [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line)] for line in lines]


def caption(html):
    return unescape(re.search(r"<caption>(.*?)</caption>", html)[1])


def test_an_account_and_a_cost_show_their_numbers():
    counted, cost = account(SCHEDULE), price(SCHEDULE)
    shown = dict(rows(counted._repr_html_()))
    assert shown["over links (B)"] == f"{counted.link_bytes:,}" and shown["hops"] == str(counted.hops)
    assert caption(cost._repr_html_()) == "Cost, predicted on the wafer"
    assert float(dict(rows(cost._repr_html_()))["cycles"].replace(",", "")) == pytest.approx(cost.cycles, rel=1e-5)


def test_a_record_shows_predictions_in_a_table_of_their_own():
    record = mesh_gemm(torch.ones(4, 4), torch.ones(4, 4), mesh=2, record=True)[1]
    counted, predicted = re.findall(r"<table>.*?</table>", record._repr_html_())
    assert caption(predicted) == "Prediction, cycles and time on the wafer" and "time (s)" in dict(rows(predicted))
    assert "time (s)" not in dict(rows(counted))


def test_a_schedule_shows_its_steps_and_buffers():
    shown = rows(SCHEDULE._repr_html_())
    assert ["gemm", "4"] in shown and ["a", "(16, 16) fp16", "input", "512"] in shown
    assert caption(SCHEDULE._repr_html_()) == f"{SCHEDULE.name} on mesh 4x4 of wse2: {len(SCHEDULE.rounds)} rounds"


def test_a_verdict_shows_its_findings():
    b = Builder(Mesh(1, 2), "a <sum>")
    b.buffer("x", (2,), "fp32", "output")
    b.round(b.local("copy", "x", "x", size=2))
    found = check(b.build(draft=True), Intent(given={"x": "(y r) (x k)"}, result={"x": {"r": "y"}}))
    head, first = rows(found._repr_html_())[:2]
    assert head == ["fault", "round", "core", "what"] and first[0] in found.names
    assert "a <sum>" in caption(found._repr_html_()) and "<sum>" not in found._repr_html_()
    assert caption(replace(found, findings=())._repr_html_()) == "a <sum>: nothing found"


def test_a_placement_shows_its_regions():
    mesh = Mesh(64, 64)
    c = constants(mesh.device)
    block = decode_block(shape_of("smollm2-135m"), mesh, 128, c, head_groups=1)
    placed = place_model(block, [block], 8, prefill_price(c))
    shown = rows(placed._repr_html_())
    assert len(shown) == 1 + len(placed.regions) and shown[1][:2] == ["(0, 0)", "64x64"]


def test_numbers_are_aligned_right_and_texts_left():
    html = Table.rows(("name", "n"), [("a", 1234), ("b", 0.5), ("c", True)], title="t")._repr_html_()
    assert rows(html)[1:] == [["a", "1,234"], ["b", "0.5"], ["c", "True"]] and html.count("right") == 2


MODEL = {"model": "smollm2-135m"}
RESULTS = {
    "product": (lambda: estimate.gemm(mesh=4, m=8, k=8, n=8), "hops", "11"),
    "decode": (lambda: estimate.decode(**MODEL, mesh=64, context=64), "SRAM peak", "47.66 KiB"),
    "energy": (lambda: estimate.energy(seconds=1, against_seconds=1), "energy of the GPUs", "400 J"),
    "price": (lambda: price(SCHEDULE), "rounds", "8"),
    "routes": (lambda: routes(SCHEDULE), "colours", "12"),
    "own": (own(lambda: SCHEDULE), "hops", "11"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_read_as_its_table(name):
    """Its repr has a few lines, print has all of them, and a notebook has the same fields."""
    make, label, value = RESULTS[name]
    result = make()
    few, whole = ([re.sub("  +", "  ", line) for line in text.splitlines()] for text in (repr(result), str(result)))
    assert f"{label}  {value}" in few and set(few) <= set(whole) and len(few) <= 9
    html = result._repr_html_()
    assert caption(html) == whole[0]
    assert {head.partition(" (")[0] for head, _ in rows(html)} <= {line.partition("  ")[0] for line in whole}


def test_rows_of_results_are_read_as_a_table():
    plans = plan(**MODEL, input=8, output=8, sides=[100])
    assert repr(plans).splitlines()[0] == "Plans, predicted on the wafer" and len(repr(plans).splitlines()) == 4
    assert rows(plans._repr_html_())[1][:2] == ["100", "100"] and plans[0].prefill_mesh == 100
    assert repr(compare_gemv(8, 64, 64, values=False)).splitlines()[2].startswith("ktree ")


def test_an_explanation_a_report_and_a_plan_of_training_are_read_as_tables():
    explained = explain("gemv", mesh=4, k=8, n=8)
    assert "clock_hz                 0.5 x      2 x" in repr(explained) and "number" in rows(explained._repr_html_())[0]
    assert "mesh 4x4" in repr(SCHEDULE) and len(repr(SCHEDULE)) < 100
    planned = training(workload("gpt3-6.7b"), wafer("wafer-32"))
    shown = dict(rows(planned._repr_html_()))
    assert float(shown["step (s)"].replace(",", "")) == pytest.approx(planned.seconds, rel=1e-5)
    assert "compute" in repr(planned) and len(repr(planned).splitlines()) <= 10
