"""Estimates of products, layers, requests and caches: the paper's shapes, and the schedules that run."""

from dataclasses import replace

import pytest

from wafer_triton import estimate
from wafer_triton.algorithms.product import recipe
from wafer_triton.cost import inference, layers
from wafer_triton.cost.constants import constants
from wafer_triton.cost.phases import phases
from wafer_triton.cost.price import best_groups, price
from wafer_triton.decoder import decode
from wafer_triton.decoder.block import draft
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ShapeError
from wafer_triton.shape.read import shape_of


@pytest.mark.slow
def test_meshgemm_beats_its_rival_on_many_cores() -> None:
    mesh, other = (
        {
            side: estimate.gemm(device="wse3", mesh=side, m=2048, k=2048, n=2048, algorithm=one).cycles
            for side in (360, 720)
        }
        for one in ("mesh", "cannon")
    )
    assert other[720] >= 2 * mesh[720]
    assert other[720] / other[360] > mesh[720] / mesh[360]


@pytest.mark.slow
@pytest.mark.parametrize("on", ["wse2", "wse3"])
def test_meshgemv_is_four_to_eight_times_faster_than_the_pipeline(on: str) -> None:
    ktree, pipeline = (
        estimate.gemv(device=on, mesh=720, k=16384, n=16384, algorithm=one).cycles for one in ("ktree", "pipeline")
    )
    assert 4 <= pipeline / ktree <= 8


def test_kv_capacity_of_the_paper() -> None:
    held = estimate.kv(device="wse2", model="llama3-8b", mesh=360, program="paper-benchmark")
    assert held.concat_tokens == pytest.approx(382, rel=0.02)
    assert held.shift_tokens == pytest.approx(137_548, rel=0.02)
    assert held.shift_tokens == 360 * held.concat_tokens


def test_kv_ratio_is_the_number_of_rows() -> None:
    held = estimate.kv(model="smollm2-135m,layers=1", mesh="40x60", head_groups=1)
    assert held.shift_tokens == 40 * held.concat_tokens


def test_a_gemv_of_several_vectors_is_the_schedule_of_their_rows() -> None:
    c, given = constants(device("wse2")), {"mesh": 48, "k": 576, "n": 1536}
    one, four = estimate.gemv(**given), estimate.gemv(**given, m=4)
    assert estimate.gemv(**given, m=1) == one
    options = (("algorithm", "ktree"), ("groups", best_groups(48, c)), ("sums", "fp16"))
    whole = price(recipe("gemv", Mesh(48, 48), "fp16", ((4, 576), (576, 1536)), options).schedule, c)
    assert four.cycles == pytest.approx(whole.cycles + c.kernel_cycles) and four.link_bytes == 4 * one.link_bytes
    assert "GEMV of several vectors was not measured" in str(four.outside) and four.error_band > one.error_band
    with pytest.raises(ShapeError, match="m = 0 must be a whole number of at least 1"):
        estimate.gemv(**given, m=0)


def test_energy_of_the_papers_gemv() -> None:
    found = estimate.energy(device="wse2", seconds=1.2e-6, against="a100", against_seconds=0.336e-3)
    assert found.energy_ratio == pytest.approx(7.47, rel=0.02)
    eight = estimate.energy(seconds=1.2e-6, against="a100", against_seconds=0.336e-3, gpus=8)
    assert eight.energy_ratio == pytest.approx(8 * found.energy_ratio)


@pytest.mark.slow
def test_a_request_is_the_sum_of_its_tokens() -> None:
    """Check that prefill makes the first token, and that the first step adds it to the prompt's in the cache."""
    made = estimate.request(model="llama3-8b", prefill_mesh=300, decode_mesh=360, input=355, output=12)
    tokens = (
        estimate.decode(model="llama3-8b", mesh=360, context=355 + number, head_groups=made.head_groups)
        for number in range(1, 12)
    )
    each = sum(token.seconds for token in tokens)
    assert made.decode_seconds == pytest.approx(each, rel=0.01)  # regions hand the activation on as well
    assert made.decode_seconds >= each
    assert made.seconds == pytest.approx(made.prefill_seconds + made.replacement_seconds + made.decode_seconds)
    assert made.tokens_per_second == pytest.approx(12 / made.seconds)
    assert made.prefill_seconds == estimate.prefill(model="llama3-8b", mesh=300, tokens=355).seconds


