"""The streams of an answer: people read a text or a table, programs one line of JSON."""

from __future__ import annotations

import json
import math
import sys
from typing import Any, TextIO

from wafer_triton.errors import printable
from wafer_triton.text.table import Table, fitted


def people(as_json: bool) -> TextIO:
    """Return the stream that people read."""
    return sys.stderr if as_json else sys.stdout


def tell(as_json: bool, answer: Any, *texts: str | Table) -> int:
    """Print `texts` for people and, `as_json`, `answer` for programs; the exit code of a success."""
    stream = people(as_json)
    for text in texts:
        print(printable(fitted(stream, text)), file=stream)
    stream.flush()
    if as_json:
        print(json.dumps(_plain(answer), allow_nan=False))
    return 0


def _plain(answer: Any) -> Any:
    """Return an answer as JSON has it: a table as its records, null for numbers that are not finite."""
    if isinstance(answer, Table):
        answer = answer.records
    if isinstance(answer, dict):
        return {name: _plain(value) for name, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [_plain(value) for value in answer]
    return None if isinstance(answer, float) and not math.isfinite(answer) else answer


def cut_short(when: str) -> int:
    """Print that Ctrl-C ended a command, whose answer so far is printed; returns the exit code."""
    print(f"interrupted {when}", file=sys.stderr)
    return 130
