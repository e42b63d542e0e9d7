"""The command line `wafer-triton`, also `python -m wafer_triton`.

Exit codes: 0, 2 for a user's mistake (one line on stderr), 1 with a traceback for ours, 130 after Ctrl-C, 141 when the
reader of the output has gone. Of several ranks the first prints. A command imports what it needs when it runs, so that
`--help` is quick and needs neither torch nor transformers.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from itertools import chain
from typing import Any, NoReturn

from wafer_triton import __doc__ as about
from wafer_triton import __version__
from wafer_triton.cli import border, calibrate, cap, compare, draw, estimate, generate, judge, ranks, train
from wafer_triton.cli.options import is_reference
from wafer_triton.errors import WaferError

COMMANDS = tuple(
    chain.from_iterable(family.COMMANDS for family in (generate, compare, draw, estimate, cap, calibrate, judge, train))
)


class _Usage(WaferError):
    """The arguments do not form a command."""


class _Parser(argparse.ArgumentParser):
    otherwise = ""  # see `Command`

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.otherwise and args and is_reference(args[0]):
            args = [self.otherwise, *args]
        return super().parse_known_args(args, namespace)

    def _print_message(self, message: str, file: Any = None) -> None:
        print(message, end="", file=file or sys.stderr)  # argparse would not say that this failed

    def error(self, message: str) -> NoReturn:
        raise _Usage(f"{message}; see `{self.prog} --help`")


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    whole = _Parser(prog="wafer-triton", description=about)
    whole.add_argument("--version", action="version", version=f"wafer-triton {__version__}")
    commands = whole.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    return whole


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    try:
        with ranks.quiet():
            code = _run(argv)
        ranks.leave()
        return code
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except Exception as error:
        code, message = border.judged(error)
        return _say(message, code)


def _run(argv: list[str] | None) -> int:
    with border.output():
        try:
            args = parser().parse_args(argv)
        except SystemExit as done:  # --help and --version
            return int(done.code or 0)
        code: int = args.run(args)
        return code


def _say(message: str, code: int) -> int:
    """Tell people in one line; the exit code."""
    if message and ranks.first_to_say(message):
        with suppress(OSError):  # nobody can be told
            print(message, file=sys.stderr, flush=True)
    return code
