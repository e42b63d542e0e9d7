"""What README.md and CONTRIBUTING.md name exists, and pictures are of today; test_smollm2.py has the demo's lines."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

from examples import with_names_of_operations
from wafer_triton.draw.figure import numbers_of

ROOT = Path(__file__).resolve().parents[2]
README, CONTRIBUTING, CONCEPTS = (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/concepts.md"))
REFERENCE, ENGINE = ROOT / "docs/reference.md", ROOT / "docs/how-it-works.md"
PICTURES = ROOT / "docs/pictures"
SCREENSHOT = "page.png"  # by tests/draw/test_page.py, as it takes a browser
VALIDATION = "validation.png"  # by tests/cost/test_paper.py, of the cells that it has
FOLDERS = {page.name: page.parent for page in (README, CONTRIBUTING, REFERENCE, ENGINE)}
PAGES = {page.name: page.read_text(encoding="utf-8") for page in (README, CONTRIBUTING, REFERENCE, ENGINE)}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_files_and_targets_on_a_page_exist(page):
    import commands

    text = PAGES[page]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [shlex.split(line, comments=True) for block in blocks(page, "bash") for line in block.splitlines()]
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    assert {line[1] for line in lines if line[:1] == ["make"]} <= targets
    for line in lines:
        for name in {"wafer-triton", "wafer_triton"} & {*line}:  # alone, or as a module of torchrun
            commands.parse(line[line.index(name) + 1 :])
    links = [FOLDERS[page] / path for path in re.findall(r"\]\(([^)#:]+)\)", text)]
    paths = [ROOT / path for path in re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", text)]
    assert links + paths and [path for path in links + paths if not path.exists()] == []


def test_the_glossary_defines_each_term_once():
    glossary = CONCEPTS.read_text(encoding="utf-8").partition("## Glossary")[2]
    rows = re.findall(r"^\| (?!term \|)(\w[^|]*) \| \w", glossary, re.MULTILINE)
    words = [word for row in rows for word in row.split(", ")]
    assert set(words) >= {"round", "routing stage", "hop", "route", "tile", "slot", "region", "full program", "SLO"}
    assert len(words) == len(set(words))


def test_pictures_are_shown_and_light():
    pages = [path.read_text(encoding="utf-8") for path in (README, *REFERENCE.parent.glob("*.md"))]
    shown = {path for page in pages for path in re.findall(r"[(\"](?:docs/)?pictures/([^)\"]+\.png)", page)}
    pictures = {path.name: path.stat().st_size for path in PICTURES.glob("*.png")}
    assert set(pictures) == shown
    assert all(10_000 < size < 150_000 for size in pictures.values())


def test_pictures_show_the_numbers_of_today(tmp_path):
    """Allow a number to be a tenth of a per cent off, which is invisible in a picture."""
    pytest.importorskip("matplotlib")
    pictures = runpy.run_path(str(PICTURES / "draw.py"))["PICTURES"]
    assert {*pictures, SCREENSHOT} == {path.name for path in PICTURES.glob("*.png")}
    for name in pictures.keys() - {VALIDATION}:
        with with_names_of_operations():
            pictures[name](tmp_path / name)
        today, kept = numbers_of(tmp_path / name), numbers_of(PICTURES / name)
        assert today.keys() == kept.keys() and today, name
        for key, values in today.items():
            assert values == pytest.approx(kept[key], rel=1e-3), f"{name}: run make pictures"
