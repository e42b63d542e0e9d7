"""Tables as plain text: aligned columns, units and labels from a `Legend` of the fields that are shown.

A table with times says in its title whose they are: predicted on the wafer, or emulated on this machine. No table holds
both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wafer_triton.device import Device
from wafer_triton.device.spec import Sourced
from wafer_triton.text.quantity import Legend, digits, quantity


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", left: int = 1) -> str:
    """Return rows under their heads, the first `left` columns aligned to the left and the others to the right.

    A `head` of empty texts is left out.
    """
    whole = [tuple(head), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    lines = [
        "  ".join(f"{cell:{'<' if number < left else '>'}{widths[number]}}" for number, cell in enumerate(row)).rstrip()
        for row in whole
    ]
    rule = "-" * max(map(len, lines))
    body = [lines[0], rule, *lines[1:]] if any(head) else lines[1:]
    return "\n".join([title, *body] if title else body)


def fields(record: Mapping[str, Any], legend: Legend, *, title: str = "") -> str:
    """Return a record, one field a line; None is left out, a field of fields is indented.

    A number has its unit, unless its name ends with it.
    """
    return table(("", ""), plain_fields(record, legend), title=title, left=2)


def plain_fields(record: Mapping[str, Any], legend: Legend) -> list[tuple[str, str]]:
    """Return the rows of `fields`: names and values as people read them."""
    rows: list[tuple[str, str]] = []
    for name, value in record.items():
        label = legend.label(name)
        if isinstance(value, Mapping):
            rows.append((label, ""))
            rows += [(f"  {key}", quantity(number, legend.unit(name))) for key, number in value.items()]
        elif value is not None:
            rows.append((label, cell(name, label, value, legend)))
    return rows


def records(
    of: Sequence[Mapping[str, Any]], legend: Legend, *, title: str = "", labels: Mapping[str, str] | None = None
) -> str:
    """Return records of the same fields, one a row; texts stand first, and `labels` name some columns anew."""
    names = sorted(of[0], key=lambda name: not _is_text(of, name))
    heads = {name: (labels or {}).get(name, legend.label(name)) for name in names}
    rows = [[cell(name, heads[name], record[name], legend) for name in names] for record in of]
    return table(list(heads.values()), rows, title=title, left=sum(_is_text(of, name) for name in names))


def cell(name: str, head: str, value: Any, legend: Legend) -> str:
    """Return a field's value below or beside its head; a unit that the head ends with is not repeated."""
    if isinstance(value, Mapping):
        return letters(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None:
        return "-"
    return digits(value) if is_number and head.split()[-1] == legend.unit(name) else legend.shown(name, value)


def devices_table(devices: Iterable[Device]) -> str:
    """Return the numbers of devices side by side, one device a column."""
    devices, legend = list(devices), Legend(Device)
    rows = [["cores", *(f"{device.rows} x {device.cols}" for device in devices)]]
    for name in vars(devices[0]):
        if name not in ("name", "rows", "cols", "base"):
            cells = (_device_cell(name, getattr(device, name), legend) for device in devices)
            rows.append([legend.label(name), *cells])
    return table(["", *(device.name for device in devices)], rows)


def sourced(title: str, entries: Mapping[str, Sourced], legend: Legend, origins: Mapping[str, str]) -> str:
    """Return numbers of a device's spec as a table: value with its standard error, unit, meaning, kind, source.

    `origins` say of each entry where the device has it from; a table of empty ones has no column for them.
    """
    rows = [
        (name, _value(entry), legend.unit(name), legend.label(name), entry.kind, origins[name], entry.source)
        for name, entry in entries.items()
    ]
    head = ("", "value", "unit", "meaning", "kind", "from", "source")
    if set(origins.values()) <= {"", "derived"}:  # a preset
        head, *rows = ((*row[:5], row[6]) for row in (head, *rows))  # type: ignore[assignment]
    return table(head, rows, title=title, left=len(head))


def _value(entry: Sourced) -> str:
    certain = "" if entry.standard_error is None else f" +- {digits(entry.standard_error)}"
    value = f"{entry.value:,}" if isinstance(entry.value, int) else digits(entry.value or 0)
    return ("packets" if entry.value is None else value) + certain


def letters(verdict: Mapping[str, bool]) -> str:
    """Return a PLMR verdict, a dash in place of a letter that is not kept."""
    return " ".join(letter if kept else "-" for letter, kept in verdict.items())


def _is_text(of: Sequence[Mapping[str, Any]], name: str) -> bool:
    return all(isinstance(record[name], str) for record in of)


def _device_cell(name: str, value: Any, legend: Legend) -> str:
    return "packets" if name == "routes" and value is None else legend.shown(name, value)
