"""Fitted constants name their source, and a fit finds what predictions were made of."""

import pytest

from wafer_triton.cost.calibrate import fit
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
