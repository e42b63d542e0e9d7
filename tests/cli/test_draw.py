"""`wafer-triton draw`: which picture of what, and what it refuses."""

import json
import shlex

import pytest

from wafer_triton.cli.main import main
from wafer_triton.draw.figure import numbers_of

GEMM = "gemm --m 16 --k 16 --n 16 --mesh 4"
OWN = """
from wafer_triton import Builder, Mesh
from wafer_triton.schedule.reduce import all_reduce

def sums():
    b = Builder(Mesh(2, 3), "sums of my own")
    b.buffer("x", (4,), "fp32", "output")
    all_reduce(b, "x", "x")
    return b.build()
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
        (f"{GEMM} --picture mesh --round 2", "tiles of a"),
        (f"{GEMM} --picture timeline --algorithm cannon", "cycles of gemm"),
        (f"{GEMM} --picture compare", "hops"),
        ("gemv --k 16 --n 16 --mesh 4x2 --picture sram", "SRAM of a core"),
        ("own.py:sums", "busiest_link_bytes"),
        ("model --model smollm2-135m --mesh 64", "regions"),
    ],
)
def test_a_picture_is_drawn_and_named(line, shown, folder, capsys):
    assert main(shlex.split(f"draw {line} --out x.png")) == 0
    assert capsys.readouterr().out == "written: x.png\n"
    assert shown in numbers_of(folder / "x.png")


def test_a_trace_goes_with_a_picture(folder, capsys):
    assert main(shlex.split(f"draw {GEMM} --picture sram --trace t.json --json")) == 0
    assert json.loads(capsys.readouterr().out) == {"files": ["picture.png", "t.json"]}
    assert json.loads((folder / "t.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{GEMM} --out x.gif", "x.gif: a picture is one of .png, .svg, .pdf; end its name with one of them"),
        (f"{GEMM} --out nowhere/x.png", "nowhere/x.png: No such file or directory; give another path"),
        (f"{GEMM} --trace nowhere/t.json", "nowhere/t.json: No such file or directory; give another path"),
        (f"{GEMM} --round 1", "--round 1: only --picture mesh shows one round; leave it out"),
        (f"{GEMM} --picture mesh --round 99", "round 99 is not one of its 8 rounds; give 0 to 7, or -1 for the start"),
        (f"{GEMM} --picture compare --trace t.json", "several algorithms have no one trace and no one round"),
        (f"{GEMM} --algorithm strassen", "strassen"),
        ("own.py:sums --picture compare", "argument --picture: invalid choice: 'compare'"),
        ("model --model smollm2-135m --mesh 2", "2x2"),
    ],
)
def test_a_mistake_is_one_line(line, message, folder, capsys):
    assert main(shlex.split(f"draw {line}")) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.startswith("wafer-triton: error: ") and err.count("\n") == 1
