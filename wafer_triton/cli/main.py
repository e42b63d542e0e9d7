"""The command line `wafer-triton`, also `python -m wafer_triton`.

Exit codes: 0, 2 for a usage error (one line on stderr), 1 for a bug (with a traceback), 130 after Ctrl-C, 141 when the
reader of the output has gone. Rank 0 prints results; an error is printed by the first rank that reports it. Ctrl-C is
handled before other modules are imported, so that it prints one line even then.

One line reports a mistake (`WaferError`), a file or stream that cannot be used, memory that this machine lacks, and an
error of another package about a user's file. Any other exception is ours and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

INTERRUPTED = 130  # the exit code after Ctrl-C
OPTIONAL = ("tokenizers", "transformers")  # packages of the extra `models`
# Packages that read files of the user; their exceptions are about these files.
READERS = ("gguf", "huggingface_hub", "matplotlib", "rich", "safetensors", "tokenizers", "transformers")
_ALLOCATORS = "not enough memory|can't allocate memory|out of memory|unable to allocate"
_FULL = (errno.ENOSPC, errno.EDQUOT)


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
    from wafer_triton.cli import app, ranks

    if sys.stderr is None:  # closed, and `print` would take stdout in its place
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until Python ends)
    try:
        if argv is None:  # from here on Ctrl-C raises, so that a command can print its result or free memory
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with ranks.quiet(), _output():
            code = app.run(sys.argv[1:] if argv is None else argv)
        ranks.leave()
        return code
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except Exception as error:
        code, message = judged(error)
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

    if not message:
        return code
    with suppress(WaferError):  # `first_to_say` may raise the error that `message` reports already
        if not ranks.first_to_say(message):
            return code
    with suppress(OSError):  # stderr may be closed
        print(message, file=sys.stderr, flush=True)
    return code


def judged(error: Exception) -> tuple[int, str]:
    """Return the exit code and the message of an exception; a bug of wafer-triton is raised again."""
    if isinstance(error, BrokenPipeError):
        return 141, ""
    said = _said(error)
    if said is None:
        raise error
    return 2, f"wafer-triton: error: {' '.join(said.split())}"


def _said(error: Exception) -> str | None:
    """Return the line of an exception, None for a bug of wafer-triton."""
    import re
    from textwrap import shorten

    from wafer_triton.errors import WaferError

    if isinstance(error, WaferError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name in OPTIONAL:
        return f"this command needs {error.name}; run: pip install 'wafer-triton[models]'"
    if isinstance(error, MemoryError | RuntimeError) and (
        type(error) is MemoryError or re.search(_ALLOCATORS, str(error), re.IGNORECASE)
    ):
        size = re.search(r"allocate (\d+) bytes", str(error))
        wanted = f" for {int(size[1]):,} B at once" if size else ""
        return f"this machine has not enough memory{wanted}; take smaller sizes, a smaller mesh or fewer layers"
    if isinstance(error, OSError) and error.errno is not None:
        remedy = "free some space, or write elsewhere" if error.errno in _FULL else "give another path"
        return f"{error.filename or 'this machine'}: {error.strerror or error}; {remedy}"
    if package := _reader(error):
        reason = shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
        return f"{package} cannot read a file or a setting: {reason}; give another"
    return None


def _reader(error: Exception) -> str | None:
    """Return the first of `READERS` among the frames of an exception, if there is one."""
    from traceback import walk_tb

    packages = (frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in walk_tb(error.__traceback__))
    return next((package for package in packages if package in READERS), None)


@contextmanager
def _output() -> Iterator[None]:
    """Check that standard output exists, let it take any character, and flush it at the end."""
    from wafer_triton.errors import BackendError

    if sys.stdout is None or sys.stdout.closed:
        raise BackendError("standard output is closed; send it somewhere, if only to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno is not None and error.filename is None:  # an error about a file names it, see `writing`
            error.filename = "standard output"
            with open(os.devnull, "w") as nowhere, suppress(OSError):  # else Python complains again when it exits
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise
