"""One HTML file that shows schedules and a device: it works offline, from disk, and asks no network for anything.

The folder `web` has the script and the style; `scenes` makes the data, which is packed. A content security policy
in the page forbids requests.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wafer_triton.device import Device
from wafer_triton.draw.figure import path_of
from wafer_triton.draw.scenes import Plain, headlines
from wafer_triton.draw.studies import first_layer
from wafer_triton.errors import DrawError, article, writing

if TYPE_CHECKING:
    from wafer_triton.place.regions import Region

SCRIPTS = ("scene.js", "charts.js", "arrows.js", "map.js", "panels.js", "times.js", "tips.js", "page.js")


def page(
    path: str | Path, title: str, scenes: Sequence[Plain], device: Device, *, about: str = "",
    regions: Iterable[Region] = (), tables: Iterable[Plain] = (), beside: int | None = None,
    headline: str | None = None, time: Plain | None = None,
) -> None:  # fmt: skip
    """Write a page of schedules, each as `scene` gives it, and of the regions of a model on a device.

    `beside` is the number of the scene that is shown beside the first at the start. `headline` (None: of the scenes
    shown first) is the point of the page. `tables` are shown below, each with a title, a head and rows. `time` is a
    timeline of the regions, as `times.plain` gives it.
    Raises DrawError if there is nothing to show, OSError for a path that cannot be written.
    """
    path = path_of(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise DrawError(f"{path}: a page is HTML; end its name with .html")
    if beside is not None and beside not in range(len(scenes)):
        raise DrawError(f"{title}: beside = {beside!r} is the number of none of {len(scenes)} scenes")
    tables = list(tables)
    for one in tables:
        if not isinstance(one, Mapping) or not {"title", "head", "rows"} <= one.keys():
            raise DrawError(f"{title}: a table of a page has a title, a head and rows; one given has not")
    for one in scenes:
        if not isinstance(one, Mapping) or "rounds" not in one:
            kind = article(type(one).__name__)
            raise DrawError(f"{title}: {kind} is no scene of a page; give a result of draw.scene")
    if time is not None and not (isinstance(time, Mapping) and {"rows", "views"} <= time.keys()):
        raise DrawError(f"{title}: time of a page is of type {type(time).__name__}; give a result of times.plain")
    regions = list(regions)
    for region in regions:
        if not hasattr(region, "blocks"):
            kind = type(region).__name__
            raise DrawError(f"{title}: a region is of type {kind}; give the regions of a placed model")
    placed = [_plain(region) for region in regions]
    if not scenes and not placed:
        raise DrawError(f"{title}: a page without a schedule and without regions has nothing to show; give one of them")
    data = {
        "about": about,
        "headline": headlines(scenes, beside) if headline is None else headline,
        "device": {"name": device.name, "rows": device.rows, "cols": device.cols, "sram": device.sram_bytes},
        "scenes": list(scenes),
        "regions": placed,
        "tables": list(tables),
        "time": time,
        "beside": beside,
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    packed = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
    parts = {
        "CSS": _read("page.css"),
        "JS": "\n".join(map(_read, SCRIPTS)),
        "TITLE": html.escape(title),
        "DATA": packed,
    }
    whole = re.sub(r"\{\{([A-Z]+)\}\}", lambda match: parts[match[1]], _read("page.html"))
    with writing(path):
        path.write_text(whole, encoding="utf-8")


def _read(name: str) -> str:
    return (files("wafer_triton.draw") / "web" / name).read_text(encoding="utf-8")


def _plain(region: Region) -> Mapping[str, Any]:
    layers = [name.split()[1] for name in region.blocks if name.startswith("layer ")]
    ends = [name for name in region.blocks if not name.startswith("layer ")]
    named = (
        [] if not layers else [f"layer {layers[0]}" if layers[0] == layers[-1] else f"layers {layers[0]}-{layers[-1]}"]
    )
    return {
        "name": ", ".join([*named, *ends]),
        "origin": region.mesh.origin,
        "rows": region.mesh.rows,
        "cols": region.mesh.cols,
        "blocks": region.blocks,
        "layer": first_layer(region.blocks),
        "sram": region.sram_peak_bytes,
        "resident": region.resident_bytes,
    }
