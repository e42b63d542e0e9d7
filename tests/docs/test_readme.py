"""What README.md shows is true: its code runs, its commands parse, its table is the measured one, its paths exist."""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

from wafer_triton.cli import main as cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CHEAP = ("devices",)


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands(program):
    lines = [shlex.split(line, comments=True) for block in blocks("bash") for line in block.splitlines()]
    return [line[1:] for line in lines if line[:1] == [program]]


def cases():
    """Python blocks; one that fetches a checkpoint is slow."""
    slow = [[pytest.mark.slow] if "resolve(" in block else [] for block in blocks("python")]
    return [pytest.param(block, id=f"block{n}", marks=slow[n]) for n, block in enumerate(blocks("python"))]


@pytest.mark.parametrize("block", cases())
def test_python_runs(block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out, "a reader expects to see something"


@pytest.mark.parametrize("command", commands("wafer-triton"), ids=" ".join)
def test_commands_parse(command, capsys):
    args = cli.parser().parse_args(command)
    if command[0] in CHEAP:
        assert args.run(args) == 0


def test_every_command_is_shown():
    (known,) = (action.choices for action in cli.parser()._actions if isinstance(action.choices, dict))
    assert {command[0] for command in commands("wafer-triton")} == set(known)


def test_make_targets_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = {command[0] for command in commands("make")} | set(re.findall(r"`make ([a-z-]+)", README))
    assert named and named <= set(targets)


def test_the_table_is_measured():
    spec = importlib.util.spec_from_file_location("bench_report", ROOT / "bench" / "harness" / "report.py")
    report = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(report)
    (source,) = re.findall(r"`make bench BENCH=(\w+)`", README)
    measured = report.table(json.loads((ROOT / "bench" / "results" / f"{source}.json").read_text())).splitlines()
    shown = [line for line in README.splitlines() if line.startswith("| ")]
    assert len(shown) > 4
    assert [line for line in shown if line not in measured] == []
    assert measured[-1].removeprefix("Emulation time on ").rstrip(".") in README.replace("\n", " ")


def test_paths_exist():
    (tree,) = blocks("text")
    paths = [line.split()[0] for line in tree.splitlines()] + re.findall(r"\]\(([^)#:]+)\)", README)
    assert [path for path in paths if not (ROOT / path).exists()] == []
