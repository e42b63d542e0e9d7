"""docs/reference.md: its commands and options are the parser's, and its examples print the output shown.

Run as a program, it writes the repeatable outputs anew; with `--all` it also writes the outputs of commands that run
a model.
"""

import io
import os
import re
import shlex
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from wafer_triton.cli.main import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"
FITTED = (
    "validate",
    "validate --fit --out mine",
)  # by a solver: in tests/cost
BLOCK = re.compile(r"^```console\n\$ wafer-triton (.*)\n((?:.*\n)*?)```$", re.MULTILINE)
MORE = "...\n"  # an example that ends with it goes on like that


def text():
    return PAGE.read_text(encoding="utf-8")


def sections():
    """Return the text of the page by its headings of the third level, which are commands."""
    pieces = re.split(r"^(#+ .*)$", text(), flags=re.MULTILINE)
    return {head.removeprefix("### "): body for head, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def options(name):
    """Return all options of a command and of its kinds."""
    import commands

    return {flag for known, flags in commands.options().items() if known.split()[0] == name for flag in flags}


def command(line):
    assert main(shlex.split(line)) == 0, line


def execute(block):
    exec(compile(block, PAGE.name, "exec"), {"__name__": "page"})


def output(of, action=command):
    """Return the output of a command, or of another action, for people."""
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(io.StringIO()):
        action(of)
    return "".join(f"{shown.rstrip()}\n" for shown in stream.getvalue().splitlines())


def timed(line):
    """Return whether an example runs a checkpoint, needs such a run, or times."""
    return line.split()[0] in ("generate", "cap") or "--time" in line


def examples():
    return [line for line, _ in BLOCK.findall(text())]


def test_every_command_has_a_section_and_an_example():
    import commands

    names = {name.split()[0] for name in commands.options()}
    shown = [line.split() for line, _ in BLOCK.findall(text())]
    assert names <= set(sections())
    assert {words[0] for words in shown} == names
    assert {words[1] for words in shown if words[0] == "estimate"} == {
        name.split()[1] for name in commands.options() if name.startswith("estimate ")
    }


def test_every_heading_of_a_command_is_one():
    import commands

    heads = re.findall(r"^### (.*)$", text(), re.MULTILINE)
    assert heads == list(dict.fromkeys(heads)) and set(heads) <= {name.split()[0] for name in commands.options()}
    for name in re.findall(r"`(estimate [a-z]+)`", text()):
        assert name in commands.options()


@pytest.mark.parametrize("name", re.findall(r"^### (.*)$", text(), re.MULTILINE))
def test_a_section_names_options_of_its_command(name):
    assert set(re.findall(r"--[a-z][a-z-]*", sections()[name])) <= options(name)


@pytest.mark.parametrize("line", [line for line in examples() if timed(line) or line in FITTED])
def test_an_example_that_is_not_run_parses_and_shows_something(line):
    import commands

    commands.parse(shlex.split(line))
    assert dict(BLOCK.findall(text()))[line].strip()


@pytest.mark.parametrize("line", [line for line in examples() if not timed(line) and line not in FITTED])
def test_an_example_prints_the_output_shown(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert output(line) == dict(BLOCK.findall(text()))[line]


def test_a_run_of_a_checkpoint_has_the_counts_and_predictions_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shown = dict(BLOCK.findall(text()))
    line = next(line for line in shown if line.startswith("generate"))
    capsys.readouterr()
    command(f"{line} --emulate-on cpu --json")
    answer, people = capsys.readouterr()
    counted, _, predicted = shown[line][shown[line].index("device ") :].split("\n\n", 2)
    assert counted in people and predicted in people
    Path("mesh16.json").write_text(answer, encoding="utf-8")
    rows = [each.split() for each in shown["cap mesh16.json mesh24.json"].splitlines()]
    assert output("cap mesh16.json").splitlines()[3].split() == rows[3]


@pytest.mark.parametrize("block", re.findall(r"^```python\n(.*?)^```$", text(), re.MULTILINE | re.DOTALL))
def test_python_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert output(block, execute), "a reader expects to see something"


def test_exit_codes_are_listed():
    assert re.findall(r"^\| (\d+) \|", text(), re.MULTILINE) == ["0", "1", "2", "130", "141"]


def rewrite(whole):
    """Write the examples' outputs anew, as long as they are shown now."""
    root = os.getcwd()

    def block(match):
        line, shown = match.groups()
        if timed(line) and not whole:
            return match[0]
        os.chdir(root if timed(line) else tempfile.mkdtemp())
        printed = output(line).splitlines(keepends=True)
        os.chdir(root)
        if shown.endswith(MORE):
            printed = [*printed[: shown.count("\n") - 1], MORE]
        return f"```console\n$ wafer-triton {line}\n{''.join(printed)}```"

    page = BLOCK.sub(block, text())
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    rewrite("--all" in sys.argv)
