"""How values show themselves in a notebook: as small HTML tables, which `_repr_html_` of their classes gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from wafer_triton.text.quantity import Legend


def table(title: str, rows: Iterable[Iterable[Any]], head: Iterable[str] = ()) -> str:
    """Return an HTML table under a title; numbers have thousands separators and stand to the right."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption>{f'<tr>{top}</tr>' if top else ''}{body}</table>"


def numbers(title: str, values: Mapping[str, Any], legend: Legend) -> str:
    """Return a table of the numbers among named values, a line each, with their labels and units."""
    return table(
        title, ((legend.head(name), value) for name, value in values.items() if isinstance(value, int | float))
    )


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td style="text-align:right">{f"{value:,.6g}" if isinstance(value, float) else f"{value:,}"}</td>'
    return f'<td style="text-align:left">{escape(str(value))}</td>'
