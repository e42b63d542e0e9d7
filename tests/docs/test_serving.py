"""docs/serving.md has the sentences of its study, and rows of tables that the study computes."""

import runpy
from pathlib import Path
from string import Formatter

import pytest

STUDY = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "studies" / "serving.py"))
TEXT = STUDY["PAGE"].read_text(encoding="utf-8")
RUN = "run python docs/studies/serving.py"


def test_between_its_tables_the_page_has_the_sentences_of_the_study():
    end = 0
    for name in ("INTRODUCTION", "WAYS_TEXT", "RATES_TEXT", "GPUS_TEXT", "CLOSE"):
        for literal, *_ in Formatter().parse(STUDY[name]):
            begin = TEXT.find(literal, end)
            assert begin >= 0, f"{name} has {literal!r}, {RUN}"
            # before it stands a number or a text of one line, or a table
            between = TEXT[end:begin].strip("\n")
            assert "\n" not in between or all(line.startswith("|") for line in between.split("\n")), (between, RUN)
            end = begin + len(literal)
    assert end == len(TEXT), RUN


@pytest.mark.parametrize(("head", "rows"), [(("subject", "where"), "SUBJECTS"), (("policy", "course"), "POLICIES")])
def test_tables_of_words_are_in_the_page(head, rows):
    assert STUDY["table"](head, [STUDY["line"](*row) for row in STUDY[rows]], 2) in TEXT, RUN


def test_the_trace_has_the_requests_of_the_page():
    requests = STUDY["trace"]()
    assert f"{len(requests):,} requests of a conversation service" in TEXT and len(requests) == 19_366
    assert f"{STUDY['rate_of'](requests):.2f} requests a second" in TEXT
    readme = (STUDY["TRACE"].parent / "README.md").read_text(encoding="utf-8")
    assert "CC-BY 4.0" in readme and "ISCA 2024" in readme


def test_the_rows_of_gpus_and_the_refused_split_are_in_the_page():
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
        assert sum(f"| {model} | {rate:g} |" in TEXT for model in STUDY["MODELS"]) == len(STUDY["MODELS"])
    for organisation, how, _ in STUDY["WAYS"]:
        assert TEXT.count(f"| {organisation} | {how} |") == len(STUDY["MODELS"])
