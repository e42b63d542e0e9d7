"""The decoder's refusals and messages; where generation stops."""

import re
import weakref
from collections.abc import Mapping
from dataclasses import replace
from math import prod

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tiny import BIASED, drawn
from wafer_triton.count.account import Account
from wafer_triton.device import PRESETS
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.errors import CacheError, MeshError, ShapeError, SramError, WaferError
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.rotary import RopeScaling
from wafer_triton.place.need import param_shapes

pytestmark = pytest.mark.slow

CONFIG = replace(BIASED, qkv_bias=False, qk_norm=False)


DECODE_CALLS, PREFILL_CALLS = 285, 1000  # operations of torch a layer, on 8 x 8 cores


def decoder(config: DecoderConfig = CONFIG, mesh: Mesh | str = "2x3", **options) -> WaferForCausalLM:
    options = {"max_length": 20} | options
    return WaferForCausalLM.from_weights(config, drawn(config), mesh=as_mesh(mesh), **options)


@pytest.fixture(scope="module")
def one() -> WaferForCausalLM:
    return decoder()


@pytest.fixture
def model(one) -> WaferForCausalLM:
    one.reset()
    return one


def test_a_prompt_longer_than_the_cache(model):
    with pytest.raises(
        CacheError, match="21 tokens do not fit the KV cache of max_length = 20; give a larger max_length"
    ):
        model.prefill([1] * 21)
    assert model.count == 0
    assert model.prefill([1] * 20).shape == (31,)


def test_a_text_beyond_max_position_embeddings_is_refused():
    model = decoder(max_length=80, max_prompt=80)
    text = r"65 tokens are more than the 64 positions of decoder \(max_position_embeddings in its config.json\)"
    with pytest.raises(CacheError, match=text):
        model.prefill([1] * 65)
    with pytest.raises(CacheError, match=text):
        model.generate([1] * 60, 6)
    model.prefill([1] * 64)
    with pytest.raises(CacheError, match=text):
        model.step(1)
    stretched = decoder(replace(CONFIG, rope_scaling=RopeScaling("linear", 1.25)), max_length=81, max_prompt=80)
    assert stretched.prefill([1] * 80).isfinite().all()
    with pytest.raises(CacheError, match="more than the 80 positions"):
        stretched.step(1)


def test_a_step_into_a_full_cache(model):
    model.prefill([1] * 20)
    with pytest.raises(CacheError, match="21 tokens do not fit the KV cache"):
        model.step(1)
    assert model.count == 20


def test_prefill_needs_an_empty_cache(model):
    model.prefill([1, 2])
    with pytest.raises(CacheError, match=r"an empty cache, but this one holds 2 tokens; call reset\(\) first"):
        model.prefill([3])
    model.reset()
    model.prefill([3])


@pytest.mark.parametrize("token", [31, -1, 10**6])
def test_a_token_outside_the_vocabulary_is_named(model, token):
    with pytest.raises(ShapeError, match=f"token {token} is outside the vocabulary of 31"):
        model.prefill([3, token, 5])
    model.prefill([3])
    with pytest.raises(ShapeError, match=f"token {token} is outside the vocabulary of 31"):
        model.step(token)
    assert model.count == 1, "nothing half-done"


def test_a_mistake_leaves_the_decoder_usable(model):
    wanted = model.prefill([3, 4, 5])
    model.reset()
    for wrong in ([], [1] * 21, [99]):
        with pytest.raises(WaferError):
            model.prefill(wrong)
    assert torch.equal(model.prefill([3, 4, 5]), wanted)


# --- generation ---


def test_generation_stops_at_the_end_of_the_text(model):
    free = list(model.generate([3, 4], 12))
    assert len(free) == 12
    stop = next(token for token in free if token != free[0])
    stopping = decoder(replace(CONFIG, eos_token_ids=(stop, 30)))
    assert list(stopping.generate([3, 4], 12)) == free[: free.index(stop)], "the end is not given"
    assert list(decoder(replace(CONFIG, eos_token_ids=(free[0],))).generate([3, 4], 12)) == []


def test_generation_begins_anew_and_streams(model):
    first = list(model.generate([3, 4], 6))
    stream = model.generate([3, 4], 6)
    assert next(stream) == first[0] and model.count == 2
    assert [next(stream) for _ in range(3)] == first[1:4] and model.count == 5
    assert list(model.generate([3, 4], 6)) == first
    assert list(model.generate([3, 4], 0)) == []


def test_progress_and_account():
    seen = []
    model = decoder(progress=lambda *step: seen.append(step))
    assert seen == [("placing weights", 1, 2), ("placing weights", 2, 2)]
    model.prefill([1, 2, 3], progress=lambda *step: seen.append(step))
    assert seen[2:] == [("prefill", 1, 2), ("prefill", 2, 2)]
    first = model.account()
    model.step(4)
    second = model.account()
    assert second.rounds > first.rounds > 0 and second.link_bytes > first.link_bytes > 0
    assert 0 < second.sram_peak_bytes <= 49_152
    model.reset()
    assert model.account() == Account()


# --- memory ---


