"""Files that a user names: read up to a bound, parsed, and written where nothing else is lost.

All texts, JSON and TOML of a user are read here, so that every file is refused for the same faults in the same words.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from wafer_triton.errors import ConfigError, WaferError, shown, writing

MOST_BYTES = 2**28  # of a text or a JSON file, some ten times the largest tokenizer
_MEND = "mend it, or give another file"
_STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")  # which a shell may give for a pipe


def check_path(path: str | os.PathLike[str], error: type[WaferError] = ConfigError) -> None:
    """Raise an error for a path that no file can have: links in a circle, a name too long, a NUL."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    except (OSError, ValueError) as failed:
        why = getattr(failed, "strerror", "") or "no path of a file"
        raise error(f"{shown(str(path))[1:-1]}: {why}; give another path") from None


def listed(text: str) -> list[str]:
    """Return the words of a text such as A,B,C; a path that exists is one word, though it has commas."""
    parts, found = text.split(","), []
    while parts:
        ends = range(len(parts), 1, -1)
        end = next((end for end in ends if os.path.exists(",".join(parts[:end]).strip())), 1)
        found.append(",".join(parts[:end]).strip())
        parts = parts[end:]
    return found


def read_text(path: Path, error: type[WaferError] = ConfigError, most: int = MOST_BYTES) -> str:
    """Return the UTF-8 text of a file of at most `most` bytes, without its byte order mark.

    Raises OSError as `open`, and `error` for a larger file, a folder, a device, another encoding and a NUL byte.
    """
    if str(path).startswith(_STREAMS):
        held = _streamed(path, most + 1)
    elif path.is_dir():
        raise error(f"{path}: is a folder, not a file; give a file")
    elif path.exists() and not path.is_file():
        raise error(f"{path}: is no regular file (a device or a pipe); give a file")
    else:
        held = _begin(path, most + 1)
    if len(held) > most:
        raise error(f"{path}: has more than the {most:,} B that are read here; give a shorter file")
    return _text(path, held, error)


def _begin(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a file."""
    with writing(path), path.open("rb") as file:  # an error names the file
        return file.read(most)


_streamed = lru_cache(maxsize=4)(_begin)  # a pipe gives its bytes once


def _text(path: Path, held: bytes, error: type[WaferError]) -> str:
    if held.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        kind = "UTF-32" if held.startswith(codecs.BOM_UTF32_LE) else "UTF-16"
        raise error(f"{path}: is not UTF-8 text but {kind}; save it in UTF-8")
    at = held.find(0)
    if at < 0:
        try:
            return held.removeprefix(codecs.BOM_UTF8).decode("utf-8")
        except UnicodeDecodeError as found:
            at = found.start + len(held) - len(found.object)
    line = held.count(b"\n", 0, at) + 1
    fault = f"byte 0x{held[at]:02x}" if held[at] else "a NUL byte"
    raise error(f"{path}: is not UTF-8 text (line {line} has {fault}); save it in UTF-8, or give another file")


def read_record(path: Path) -> Any:
    """Return the record that `generate --json` prints: the last line of a file, or all of it; raises as `parse_json`.

    A tool that lays out JSON anew, such as jq, spreads a record over lines.
    """
    text = read_text(path)
    *_, last = text.rstrip().splitlines() or [""]
    spread = last.strip() == "}" and text.lstrip().startswith("{")
    return parse_json(text if spread else last, path, remedy="give the last line of `generate --json`")


def parse_json(text: str, where: object, error: type[WaferError] = ConfigError, remedy: str = _MEND) -> Any:
    """Return the value of a JSON text.

    Raises `error`, which names `where`, for a text that is not JSON, a key given twice and a lone surrogate.
    """

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise error(f"{where}: key {shown(twice)} is given twice; give it once")
        return made

    try:
        value = json.loads(text, object_pairs_hook=table)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as found:
        raise _unread(found, text, where, "JSON", error, remedy) from None


def parse_toml(text: str, where: object, error: type[WaferError] = ConfigError) -> dict[str, Any]:
    """Return the table of a TOML text; `error`, which names `where`, for a text that is not TOML."""
    import tomllib  # which most commands do not need

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as found:
        raise _unread(found, text, where, "TOML", error, _MEND) from None


def _unread(
    found: Exception, text: str, where: object, kind: str, error: type[WaferError], remedy: str
) -> WaferError:  # fmt: skip
    """Return the error of a text that a parser refuses."""
    if isinstance(found, WaferError):
        return found
    reason = str(found)
    if not text.strip():
        reason = "it is empty"
    elif isinstance(found, RecursionError):
        reason = "it is nested too deep"
    elif isinstance(found, UnicodeEncodeError):
        reason = f"the lone surrogate {found.object[found.start]!a} is no character"
    elif "integer string conversion" in reason:  # of Python, about its own settings
        reason = "a number has too many digits"
    return error(f"{where}: not valid {kind} ({reason}); {remedy}")


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
