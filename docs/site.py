"""A hook of mkdocs that makes docs/ a site (`make docs`).

README.md and CONTRIBUTING.md become pages, commands and public names become references (by cyclopts and mkdocstrings),
and algorithms become pages to walk through. Each is made from files of the repository: nothing is written twice.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

import wafer_triton
from wafer_triton import Builder, Mesh, Schedule, draw
from wafer_triton.algorithms.kv_cache import POLICIES, KvCache
from wafer_triton.algorithms.product import recipe
from wafer_triton.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md"}
# Links as files of the repository have them, and as pages of the site have them; a file without a page is a name alone.
LINKS = (
    (r"\]\(docs/", "]("),
    (r'(src|srcset)="docs/', r'\1="'),
    (r"\]\((?:\.\./)?README\.md", "](index.md"),
    (r"\]\((?:\.\./)?CONTRIBUTING\.md", "](contributing.md"),
    (r"\[([^]]+)\]\((?:bench/README\.md|CITATION\.cff|LICENSE|(?:docs/)?examples/\w+\.py)\)", r"\1"),
)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made."""
    made = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in PAGES.items()}
    names = [*wafer_triton.__all__, *(f"draw.{name}" for name in draw.__all__)]
    made["api.md"] = "\n".join(["# API\n", *(f"::: wafer_triton.{name}" for name in sorted(names))])
    made["commands.md"] = app().generate_docs(usage_name="wafer-triton")
    made |= {f"pages/{name}.html": page for name, page in walks()}
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links between files of the repository into links between pages, whose texts are titles."""
    for pattern, link in LINKS:
        markdown = re.sub(pattern, link, markdown)
    return re.sub(r"\[(?:docs/)?[\w-]+\.md\](?=\(([\w-]+\.md))", lambda match: f"[{_title(match[1])}]", markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Turn links of a notebook to pages, which are left as they are, into links of the site."""
    return re.sub(r'href="([\w-]+)\.md"', r'href="\1.html"', html) if page.file.src_uri.endswith(".ipynb") else html


def _title(page: str) -> str:
    """Return the first heading of a page."""
    source = ROOT / PAGES.get(page, f"docs/{page}")
    return source.read_text(encoding="utf-8").partition("# ")[2].partition("\n")[0]


def _product(kind: str, algorithm: str) -> Schedule:
    shapes = ((64 if kind == "gemm" else 1, 64), (64, 64))
    return recipe(kind, Mesh(8, 8), "fp16", shapes, (("algorithm", algorithm),)).schedule


ROWS, ENTRIES, APPENDED = 8, 8, 8  # of the KV cache of a page: rows, entries of a row, and entries that come


def _cache(policy: str) -> Schedule:
    """Build appends to an empty KV cache, until a row by concatenation is full."""
    b = Builder(Mesh(ROWS, 4), f"KV cache, {policy}")
    cache = KvCache(ROWS, ENTRIES, policy)
    b.buffer("cache", (8,), "fp16", "cache", cache.slots)
    b.buffer("entry", (8,), "fp16", "input")
    for number in range(APPENDED):
        cache.append(b, {"cache": "entry"}, number)
    return b.build()


def _capacities() -> str:
    """Return the tokens that the cache holds by each policy, in one line."""
    held = (f"by {policy} {KvCache(ROWS, ENTRIES, policy).capacity}" for policy in POLICIES)
    return f"{ROWS} rows of {ENTRIES} entries hold {', '.join(held)} tokens: concat fills the last row alone"


WALKS: dict[str, dict[str, Callable[[], Schedule]]] = {
    "meshgemm": {"MeshGEMM": partial(_product, "gemm", "mesh"), "Cannon": partial(_product, "gemm", "cannon")},
    "summa": {"SUMMA": partial(_product, "gemm", "summa"), "all-gather": partial(_product, "gemm", "allgather")},
    "ktree": {"K-tree": partial(_product, "gemv", "ktree"), "pipeline": partial(_product, "gemv", "pipeline")},
    "kv-cache": {policy: partial(_cache, policy) for policy in POLICIES},
}


def walks() -> Iterator[tuple[str, str]]:
    """Yield pages to walk through: two algorithms side by side, by name."""
    for name, build in WALKS.items():
        scenes = {called: make() for called, make in build.items()}
        fills = ("cache",) if name == "kv-cache" else ()
        plain = [draw.scene(schedule, called, fills=fills) for called, schedule in scenes.items()]
        device = next(iter(scenes.values())).mesh.device
        headline = _capacities() if fills else None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.html"
            draw.page(path, " beside ".join(scenes), plain, device, beside=1, headline=headline)
            yield name, path.read_text(encoding="utf-8")