class Watched(Mapping):
    """Weights made when asked for; `most` bytes of them were alive at once."""

    def __init__(self, config: DecoderConfig) -> None:
        self.shapes, self.alive, self.most = param_shapes(config), 0, 0

    def __getitem__(self, name):
        weight = torch.ones(self.shapes[name])
        self.alive += weight.nbytes
        self.most = max(self.most, self.alive)
        weakref.finalize(weight.untyped_storage(), self.gone, weight.nbytes)
        return weight

    def gone(self, size: int) -> None:
        self.alive -= size

    def __iter__(self):
        return iter(self.shapes)

    def __len__(self):
        return len(self.shapes)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_placed_one_after_the_other(tied):
    config = replace(CONFIG, num_hidden_layers=12, tie_word_embeddings=tied)
    given = Watched(config)
    model = WaferForCausalLM.from_weights(config, given, mesh=as_mesh("2x3"), max_length=20)
    sizes = [4 * prod(shape) for shape in given.shapes.values()]
    assert 0 < given.most <= 3 * max(sizes) < sum(sizes) / 5, "queries, keys and values of a layer at most"
    assert model.prefill([1]).isfinite().all() and given.alive == 0


# --- work ---


class Calls(TorchDispatchMode):
    """Counts operations of torch."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def calls_of(run) -> int:
    with Calls() as calls:
        run()
    return calls.count


@pytest.mark.parametrize(("phase", "most"), [("decode", DECODE_CALLS), ("prefill", PREFILL_CALLS)])
def test_a_layer_takes_no_more_operations_of_torch_than_it_did(phase, most):
    """On a CPU a step is thousands of short operations: their number is its time, and the same on any machine."""
    counts = []
    for layers in (2, 4):
        model = decoder(replace(CONFIG, num_hidden_layers=layers), "8", max_length=24)
        model.prefill([1] * 9)
        model.step(2)
        if phase == "decode":
            counts.append(calls_of(lambda model=model: model.step(3)))
            assert calls_of(lambda model=model: model.step(3)) == counts[-1], "nothing piles up"
        else:
            model.reset()
            counts.append(calls_of(lambda model=model: model.prefill([1] * 9)))
    assert 0 < (counts[1] - counts[0]) / 2 <= most


# --- models that do not fit ---


def test_a_model_that_does_not_fit_the_device_says_by_how_much():
    small = replace(PRESETS["wse2"], name="small", rows=5, cols=7, sram_bytes=12 * 1024)
    with pytest.raises(MeshError) as caught:
        decoder(replace(CONFIG, num_hidden_layers=40), Mesh(2, 3, small))
    text = str(caught.value)
    numbers = re.fullmatch(
        r"decoder, prefill of \d+ tokens on mesh 2x3 does not fit small: its 81 blocks take (\d+) regions; on 5 x 7 "
        r"cores, laid out in rows, (\d+) regions of 2x3 find room, with (\d+) of the blocks; .*",
        text,
    )
    count, after, blocks = map(int, numbers.groups())
    assert after == 4 < count and 0 < blocks < 81
    roomy = replace(small, rows=2 * count + 2)
    regions = decoder(replace(CONFIG, num_hidden_layers=40), Mesh(2, 3, roomy)).regions
    assert len(regions) >= count, "the weights alone take as many"


def test_regions_hold_their_blocks_within_sram_and_do_not_overlap():
    small = replace(PRESETS["wse2"], name="small", rows=60, cols=7, sram_bytes=12 * 1024)
    model = decoder(replace(CONFIG, num_hidden_layers=9), Mesh(2, 3, small))
    assert len(model.regions) > 2
    cores = set()
    for region in model.regions:
        assert 0 < region.sram_peak_bytes == sum(region.sram_by_buffer.values()) <= 12 * 1024
        (top, left), (rows, cols) = region.mesh.origin, region.mesh.shape
        own = {(row, col) for row in range(top, top + rows) for col in range(left, left + cols)}
        assert not own & cores
        cores |= own
    blocks = [block for region in model.regions for block in region.blocks]
    assert blocks == [f"layer {layer} {kind}" for layer in range(9) for kind in ("attention", "ffn")] + ["head"]


def test_a_block_that_overflows_a_core_names_its_bytes():
    tiny = replace(PRESETS["wse2"], name="tiny", sram_bytes=2500)
    with pytest.raises(
        SramError, match=r"needs [\d,]+ B, [\d,]+ B over the 2,500 B of SRAM on tiny; the largest buffer"
    ):
        decoder(mesh=Mesh(2, 2, tiny))


def test_a_prompt_that_overflows_sram_names_the_longest_that_fits():
    small = replace(PRESETS["wse2"], name="small", sram_bytes=12 * 1024)
    model = decoder(mesh=Mesh(2, 2, small), max_length=64, max_prompt=4, head_groups=1)
    with pytest.raises(
        SramError, match=r"prefill of 64 tokens on mesh 2x2 overflows the 12,288 B .* at most \d+ tokens fit"
    ) as caught:
        model.prefill([1] * 64)
    longest = int(re.search(r"at most (\d+) tokens", str(caught.value)).group(1))
    assert model.prefill([1] * longest).isfinite().all()
    model.reset()
    with pytest.raises(SramError):
        model.prefill([1] * (longest + 1))
