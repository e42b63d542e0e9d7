"""Files that a user names: read up to a bound, and written where nothing else is lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from wafer_triton.errors import ConfigError, WaferError, shown, writing

MOST_BYTES = 2**28  # of a text or a JSON file, some ten times the largest tokenizer
_STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")  # which a shell may give for a pipe


def check_path(path: str | Path, error: type[WaferError] = ConfigError) -> None:
    """Raise an error for a path that no file can have: links in a circle, a name too long, a NUL."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    except (OSError, ValueError) as failed:
        why = getattr(failed, "strerror", "") or "no path of a file"
        raise error(f"{shown(str(path))[1:-1]}: {why}; give another path") from None


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Return the UTF-8 text of a file of at most `most` bytes.

    Raises ConfigError for a larger file and for a device, OSError and UnicodeDecodeError as `open`.
    """
    if str(path).startswith(_STREAMS):
        return _streamed(path, most)
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder, not a file; give a file")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: is no regular file (a device or a pipe); give a file")
    return _read(path, most)


@lru_cache(maxsize=4)
def _streamed(path: Path, most: int) -> str:
    """Return the text of a pipe, which gives it once."""
    return _read(path, most)


def _read(path: Path, most: int) -> str:
    with writing(path), path.open("rb") as file:  # an error names the file
        held = file.read(most + 1)
    if len(held) > most:
        raise ConfigError(f"{path}: has more than the {most:,} B that are read here; give a shorter file")
    return held.decode("utf-8")


def writable(written: Mapping[str, Path], read: Mapping[str, Path]) -> None:
    """Raise an error for files that cannot be written, each by the name of its option, before anything works for them.

    ConfigError where two are one file, or one is a file that is read; OSError for a folder, or one that is not there.
    """
    seen: dict[Path, str] = {}
    for name, path in {**read, **written}.items():
        with writing(path):  # where the working directory is gone, nothing is
            try:
                where = path.resolve()
            except RuntimeError:  # before Python 3.13, for links in a circle
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
        if name in written and where in seen and not where.is_char_device():
            verb = "is read as" if seen[where] in read else "is written as"
            raise ConfigError(f"{name} {path}: {verb} {seen[where]} already; give each a file of its own")
        seen[where] = name
    for path in written.values():
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not path.parent.is_dir():
            number = errno.ENOTDIR if path.parent.exists() else errno.ENOENT
            raise OSError(number, os.strerror(number), str(path))
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
