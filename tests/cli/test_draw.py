"""`wafer-triton draw`: the picture or page of each kind, and the errors."""

import base64
import gzip
import json
import re
import shlex

import pytest

from commands import answer
from wafer_triton.cli.main import main
from wafer_triton.draw.figure import numbers_of

GEMM = "gemm --m 16 --k 16 --n 16 --mesh 4"
OWN = """
from wafer_triton import Builder, Intent, Mesh
from wafer_triton.algorithms.reduce import all_reduce

def sums():
    b = Builder(Mesh(2, 3), "sums of my own")
    b.buffer("x", (4,), "fp32", "state")
    all_reduce(b, "x", "x")
    return b.build()

def judged():
    summed = lambda tiles: {"x": tiles["x"].sum(1, keepdim=True).expand_as(tiles["x"])}
    return sums(), Intent({"x": "(y r) (x k)"}, {"x": "(y r)"}, reference=summed)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f"{GEMM} --picture links", "bytes to the east"),
        ("own.py:sums", "bytes to the east"),
    ],
)
@pytest.mark.slow
def test_a_picture_is_drawn_and_named(line, shown, folder, capsys):
    assert main(shlex.split(f"draw {line} --out x.png")) == 0
    assert capsys.readouterr().out == "written: x.png\n"
    assert shown in numbers_of(folder / "x.png")


def test_a_trace_goes_with_a_picture(folder, capsys):
    found, _ = answer(f"draw {GEMM} --picture timeline --out picture.png --out t.json", capsys)
    assert found == {"files": ["picture.png", "t.json"]}
    assert json.loads((folder / "t.json").read_text())["traceEvents"]


def shown(path):
    """Return the data of a page."""
    return json.loads(gzip.decompress(base64.b64decode(re.search(r'id="data">([^<]*)<', path.read_text())[1])))


def test_a_page_of_a_product_and_a_second_algorithm(folder, capsys):
    found, _ = answer(f"draw {GEMM} --beside cannon --values --out p.html --out t.json", capsys)
    assert found == {"files": ["p.html", "t.json"]}
    data = shown(folder / "p.html")
    assert [scene["name"] for scene in data["scenes"]] == ["mesh", "cannon"] and data["beside"] == 1
    assert all(scene["values"]["rounds"] for scene in data["scenes"])


def test_a_page_of_a_schedule_of_ones_own(folder):
    assert main(["draw", "own.py:sums", "--values", "--out", "page.html"]) == 0
    (scene,) = shown(folder / "page.html")["scenes"]
    assert scene["name"] == "sums" and scene["values"]["rounds"][-1]["x"]


def test_a_built_in_algorithm_stands_beside_a_schedule_of_ones_own(folder):
    line = "draw own.py:judged --beside ring --beside own.py:sums --values --out page.html"
    assert main(shlex.split(line)) == 0
    scenes = shown(folder / "page.html")["scenes"]
    assert [scene["name"] for scene in scenes] == ["judged", "ring", "sums"]
    assert scenes[1]["values"]["rounds"][-1]["x"]


def test_own_schedules_stand_beside_each_other_in_the_page_and_in_the_trace(folder):
    assert main(shlex.split("draw own.py:sums --beside own.py:sums --out page.html --out t.json")) == 0
    data = shown(folder / "page.html")
    assert [scene["name"] for scene in data["scenes"]] == ["sums", "sums"] and data["beside"] == 1
    assert [*json.loads((folder / "t.json").read_text())["otherData"]["processes"]] == ["sums", "sums 2"]
