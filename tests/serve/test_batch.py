"""Decode of a batch: turns by hand for equal and unequal regions, the price of one sequence, and the tokens of each."""

from dataclasses import dataclass, replace

import pytest

from tiny import CONFIG
from wafer_triton import estimate
from wafer_triton.cost.constants import constants
from wafer_triton.cost.inference import batch_placed
from wafer_triton.cost.layers import decode_blocks
from wafer_triton.cost.price import priced
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ShapeError, SramError
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.place import moves
from wafer_triton.place.regions import decode_regions
from wafer_triton.serve.batch import Batched, batch, sizes_of
from wafer_triton.serve.pipeline import group_sizes, period
from wafer_triton.shape.read import shape_of

pytestmark = pytest.mark.slow

WSE2 = device("wse2")
ROOMY = replace(WSE2, name="roomy", rows=10_000, cols=10_000)
LLAMA = {"model": "llama3.2-1b", "mesh": 100, "context": 1024}
OLMOE = {"model": "olmoe-1b-7b", "mesh": 360, "context": 1024}


@dataclass
class Regions:
    """Times of regions that take a fixed time for each sequence of a group, whatever its cache."""

    seconds: tuple[float, ...]

    def attend(self, entries):
        return 0.0

    def latency(self, count, attending):
        return count * sum(self.seconds)

    def slowest(self, count, attending):
        return count * max(self.seconds)


@pytest.mark.parametrize(
    ("seconds", "sizes", "turn"),
    [
        ((1.0, 4.0, 1.0), [1, 1], 8.0),  # the region of 4 s has two groups, which is more than the latency of 6 s
        ((1.0, 4.0, 1.0), [2, 2, 1], 20.0),  # five sequences in the region of 4 s
        (
            (3.0, 1.0),
            [3, 1],
            12.0,
        ),  # the latency of the group of three, which the region of 3 s takes for all four, too
    ],
)
def test_a_turn_takes_the_time_derived_by_hand(seconds, sizes, turn):
    assert period(Regions(seconds), [[1] * size for size in sizes]) == turn


def test_decode_takes_the_time_of_a_request_of_two_tokens_in_the_same_regions():
    asked = estimate.request(model="llama3.2-1b", prefill_mesh=120, decode_mesh=100, input=1023, output=2)
    token = estimate.decode(model="llama3.2-1b", mesh=100, context=1024)
    assert token.regions == asked.decode_regions == 7
    assert token.seconds == pytest.approx(asked.decode_seconds, rel=1e-9)


def test_one_sequence_takes_the_token_of_the_estimate():
    alone = estimate.decode(**LLAMA)
    found = batch(**LLAMA)
    block = batch_placed(decode_blocks(shape_of("llama3.2-1b"), Mesh(100, 100, WSE2), 1024, constants(WSE2)), 1)
    meshes = [region.mesh for region in decode_regions(block)]
    handing = priced(((step, 1) for step in moves.hand_overs(meshes, block)), constants(WSE2))
    assert alone.between_regions_cycles == pytest.approx(handing.cycles) and handing.cycles > 0
    assert found.seconds == pytest.approx(alone.seconds, rel=1e-9)
    assert found.seconds == found.latency_seconds and found.bound == "latency" and found.falls is None
    assert (found.regions, found.sram_peak_bytes) == (alone.regions, alone.sram_peak_bytes)


def test_the_fastest_size_of_groups_is_taken_and_throughput_latency_and_energy_agree():
    sizes = {size: batch(**LLAMA, batch=4, at_once=size) for size in sizes_of(4)}
    for size, found in sizes.items():
        assert found.sequence_groups == 4 // size
        assert found.seconds == max(found.latency_seconds, found.busiest_seconds)
        assert found.tokens_per_second == pytest.approx(4 * found.user_tokens_per_second)
        assert found.tokens_per_second == pytest.approx(4 / found.seconds)
        assert found.joules_per_token == pytest.approx(15_000 * found.seconds / 4)
    assert sizes[4].tokens_per_second == pytest.approx(sizes[4].one_group_tokens_per_second)
    best = batch(**LLAMA, batch=4)
    assert best == max(sizes.values(), key=lambda each: each.tokens_per_second)
    assert best.tokens_per_second > best.one_group_tokens_per_second, "groups keep more regions busy"


def test_fewer_sequences_take_no_longer_than_more():
    turns = {size: batch(**LLAMA, batch=size) for size in (4, 8, 16)}
    seconds = [found.seconds for found in turns.values()]
    assert seconds == sorted(seconds)
    assert turns[8].regions == 12, "8 sequences lay in 8 regions and took longer than 16 in 12"


