"""The promised errors hold, with the constants and on the rows left out that test_committed.py finds anew."""

from statistics import fmean

import pytest

from wafer_triton.cost.bands import bands
from wafer_triton.cost.calibrate.fit import STAGES, Stage
from wafer_triton.cost.constants import constants
from wafer_triton.device import device

pytestmark = pytest.mark.slow

# (mean, worst) relative error of each family; fitted without a group, the group's errors are at most twice that
BOUNDS = {
    "MeshGEMM": (0.02, 0.06),
    "MeshGEMV": (0.015, 0.04),
    "WSE-3 decode layer": (0.06, 0.06),
    "WSE-2 decode": (0.03, 0.06),
    "WSE-2 prefill": (0.05, 0.10),
}


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.family)
def test_errors(stage: Stage) -> None:
    mean, worst = BOUNDS[stage.family]
    c = constants(device(stage.device))
    errors = [abs(row.predict(c) / row.measured - 1) for row in stage.rows()]
    assert fmean(errors) <= mean
    assert max(errors) <= worst


@pytest.mark.parametrize("name", BOUNDS)
def test_errors_on_groups_left_out(name: str) -> None:
    mean, worst = BOUNDS[name]
    assert bands()[name]["constants"] < bands()[name]["rows"]
    for key, left_out in bands()[name]["left_out"].items():
        errors = [abs(error) for error in left_out.values()]
        assert fmean(errors) <= 2 * mean, key
        assert max(errors) <= 2 * worst, key
