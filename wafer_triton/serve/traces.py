"""Traces of requests: CSV or JSON lines; each line has an arrival and the token counts of prompt and answer."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wafer_triton.errors import ConfigError
from wafer_triton.serve.workload import LATEST, MOST_TOKENS, Request
from wafer_triton.text.files import parse_json, read_text

# columns of arrival, input and output
OWN = ("arrival", "input", "output")
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")  # Azure Public Dataset, LLM inference trace 2023 (ISCA'24)


def read_trace(path: str | Path) -> list[Request]:
    """Return the requests of a trace in the order of their arrival, the first at 0.

    A trace is CSV with the columns arrival, input and output (tokens), or those of `AZURE`, or JSON lines with the
    first three as keys. An arrival is a number of seconds or an ISO date and time. Raises ConfigError, which names the
    file and the line, for anything else.
    """
    path = Path(path)
    text = read_text(path)
    rows = _json_lines(path, text) if path.suffix.lower() in (".jsonl", ".json") else _csv_rows(path, text)
    found: list[tuple[float, int, int]] = []
    kind: str | None = None  # of arrivals, as the first one is
    for line, (arrival, *lengths) in rows:
        where = f"{path}, line {line}"
        if kind not in (None, another := _kind(arrival)):
            raise ConfigError(f"{where}: arrival {arrival!r}: {kind} and {another} are mixed; give one kind")
        kind = another
        input, output = (_tokens(where, name, value) for name, value in zip(OWN[1:], lengths, strict=True))
        found.append((_arrival(where, arrival), input, output))
    if not found:
        raise ConfigError(f"{path}: the trace has no request; add a line for each request")
    found.sort(key=lambda request: request[0])  # stable: requests of one moment stay in the order of the file
    first = found[0][0]
    return [Request(number, at - first, input, output) for number, (at, input, output) in enumerate(found)]


Rows = Iterable[tuple[int, tuple[Any, ...]]]  # the number of a line, its arrival, input and output


def _csv_rows(path: Path, text: str) -> Rows:
    try:
        table = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise ConfigError(f"{path}: is no CSV ({error}); give {', '.join(OWN)}, or {', '.join(AZURE)}") from None
    head = [name.strip() for name in table[0]] if table else []
    columns = next((names for names in (OWN, AZURE) if set(names) <= set(head)), None)
    if columns is None:
        raise ConfigError(
            f"{path}: columns {', '.join(head) or 'none'}; give {', '.join(OWN)}, or {', '.join(AZURE)}, with commas "
            f"between them"
        )
    places = [head.index(name) for name in columns]
    if twice := [name for name in columns if head.count(name) > 1]:
        raise ConfigError(f"{path}: column {twice[0]} stands twice; leave one out")
    for number, row in enumerate(table[1:], 2):
        if row:
            if len(row) != len(head):
                raise ConfigError(f"{path}, line {number}: {len(row)} values in {len(head)} columns; mend the line")
            yield number, tuple(row[place] for place in places)


def _json_lines(path: Path, text: str) -> Rows:
    if text.lstrip().startswith("["):
        raise ConfigError(f"{path}: is a JSON array; write its objects one a line, without brackets")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        values = parse_json(line, f"{path}, line {number}")
        missing = [name for name in OWN if not isinstance(values, Mapping) or name not in values]
        if missing:
            raise ConfigError(f"{path}, line {number}: {', '.join(missing)} missing; give {', '.join(OWN)}")
        yield number, tuple(values[name] for name in OWN)


def _kind(arrival: Any) -> str:
    try:
        float(arrival)
    except (TypeError, ValueError):
        with suppress(ValueError):
            if datetime.fromisoformat(str(arrival)).tzinfo:
                return "dates with an offset from UTC"
        return "dates without an offset"
    return "seconds"


def _arrival(where: str, value: Any) -> float:
    """Return an arrival in seconds; a date counts from the epoch."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        try:
            date = datetime.fromisoformat(str(value))
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        except ValueError:
            given = f"{where}: arrival {value!r}"
            raise ConfigError(f"{given}: give seconds, or a date such as 2023-11-16 18:15:46.68") from None
    if not 0 <= seconds <= LATEST:
        raise ConfigError(f"{where}: arrival {value!r}: give 0 to {LATEST:,.0f} seconds")
    return seconds


def _tokens(where: str, name: str, value: Any) -> int:
    text = str(value).strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 20) or not 1 <= int(text) <= MOST_TOKENS:
        raise ConfigError(f"{where}: {name} {value!r}: give a whole number of tokens, 1 to {MOST_TOKENS:,}")
    return int(text)
