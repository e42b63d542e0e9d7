"""Times of serving equal the estimates of one request, a whole batch and any chunk."""

from dataclasses import replace

import pytest

from wafer_triton.cost import inference, layers
from wafer_triton.cost.constants import constants
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ShapeError
from wafer_triton.serve.policies import Policy, Replacing
from wafer_triton.serve.simulate import simulate
from wafer_triton.serve.times import STRIDE, Priced
from wafer_triton.serve.workload import Request
from wafer_triton.shape.read import shape_of

pytestmark = pytest.mark.slow

CHIP = device("wse2")
C = constants(CHIP)


def placed(model, prefill, decode, input, output):
    return inference.request_placed(Mesh(prefill, prefill, CHIP), Mesh(decode, decode, CHIP), shape_of(model),
                                    input, output, C)  # fmt: skip


SMALL = ("smollm2-135m", 60, 40, 700, 90)


@pytest.mark.parametrize("case", [SMALL, ("qwen1.5-moe-a2.7b", 300, 300, 100, 10)])
def test_a_single_request_takes_the_estimated_time(case):
    model, *meshes, input, output = case
    if model.startswith("qwen1.5"):
        model = replace(shape_of(model), num_hidden_layers=2)
    place = placed(model, *meshes, input, output)
    wanted = inference.request_on(place, input, output, C)
    run = simulate([Request(0, 0.0, input, output)], Priced(place, batch=1, longest=input + output),
                   Policy(Replacing()))  # fmt: skip
    assert run.served[0].end == pytest.approx(wanted.seconds, rel=1e-3)
    assert run.busy["prefill"] == pytest.approx(wanted.prefill_seconds)
    assert run.served[0].end - run.busy["decode"] == pytest.approx(
        wanted.prefill_seconds + wanted.replacement_seconds, rel=1e-3
    )


@pytest.fixture(scope="module")
def priced():
    place = placed(*SMALL)
    return Priced(replace(place, decode=replace(place.decode, batch=4)), batch=8, longest=790, at_once=4)


@pytest.mark.parametrize("entries", [1, 5, 19])
def test_a_group_takes_its_base_time_and_the_attention_of_each_sequence(priced, entries):
    for count in (1, 2, 4):
        block = replace(priced.block, batch=count, entries=entries)
        whole = (
            layers.total(layers.decode_steps(block, entries * priced.rows, C)).cycles * block.shape.num_hidden_layers
        )
        apart = priced.latency(count, count * priced.attend(entries)) - priced.latency(count, 0.0)
        ends = sum(layers.total(each).cycles for each in inference.ends(priced.block, count, C, count)) / CHIP.clock_hz
        base = layers.total(layers.decode_steps(replace(block, entries=1), priced.rows, C)).cycles
        assert apart * CHIP.clock_hz == pytest.approx(whole - base * block.shape.num_hidden_layers)
        assert priced.latency(count, 0.0) == pytest.approx(
            base * block.shape.num_hidden_layers / CHIP.clock_hz + ends, rel=0.01
        ), "the hand-overs between regions are the rest"


def test_the_regions_of_decode_share_the_latency(priced):
    each = priced.stages_of_decode(2)
    assert sum(each) == pytest.approx(priced.latency(2, 0.0)) and len(each) == len(priced.place.regions)
    assert max(each) == priced.slowest(2, 0.0)
    attentions = [held.get("attention", 0) for held in priced.regions]
    more = 1e-5
    assert priced.slowest(2, more) == pytest.approx(max(a + n * more for a, n in zip(each, attentions, strict=True)))


def test_chunks_of_the_size_that_cores_hold_add_up_to_the_prompt(priced):
    size = priced.place.chunk_tokens * priced.side
    whole = sum(priced.stages(700, 0, True))
    parts = sum(sum(priced.stages(min(size, 700 - past), past, past + size >= 700)) for past in range(0, 700, size))
    assert parts == pytest.approx(whole)
    assert sum(priced.stages(700, 0, False)) < whole, "the head takes the last token alone"


def test_keys_and_values_are_interpolated_to_less_than_a_hundredth_of_a_token(priced):
    counts = range(STRIDE // 4, 700, STRIDE // 4)
    errors = [abs(priced.hand_over(count) - priced.hand_over_exactly(count)) for count in counts]
    assert 0 < max(errors) < 0.01 * priced.latency(1, 0.0)


def test_a_larger_group_than_the_cores_hold_is_refused(priced):
    with pytest.raises(ShapeError, match="at_once = 5 sequences of a group, but the cores of decode have the buffers "):
        Priced(priced.place, batch=8, longest=9, at_once=5)
