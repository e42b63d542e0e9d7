"""README.md and pages of docs/ are true: their Python and their commands run and print what is shown.

A block whose first line is `# file: NAME` is written to that file. All other Python of a page runs in one namespace,
and a `text` block right below has its output. A `console` block is a command and its output, each line of a `bash`
block a command; those that install, make, or start other processes do not run here, nor examples that run a checkpoint,
time or fit. An output that ends with "..." goes on like that. A `diff` block changes a copy of the library, with which
scripts of the page run.

Run as a program, it writes the outputs of all pages anew, or of those that are named, and README's table of cells.
"""

import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from wafer_triton.cli.main import main
from wafer_triton.device import PRESETS
from wafer_triton.device.keys import KEYS
from wafer_triton.kernels import KERNELS
from wafer_triton.local import registry

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NAMES = ("beyond-decoders", "concepts", "how-it-works", "predict", "reference", "serve", "temp", "tutorial")
PAGES = {"README": ROOT / "README.md"} | {name: DOCS / f"{name}.md" for name in NAMES}
BLOCK = re.compile(
    r"^```(python|toml|bash|console|diff)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)
CELLS = re.compile(r"^\| not fitted .*\n(?:\|.*\n)+", re.MULTILINE)  # of validation.md, and in README.md
MORE = "...\n"


def printed_by(action, *args):
    """Return the output of a call for people."""
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(io.StringIO()):
        action(*args)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def command(line):
    words = shlex.split(line, comments=True)
    if words[:1] == ["wafer-triton"]:
        assert main(words[1:]) == 0, line
    if words[:1] == ["python"] and Path(words[1]).exists():
        if not Path("clone").exists():  # the library is as it is here, and imported
            before = dict(registry.LOCAL_OPS)
            runpy.run_path(words[1], run_name="__main__")
            registry.LOCAL_OPS.clear()
            registry.LOCAL_OPS.update(before)
            return
        env = os.environ | {"PYTHONPATH": str(clone())}
        print(subprocess.run([sys.executable, *words[1:]], env=env, check=True, stdout=-1, text=True).stdout, end="")


def clone():
    """Return the folder of a copy of the library, made in the current folder at first, which a page may change."""
    if not Path("clone").exists():
        shutil.copytree(ROOT / "src", "clone", ignore=shutil.ignore_patterns("__pycache__"))
    return Path("clone").resolve()


def change(diff):
    """Apply a diff whose hunks begin with "@@", without numbers of lines, to the file of the copy that it names."""
    head, *hunks = re.split(r"^@@.*\n", diff, flags=re.MULTILINE)
    path = clone() / head.removeprefix("--- ").strip()
    text = path.read_text(encoding="utf-8")
    for lines in (hunk.splitlines(keepends=True) for hunk in hunks):
        old, new = ("".join(line[1:] for line in lines if line[0] != added) for added in "+-")
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def renewed(page):
    """Return a page with the outputs of today."""
    names = {"__name__": page}
    Path("docs").symlink_to(DOCS)

    def block(match):
        kind, body, shown = match.groups()
        if file := re.match(r"# file: (\S+)\n", body):
            Path(file[1]).write_text(body, encoding="utf-8")
            return match[0]
        if kind == "diff":
            change(body)
        if kind == "bash":
            printed = "".join(printed_by(command, line) for line in body.splitlines())
            return match[0] if shown is None else f"```bash\n{body}```\n\n```text\n{cut(printed, shown)}```"
        if kind == "console":
            line, _, shown = body.partition("\n")
            if left_as_shown(line):
                return match[0]
            return f"```console\n{line}\n{cut(printed_by(command, line.removeprefix('$ ')), shown)}```"
        if kind == "python":
            printed = printed_by(exec, compile(body, f"docs/{page}.md", "exec"), names)
            return match[0] if shown is None else f"```python\n{body}```\n\n```text\n{cut(printed, shown)}```"
        return match[0]

    cells = CELLS.search((DOCS / "validation.md").read_text(encoding="utf-8"))[0]
    return CELLS.sub(cells, BLOCK.sub(block, PAGES[page].read_text(encoding="utf-8")))


def left_as_shown(line):
    """Return whether an example runs a checkpoint, needs such a run, times, or fits (which tests/cost does)."""
    words = line.removeprefix("$ wafer-triton ").split()
    return words[0] in ("generate", "cap") or "--time" in words or words == ["validate"] or "--fit" in words


def cut(printed, shown):
    """Return as many lines of an output as are shown, if what is shown ends with "..."."""
    if not shown.endswith(MORE):
        return printed
    return "".join(printed.splitlines(keepends=True)[: shown.count("\n") - 1]) + MORE


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_the_outputs_of_today(page, tmp_path, monkeypatch, registered):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    kernels = dict(KERNELS)
    try:
        assert renewed(page) == PAGES[page].read_text(encoding="utf-8"), "run python tests/docs/test_pages.py"
    finally:  # a page may add operations
        KERNELS.clear()
        KERNELS.update(kernels)


def test_the_table_of_a_device_has_every_key():
    table = (DOCS / "predict.md").read_text(encoding="utf-8").partition("| number | keys |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z_0-9]+)`", table)) == set(KEYS)


def test_the_table_of_plmr_has_the_numbers_of_a_wse2():
    text, chip = (DOCS / "concepts.md").read_text(encoding="utf-8"), PRESETS["wse2"]
    numbers = (chip.rows, chip.cols, chip.hop_cycles, chip.stage_cycles, chip.sram_bytes // 2**10, chip.routes)
    assert re.findall(r"\d+", " ".join(re.findall(r"^\| [PLMR] \| [a-z]+ \|.*", text, re.MULTILINE))) == list(
        map(str, numbers)
    )


if __name__ == "__main__":
    for name in sys.argv[1:] or PAGES:
        os.chdir(tempfile.mkdtemp())
        sys.path.insert(0, os.getcwd())
        PAGES[name].write_text(renewed(name), encoding="utf-8")
