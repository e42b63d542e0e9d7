"""The border between the command line and its user: every exception that is not a bug of wafer-triton becomes one line.

One line reports a mistake (`WaferError`), a file or stream that cannot be used, or memory that this machine lacks. It
also reports an error of another package about a user's file. Any other exception is ours and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from textwrap import shorten
from traceback import walk_tb

from wafer_triton.errors import BackendError, WaferError

OPTIONAL = ("tokenizers", "transformers")  # packages of the extra `models`
# Packages that read files of the user; their exceptions are about these files.
READERS = ("gguf", "huggingface_hub", "matplotlib", "rich", "safetensors", "tokenizers", "transformers")
_ALLOCATORS = re.compile("not enough memory|can't allocate memory|out of memory|unable to allocate", re.IGNORECASE)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_BYTES = re.compile(r"allocate (\d+) bytes")


def judged(error: Exception) -> tuple[int, str]:
    """Return the exit code and the message of an exception; a bug of wafer-triton is raised again."""
    if isinstance(error, BrokenPipeError):
        return 141, ""
    said = _said(error)
    if said is None:
        raise error
    return 2, f"wafer-triton: error: {' '.join(said.split())}"


def _said(error: Exception) -> str | None:
    if isinstance(error, WaferError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name in OPTIONAL:
        return f"this command needs {error.name}; run: pip install 'wafer-triton[models]'"
    if isinstance(error, MemoryError | RuntimeError) and (_ALLOCATORS.search(str(error)) or type(error) is MemoryError):
        size = _BYTES.search(str(error))
        wanted = f" for {int(size[1]):,} B at once" if size else ""
        return f"this machine has not enough memory{wanted}; take smaller sizes, a smaller mesh or fewer layers"
    if isinstance(error, OSError) and error.errno is not None:
        remedy = "free some space, or write elsewhere" if error.errno in _FULL else "give another path"
        return f"{error.filename or 'this machine'}: {error.strerror or error}; {remedy}"
    if package := _reader(error):
        reason = shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
        return f"{package} cannot read the given file: {reason}; give another file"
    return None


def _reader(error: Exception) -> str | None:
    """Return the first of `READERS` among the frames of an exception, if there is one."""
    packages = (frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in walk_tb(error.__traceback__))
    return next((package for package in packages if package in READERS), None)


@contextmanager
def output() -> Iterator[None]:
    """Check that standard output exists, let it take any character, and flush it at the end."""
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
