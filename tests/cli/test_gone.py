"""A command or an option that went says so in one line, and what answers instead."""

import pytest

from wafer_triton.cli import gone
from wafer_triton.cli.main import main


@pytest.mark.parametrize("command", sorted(gone.COMMANDS))
def test_a_command_that_went_says_so(command, capsys):
    assert main(command.split()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"`{command}` went in 0.2" in said and gone.COMMANDS[command] in said


@pytest.mark.parametrize("flag", sorted(gone.OPTIONS))
def test_an_option_that_went_says_so(flag, capsys):
    assert main(["plan", flag]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"`{flag}` went in 0.2" in said and gone.OPTIONS[flag] in said
