"""docs/reference.md: its commands and options are the parser's; test_pages.py runs the examples that are not long."""

import json
import re
import shlex
from pathlib import Path

import pytest

import commands

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"
BLOCK = re.compile(r"^```console\n\$ wafer-triton (.*)\n((?:.*\n)*?)```$", re.MULTILINE)


def text():
    return PAGE.read_text(encoding="utf-8")


def sections():
    """Return the text of the page by its headings of the third level, which are commands."""
    pieces = re.split(r"^(#+ .*)$", text(), flags=re.MULTILINE)
    return {head.removeprefix("### "): body for head, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def options(name):
    """Return all options of a command and of its kinds."""
    return {flag for known, flags in commands.options().items() if known.split()[0] == name for flag in flags}


def test_every_command_has_a_section_and_an_example():
    names = {name.split()[0] for name in commands.options()}
    shown = [line.split() for line, _ in BLOCK.findall(text())]
    assert names <= set(sections())
    assert {words[0] for words in shown} == names
    assert {words[1] for words in shown if words[0] == "estimate"} == {
        name.split()[1] for name in commands.options() if name.startswith("estimate ")
    }


def test_every_heading_of_a_command_is_one():
    heads = re.findall(r"^### (.*)$", text(), re.MULTILINE)
    assert heads == list(dict.fromkeys(heads)) and set(heads) <= {name.split()[0] for name in commands.options()}
    for name in re.findall(r"`(estimate [a-z]+)`", text()):
        assert name in commands.options()


@pytest.mark.parametrize("name", re.findall(r"^### (.*)$", text(), re.MULTILINE))
def test_a_section_names_options_of_its_command(name):
    assert set(re.findall(r"--[a-z][a-z-]*", sections()[name])) <= options(name)


def test_every_example_parses():
    for line, _ in BLOCK.findall(text()):
        commands.parse(shlex.split(line))


def test_a_run_of_a_checkpoint_has_the_counts_and_predictions_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shown = dict(BLOCK.findall(text()))
    line = next(line for line in shown if line.startswith("generate"))
    record, people = commands.answer(f"{line} --emulate-on cpu", capsys)
    counted, _, predicted = shown[line][shown[line].index("device ") :].split("\n\n", 2)
    assert counted in people and predicted in people
    Path("mesh16.json").write_text(json.dumps(record), encoding="utf-8")
    _, people = commands.answer("cap mesh16.json", capsys)
    assert shown["cap mesh16.json mesh24.json"].splitlines()[3].split() == people.splitlines()[3].split()


def test_exit_codes_are_listed():
    assert re.findall(r"^\| (\d+) \|", text(), re.MULTILINE) == ["0", "1", "2", "130", "141"]
