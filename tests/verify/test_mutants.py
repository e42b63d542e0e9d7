"""Random mutants of every schedule: wrong values are found. Healthy schedules raise nothing."""

import pytest

from healthy import cases, on_mesh
from mutants import EXPLAINED, Healthy, mutants
from wafer_triton.verify import shares, values
from wafer_triton.verify.faults import check

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def healthy() -> list[Healthy]:
    return [Healthy(case) for case in cases()]


def test_every_mutant_with_wrong_values_is_found(healthy):
    tested = list(mutants(11, 100, healthy))
    missed = [str(each) for each in tested if each.wrong and not each.verdicts]
    assert not missed, "\n".join(missed)
    assert {name for each in tested if not each.wrong for name in each.verdicts} <= EXPLAINED.keys()
    assert sum(each.wrong for each in tested) > len(tested) / 2


def test_every_output_is_judged(healthy):
    for each in healthy:
        kept = {name for name, buffer in each.case.schedule.buffers.items() if buffer.kept}
        assert kept <= each.free.keys(), each.case.name
        judged = [name for name, free in each.free.items() if not free.all()]
        assert kept - {*judged} <= {"values"}, each.case.name  # which prefill leaves where no one reads them


@pytest.mark.parametrize("mesh", ["1x2", "4x2"])
def test_healthy_schedules_of_every_kind_raise_nothing(mesh, monkeypatch):
    """Check with no more runs than an intent asks for; 2 x 3 is in test_faults.py."""
    monkeypatch.setattr(values, "SMALL_WORK", 0)
    verdicts = {case.name: check(case.schedule, case.intent) for case in on_mesh(mesh)}
    assert [name for name, verdict in verdicts.items() if not verdict.ok] == []


def test_in_healthy_schedules_no_sum_is_called_wrong(monkeypatch):
    """Trace every schedule that a second suffices for, as if its first result were wrong."""
    monkeypatch.setattr(values, "_first_mismatch", lambda name, *_: values._Mismatch(0, name, 0, 0, 0.0, 0.0))
    traced, run = [], shares._Trace.run

    def traces(trace):
        run(trace)
        traced.append((trace.schedule.name, trace.mixed))

    monkeypatch.setattr(shares._Trace, "run", traces)
    for case in on_mesh("2x3"):
        check(case.schedule, case.intent)
    assert len(traced) > 50 and not [pair for pair in traced if pair[1]]
