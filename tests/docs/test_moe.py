"""docs/moe.md is what its study writes."""

import runpy
from pathlib import Path

import pytest

STUDY = Path(__file__).resolve().parents[2] / "docs" / "studies" / "moe.py"


@pytest.mark.slow
def test_the_page_is_what_the_study_writes():
    study = runpy.run_path(str(STUDY))
    assert study["PAGE"].read_text(encoding="utf-8") == study["page"](), "run python docs/studies/moe.py"
