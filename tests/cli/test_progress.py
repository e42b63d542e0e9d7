"""Progress: bars on a terminal, else a few plain lines for each task, and an estimate before a long one."""

import sys

import pytest

from wafer_triton.draw.progress import LONG, Progress
from wafer_triton.text.progress import INTERPRETED_SECONDS, emulation_seconds


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_a_task_has_a_line_for_each_tenth(capsys):
    with Progress() as progress:
        for done in range(31):
            progress("windows", done, 30)
    announced = lines(capsys)
    assert announced[0] == "windows: 3 of 30" and announced[-1] == "windows: 30 of 30" and len(announced) == 10


def test_a_phase_that_restarts_is_reported_again(capsys):
    with Progress() as progress:
        for _ in range(2):
            progress("prefill", 1, 2)
            progress("prefill", 2, 2)
    assert lines(capsys) == ["prefill: 1 of 2", "prefill: 2 of 2"] * 2


@pytest.mark.parametrize(
    ("seconds", "announced"),
    [(19.0, ""), (47.0, "about 47 seconds"), (600.0, "about 10 minutes"), (18000.0, "about 5 hours"), (1e6, "12 days")],
)
def test_only_a_long_run_is_announced(capsys, seconds, announced):
    Progress().announce(seconds)
    said = capsys.readouterr().err
    assert bool(said) is bool(announced) and announced in said


def test_brief_progress_is_silent_unless_the_task_is_long(capsys):
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


@pytest.mark.parametrize(
    ("first", "each", "total", "announced"),
    [
        (9.0, 0.005, 9_000, "about 44 seconds"),  # imports and caches of the first part do not count
        (9.0, 0.005, 400, ""),
        (0.1, 12.0, 40, "about 7 minutes"),  # slow parts: two of them are enough
    ],
)
def test_a_long_run_is_announced_from_the_pace_of_its_parts(capsys, first, each, total, announced):
    times = iter([first + number * each for number in range(total)])
    with Progress(brief=True, paced=True, clock=lambda: next(times)) as progress:
        for done in range(1, total + 1):
            progress("points", done, total)
    said = capsys.readouterr().err
    assert bool(said) is bool(announced) and announced in said and said.count("this takes") == bool(announced)


def test_parts_that_grow_slow_are_announced_when_they_do(capsys):
    parts = [0.01] * 500 + [1.0] * 500
    times = iter([sum(parts[:done]) for done in range(1, 1001)])
    progress = Progress(brief=True, paced=True, clock=lambda: next(times))
    for done in range(1, 1001):
        progress("points", done, 1000)
    assert "this takes about 8 minutes" in capsys.readouterr().err


def on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def test_a_terminal_has_a_bar_for_each_task_and_is_clean_on_exit(capsys, monkeypatch):
    on_a_terminal(monkeypatch)
    with Progress() as progress:
        bars = progress._bars
        assert not bars.live.is_started, "the first task starts them"
        progress("windows", 1, 4)
        assert bars.live.is_started
        progress("windows", 4, 4)
        progress("prefill", 2, 3)
        tasks = [(task.description, task.completed, task.total) for task in bars.tasks]
    assert tasks == [("windows", 4, 4), ("prefill", 2, 3)] and not bars.live.is_started
    assert "windows: " not in capsys.readouterr().err


def test_a_terminal_has_plain_lines_where_rich_is_not_installed(capsys, monkeypatch):
    on_a_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "rich", None)
    with Progress() as progress:
        progress("windows", 1, 1)
    assert lines(capsys) == ["windows: 1 of 1"]
