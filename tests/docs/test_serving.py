"""docs/serving.md is the page that its study writes."""

import runpy
from pathlib import Path

import pytest

STUDY = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "studies" / "serving.py"))
TEXT = STUDY["PAGE"].read_text(encoding="utf-8")
RUN = "run python docs/studies/serving.py"


def test_the_trace_has_the_requests_that_the_page_says():
    requests = STUDY["trace"]()
    assert f"{len(requests):,} requests of a conversation service" in TEXT and len(requests) == 19_366
    assert f"{STUDY['rate_of'](requests):.2f} requests a second" in TEXT
    readme = (STUDY["TRACE"].parent / "README.md").read_text(encoding="utf-8")
    assert "CC-BY 4.0" in readme and "ISCA 2024" in readme


def test_the_gpus_and_the_refusal_are_read_and_computed():
    for row in STUDY["gpus"]():
        assert row in TEXT, RUN
    assert STUDY["split_reason"]() in TEXT, RUN


@pytest.mark.slow
@pytest.mark.parametrize("model", STUDY["MODELS"])
def test_places_and_policies_are_simulated_as_shown(model):
    assert STUDY["place_row"](model, "shared") in TEXT, RUN
    way = next(way for way in STUDY["WAYS"] if way[:2] == ("shared", "chunks"))
    assert STUDY["way_row"](model, *way) in TEXT, RUN


def test_every_rate_and_policy_has_a_row():
    for rate in STUDY["RATES"]:
        assert sum(f"| {model} | {rate:g} |" in TEXT for model in STUDY["MODELS"]) == 2
    for organisation, how, _ in STUDY["WAYS"]:
        assert TEXT.count(f"| {organisation} | {how} |") == 2
    assert STUDY["RATES_TEXT"] in TEXT
