"""Progress: bars on a terminal, else a few plain lines for each task."""

import sys

from wafer_triton.cli.main import main
from wafer_triton.draw.progress import Progress


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_a_task_has_a_line_for_each_tenth(capsys):
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


def test_brief_work_has_no_lines_in_a_pipe(capsys):
    with Progress(brief=True) as progress:
        progress("values", 1, 1)
    assert lines(capsys) == []


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


def test_values_that_are_asked_for_are_reported_in_a_pipe(capsys):
    line = "compare gemv --k 8 --n 8 --mesh 2"
    assert main([*line.split(), "--values"]) == 0
    assert lines(capsys)[-1] == "values: 5 of 5"
    assert main(line.split()) == 0
    assert lines(capsys) == []
