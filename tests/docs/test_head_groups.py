"""docs/head-groups.md and its CSV equal the output of their study."""

import csv
import runpy
from pathlib import Path

import pytest

STUDY = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "studies" / "head_groups.py"))
TEXT = STUDY["PAGE"].read_text(encoding="utf-8")
ROWS = list(csv.reader(STUDY["ROWS"].read_text(encoding="utf-8").splitlines()))
# Each model and each mesh at least once, as all rows take longer.
CASES = [("llama3-8b", 660), ("llama2-13b", 360), ("codellama-34b", 420), ("qwen2-72b", 540), ("llama2-13b", 720)]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "side"), CASES)
@pytest.mark.parametrize("phase", ["decode_row", "prefill_row"])
def test_the_csv_has_each_computed_row(phase, model, side):
    assert STUDY[phase](model, side) in ROWS, "run python docs/studies/head_groups.py"


def test_the_summaries_follow_from_the_rows():
    assert ROWS[0] == list(STUDY["HEAD"]) and len(ROWS) == 1 + 2 * len(STUDY["MODELS"]) * len(STUDY["SIDES"])
    for phase in ("decode", "prefill"):
        assert STUDY[f"{phase}_summary"]([row for row in ROWS if row[0] == phase]) in TEXT


def test_the_page_has_the_introduction_and_the_text_on_prefill():
    for part in ("INTRODUCTION", "PREFILL"):
        assert STUDY[part].format(context=f"{STUDY['CONTEXT']:,}", tokens=f"{STUDY['TOKENS']:,}") in TEXT
