"""The command line `wafer-triton`, also `python -m wafer_triton`.

Exit codes: 0, 2 for a user's mistake (one line on stderr), 1 with a traceback for ours, 130 after Ctrl-C, 141 when the
reader of the output has gone. A command imports what it needs when it runs, so that `--help` is quick and needs neither
torch nor transformers.
"""

from __future__ import annotations

import argparse
import os
import sys
from itertools import chain
from typing import NoReturn

from wafer_triton import __doc__ as about
from wafer_triton import __version__
from wafer_triton.cli import calibrate, compare, estimate, generate, judge
from wafer_triton.errors import WaferError

COMMANDS = tuple(chain.from_iterable(family.COMMANDS for family in (generate, compare, estimate, calibrate, judge)))


class _Usage(WaferError):
    """The arguments do not form a command."""


class _Parser(argparse.ArgumentParser):
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
        args = parser().parse_args(argv)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    except WaferError as error:
        return _mistake(str(error))
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "tokenizers", "transformers"):
            raise
        return _mistake(f"this command needs {error.name}; run: pip install 'wafer-triton[models]'")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (FileNotFoundError, PermissionError, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        return _mistake(f"{error.filename}: {error.strerror}; give another path")
    except BrokenPipeError:  # whoever read our output has gone; Python would complain again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _mistake(message: str) -> int:
    print(f"wafer-triton: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
