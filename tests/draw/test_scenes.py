"""The data of a page equals the results of `account`, `price`, `sram` and the reference executor."""

import base64
import gzip
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from schedules import LAYERS, MOVES, SUMS, build, given, squares
from wafer_triton import draw, executor
from wafer_triton.compare.operations import judged
from wafer_triton.cost.price import price
from wafer_triton.count.account import account, link_loads
from wafer_triton.count.routes import routes
from wafer_triton.device import PRESETS
from wafer_triton.device.mesh import Mesh
from wafer_triton.draw.scenes import SIDE
from wafer_triton.draw.summaries import FIRST, summaries, values
from wafer_triton.errors import DrawError, MeshError

KINDS = {
    "gemm": build(SUMS["gemm-mesh"], "3x3", "fp16"),
    "folded": build(SUMS["gemm-cannon"], "2x3", "fp16"),
    "gemv": build(SUMS["gemv-ktree-y"], "5x4", "fp32"),
    "collectives": build(MOVES["collectives"], "3x3", "fp32"),
    "decode": build(LAYERS["decode-project-head-groups"], "4x4", "fp16"),
    "one-core": build(SUMS["gemm-mesh"], "1x1", "fp16"),
}


def shown(page):
    """Return the data of a page, and the page without it."""
    text = page.read_text()
    packed = re.search(r'id="data">([^<]*)<', text)
    return json.loads(gzip.decompress(base64.b64decode(packed[1]))), text.replace(packed[1], "")


@pytest.mark.parametrize("schedule", KINDS.values(), ids=KINDS)
def test_a_scene_equals_account_price_and_sram(schedule):
    scene, counted = draw.scene(schedule), account(schedule)
    assert sum(sum(map(sum, frame["links"].values())) for frame in scene["frames"]) == counted.link_bytes
    kinds = [scene["kinds"][number] for number in scene["rounds"]]
    assert sum(kind["link_bytes"] for kind in kinds) == counted.link_bytes
    assert scene["timeline"][-1]["end"] == pytest.approx(price(schedule).cycles)
    assert scene["price"]["cycles"] == price(schedule).cycles and scene["price"]["routes"] == price(schedule).routes
    held = np.zeros(len(schedule.rounds) + 1)
    for buffer in scene["buffers"]:
        if buffer["live"]:
            held[buffer["live"][0] : buffer["live"][1] + 1] += buffer["live"][2]
    assert held.max() == counted.sram_peak_bytes == scene["account"]["sram_peak_bytes"]
    assert scene["verdict"] == judged(schedule).verdict
    assert scene["routes"]["colours"] == routes(schedule).colours
    json.dumps(scene, allow_nan=False)


def test_a_large_mesh_is_shown_in_blocks():
    schedule = squares(Mesh(2 * SIDE + 2, 2 * SIDE + 2))
    scene, loads = draw.scene(schedule), link_loads(schedule)
    assert not scene["detailed"] and "moves" not in scene and scene["block"] == 3
    side = -(-schedule.mesh.rows // 3)
    east = np.sum([frame["links"].get("east", [0] * side**2) for frame in scene["frames"]], 0)
    assert len(east) == side**2 and east[0] == loads["east"][:3, :3].sum() and east[-1] == loads["east"][-1:, -1:].sum()
    assert sum(sum(map(sum, frame["links"].values())) for frame in scene["frames"]) == account(schedule).link_bytes


def test_a_page_asks_for_nothing_and_escapes_its_title(tmp_path):
    scene = draw.scene(KINDS["gemm"])
    draw.page(tmp_path / "a.html", "a <b> & {{DATA}}", [scene], PRESETS["wse2"])
    data, rest = shown(tmp_path / "a.html")
    assert data["scenes"] == [json.loads(json.dumps(scene))] and data["device"]["name"] == "wse2"
    assert "<title>a &lt;b&gt; &amp; {{DATA}}</title>" in rest
    assert "default-src 'none'" in rest and not re.search(r"https?://|\bfetch\(|XMLHttpRequest|\bimport\(", rest)
    draw.page(tmp_path / "b.html", "a <b> & {{DATA}}", [scene], PRESETS["wse2"])
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_an_empty_page_is_refused(tmp_path):
    with pytest.raises(DrawError, match="a page of a schedule without rounds has nothing to show; add a round"):
        draw.scene(replace(KINDS["gemm"], rounds=()))
    with pytest.raises(DrawError, match="a page without a schedule has nothing to show; give one"):
        draw.page(tmp_path / "a.html", "empty", [], PRESETS["wse2"])
    with pytest.raises(DrawError, match="there is no folder .*nowhere; make it"):
        draw.page(tmp_path / "nowhere" / "a.html", "a", [draw.scene(KINDS["gemm"])], PRESETS["wse2"])
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_buffer_is_refused():
    with pytest.raises(DrawError, match="there is no buffer 'cash' to fill; give a, b, "):
        draw.scene(KINDS["gemm"], fills=("cash",))


# --- values ---


def bound(schedule):
    return executor("torch").bind(schedule, given(schedule))


def test_values_are_summarised_where_they_are_written():
    torch.manual_seed(0)
    program = bound(KINDS["gemm"])
    found = summaries(program)
    last = program.read("out").flatten(0, 1).flatten(1).double()
    (summary,) = (each["out"] for each in found.rounds if "out" in each)
    assert summary.shape == (9, 3 + FIRST)
    np.testing.assert_array_equal(summary[:, 0], last.norm(dim=1))
    np.testing.assert_array_equal(summary[:, 1:3], torch.stack([last.amin(1), last.amax(1)], 1))
    np.testing.assert_array_equal(summary[:, 3:], last[:, :FIRST])
    scene = draw.scene(KINDS["gemm"], values=found)
    assert scene["values"]["rounds"][-1]["out"][4][0] == float(f"{summary[4, 0]:.4g}")


def test_the_values_of_a_core_as_a_table():
    program = bound(KINDS["gemm"])
    said = str(values(program, "out", (2, 1))).splitlines()
    assert said[0].endswith(": out of core (2, 1)") and said[3].split()[0] == "start"
    assert said[-1].split()[0] == str(len(KINDS["gemm"].rounds) - 1)
    assert f"{program.read('out')[2, 1].flatten()[0]:.4g}" in said[-1]
    with pytest.raises(MeshError, match=r"core \(3, 0\) is not on the mesh of 'out', 3 x 3 cores"):
        values(program, "out", (3, 0))


def test_too_many_values_are_refused():
    with pytest.raises(
        DrawError, match=r"values of 64 x 64 cores over 98 rounds are [\d,]+ tiles, more than the 300,000"
    ):
        summaries(executor("torch").bind(squares(Mesh(64, 64)), {name: torch.zeros(64, 64, 1, 1) for name in "ab"}))
