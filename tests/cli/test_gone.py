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
def test_an_option_that_went_says_so_where_it_was(flag, capsys):
    had, instead = gone.OPTIONS[flag]
    for command in had.split(", "):
        assert main([*command.split(), flag]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and f"`{flag}` went in 0.2: {instead}" in said, command
    assert main(["devices" if had != "devices" else "sweep", flag]) == 2
    assert "went in 0.2" not in capsys.readouterr().err
