"""Progress off a terminal: a few plain lines for each task, and an estimate before a long one."""

import pytest

from wafer_triton.draw.progress import LONG, Progress
from wafer_triton.text.progress import INTERPRETED_SECONDS, emulation_seconds


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_a_thing_has_a_line_for_each_tenth(capsys):
    with Progress() as progress:
        for done in range(31):
            progress("windows", done, 30)
    told = lines(capsys)
    assert told[0] == "windows: 3 of 30" and told[-1] == "windows: 30 of 30" and len(told) == 10


def test_a_phase_that_restarts_is_reported_again(capsys):
    with Progress() as progress:
        for _ in range(2):
            progress("prefill", 1, 2)
            progress("prefill", 2, 2)
    assert lines(capsys) == ["prefill: 1 of 2", "prefill: 2 of 2"] * 2


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(19.0, ""), (47.0, "about 47 seconds"), (600.0, "about 10 minutes"), (18000.0, "about 5 hours"), (1e6, "12 days")],
)
def test_only_a_long_run_is_announced(capsys, seconds, told):
    Progress().announce(seconds)
    said = capsys.readouterr().err
    assert bool(said) is bool(told) and told in said


def test_a_brief_one_is_silent_unless_it_takes_long(capsys):
    brief = Progress(brief=True)
    brief("values", 1, 1)
    assert lines(capsys) == []
    brief.announce(100.0)
    brief("values", 1, 1)
    assert len(lines(capsys)) == 2


def test_the_estimate_grows_with_rounds_cores_and_work():
    known = emulation_seconds(100, 256, 0)
    assert emulation_seconds(200, 256, 0) == pytest.approx(2 * known)
    assert emulation_seconds(100, 256, 0, computing=50) < known < emulation_seconds(100, 1024, 0)
    assert emulation_seconds(100, 256, 10**9) > known
    assert emulation_seconds(4 * 500, 500 * 500, 0) > LONG
    assert emulation_seconds(1, 10**6, 0, interpreted=True) == pytest.approx(INTERPRETED_SECONDS * 10**6)
