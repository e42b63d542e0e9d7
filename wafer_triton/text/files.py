"""Files that a user names: read up to a bound, parsed, and written where nothing else is lost."""

from __future__ import annotations

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


def listed(text: str) -> list[str]:
    """Return the words of a text such as A,B,C; a path that exists is one word, though it has commas."""
    parts, found = text.split(","), []
    while parts:
        ends = range(len(parts), 1, -1)
        end = next((end for end in ends if os.path.exists(",".join(parts[:end]).strip())), 1)
        found.append(",".join(parts[:end]).strip())
        parts = parts[end:]
    return found


def read_text(path: Path, error: type[WaferError] = ConfigError) -> str:
    """Return the UTF-8 text of a file of at most `MOST_BYTES`, without its byte order mark.

    Raises OSError as `open`, and `error` for a larger file, a folder, a device and another encoding.
    """
    streamed = str(path).startswith(_STREAMS)
    if not streamed and path.exists() and not path.is_file():
        raise error(f"{path}: is no regular file but a folder, a device or a pipe; give a file")
    held = (_streamed if streamed else _begin)(path)
    if len(held) > MOST_BYTES:
        raise error(f"{path}: has more than the {MOST_BYTES:,} B that are read here; give a shorter file")
    try:
        text = held.decode("utf-8-sig")
    except UnicodeDecodeError as found:
        raise error(f"{path}: is not UTF-8 text ({found.reason} at byte {found.start:,}); save it in UTF-8") from None
    if "\0" in text:
        raise error(f"{path}: is not UTF-8 text (it has a NUL at {text.index(chr(0)):,}); save it in UTF-8")
    return text


def _begin(path: Path) -> bytes:
    """Return the bytes of a file, of a larger one than is read one more than that."""
    with writing(path), path.open("rb") as file:  # an error names the file
        return file.read(MOST_BYTES + 1)


_streamed = lru_cache(maxsize=4)(_begin)  # a pipe gives its bytes once


def read_record(path: Path) -> Any:
    """Return the record that `generate --json` prints: the last line of a file, or all of it; raises as `parse_json`.

    A tool that lays out JSON anew, such as jq, spreads a record over lines.
    """
    text = read_text(path)
    *_, last = text.rstrip().splitlines() or [""]
    spread = last.strip() == "}" and text.lstrip().startswith("{")
    return parse_json(text if spread else last, path, remedy="give the last line of `generate --json`")


def parse_json(text: str, where: object, error: type[WaferError] = ConfigError, remedy: str = _MEND) -> Any:
    """Return the value of a JSON text; `error`, which names `where`, if it is not JSON or gives a key twice."""

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise error(f"{where}: key {shown(twice)} is given twice; give it once")
        return made

    try:
        return json.loads(text, object_pairs_hook=table)
    except WaferError:
        raise
    except (ValueError, RecursionError) as found:
        if what := fetched_in_place(text):
            raise error(f"{where}: is {what}, not JSON; put the file itself there") from None
        raise error(f"{where}: not valid JSON ({found}); {remedy}") from None


def fetched_in_place(text: str) -> str:
    """Return what a file is by its first characters, where something was fetched in its place; "" if unknown."""
    head = text[:512].lstrip().lower()
    if head.startswith("version https://git-lfs"):
        return "a Git LFS pointer (`git lfs pull` fetches the file)"
    if head.startswith(("<!doctype html", "<html")):
        return "an HTML page, such as a login or an error"
    return ""


def parse_toml(text: str, where: object, error: type[WaferError] = ConfigError) -> dict[str, Any]:
    """Return the table of a TOML text; `error`, which names `where`, for a text that is not TOML."""
    import tomllib  # which most commands do not need

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as found:
        raise error(f"{where}: not valid TOML ({found}); {_MEND}") from None


def writable(written: Mapping[str, Path], read: Mapping[str, Path]) -> None:
    """Raise an error for files that cannot be written, each by the name of its option, before anything works for them.

    ConfigError where two are one file, or one is a file that is read; OSError for a folder, or one that is not there.
    """
    seen: dict[object, str] = {}
    for name, path in {**read, **written}.items():
        with writing(path):  # where the working directory is gone, nothing is
            where: object = os.path.realpath(path)
        if path.exists():  # under several names, where it has hard links
            where = path.stat().st_dev, path.stat().st_ino
        if name in written and where in seen and not path.is_char_device():
            verb = "is read as" if seen[where] in read else "is written as"
            raise ConfigError(f"{name} {path}: {verb} {seen[where]} already; give each a file of its own")
        seen[where] = name
    for path in written.values():
        number = 0 if os.access(path if path.exists() else path.parent, os.W_OK) else errno.EACCES
        if path.is_dir():
            number = errno.EISDIR
        elif not path.parent.is_dir():
            number = errno.ENOTDIR if path.parent.exists() else errno.ENOENT
        if number:
            raise OSError(number, os.strerror(number), str(path))
