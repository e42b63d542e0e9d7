"""Fitted constants name their source, and a fit finds what predictions were made of."""

from dataclasses import replace

import pytest

from wafer_triton.cost.calibrate import FAMILIES, fit, rows
from wafer_triton.cost.constants import constants, described
from wafer_triton.device import MEASURED, device

pytestmark = pytest.mark.slow


def test_fitted_and_carried_over_constants_say_so() -> None:
    for name in MEASURED:
        kinds = {key: entry.kind for key, entry in described(device(name)).items()}
        own = {key for stage in fit.STAGES if stage.device == name for key in stage.names}
        taken = {key for stage in fit.STAGES if stage.device != name for key in stage.hands_on}
        assert {key for key, kind in kinds.items() if kind == "fitted"} == own
        assert taken <= {key for key, kind in kinds.items() if kind == "carried over"}


def test_generations_do_not_share_hops_and_links() -> None:
    two, three = constants(device("wse2")), constants(device("wse3"))
    assert (two.hop_cycles, two.word_cycles) == (1, 1)
    assert (three.hop_cycles, three.word_cycles) == (2, 1.125)


def test_few_constants_are_fitted() -> None:
    assert sum(len(stage.names) for stage in fit.STAGES) == 12
    assert sum(len(rows(family)) for family in FAMILIES) == 104


def test_solve_recovers_constants_from_their_predictions() -> None:
    truth = replace(constants(device("wse3")), kernel_cycles=200.0, round_cycles=50.0, k_step_cycles=20.0)
    made = [replace(row, measured=row.predict(truth)) for row in rows("MeshGEMM")]
    found, errors = fit.solve(("kernel_cycles", "round_cycles", "k_step_cycles"), made, constants(device("wse3")))
    assert found.kernel_cycles == pytest.approx(200)
    assert found.round_cycles == pytest.approx(50)
    assert found.k_step_cycles == pytest.approx(20)
    assert max(error for error in errors if error is not None) < 1e-6


def test_too_few_rows_to_determine_constants_are_refused() -> None:
    with pytest.raises(fit.UndeterminedError, match="1 rows do not determine"):
        fit.solve(("collective_cycles", "stage_cycles"), rows("MeshGEMV")[:1], constants(device("wse3")))
