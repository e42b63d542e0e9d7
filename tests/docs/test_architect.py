"""docs/architect.md: the architect's task in five commands, and docs/batch.md: the study that writes it.

Run as a program, it writes the outputs of the commands anew; `make pictures` draws the pictures.
"""

import io
import os
import re
import runpy
import shlex
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from wafer_triton import estimate
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
STUDY = runpy.run_path(str(DOCS / "studies" / "batch.py"))
BATCH = STUDY["PAGE"].read_text(encoding="utf-8")


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "cell", "size"),
    [("2", 0, 1), ("2", 3, 8), ("3", 0, 1), ("3", 4, 4), ("4", 0, 1), ("4", 0, 16), ("4", 4, 8), ("6", 0, 2),
     ("6", 1, 16), ("7, 8", 0, 1), ("7, 8", 1, 2)],
)  # fmt: skip
def test_the_page_has_each_computed_row_of_an_extended_table(number, cell, size):
    row_of = STUDY["TABLES"][number][-1]
    assert line(row_of(STUDY["published"](number)[cell], size)) in BATCH, "run python docs/studies/batch.py"


def line(row):
    return "| " + " | ".join(row) + " |\n"


@pytest.mark.parametrize("number", ["2", "3", "4", "6", "7, 8"])
def test_a_table_has_every_cell_of_the_paper_and_every_batch_and_is_marked_as_predicted(number):
    title, text, head, _, _ = STUDY["TABLES"][number]
    own = BATCH.split(f"## {title}\n\n{text}\n\n{line(head)}")[1].split("\n\n")[0].splitlines()[1:]
    cells, batches = STUDY["published"](number), [str(size) for size in STUDY["BATCHES"]]
    shown = [each.strip("| ").split(" | ") for each in own]
    assert [row[head.index("batch")] for row in shown] == batches * len(cells)
    for row, cell in zip(shown[:: len(batches)], cells, strict=True):
        speed = float(re.match(r"[\d.]+", row[head.index("published") if "published" in head else 1])[0])
        assert speed == pytest.approx(float(cell["value"]) * (1000 if number == "6" else 1)) or number == "7, 8"
        assert cell["model"] in row or number == "6"
    assert "**All figures but the published ones are predictions**" in BATCH and STUDY["INTRODUCTION"] in BATCH


def test_a_batch_of_one_is_the_estimate_of_one_request_and_of_one_prompt():
    sizes = {"input": 2048, "output": 128}
    one = estimate.request(model="llama3-8b", prefill_mesh=660, decode_mesh=360, as_if=True, **sizes)
    found = STUDY["request"]("llama3-8b", (660, 360), 2048, 128, 1)
    assert found.seconds == pytest.approx(one.seconds) and found.first == pytest.approx(one.prefill_seconds)
    assert found.band == one.error_band
    prompt, found = (
        estimate.prefill(model="llama3-8b", mesh=600, tokens=4096, as_if=True),
        STUDY["prompts"]("llama3-8b", 600, 1),
    )
    assert found.seconds == pytest.approx(prompt.seconds) and found.band == prompt.error_band


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 16])
def test_the_page_has_the_computed_fall_of_a_mixture(size):
    assert "| " + " | ".join(STUDY["fall_row"](size)) + " |\n" in BATCH, "run python docs/studies/batch.py"


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
