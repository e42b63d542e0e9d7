"""Inputs of later walks: each is one line with fault and remedy, or the answer that was meant."""

import json
from math import comb

import numpy as np
import pytest

from wafer_triton import Intent, WaferError, as_mesh, check, estimate, routes
from wafer_triton.cli.main import main
from wafer_triton.schedule.expert_places import expected_demand
from wafer_triton.schedule.product import recipe

GEMM = recipe("gemm", as_mesh(3), "fp32", ((6, 6), (6, 6)), ()).schedule


@pytest.mark.parametrize("cut, axis", [("y", "y"), ("(m y) (x k)", "y"), ("(y m) x", "x")])
def test_an_axis_without_a_letter_is_no_intent(cut, axis):
    said = rf"the partition spec of 'a', has no letter after {axis}; write a pattern such as"
    with pytest.raises(WaferError, match=said):
        check(GEMM, intent=Intent({"a": cut}, {"c": "(y m) (x n)"}))


def test_relayed_is_true_or_false():
    with pytest.raises(WaferError, match="routes: relayed is of type str; give a bool"):
        routes(GEMM, relayed="no")


def test_whole_numbers_of_numpy_are_numbers():
    found = estimate.gemv(mesh=4, k=np.int64(64), n=np.uint8(64))
    assert found == estimate.gemv(mesh=4, k=64, n=64)
    # as numbers of Python, which do not overflow
    large = {"mesh": 32, "m": 2**9, "k": 2**9, "n": 2**9}
    assert estimate.gemm(**{name: np.int16(size) for name, size in large.items()}) == estimate.gemm(**large)
    for value in (True, np.bool_(True), 4.0, "4"):
        with pytest.raises(WaferError, match="k = .* must be a whole number of at least 1"):
            estimate.gemv(mesh=4, k=value, n=64)


def test_a_pair_in_the_wrong_order_says_so(tmp_path, capsys):
    (tmp_path / "own.py").write_text(
        "from wafer_triton import Builder, Intent, as_mesh\n"
        "def swapped():\n"
        "    b = Builder(as_mesh(2), 't'); b.buffer('x', (4,), 'fp32', 'output')\n"
        "    b.round(b.local('fill', 'x', (), size=4, value=0.0)) if False else None\n"
        "    return Intent({}, {}), b.build()\n"
    )
    assert main(["check", f"{tmp_path}/own.py:swapped"]) == 2
    assert "swapped returns a pair (Intent, Schedule); exchange the two" in capsys.readouterr().err


RECORD = {
    "cap": {"decode": {"tokens_per_second": 5.0}}, "predicted": {"decode": {"joules_per_token": 1.0}}, "device": "wse2",
    "tokens": [],
}  # fmt: skip


def test_blank_lines_at_the_end_of_a_record_are_passed_over(tmp_path, capsys):
    (tmp_path / "run.json").write_text("placing weights\n" + json.dumps(RECORD) + "\n\n  \n")
    assert main(["cap", f"{tmp_path}/run.json", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
    assert row["tokens_per_second"] == 5.0


def test_a_routing_file_that_is_not_there_is_named(capsys):
    asked = ["estimate", "cap", "--model", "olmoe-1b-7b", "--mesh", "187", "--context", "8", "--routing", "none.json"]
    assert main(asked) == 2
    said = "routing none.json: there is no such file; `generate --routing-out` writes one"
    assert said in capsys.readouterr().err


def test_links_in_a_circle_are_one_line(tmp_path, capsys):
    folder = tmp_path / "loop"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").symlink_to(folder / "model.safetensors")
    assert main(["generate", "--model", str(folder), "--prompt", "a", "--mesh", "2"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "symbolic link" in error


def test_many_tokens_are_expected_by_logarithms():
    """Binomial coefficients of thousands of rows are beyond floats; of few rows both ways agree."""
    assert 512 * 8 // 4 < expected_demand(8, 4, 512, 16) < 512 * 8
    for top_k, regions, tokens, rows in ((8, 16, 17, 240), (2, 4, 9, 8), (8, 64, 40, 100)):
        n, odds, above = tokens * top_k, 1 / regions, 1.0
        for most in range(n):
            above -= comb(n, most) * odds**most * (1 - odds) ** (n - most)
            if rows * regions * above < 1:
                break
        assert expected_demand(top_k, regions, tokens, rows) == max(1, most)
