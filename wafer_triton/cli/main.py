"""The command line `wafer-triton`, also `python -m wafer_triton`.

Exit codes: 0, 2 for a usage error (one line on stderr), 1 for a bug (with a traceback), 130 after Ctrl-C, 141 when the
reader of the output has gone. Rank 0 prints results; an error is printed by the first rank that reports it. Ctrl-C is
handled before other modules are imported, so that it prints one line even then.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Any

INTERRUPTED = 130  # the exit code after Ctrl-C


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit code.

    `argv` defaults to the arguments of the process; the process must then end after `main` returns.
    """
    if argv is not None:
        return _main(argv)
    _stop_at_once()
    try:
        return _main(None)
    finally:
        _stop_at_once()


def _main(argv: list[str] | None) -> int:
    from wafer_triton.cli import app, border, ranks

    if sys.stderr is None:  # closed, and `print` would take stdout in its place
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until Python ends)
    try:
        if argv is None:  # from here on Ctrl-C raises, so that a command can print its result or free memory
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with ranks.quiet(), border.output():
            code = app.run(sys.argv[1:] if argv is None else argv)
        ranks.leave()
        return code
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except Exception as error:
        code, message = border.judged(error)
        return _say(message, code)


def _stop_at_once() -> None:
    """Make Ctrl-C print one line and end the process at once, while Python starts or ends, when no cleanup is due."""

    def stop(number: int, frame: Any) -> None:
        if os.environ.get("RANK", "0") == "0":
            os.write(2, b"interrupted\n")
        os._exit(INTERRUPTED)

    with suppress(ValueError):  # not the main thread, which alone gets signals
        signal.signal(signal.SIGINT, stop)


def _say(message: str, code: int) -> int:
    """Print `message` to stderr, on one rank alone, and return `code`."""
    from wafer_triton.cli import ranks
    from wafer_triton.errors import WaferError

    with suppress(WaferError):  # `first_to_say` may raise the error that `message` reports already
        if not message or not ranks.first_to_say(message):
            return code
    if message:
        with suppress(OSError):  # stderr may be closed
            print(message, file=sys.stderr, flush=True)
    return code
