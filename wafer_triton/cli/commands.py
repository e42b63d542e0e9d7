"""All commands and their parser. A command does its imports when it runs, so that `--help` is quick."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise, takewhile
from typing import Any, NoReturn

from wafer_triton import __doc__ as of_package
from wafer_triton import __version__
from wafer_triton.cli import (
    app,
    border,
    generate,
)
from wafer_triton.cli.options import is_reference, prepare

COMMANDS = tuple(chain.from_iterable(family.COMMANDS for family in (generate,)))


class _Parser(argparse.ArgumentParser):
    otherwise = ""  # see `Command`
    has_commands = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)  # else --m of a GEMV would be its --mesh

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.otherwise and args and is_reference(args[0]):
            args = [self.otherwise, *args]
        if not self.has_commands:
            self._check_options(sys.argv[1:] if args is None else args)
        known, unknown = super().parse_known_args(args, namespace)
        if unknown and not self.has_commands:  # here, where the page of the command is known
            own = next(filter(is_reference, unknown), None)
            hint = f"; write `{self.prog} {own}` without a word before it" if own else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return known, unknown

    def _check_options(self, args: Sequence[str]) -> None:
        """Raise a usage error for an unknown option, and for one that comes twice, whose first value would be lost.

        argparse would ask for absent options before it names an unknown one, which may be one of them misspelt.
        """
        before = args[: args.index("--")] if "--" in args else args
        known, times = self._option_string_actions, Counter[str]()
        for number, (last, arg) in enumerate(pairwise(["", *before])):
            flag = arg.partition("=")[0]
            if not arg.startswith("--") or type(known.get(last)) is argparse._StoreAction:  # a value, which it refuses
                continue
            if flag not in known:
                near = difflib.get_close_matches(flag, known, n=1, cutoff=0.75)
                words = " ".join((arg, *takewhile(lambda word: not word.startswith("-"), before[number + 1 :])))
                hint = f"; did you mean {near[0]}?" if near else ""
                self.error(f"unrecognized arguments: {words}{hint}")
            times[flag] += 1
            if times[flag] > 1 and type(known[flag]) is argparse._StoreAction:
                self.error(f"argument {flag}: is given twice; give it once")

    def add_subparsers(self, **settings: Any) -> Any:
        self.has_commands = True
        return super().add_subparsers(**settings)

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file or sys.stdout)  # argparse would hide that this failed

    def error(self, message: str) -> NoReturn:
        if named := re.fullmatch(r"argument (--[a-z-]+): expected one argument", message):
            message += f"; write {named[1]}=VALUE where the value begins with -"
        if named := re.fullmatch(r"argument ([A-Z]+): invalid choice: .*", message):
            message += f"; {named[1]} goes before all options"
        raise app.UsageError(f"{message}; see `{self.prog} --help`")


class _Version(argparse.Action):
    """Prints the version and ends, with an error if that failed, which argparse's own action would hide."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(nargs=0, default=argparse.SUPPRESS, **settings | {"dest": argparse.SUPPRESS})

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> NoReturn:
        print(f"wafer-triton {__version__}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    whole = _Parser(prog="wafer-triton", description=of_package)
    whole.add_argument("--version", action=_Version, help="show the version and exit")
    commands = whole.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    for name, (about, _) in app.FAMILIES.items():
        commands.add_parser(name, help=about)
    return whole


def run(argv: list[str] | None) -> int:
    """Run a command line and return its exit code; raises the errors of the command."""
    with border.output():
        words = sys.argv[1:] if argv is None else argv
        app.check_gone(words)
        if words and words[0] in app.FAMILIES:
            return app.run(words)
        try:
            args = parser().parse_args(words)
        except SystemExit as done:  # --help and --version
            return int(done.code or 0)
        prepare(args)
        code: int = args.run(args)
        return code
