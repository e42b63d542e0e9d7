"""docs/head-groups.md equals the output of its study."""

import runpy
from pathlib import Path

import pytest

STUDY = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "studies" / "head_groups.py"))
TEXT = STUDY["PAGE"].read_text(encoding="utf-8")
# every model, every mesh, and those with the most padding and cycles; the whole page takes a quarter of a minute
CASES = [("llama3-8b", 660), ("llama2-13b", 360), ("codellama-34b", 420), ("qwen2-72b", 540), ("llama2-13b", 720)]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "side"), CASES)
@pytest.mark.parametrize("phase", ["decode_row", "prefill_row"])
def test_a_row_equals_the_study_s(phase, model, side):
    assert "| " + " | ".join(STUDY[phase](model, side)) + " |\n" in TEXT, "run python docs/studies/head_groups.py"


def test_the_text_equals_the_study_s():
    for part in ("INTRODUCTION", "PREFILL"):
        assert STUDY[part].format(context=f"{STUDY['CONTEXT']:,}", tokens=f"{STUDY['TOKENS']:,}") in TEXT
