"""The commands and their options, as tests read them."""

import json
import shlex

from wafer_triton.cli import app
from wafer_triton.cli.main import main


def options():
    """Return the options of all commands by name, such as `estimate decode`."""
    whole = app.app()
    known = {}
    for name in app.COMMANDS:
        leaf = whole
        for word in name.split():
            leaf = leaf[word]
        held = leaf.assemble_argument_collection()
        known[name] = {flag for each in held for flag in each.names if flag.startswith("--")}
    return known


def parse(words):
    """Parse the words of a command line; raise an error where they form no command."""
    assert callable(app.app().parse_args(list(words))[0])


def answer(line, capsys):
    """Return the JSON with which a command answers, and what it prints for people."""
    assert main([*shlex.split(line), "--json"]) == 0, line
    out, err = capsys.readouterr()
    return json.loads(out), err


def refused(line, capsys):
    """Run a line that is a mistake: exit code 2, and one line on stderr, which is returned."""
    assert main(shlex.split(line)) == 2, line
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("wafer-triton: error: ") and err.count("\n") == 1, err
    return err
