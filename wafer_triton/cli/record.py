"""A page of an output of `wafer-triton generate --json`: the regions, counts, emulation and predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from wafer_triton import draw
from wafer_triton.device import NUMBERS, Device, device
from wafer_triton.device.mesh import as_mesh
from wafer_triton.draw.generation import LEGEND
from wafer_triton.draw.tables import plain_fields
from wafer_triton.errors import DrawError
from wafer_triton.place.regions import Region
from wafer_triton.text.files import read_record
from wafer_triton.text.quantity import EMULATED, PREDICTED

COUNTED = ("rounds", "hops", "messages", "link_bytes", "busiest_link_bytes", "sram_peak_bytes")
TIMED = ("load_seconds", "prefill_seconds", "decode_seconds", "tokens_per_second")


def page_of(path: Path, out: Path) -> None:
    """Write the page of a record; DrawError for a file that holds none."""
    record = _read(path)
    own = record.get("device_numbers")
    chip = device(record["device"]) if own is None else Device(record["device"], **own)
    regions = [
        Region(
            replace(as_mesh(region["mesh"], chip), origin=tuple(region["origin"])),
            tuple(region["blocks"]),
            region["sram_peak_bytes"],
            {},
        )
        for region in record["regions"]
    ]
    tables = [_table("Counted", {name: record[name] for name in COUNTED})]
    tables += [_table(f"{phase}, {PREDICTED}", values) for phase, values in record["predicted"].items()]
    tables.append(_table(f"The run, {EMULATED}", {name: record[name] for name in TIMED}))
    about = f"{record['dtype']} tiles on meshes of {record['mesh']} of {chip.name}: {record['text'].strip()}"
    draw.page(out, "A generated text", [], chip, about=about, regions=regions, tables=tables)


def _table(title: str, record: dict[str, Any]) -> dict[str, Any]:
    return {"title": title, "head": ["", "value"], "rows": plain_fields(record, LEGEND)}


def _read(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = read_record(path, DrawError, "generate")
        missing = [
            name for name in ("device", "regions", "predicted", "mesh", "text", *COUNTED, *TIMED) if name not in record
        ]
        if "device_numbers" in record and set(record["device_numbers"]) != set(NUMBERS):
            missing.append("a number of its device")
    except (TypeError, AttributeError):
        missing = ["all of its fields"]
    if missing:
        raise DrawError(
            f"{path}: no record of a generated text ({missing[0]} missing); give the last line of `generate --json`"
        )
    return record
