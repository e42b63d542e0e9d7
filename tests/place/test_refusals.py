"""A run and an estimate refuse a model that does not fit with the same message; prefill's weights are checked first."""

import pytest

from answers import Case, request_of, run_place
from wafer_triton import estimate
from wafer_triton.cost.constants import constants
from wafer_triton.cost.inference import prefill_choices
from wafer_triton.cost.layers import decode_blocks
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import SramError
from wafer_triton.models.random import config_of
from wafer_triton.place import regions
from wafer_triton.place.regions import FullError


@pytest.mark.parametrize(
    ("decode", "prefill", "reason"),
    [
        (420, 660, "decode with 4,200 tokens of cache"),
        (360, 660, "prefill of 2,048 tokens"),
    ],
)
def test_a_refusal_names_the_phase_that_fails(decode, prefill, reason):
    config = config_of("llama3-8b")
    case = Case("llama3-8b", "wse2", f"{decode}x{decode}", f"{prefill}x{prefill}", 4096)
    with pytest.raises(FullError, match=rf"^llama3-8b, {reason} on mesh \d+x\d+ does not fit wse2") as run:
        run_place(config, case)
    with pytest.raises(FullError) as estimated:
        estimate.request(**request_of(config, case))
    assert str(estimated.value) == str(run.value)


def refused(place, *args):
    """Return the reason why a placement is refused, or None."""
    try:
        place(*args)
    except (SramError, FullError) as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("model", "side", "hold"),
    [
        ("llama3.2-1b", 480, [True, True, True]),
        ("llama3-8b", 720, [True, True, False]),  # one head group has the most padding
        ("llama3-8b", 420, [False, False, False]),
        ("olmoe-1b-7b", 144, [False, False, False, True, True, True]),  # experts over the whole mesh, then in regions
    ],
)
def test_weights_are_refused_alone_if_and_only_if_no_choice_of_prefill_holds_them(model, side, hold):
    """Compare the quick check, of the first choice and of the smallest, with a check of every choice."""
    shape, mesh = config_of(model), Mesh(side, side, device("wse2"))
    c = constants(mesh.device)
    choices = prefill_choices(mesh, shape, 64, c, "full", None)
    (decode, *_) = decode_blocks(shape, mesh, 64, c)

    def alone(*own):
        return refused(regions._check_weights, decode, own, 64, "rectangles")

    each = [alone(choice) for choice in choices]
    assert [reason is None for reason in each] == hold
    assert alone(*choices) in (each if not any(hold) else [None])
