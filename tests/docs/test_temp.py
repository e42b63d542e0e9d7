"""docs/temp.md equals the output of its study."""

import re
import runpy
from pathlib import Path

import pytest

STUDY = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "studies" / "temp.py"))
TEXT = STUDY["PAGE"].read_text(encoding="utf-8")


@pytest.mark.parametrize("size", [4, 8, 16])
def test_the_table_of_streams_is_read_from_the_accountant(size):
    for row in STUDY["streams"](size):
        assert row in TEXT, "run python docs/studies/temp.py"


def test_the_table_of_mapping_and_the_refusal_are_computed():
    for row in STUDY["mapped"]():
        assert row in TEXT, "run python docs/studies/temp.py"
    assert STUDY["refused"]() in TEXT


def test_new_rows_replace_those_below_their_head():
    text = "| a | b |\n| - | - |\n| 1 | 2 |\n\nmore\n"
    assert STUDY["renewed"](text, "| a | b |", ["| 3 | 4 |", "| 5 | 6 |"]) == text.replace(
        "| 1 | 2 |", "| 3 | 4 |\n| 5 | 6 |"
    )


def test_every_workload_and_step_has_a_row():
    for name in STUDY["WORKLOADS"]:
        assert TEXT.count(f"| {name} |") >= 3
    for each in (*STUDY["BASELINES"], *STUDY["STEPS"]):
        assert f"| {each.name} |" in TEXT


def test_the_example_prints_the_output_shown(capsys):
    code, shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", TEXT, re.DOTALL).groups()
    exec(compile(code, "docs/temp.md", "exec"), {})
    assert capsys.readouterr().out == shown


@pytest.mark.slow
def test_rows_of_plans_equal_the_planner_s():
    for row in (
        STUDY["report"]("gpt3-6.7b", "cut"),
        STUDY["report"]("llama2-7b", "store"),
        STUDY["apart"]("llama2-7b", "store", 1),
    ):
        assert row in TEXT, "run python docs/studies/temp.py"