@pytest.mark.slow
def test_the_chunks_of_a_prompt_are_named() -> None:
    """Check that a device with room for more regions needs no chunks, and that chunks are the placement's."""
    own, model = device("wse2,rows=300,cols=400,sram_kib=24"), "smollm2-135m"
    large = replace(own, rows=2000, cols=2000)
    many, one = (estimate.prefill(device=each, model=model, mesh=100, tokens=2048) for each in (own, large))
    assert (many.chunks, one.chunks) == (2, 1) and one.tokens_per_second > 1.1 * many.tokens_per_second
    asked = {"device": own, "model": model, "prefill_mesh": 100, "decode_mesh": 100, "input": 2048, "output": 8}
    place = estimate.request_place(**asked)
    assert estimate.request(**asked).chunks == -(-21 // place.chunk_tokens) == 2  # 2,048 tokens are 21 a row
    assert estimate.decode(model=model, mesh=100, context=2048).chunks is None


@pytest.mark.slow
def test_a_request_for_one_token_ends_with_prefill() -> None:
    made = estimate.request(model="llama3-8b", prefill_mesh=300, decode_mesh=360, input=355, output=1)
    assert made.seconds == made.prefill_seconds and made.joules == made.seconds * device("wse2").power_watts
    assert (made.decode_seconds, made.replacement_seconds) == (0.0, 0.0)
    assert made.tokens_per_second == 1 / made.prefill_seconds


@pytest.mark.slow
def test_a_long_answer_is_priced_at_some_of_its_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"model": "smollm2-135m", "prefill_mesh": 40, "decode_mesh": 40, "input": 100, "output": 1500}
    every = estimate.request(**sizes).decode_seconds
    monkeypatch.setattr(inference, "MOST_STEPS", 10)
    assert estimate.request(**sizes).decode_seconds == pytest.approx(every, rel=0.01)


@pytest.mark.parametrize("program, number", [("paper-benchmark", 10), ("full", 9)])
def test_one_layer_has_ten_all_reduces_or_nine(program: str, number: int) -> None:
    """Check that the full program sums softmax's weights together with the weighted values."""
    on, c = Mesh(60, 60), constants(device("wse2"))
    block = layers.decode_block(shape_of("llama3-8b"), on, 128, c, program=program)
    parts = [draft(part, block, *args) for part, args in decode.layer(block, 128)]
    streams = [phase for part in parts for phase in phases(part) if phase.kind == "stream"]
    assert sum(phase.times for phase in streams) == number


def test_a_decode_step_is_the_gemv_that_runs() -> None:
    on, c = Mesh(48, 48), constants(device("wse2")).of("decode")
    block = layers.decode_block(shape_of("smollm2-135m"), on, 128, constants(on.device), program="paper-benchmark")
    steps, groups = layers.decode_steps(block, 128, constants(on.device)), best_groups(48, c)
    for name, k, n, axis in (("gate and up", 576, 2 * 1536, "y"), ("down", 1536, 576, "x")):
        options = (("axis", axis), ("groups", groups), ("sums", "fp16"))
        whole = price(recipe("gemv", on, "fp16", ((1, k), (k, n)), options).schedule, c)
        assert steps[name].cycles == pytest.approx(whole.cycles, rel=1e-12)


def test_the_paper_benchmark_program_is_a_shape() -> None:
    measured = shape_of("llama3-8b").paper_benchmark()
    assert (measured.num_attention_heads, measured.head_dim, measured.kv_width) == (1, 4096, 4096)
    found = {program: estimate.decode(model="llama3-8b", mesh=360, context=4096, program=program)
             for program in ("full", "paper-benchmark")}  # fmt: skip
    assert found["paper-benchmark"].head_cycles == 0 < found["full"].head_cycles
    assert {"rope", "kv shift"} <= found["full"].steps.keys() - found["paper-benchmark"].steps.keys()
    with pytest.raises(ShapeError, match="program 'paper': choose 'full', the model's own, or 'paper-benchmark'"):
        estimate.decode(model="llama3-8b", mesh=360, context=4096, program="paper")


def test_a_product_is_a_gemm_or_a_gemv() -> None:
    sizes = {"mesh": 8, "k": 64, "n": 48}
    assert estimate.product(**sizes) == estimate.gemv(**sizes)
    assert estimate.product(m=2, algorithm="ring", **sizes) == estimate.gemv(m=2, algorithm="ring", **sizes)
    assert estimate.product(m=32, dtype="fp32", **sizes) == estimate.gemm(m=32, dtype="fp32", **sizes)
    assert estimate.product(m=32, algorithm="summa", **sizes) == estimate.gemm(m=32, algorithm="summa", **sizes)
    with pytest.raises(ShapeError, match="product by 'cannon': give m"):
        estimate.product(algorithm="cannon", **sizes)
    with pytest.raises(ShapeError, match="product by 'mesh': groups are of a K-tree"):
        estimate.product(m=32, groups=2, **sizes)