def test_of_all_head_groups_the_fastest_for_the_batch_are_taken():
    """With those that are fastest for one sequence slower hops made a turn of 8 faster, from 657 to 513 us."""
    model = {"model": "qwen2.5-0.5b", "mesh": 200, "context": 1024, "batch": 8}
    found = batch(**model)
    each = (batch(**model, head_groups=own.head_groups) for own in decode_blocks(
        shape_of("qwen2.5-0.5b"), Mesh(200, 200, WSE2), 1024, constants(WSE2)
    ))  # fmt: skip
    assert found == min(each, key=lambda one: one.seconds)
    assert found.seconds < batch(**model, device="wse2,hop_cycles=2").seconds


def test_groups_are_as_equal_as_they_can_be():
    assert group_sizes(7, 3) == [3, 2, 2] and group_sizes(4, 1) == [4] and group_sizes(5, 5) == [1] * 5
    assert sizes_of(1) == [1] and sizes_of(8) == [1, 2, 4, 8] and sizes_of(12) == [1, 2, 4, 8, 12]


def test_a_mixture_is_slower_in_a_group_of_sixteen_than_of_eight_and_the_reason_is_named():
    chips = {8: WSE2, 16: ROOMY}
    speeds = {size: estimate.cap(**OLMOE, device=chip, batch=size).tokens_per_second for size, chip in chips.items()}
    assert {size: round(speed) for size, speed in speeds.items()} == {8: 13_100, 16: 10_583}
    found = batch(**OLMOE, device=ROOMY, batch=16)
    assert found.falls == (
        "gate and up takes 1,594 cycles a token and layer, with 8 sequences 439.9; its local products have 1 row and "
        "2 rows, and several rows take a loop over k"
    )
    assert found.at_once <= 8 and found.tokens_per_second > max(speeds.values())


def test_every_batch_says_that_it_was_not_measured():
    one, four = batch(**LLAMA), batch(**LLAMA, batch=4)
    assert "decode of several sequences was not measured" in four.outside and four.error_band > one.error_band
    assert isinstance(one, Batched) and "several sequences" not in one.outside
    byte = batch(**LLAMA, dtype="fp8")
    assert "weights in fp8 were not measured" in byte.outside and byte.error_band > one.error_band
    caps = [estimate.cap(**LLAMA, batch=count) for count in (1, 4)]
    assert ["decode of several sequences was not measured" in str(each.outside) for each in caps] == [False, True]


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"batch": 0}, ShapeError, "batch = 0 must be a whole number of at least 1"),
        (
            {"batch": 4, "at_once": 5},
            ShapeError,
            "at_once = 5: a group has no more sequences than the batch, 4; give f",
        ),
        ({"at_once": 0}, ShapeError, "at_once = 0 must be a whole number of at least 1"),
        ({"batch": 5000}, ShapeError, "batch = 5,000 is more than the 1,024 sequences that are taken here"),
        ({"batch": 64}, SramError, "llama3.2-1b, decode, ffn on mesh 100x100: every core needs 76,038 B"),
    ],
)
def test_a_wrong_batch_is_refused(changed, error, message):
    with pytest.raises(error) as raised:
        batch(**LLAMA | changed)
    assert message in str(raised.value)


PROMPTS = [[5, 7, 11], [3], [200, 100, 50, 25], [9, 8]]
STEPS = 4


def model(sequences):
    return WaferForCausalLM.from_config(
        CONFIG | {"num_hidden_layers": 2}, mesh=2, max_length=12, max_prompt=8, batch=sequences, seed=7,
        emulate_on="cpu",
    )  # fmt: skip


@pytest.mark.parametrize("at_once", [1, 2])
def test_groups_in_a_pipeline_have_the_tokens_of_single_sequences(at_once):
    one = model(1)
    alone = [list(one.generate(prompt, STEPS)) for prompt in PROMPTS]
    assert len(set(map(tuple, alone))) > 1, "answers differ"
    many = model(len(PROMPTS))
    assert len(many.regions) >= 1
    coming = [int(many.prefill(prompt, sequence=slot).argmax()) for slot, prompt in enumerate(PROMPTS)]
    found = [[token] for token in coming]
    groups = [range(start, start + at_once) for start in range(0, len(PROMPTS), at_once)]
    for _ in range(STEPS - 1):
        for group in groups:  # each passes all regions while the others rest
            logits = many.advance([coming[slot] if slot in group else None for slot in range(len(PROMPTS))])
            for slot in group:
                coming[slot] = int(logits[slot].argmax())
                found[slot].append(coming[slot])
    assert found == alone
