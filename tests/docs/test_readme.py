"""What README.md shows is true: its code runs, its commands parse, its table is the measured one, its paths exist."""

import json
import re
import shlex
from pathlib import Path

import pytest

import report
from wafer_triton.cli import main as cli

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
README = (ROOT / "README.md").read_text()
PAGES = (ROOT / "README.md", BENCH / "README.md")  # tables of timings are in one of them, or in both
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


def targets():
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_make_targets_exist():
    named = {command[0] for command in commands("make")} | set(re.findall(r"`make ([a-z-]+)", README))
    assert named and named <= targets()


def tables(text):
    """The rows of each table of a page, heads and rulers included."""
    return [table.splitlines() for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]


def results(name):
    return json.loads((BENCH / "results" / f"{name}.json").read_text())


@pytest.mark.parametrize("page", [page for page in PAGES if "`make bench BENCH=" in page.read_text()])
def test_the_table_is_measured(page):
    text = page.read_text()
    (source,) = re.findall(r"`make bench BENCH=(\w+)`", text)
    measured = report.table(results(source)).splitlines()
    (shown,) = [table for table in tables(text) if table[0] == measured[0]]
    assert len(shown) > 4
    assert [row for row in shown[2:] if row not in measured] == []
    assert report.machine(results(source)) in text.replace("\n", " ")


def test_the_tables_of_whole_models_are_measured():
    text = (BENCH / "README.md").read_text()
    for measured in tables(report.model_table(results("models")) + "\n"):
        assert measured in tables(text), "run python bench/harness/report.py bench/results/models.json"
    assert results("models")["machine_info"]["cpu"] in text


def test_what_the_page_of_benchmarks_names_exists():
    text = (BENCH / "README.md").read_text()
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets()
    paths = re.findall(r"\]\(([^)#:]+)\)", text)
    assert paths and [path for path in paths if not (BENCH / path).exists()] == []
    assert set(re.findall(r"`(bench_\w+\.py)`", text)) == {path.name for path in (BENCH / "suites").glob("*.py")}


def test_paths_exist():
    (tree,) = blocks("text")
    paths = [line.split()[0] for line in tree.splitlines()] + re.findall(r"\]\(([^)#:]+)\)", README)
    assert [path for path in paths if not (ROOT / path).exists()] == []
