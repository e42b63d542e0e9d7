"""Tables of results: for a terminal, for a pipe, as CSV, as JSON and in a notebook.

    >>> print(Table.rows(("algorithm", "hops"), [("mesh", "4"), ("summa", "12")]))
    algorithm  hops
    ---------------
    mesh          4
    summa        12

A table holds records as they are, numbers in full, and a `Legend` with their units and labels. People read at most four
digits with a unit; CSV and JSON have the numbers themselves. A table with times says in its title whose they are:
predicted on the wafer, or emulated on this machine. No table holds both.
"""

from __future__ import annotations

import csv
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape
from math import isfinite
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, ClassVar, TextIO, TypeVar

from wafer_triton.errors import writing
from wafer_triton.text.quantity import PREDICTED, Legend, digits, quantity

QUANTITY = re.compile(r"[\d.,]+( x \d+)? [\w/]+")  # in a column of texts: 0.5 cycles, 240 x 240 cores


WIDTH = 120  # columns of a text or a table that goes to no terminal; programs read JSON and CSV


def fitted(stream: TextIO, shown: str | Table) -> str:
    """Return a text or a table for a stream: within the width of a terminal, of `WIDTH` columns elsewhere."""
    width = get_terminal_size().columns if stream.isatty() else WIDTH
    return shown.within(width) if isinstance(shown, Table) else "\n".join(filled(shown, width))


