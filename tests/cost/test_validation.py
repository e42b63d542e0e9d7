"""The validation table: the promised errors hold."""

from statistics import fmean

import pytest

from wafer_triton.cost.calibrate import validation

pytestmark = pytest.mark.slow

# (mean, worst) relative error of each family; fitted without a group, the group's errors are at most twice that
BOUNDS = {
    "MeshGEMM": (0.02, 0.06),
    "MeshGEMV": (0.015, 0.04),
    "WSE-3 decode layer": (0.06, 0.06),
    "WSE-2 decode": (0.03, 0.06),
    "WSE-2 prefill": (0.05, 0.10),
}


@pytest.fixture(scope="module")
def families() -> dict[str, validation.Family]:
    return {one.name: one for one in validation.families()}


@pytest.mark.parametrize("name", BOUNDS)
def test_errors(families: dict[str, validation.Family], name: str) -> None:
    mean, worst = BOUNDS[name]
    errors = [abs(error) for error in families[name].errors]
    assert fmean(errors) <= mean
    assert max(errors) <= worst


@pytest.mark.parametrize("name", BOUNDS)
def test_errors_on_groups_left_out(families: dict[str, validation.Family], name: str) -> None:
    mean, worst = BOUNDS[name]
    for key, errors in families[name].left_out.items():
        assert errors, key
        assert fmean(map(abs, errors)) <= 2 * mean, key
        assert max(map(abs, errors)) <= 2 * worst, key


def test_there_are_fewer_constants_than_rows(families: dict[str, validation.Family]) -> None:
    assert all(len(one.fitted) < len(one.rows) for one in families.values())


def test_a_group_that_determines_the_constants_has_no_error_without_it() -> None:
    assert validation._spread(None) == "-"
    assert validation._spread([0.1, -0.3]) == "20.00 % / 30.00 %"
