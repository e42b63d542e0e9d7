"""README.md, CONTRIBUTING.md and the library are true: code runs, outputs and names are as shown.

Run as a program, it writes README.md's outputs and its table of cells anew.
"""

import inspect
import io
import os
import re
import runpy
import shlex
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from wafer_triton.cli.main import main, parser
from wafer_triton.draw.figure import numbers_of
from wafer_triton.models import demo

ROOT = Path(__file__).resolve().parents[2]
README, CONTRIBUTING, CONCEPTS = (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/concepts.md"))
REFERENCE, ENGINE = ROOT / "docs/reference.md", ROOT / "docs/how-it-works.md"
VALIDATION, PICTURES = ROOT / "docs/validation.md", ROOT / "docs/pictures"
SCREENSHOT = "page.png"  # by tests/draw/test_page.py, as it takes a browser
FOLDERS = {page.name: page.parent for page in (README, CONTRIBUTING, REFERENCE, ENGINE)}
PAGES = {page.name: page.read_text(encoding="utf-8") for page in (README, CONTRIBUTING, REFERENCE, ENGINE)}
CONSOLE = re.compile(r"^```console\n\$ wafer-triton (.*)\n((?:.*\n)*?)```$", re.MULTILINE)
PRINTED = re.compile(r"^```python\n((?:.*\n)*?)```\n\n```text\n((?:.*\n)*?)```$", re.MULTILINE)
CELLS = re.compile(r"^\| not fitted .*\n(?:\|.*\n)+", re.MULTILINE)
MORE = "...\n"  # an output that ends with it goes on like that


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)


def code():
    """Python blocks of all pages; one that fetches a checkpoint is slow."""
    return [
        pytest.param(block, id=f"{page}-{number}", marks=[pytest.mark.slow] if "resolve(" in block else [])
        for page in PAGES
        for number, block in enumerate(blocks(page, "python"))
    ]


def printed_by(action, *args):
    """Return the output of a call for people, in a folder with nothing but docs/."""
    stream, before = io.StringIO(), os.getcwd()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(stream), redirect_stderr(io.StringIO()):
        os.chdir(folder)
        Path("docs").symlink_to(ROOT / "docs")
        try:
            action(*args)
        finally:
            os.chdir(before)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def execute(block):
    exec(compile(block, "a page", "exec"), {"__name__": "page"})


def command(line):
    assert main(shlex.split(line)) == 0, line


@pytest.mark.parametrize("block", code())
def test_python_runs(block):
    assert printed_by(execute, block), "a reader expects to see something"


@pytest.mark.parametrize(("block", "shown"), [found for page in PAGES.values() for found in PRINTED.findall(page)])
def test_python_prints_the_output_shown(block, shown):
    assert printed_by(execute, block) == shown, "run python tests/docs/test_readme.py"


@pytest.mark.slow
@pytest.mark.parametrize(("line", "shown"), CONSOLE.findall(PAGES["README.md"]))
def test_a_command_prints_the_output_shown(line, shown):
    assert shown.count("\n") >= 5
    assert printed_by(command, line).startswith(shown.removesuffix(MORE)), "run python tests/docs/test_readme.py"


def test_the_lines_of_the_demo_have_its_words():
    lines = re.search(r"^```text\n(All .*?)```$", PAGES["README.md"], re.MULTILINE | re.DOTALL)[1]
    shown, printed = (set(re.findall(r"[A-Za-z]{3,}", text)) for text in (lines, inspect.getsource(demo)))
    assert lines.count("\n") == 4 and shown <= printed, "run make demo"


def test_readme_has_code_with_its_output_and_a_command():
    assert PRINTED.search(PAGES["README.md"]) and CONSOLE.search(PAGES["README.md"])


def test_the_table_of_cells_equals_the_validation_page_s():
    assert CELLS.search(VALIDATION.read_text(encoding="utf-8"))[0] in PAGES["README.md"], "run this file"


@pytest.mark.parametrize("page", PAGES)
def test_files_and_targets_on_a_page_exist(page):
    text = PAGES[page]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [shlex.split(line, comments=True) for block in blocks(page, "bash") for line in block.splitlines()]
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    assert {line[1] for line in lines if line[:1] == ["make"]} <= targets
    for line in lines:
        for name in {"wafer-triton", "wafer_triton"} & {*line}:  # alone, or as a module of torchrun
            assert callable(parser().parse_args(line[line.index(name) + 1 :]).run)
    links = [FOLDERS[page] / path for path in re.findall(r"\]\(([^)#:]+)\)", text)]
    paths = [ROOT / path for path in re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", text)]
    assert links + paths and [path for path in links + paths if not path.exists()] == []


def test_the_glossary_defines_each_term_once():
    glossary = CONCEPTS.read_text(encoding="utf-8").partition("## Glossary")[2]
    rows = re.findall(r"^\| (?!term \|)(\w[^|]*) \| \w", glossary, re.MULTILINE)
    words = [word for row in rows for word in row.split(", ")]
    assert set(words) >= {"round", "routing stage", "hop", "route", "tile", "slot", "region", "full program", "SLO"}
    assert len(words) == len(set(words))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("pictures")
    list(runpy.run_path(str(PICTURES / "draw.py"))["draw_all"](folder))
    return folder


def test_pictures_are_shown_and_light():
    pages = [path.read_text(encoding="utf-8") for path in (README, *REFERENCE.parent.glob("*.md"))]
    shown = {path for page in pages for path in re.findall(r"[(\"](?:docs/)?pictures/([^)\"]+\.png)", page)}
    pictures = {path.name: path.stat().st_size for path in PICTURES.glob("*.png")}
    assert set(pictures) == shown
    assert all(10_000 < size < 150_000 for size in pictures.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.name for path in PICTURES.glob("*.png") if path.name != SCREENSHOT])
def test_a_picture_shows_the_numbers_of_today(name, drawn):
    """Allow a number to be a tenth of a per cent off, which is invisible in a picture."""
    today, kept = numbers_of(drawn / name), numbers_of(PICTURES / name)
    assert today.keys() == kept.keys() and today
    for key, values in today.items():
        assert values == pytest.approx(kept[key], rel=1e-3), "run make pictures"


def rewrite():
    """Write README.md's outputs and its table of cells anew."""

    def ran(match):
        return f"```python\n{match[1]}```\n\n```text\n{printed_by(execute, match[1])}```"

    def called(match):
        lines = printed_by(command, match[1]).splitlines(keepends=True)
        return f"```console\n$ wafer-triton {match[1]}\n{''.join(lines[: match[2].count(chr(10)) - 1])}{MORE}```"

    cells = CELLS.search(VALIDATION.read_text(encoding="utf-8"))[0]
    text = CELLS.sub(lambda _: cells, README.read_text(encoding="utf-8"))
    README.write_text(CONSOLE.sub(called, PRINTED.sub(ran, text)), encoding="utf-8")


if __name__ == "__main__":
    rewrite()
