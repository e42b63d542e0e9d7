"""docs/gpu.md: the figures that are expected are those of the command, and none passes for a measurement."""

from pathlib import Path

import expected

PAGE = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()


def test_the_expected_figures_are_those_of_the_command():
    for table in (expected.table(), expected.slices_table()):
        assert table in PAGE, "run python bench/harness/expected.py and put its tables into docs/gpu.md"


def test_nothing_is_said_to_be_measured():
    assert "Nothing on this page was measured" in PAGE
    assert not list((Path(__file__).parents[2] / "bench" / "results").glob("nvidia*")), "then say what was measured"


def test_a_case_takes_its_longest_bound_and_what_comes_one_after_the_other():
    *_, launches, handovers, whole = expected.row("a case", "explicit", 480_000_000, 10**9, 4, 10)
    assert (launches, handovers, whole) == ("4", "10", "125"), "100 us of bytes, 10 of launches, 15 of hand-overs"
    assert expected.row("a case", "elided", 0, 99 * 10**9, 0, 0)[-1] == "100", "of operations"


def test_a_mesh_that_fits_runs_all_rounds_in_one_launch():
    assert [expected.rounds_a_launch(side) for side in (16, 32)] == [16, 32]
    assert 1 <= expected.rounds_a_launch(64) < 16
