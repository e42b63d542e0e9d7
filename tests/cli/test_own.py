"""`check` and `compare` of a schedule of one's own, FILE.py:FUNCTION."""

import json

import pytest

from wafer_triton.cli.main import main

FILE = """
import numpy as np
from wafer_triton import Builder, Intent, Slot, as_mesh
from wafer_triton.algorithms.product import recipe

print("loading")


def butterfly(steps):
    b = Builder(as_mesh("4x8"), "butterfly")
    hands = [b.buffer("x", (16,), "fp32", "output"), b.like("next", "x")]
    inbox, line = b.like("inbox", "x"), np.arange(8)

    for step in range(steps):
        b.round(
            b.exchange("x", hands[0], inbox, send=line, recv=line ^ (1 << step)),
            b.local("add", hands[1], (hands[0], inbox), size=16),
            label=f"step {step}",
        )
        hands.reverse()

    if hands[0] != "x":
        b.round(b.local("copy", "x", hands[0], size=16), label="home")
    return b


def summed(tiles):
    return {"x": tiles["x"].sum(1, keepdim=True).expand_as(tiles["x"])}


INTENT = Intent(given={"x": {"r": "y", "k": "x"}}, result={"x": {"r": "y"}}, reference=summed)


def bare():
    return butterfly(3).build()


def whole():
    return bare(), INTENT


def half():
    return butterfly(2).build(), INTENT


def gemm():
    return recipe("gemm", as_mesh(3), "fp32", ((6, 9), (9, 6)), (("algorithm", "summa"),))


def gemm_t():
    own = recipe("gemm", as_mesh(3), "fp32", ((6, 9), (6, 9)), (("transposed", "b"),))
    return own.schedule, Intent.of(own)


def gemv():
    return recipe("gemv", as_mesh("4x3"), "fp32", ((1, 9), (9, 6)), (("algorithm", "star"), ("axis", "y")))


def norm():
    return recipe("softmax", as_mesh(3), "fp32", ((6, 9),), ())


def draft():
    return butterfly(3)


def needs(mesh):
    return bare()


def raises():
    return 1 / 0


def leaves():
    raise SystemExit("bye")


def wrong_cut():
    return bare(), Intent(given={"x": 5}, result={"x": "y"})


def no_tensor():
    return bare(), Intent(INTENT.given, INTENT.result, reference=lambda tiles: {"x": None})


def wrong_reference():
    return bare(), Intent(INTENT.given, INTENT.result, reference=lambda tiles: tiles["y"])


def misspelt():
    b = Builder(as_mesh(2), "misspelt")
    b.buffer("x", (4,), "fp32", "output")
    b.round(b.local("nonsense", "x", "x", size=4))
    return b.build()


def circle():
    b = Builder(as_mesh(2), "circle")
    b.buffer("arow", (4,), "fp32", "input", 2)
    slots = Slot("arow", [0, 1])
    b.round(b.exchange("x", slots, slots, [0, 1], [1, 0]))
    return b.build()


def huge():
    b = Builder(as_mesh(2), "huge")
    b.buffer("out", (1,), "fp32", "output")
    b.buffer("more", (2**30,), "fp32")
    return b.build()
"""


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command on a function of the file: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(FILE)
    (tmp_path / "broken.py").write_text("def f(:\n")

    def command(name, reference, *more):
        return main([name, reference, *more]), *capsys.readouterr()

    return command


def answer(out):
    return json.loads(out.splitlines()[-1])


def test_a_healthy_schedule(run):
    code, out, err = run("check", "own.py:whole")
    assert code == 0 and err == "loading\n"
    lines = out.splitlines()
    assert lines[0] == "butterfly on mesh 4x8 of wse2: nothing found"
    assert [line.split()[0] for line in lines[3:8]] == ["step"] * 4 + ["whole"]
    assert lines[8].startswith("P: half of the cores or more take part; L:")


@pytest.mark.parametrize(("name", "ok", "intended"), [("whole", 0, True), ("half", 1, True), ("bare", 0, False)])
def test_json(run, name, ok, intended):
    code, out, err = run("check", f"own.py:{name}", "--json")
    verdict = answer(out)
    assert (code, verdict["ok"], verdict["intended"]) == (ok, not ok, intended) and out.count("\n") == 1
    assert [finding["verdict"] for finding in verdict["findings"]] == ["wrong-values"] * ok
    assert verdict["operations"][-1]["phase"] == "whole" and verdict["operations"][-1]["verdict"].keys() == set("PLMR")
    assert ("no intent: the results were not judged" in err) is not intended


