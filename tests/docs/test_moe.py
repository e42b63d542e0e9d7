"""docs/moe.md equals the output of its study."""

import runpy
from pathlib import Path

import pytest

STUDY = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "studies" / "moe.py"))
TEXT = STUDY["PAGE"].read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "of"),
    [
        ("row", (*STUDY["MODELS"][0], "wse3")),
        ("row", (*STUDY["MODELS"][2], "wse2")),
        ("loads", STUDY["MESHES"][0]),
    ],
    ids=str,
)
def test_the_page_has_each_computed_row(part, of):
    assert "| " + " | ".join(STUDY[part](*of)) + " |\n" in TEXT, "run python docs/studies/moe.py"