def filled(text: str, width: int) -> list[str]:
    """Return the lines of a text, which break between words, not before "%"; long ones go on below their first word."""
    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()))
        lines += [line] if len(line) <= width else textwrap.wrap(
            line.strip().replace(" %", "\xa0%"), width, initial_indent=indent, subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return [line.replace("\xa0%", " %") for line in lines]


Record = Mapping[str, Any]
R = TypeVar("R")


class Result:
    """A dataclass of figures, which is read as its table: its repr has the `main` fields, print has all."""

    main: ClassVar[tuple[str, ...]] = ()
    heading: ClassVar[str] = PREDICTED
    units_of: ClassVar[tuple[type, ...]] = ()  # see `Legend`

    def table(self, *names: str) -> Table:
        """Return the table of the fields of these names (none: of all)."""
        return Table.of(self, *names, title=f"{type(self).__name__}, {self.heading}")

    def __repr__(self) -> str:
        return str(self.table(*self.main))

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


class Results(list[R]):
    """Rows that are read as their `table`."""

    def __init__(self, rows: Iterable[R], table: Table) -> None:
        super().__init__(rows)
        self.table = table

    def __repr__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


class Table:
    """Records of the same fields, a record a row; `upright` is a field a row, which is how a single record is read.

    Columns of texts stand first, aligned to the left, unless `left` says how many of them there are. In an upright
    table None is left out, and a field of fields is indented.
    """

    def __init__(
        self,
        records: Iterable[Record],
        legend: Legend | None = None,
        *,
        title: str = "",
        left: int | None = None,
        upright: bool = False,
    ) -> None:
        self.records = list(records)
        self.legend = Legend() if legend is None else legend
        self.title, self.upright = title, upright
        names = list(self.records[0]) if self.records else []
        self.names = names if left is not None else sorted(names, key=lambda name: not self._is_text(name))
        self.left = sum(map(self._is_text, names)) if left is None else left

    @classmethod
    def of(cls, results: Any, *names: str, title: str = "") -> Table:
        """Return the table of dataclasses of one class, whose fields have the legend; of a single one upright.

        It has the fields of the `names` (none: all but lists).
        """
        upright = not isinstance(results, Iterable)
        several = [results] if upright else list(results)
        kept = names or [
            each.name for each in fields(several[0]) if not isinstance(getattr(several[0], each.name), list | tuple)
        ]
        records = ({name: getattr(each, name) for name in kept} for each in several)
        return cls(records, Legend(type(several[0])), title=title, upright=upright)

    @classmethod
    def rows(cls, head: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "", left: int = 1) -> Table:
        """Return the table of rows under their heads, which differ."""
        return cls((dict(zip(head, row, strict=True)) for row in rows), title=title, left=left)

    def __str__(self) -> str:
        head, rows, left = self._upright() if self.upright else self._cells()
        return self._joined(_laid(head, rows, left) or [])

    def within(self, width: int) -> str:
        """Return the table in lines of at most `width`, if its words are not longer: no word is broken.

        What is too wide has cells of several lines. What is too wide even so stands upright, or goes on below with the
        columns that did not fit, beside the first ones again, by which rows are told apart.
        """
        head, rows, left = self._upright() if self.upright else self._cells()
        lines = _laid(head, rows, left, width) or _laid(*self._upright(), width) or _continued(head, rows, left, width)
        return self._joined(lines, width)

    def csv(self, path: Path) -> None:
        """Write the records as CSV, with full numbers under the names of the fields."""
        with writing(path), path.open("w", encoding="utf-8", newline="") as lines:
            table = csv.DictWriter(lines, list(self.records[0]))
            table.writeheader()
            table.writerows(self.records)

    def _repr_html_(self) -> str:
        if self.upright:
            pairs = [(self.legend.head(name), value) for name, value in self.records[0].items() if value is not None]
            head, rows = [], [pair for pair in pairs if not isinstance(pair[1], Mapping)]
        else:
            head = [self.legend.head(name) for name in self.names]
            rows = [tuple(record[name] for name in self.names) for record in self.records]
        top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        body = "".join(f"<tr>{''.join(map(_html, row))}</tr>" for row in rows)
        return f"<table><caption>{escape(self.title)}</caption>{f'<tr>{top}</tr>' if top else ''}{body}</table>"

    def _joined(self, lines: list[str], width: int | None = None) -> str:
        title = [self.title] if width is None else filled(self.title, width)
        return "\n".join([*title, *lines] if self.title else lines)

    def _cells(self) -> tuple[list[str], list[list[str]], int]:
        """Return heads, rows as people read them, and the number of columns of texts."""
        heads = [self.legend.label(name) for name in self.names]
        rows = [
            [self._cell(name, head, record[name]) for name, head in zip(self.names, heads, strict=True)]
            for record in self.records
        ]
        return heads, rows, self.left

    def _upright(self) -> tuple[list[str], list[list[str]], int]:
        """Return the same, a field a row and a record a column."""
        if not self.upright:
            heads, rows, _ = self._cells()
            first, *others = map(list, zip(heads, *rows, strict=True))
            return first, others, 1
        rows = []
        for name, value in self.records[0].items():
            label = self.legend.label(name)
            if isinstance(value, Mapping):
                rows.append([label, ""])
                rows += [[f"  {key}", self._field(name, part)] for key, part in value.items()]
            elif value is not None:
                rows.append([label, self._cell(name, label, value)])
        return ["", ""], rows, 2

    def _field(self, name: str, value: Any) -> str:
        return value if isinstance(value, str) else quantity(value, self.legend.unit(name))

    def _cell(self, name: str, head: str, value: Any) -> str:
        """Return a value below or beside its head; a unit that the head ends with is not repeated."""
        if isinstance(value, Mapping):  # a PLMR verdict: a dash in place of a letter that is not kept
            return " ".join(letter if kept else "-" for letter, kept in value.items())
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or (is_number and not isfinite(value)):
            return "-"
        beside = is_number and head.split()[-1] == self.legend.unit(name)
        return digits(value) if beside else self.legend.shown(name, value)

    def _is_text(self, name: str) -> bool:
        return all(isinstance(record[name], str) for record in self.records)


def _laid(head: list[str], rows: list[list[str]], left: int, width: int | None = None) -> list[str] | None:
    """Return lines of aligned cells, a rule below the heads; None where the longest words exceed the width.

    Empty heads are left out. Texts and heads break between words, numbers stay beside their units.
    """
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    room = sum(widths) if width is None else width - 2 * (len(head) - 1)
    if sum(widths) > room:
        most, widths = widths, [_least(column, number < left) for number, column in enumerate(columns)]
        if sum(widths) > room:
            return None
        for number in sorted(range(len(head)), key=lambda at: most[at] - widths[at]):  # the longest texts break
            widths[number] += min(most[number] - widths[number], room - sum(widths))
    lines = [line for row in (head, *rows) for line in _lines(row, widths, left)]
    if not any(head):
        return lines[1:]
    top = len(_lines(head, widths, left))
    return [*lines[:top], "-" * max(map(len, lines)), *lines[top:]]


def _continued(head: list[str], rows: list[list[str]], left: int, width: int) -> list[str]:
    """Return the lines of tables below each other: in each are the columns that name a row, and as many as fit."""
    named = (
        many
        for many in range(1, max(left, 1) + 1)
        if len({tuple(row[:many]) for row in rows}) == len(rows)
        and (many < 3 or _laid(head[:many], [row[:many] for row in rows], many, 2 * width // 3))
    )
    names = min(next(named, 2), len(head) - 1)
    for end in range(len(head), names, -1):
        part = head[:end], [row[:end] for row in rows], min(left, end)
        if lines := _laid(*part, width):
            break
    lines = lines or _laid(*part) or []  # a word that is wider
    if end == len(head):
        return lines
    rest = [[*row[:names], *row[end:]] for row in (head, *rows)]
    return [*lines, "", *_continued(rest[0], rest[1:], min(left, names) + max(0, left - end), width)]


def _least(column: Sequence[str], is_text: bool) -> int:
    """Return the least width of a column under its head: of its longest word, or of its longest number."""
    texts = column if is_text else column[:1]
    words = [word for cell in texts for word in ([cell] if QUANTITY.fullmatch(cell) else cell.split())]
    indent = max((len(cell) - len(cell.lstrip()) for cell in column), default=0)
    return max([0, *(indent + len(word) for word in words), *map(len, () if is_text else column[1:])])


def _lines(row: Sequence[str], widths: Sequence[int], left: int) -> list[str]:
    """Return the lines of a row, whose cells are filled at their widths."""
    cells = []
    for cell, width in zip(row, widths, strict=True):
        cells.append(filled(cell, width))
    depth = max(map(len, cells))
    return [
        "  ".join(
            f"{cell[at] if at < len(cell) else '':{'<' if number < left else '>'}{widths[number]}}"
            for number, cell in enumerate(cells)
        ).rstrip()
        for at in range(depth)
    ]


def _html(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td style="text-align:right">{f"{value:,.6g}" if isinstance(value, float) else f"{value:,}"}</td>'
    return f'<td style="text-align:left">{escape(str(value))}</td>'
