"""docs/architect.md: the architect's task in five commands.

Run as a program, it writes the outputs of the commands anew; `make pictures` draws the pictures.
"""

import io
import os
import re
import shlex
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from wafer_triton.cli.main import main
from wafer_triton.draw.figure import numbers_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "architect.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(r"^```console\n\$ wafer-triton (.*)\n((?:.*\n)*?)```$", re.MULTILINE)
DEVICE = re.search(r"^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)[1]
COMMANDS = [line for line, _ in BLOCK.findall(TEXT)]
MORE = "...\n"  # an output that ends with it goes on like that
CUT = 160  # letters of a line that the page shows


def output(line):
    """Return the output of a command for people in a folder with the device's file, its long lines cut."""
    Path("wide.toml").write_text(DEVICE, encoding="utf-8")
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(io.StringIO()):
        assert main(shlex.split(line)) == 0, line
    return "".join(cut(shown) for shown in stream.getvalue().splitlines())


def cut(line):
    line = line.rstrip()
    return f"{line}\n" if len(line) <= CUT else f"{line[:CUT]} ...\n"


def test_the_task_is_five_commands():
    assert len(COMMANDS) == 5 and "sram_kib = 128" in DEVICE and "hop_cycles = 3" in DEVICE and "rows = 1024" in DEVICE


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: " ".join(line.split()[:2]))
def test_a_command_prints_the_output_shown_and_draws_the_picture(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = dict(BLOCK.findall(TEXT))[line]
    printed = output(line)
    assert printed == shown or (shown.endswith(MORE) and printed.startswith(shown.removesuffix(MORE))), (
        "run python tests/docs/test_architect.py"
    )
    for picture in tmp_path.glob("*.png"):
        assert numbers_of(picture) == numbers_of(DOCS / "pictures" / picture.name)


def test_a_heat_map_has_feasible_points_and_others():
    shown = numbers_of(DOCS / "pictures" / "architect-sram.png")["tokens_per_second"]
    assert -1 in shown and max(shown) > 1000


def rewrite():
    """Write the outputs of the commands anew."""
    root = os.getcwd()

    def block(match):
        os.chdir(tempfile.mkdtemp())
        printed = output(match[1])
        os.chdir(root)
        if match[2].endswith(MORE):
            printed = "".join([*printed.splitlines(keepends=True)[: match[2].count("\n") - 1], MORE])
        return f"```console\n$ wafer-triton {match[1]}\n{printed}```"

    PAGE.write_text(BLOCK.sub(block, TEXT), encoding="utf-8")


if __name__ == "__main__":
    rewrite()
