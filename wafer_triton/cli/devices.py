"""The devices of predictions: `devices` lists the presets, or shows the whole data sheet of one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from wafer_triton.cli.answer import tell
from wafer_triton.cli.app import made
from wafer_triton.device import PRESETS, Device, device, energy_note, origin, sources
from wafer_triton.device.spec import Sourced
from wafer_triton.text.quantity import Legend, digits, quantity, unit
from wafer_triton.text.table import Table

WAFER = {"wafer_cores": unit("cores", "cores of the whole wafer")}
PEAK = (
    "numbers are limits of the hardware, of which shares of a peak are taken; constants are of programs as measured, "
    "which are priced and judged by them; tuned constants give the second end of a price"
)


def _devices(name: str | None = None, /, *, json: bool = False) -> int:
    if name is None:
        return tell(json, [asdict(each) for each in PRESETS.values()], _presets())
    from wafer_triton.cost.constants import Constants, described, described_tuned

    shown, legend = device(name), Legend(Constants)
    parts = {
        "numbers": (sources(shown), Legend(Device, WAFER)),
        "constants": (described(shown), legend),
        "tuned constants": (described_tuned(shown), legend),
    }
    texts: list[str | Table] = []
    for part, (entries, legend) in parts.items():
        texts += [_sourced(shown, part, entries, legend), ""]
    texts += [_followers(shown), "", *_fits(shown), ""]
    if note := energy_note(shown):
        texts += [note, ""]
    return tell(json, _sheet(shown), *texts, PEAK)


def _presets() -> Table:
    """Return the numbers of the presets side by side, a device a column."""
    devices, legend = list(PRESETS.values()), Legend(Device)
    rows = [["cores", *(f"{each.rows} x {each.cols}" for each in devices)]]
    for name in vars(devices[0]):
        if name not in ("name", "rows", "cols", "base"):
            rows.append([legend.label(name), *(legend.shown(name, getattr(each, name)) for each in devices)])
    return Table.rows(["", *(each.name for each in devices)], rows)


def _sourced(of: Device, part: str, entries: Mapping[str, Sourced], legend: Legend) -> Table:
    """Return a part of a device's spec: value with its standard error, unit, meaning, kind, source.

    Of a device that is no preset there is a column for where each number is from.
    """
    origins = {name: origin(of, entry) for name, entry in entries.items()}
    own = not set(origins.values()) <= {"", "derived"}  # no preset
    rows = []
    for name, entry in entries.items():
        certain = "" if entry.standard_error is None else f" +- {digits(entry.standard_error)}"
        texts = (name, _value(entry.value) + certain, legend.unit(name), legend.label(name), entry.kind)
        rows.append((*texts, *((origins[name],) if own else ()), entry.source))
    head = ("", "value", "unit", "meaning", "kind", *(("from",) if own else ()), "source")
    return Table.rows(head, rows, title=f"{part} of {of.name}", left=len(head))


def _sheet(of: Device) -> dict[str, Any]:
    """Return the whole data sheet of a device as plain values."""
    from wafer_triton.cost.bands import fits
    from wafer_triton.cost.constants import described, described_tuned, followers

    parts = {"numbers": sources(of), "constants": described(of), "tuned": described_tuned(of)}
    return {
        "name": of.name,
        "like": of.like,
        **{
            part: {name: {**entry.as_json(), "origin": origin(of, entry)} for name, entry in held.items()}
            for part, held in parts.items()
        },
        "followers": {name: vars(entry) for name, entry in followers(of).items()},
        "fits": fits(of),
    }


def _followers(shown: Device) -> Table:
    """Return the table of the numbers and their followers."""
    from wafer_triton.cost.constants import followers

    rows = [
        (name, _value(entry.value), "-" if entry.base is None else _value(entry.base), _fitted(entry), entry.followers)
        for name, entry in followers(shown).items()
    ]
    base = shown.base or shown.like or "base"
    title = f"numbers of {shown.name} and all that follows them"
    return Table.rows(("", "here", base, "fitted at", "followed by"), rows, title=title, left=5)


def _fits(shown: Device) -> list[str | Table]:
    """Return the table of the measurements that the constants are fitted on, and the bands on this device."""
    from wafer_triton.cost.bands import fits

    rows: list[tuple[str, ...]] = []
    notes: dict[str, list[str]] = {}
    for kind, found in fits(shown).items():
        for name, family in found["families"].items():
            sizes = (f"{size} {least:,} to {most:,}" for size, (least, most) in family["sizes"].items())
            band = "none" if found["error_band"] is None else quantity(found["error_band"], "+-%")
            rows.append((kind, name, f"{family['rows']}", ", ".join(sizes), band))
        for text in found["outside"]:
            notes.setdefault(text, []).append(kind)
    if not rows:
        return [f"no measurement: the constants of {shown.name} follow from its numbers, and estimates have no band"]
    title = f"measurements of {shown.like} that constants are fitted on, and the least error band on {shown.name}"
    table = Table.rows(("estimate", "family", "rows", "range", "band"), rows, title=title, left=5)
    return [table, *(f"beyond the measurements for {', '.join(kinds)}: {text}" for text, kinds in notes.items())]


def _fitted(entry: Any) -> str:
    if entry.fitted_at is None:
        return "-"
    ratio = entry.value / entry.fitted_at
    return _value(entry.fitted_at) + ("" if ratio == 1 else f" (here x {digits(ratio)})")


def _value(value: Any) -> str:
    return "packets" if value is None else f"{value:,}" if isinstance(value, int) else digits(value)


devices = made(_devices)
