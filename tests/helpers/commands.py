"""The commands of both parsers, as tests read them: argparse's, and those that cyclopts makes."""

import argparse

from wafer_triton.cli import app
from wafer_triton.cli.main import parser


def options(of=None):
    """Return the options of all commands by name, of a command of kinds too, such as `compare gemm`."""
    known = {}
    for action in (of or parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                own = set(inner._option_string_actions) - {"-h", "--help"}
                known |= {name: own} | {f"{name} {kind}": flags for kind, flags in options(inner).items()}
    if of is None:
        whole = app.app()
        for family, (_, commands) in app.FAMILIES.items():
            for name in commands:
                words = [family] if name == family else [family, name]
                known[" ".join(words)] = {
                    flag for held in _leaf(whole, words) for flag in held.names if flag.startswith("--")
                }
    return known


def _leaf(whole, words):
    for word in words:
        whole = whole[word]
    return whole.assemble_argument_collection()


def parse(words):
    """Parse the words of a command line; raise an error, or SystemExit, where they form no command."""
    if words[0] in app.FAMILIES:
        assert callable(app.app().parse_args(list(words))[0])
    else:
        assert callable(parser().parse_args(words).run)
