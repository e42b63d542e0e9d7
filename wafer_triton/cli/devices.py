"""The devices of predictions: `devices` lists the presets, or shows the whole data sheet of one device."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from wafer_triton.cli.options import Command, option, tell
from wafer_triton.device import PRESETS, Device, device, energy_note, origin, sources
from wafer_triton.text.quantity import Legend, digits, quantity, unit

WAFER = {"wafer_cores": unit("cores", "cores of the whole wafer")}
PEAK = (
    "numbers are limits of the hardware, of which shares of a peak are taken; constants are of programs as measured, "
    "which are priced and judged by them"
)


def devices(args: argparse.Namespace) -> int:
    """list the presets of devices, or show one device: every number and constant with its source, and its followers"""
    from wafer_triton.draw import tables

    if args.show is None:
        if args.json:
            print(json.dumps([asdict(each) for each in PRESETS.values()]))
            return 0
        print(tables.devices_table(PRESETS.values()), file=sys.stdout)
        return 0
    from wafer_triton.cost.constants import Constants, described

    shown = device(args.show)
    parts = {"numbers": (sources(shown), Legend(Device, WAFER)), "constants": (described(shown), Legend(Constants))}
    texts = []
    for part, (entries, legend) in parts.items():
        origins = {name: origin(shown, entry) for name, entry in entries.items()}
        texts.append(tables.sourced(f"{part} of {shown.name}", entries, legend, origins))
    texts += [_followers(shown), *_fits(shown), *filter(None, [energy_note(shown)]), PEAK]
    return tell(args, _sheet(shown), "\n\n".join(texts))


def _sheet(of: Device) -> dict[str, Any]:
    """Return the whole data sheet of a device as plain values."""
    from wafer_triton.cost.bands import fits
    from wafer_triton.cost.constants import described, followers

    parts = {"numbers": sources(of), "constants": described(of)}
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


def _followers(shown: Device) -> str:
    """Return the table of the numbers and their followers."""
    from wafer_triton.cost.constants import followers
    from wafer_triton.draw import tables

    rows = [
        (name, _value(entry.value), "-" if entry.base is None else _value(entry.base), _fitted(entry), entry.followers)
        for name, entry in followers(shown).items()
    ]
    base = shown.base or shown.like or "base"
    title = f"numbers of {shown.name} and all that follows them"
    return tables.table(("", "here", base, "fitted at", "followed by"), rows, title=title, left=5)


def _fits(shown: Device) -> list[str]:
    """Return the table of the measurements that the constants are fitted on, and the bands on this device."""
    from wafer_triton.cost.bands import fits
    from wafer_triton.draw import tables

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
    table = tables.table(("estimate", "family", "rows", "range", "band"), rows, title=title, left=5)
    return [
        "\n".join(
            [table, *(f"beyond the measurements for {', '.join(kinds)}: {text}" for text, kinds in notes.items())]
        )
    ]


def _fitted(entry: Any) -> str:
    if entry.fitted_at is None:
        return "-"
    ratio = entry.value / entry.fitted_at
    return _value(entry.fitted_at) + ("" if ratio == 1 else f" (here x {digits(ratio)})")


def _value(value: Any) -> str:
    return "packets" if value is None else f"{value:,}" if isinstance(value, int) else digits(value)


SHOW = option(
    "--show", metavar="NAME|FILE",
    help="a preset, a .toml or .json file, either with numbers: wse2,sram_kib=96",
)  # fmt: skip
COMMANDS = (Command("devices", devices, (SHOW,)),)