@pytest.mark.parametrize(
    ("name", "algorithms", "twin"),
    [
        ("whole", ["ktree", "pipeline", "two-phase", "star", "ring"], None),
        ("gemm", ["mesh", "cannon", "summa", "allgather"], "summa"),
        ("gemm_t", ["mesh", "cannon", "summa", "allgather"], "mesh"),
        ("gemv", ["ktree", "pipeline", "two-phase", "star", "ring"], "star"),
    ],
)
def test_a_schedule_stands_beside_the_built_in_ones(run, name, algorithms, twin):
    code, out, _ = run("compare", f"own.py:{name}", "--json")
    rows = {row.pop("algorithm"): row for row in answer(out)["rows"]}
    assert code == 0 and list(rows) == [f"{name} (own)", *algorithms]
    if twin:
        assert rows[f"{name} (own)"] == rows[twin] and rows[twin]["error"] < 1e-5
    else:
        assert rows[f"{name} (own)"]["error"] is None


@pytest.mark.parametrize(
    ("command", "reference", "message"),
    [
        ("compare", "own.py:bare", "butterfly: which operation it is, only an Intent says; return (Schedule, Intent)"),
        ("compare", "own.py:half", "wrong-values (core (0, 0), "),
        ("compare", "own.py:norm", "neither a product nor a sum follows from {'x': '(y m) (x n)'"),
        ("check", "none.py:f", "none.py: there is no such file"),
        ("check", "own.py", "own.py: give FILE.py:FUNCTION, where the function returns a Schedule, a Recipe or a pair"),
        ("check", "own.py:wohle", "own.py: there is no function 'wohle'; did you mean 'whole'? (functions: butter"),
        ("check", "own.py:draft", "own.py: draft returns a Builder; it must return a Schedule, a Recipe or a pair "
                                  "(Schedule, Intent); end it with .build()"),
        ("check", "own.py:needs", "needs is called without arguments (missing a required argument: 'mesh')"),
        ("check", "own.py:raises", f"own.py, line {FILE[: FILE.index('1 / 0')].count(chr(10)) + 1}: ZeroDivisionError"),
        ("check", "own.py:leaves", "SystemExit: bye"),
        ("check", "own.py:wrong_cut", "Intent: the partition spec of 'x' is 5; give a pattern such as '(y m) (x k)'"),
        ("check", "own.py:no_tensor", "butterfly: the reference must give tensors by the names of buffers (Could not "),
        ("check", "own.py:wrong_reference",
         f"own.py, line {FILE[: FILE.index('lambda tiles: tiles[')].count(chr(10)) + 1}); mend it, or leave it out"),
        ("check", "broken.py:f", "broken.py, line 1: SyntaxError"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(run, command, reference, message):
    code, out, err = run(command, reference)
    last = err.splitlines()[-1]
    assert (code, out) == (2, "") and last.startswith("wafer-triton: error: ") and message in last
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "circle",
            "overwritten (core (0, 0), round 0): circle, round 0: core (0, 0) receives into arow[0], which it s",
        ),
        ("misspelt", "malformed (round 0): misspelt, round 0: local operation 'nonsense'"),
        ("huge", "unwritten-output: huge: no core writes the output out; write it, or drop it"),
        ("huge", "sram: huge: no round uses more, and its 4,294,967,296 B are more than the 49,152 B of SRAM on wse2"),
    ],
)
def test_faults_of_a_schedule_that_does_not_build_are_listed(run, name, said):
    code, out, err = run("check", f"own.py:{name}")
    assert (code, err) == (1, "loading\n") and said in out


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ("def f(): pass\n".encode("utf-16"), "is not UTF-8 text ("),
        (b"def f(): pass\n\0", "is not UTF-8 text ("),
        (None, "is a folder, not a file"),
    ],
)
def test_a_file_that_is_no_text_is_named(run, tmp_path, held, said):
    path = tmp_path / "a.py"
    path.mkdir() if held is None else path.write_bytes(held)
    code, out, err = run("check", "a.py:f")
    assert (code, out, err.count("\n")) == (2, "", 1) and f"error: a.py: {said}" in err
