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
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from wafer_triton.device import DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.draw.figure import path_of
from wafer_triton.draw.scenes import Plain, point_of
from wafer_triton.errors import DrawError, writing

SCRIPTS = ("scene.js", "charts.js", "arrows.js", "map.js", "panels.js", "tips.js", "page.js")


def page(
    path: str | Path, title: str, scenes: Sequence[Plain], device: DeviceLike, *, about: str = "",
    beside: int | None = None, headline: str | None = None,
) -> None:  # fmt: skip
    """Write a page of schedules on a device, each as `scene` gives it.

    `beside` is the number of the scene that is shown beside the first at the start. `headline` (None: of the scenes
    shown) is the point of the page. Raises DrawError if there is nothing to show, OSError for a path that cannot
    be written.
    """
    path = path_of(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise DrawError(f"{path}: a page is HTML; end its name with .html")
    if beside is not None and beside not in range(len(scenes)):
        raise DrawError(f"{title}: beside = {beside!r} is the number of none of {len(scenes)} scenes")
    if not scenes:
        raise DrawError(f"{title}: a page without a schedule has nothing to show; give one")
    device = find_device(device)
    data = {
        "about": about,
        # of each scene alone, and with each beside it
        "headlines": [
            [point_of(own, other) if headline is None else headline for other in (None, *scenes)] for own in scenes
        ],
        "device": {"name": device.name, "rows": device.rows, "cols": device.cols},
        "scenes": list(scenes),
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
