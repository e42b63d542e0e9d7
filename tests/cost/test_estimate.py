"""Estimates: the paper's shapes, and the command line."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from wafer_triton import estimate
from wafer_triton.algorithms.product import recipe
from wafer_triton.cli import main as cli
from wafer_triton.compare.sweep import LEGEND
from wafer_triton.cost import inference, layers
from wafer_triton.cost.constants import constants
from wafer_triton.cost.phases import phases
from wafer_triton.cost.price import best_groups, price
from wafer_triton.count.routes import routes
from wafer_triton.decoder import decode, prefill
from wafer_triton.decoder.block import drafted
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.errors import ConfigError, ShapeError
from wafer_triton.schedule.builder import Builder
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.published import MODELS
from wafer_triton.shape.read import shape_of


def square(on: str, side: int, n: int, algorithm: str = "mesh") -> estimate.Kernel:
    return estimate.gemm(device=on, mesh=side, m=n, k=n, n=n, algorithm=algorithm)


@pytest.mark.slow
@pytest.mark.parametrize(("on", "rival"), [("wse2", "summa"), ("wse3", "cannon")])
def test_meshgemm_beats_its_rivals_on_many_cores(on: str, rival: str) -> None:
    mesh = {side: square(on, side, 2048).cycles for side in (360, 720)}
    other = {side: square(on, side, 2048, rival).cycles for side in (360, 720)}
    assert other[720] >= 2 * mesh[720]
    assert other[720] / other[360] > mesh[720] / mesh[360]


@pytest.mark.slow
@pytest.mark.parametrize("on", ["wse2", "wse3"])
def test_more_cores_put_less_on_each_link(on: str) -> None:
    """Check that link cycles of an 8K product fall with more cores; their share of the time does not (see the docs)."""
    few, many = square(on, 360, 8192), square(on, 720, 8192)
    assert many.link_cycles < few.link_cycles
    assert many.cycles < few.cycles


@pytest.mark.slow
@pytest.mark.parametrize("on", ["wse2", "wse3"])
@pytest.mark.parametrize("n", [720, 16384])
def test_meshgemv_is_four_to_eight_times_faster_than_the_pipeline(on: str, n: int) -> None:
    ktree, pipeline = (
        estimate.gemv(device=on, mesh=720, k=n, n=n, algorithm=one).cycles for one in ("ktree", "pipeline")
    )
    assert 4 <= pipeline / ktree <= 8


@pytest.mark.slow
def test_decode_slows_with_more_cores() -> None:
    speeds = [estimate.decode(model="llama3-8b", mesh=side, context=4096).tokens_per_second for side in (480, 660, 720)]
    assert speeds == sorted(speeds, reverse=True)


@pytest.mark.slow
def test_prefill_gains_from_more_cores() -> None:
    given = {"model": "llama3-8b", "tokens": 4096, "program": "paper-benchmark"}
    speeds = [estimate.prefill(mesh=side, **given).tokens_per_second for side in (480, 600, 720)]
    assert speeds == sorted(speeds)


def test_kv_capacity_of_the_paper() -> None:
    held = estimate.kv(device="wse2", model="llama3-8b", mesh=360, program="paper-benchmark")
    assert held.concat_tokens == pytest.approx(382, rel=0.02)
    assert held.shift_tokens == pytest.approx(137_548, rel=0.02)
    assert held.shift_tokens == 360 * held.concat_tokens


@pytest.mark.parametrize("mesh, rows", [("300x400", 300), ("400x300", 400)])
def test_kv_ratio_is_the_number_of_rows(mesh: str, rows: int) -> None:
    held = estimate.kv(model="qwen2.5-7b", mesh=mesh)
    assert held.shift_tokens == rows * held.concat_tokens


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
    own, large = device("wse2"), replace(device("wse2"), rows=2000, cols=2000)
    many, one = (estimate.prefill(device=each, model="llama3-8b", mesh=480, tokens=4096) for each in (own, large))
    assert (many.chunks, one.chunks) == (5, 1) and one.tokens_per_second > 2 * many.tokens_per_second
    asked = {"model": "llama3-8b", "prefill_mesh": 480, "decode_mesh": 360, "input": 4096, "output": 8}
    place = estimate.request_place(**asked)
    assert estimate.request(**asked).chunks == -(-9 // place.at_once) == 5  # 4,096 tokens are 9 a row
    assert estimate.decode(model="llama3-8b", mesh=360, context=4096).chunks is None


@pytest.mark.slow
def test_a_request_for_one_token_ends_with_prefill() -> None:
    made = estimate.request(model="llama3-8b", prefill_mesh=300, decode_mesh=360, input=355, output=1)
    assert made.seconds == made.prefill_seconds and made.joules == made.seconds * device("wse2").power_watts
    assert (made.decode_seconds, made.replacement_seconds) == (0.0, 0.0)
    assert made.tokens_per_second == 1 / made.prefill_seconds


@pytest.mark.slow
def test_a_long_answer_is_priced_at_some_of_its_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"model": "smollm2-135m", "prefill_mesh": 40, "decode_mesh": 40, "input": 100, "output": 4000}
    every = estimate.request(**sizes).decode_seconds
    monkeypatch.setattr(inference, "MOST_STEPS", 10)
    assert estimate.request(**sizes).decode_seconds == pytest.approx(every, rel=0.01)


@pytest.mark.parametrize("program, number", [("paper-benchmark", 10), ("full", 9)])
def test_one_layer_has_ten_all_reduces_or_nine(program: str, number: int) -> None:
    """Check that the full program sums softmax's weights together with the weighted values."""
    on, c = Mesh(60, 60), constants(device("wse2"))
    block = layers.decode_block(shape_of("llama3-8b"), on, 128, c, program=program)
    parts = [drafted(part, block, *args) for part, args in decode.layer(block, 128)]
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


def test_presets_cover_the_models() -> None:
    assert {"llama3-8b", "llama2-13b", "codellama-34b", "qwen2-72b", "smollm2-135m"} <= set(MODELS)
    assert shape_of("qwen3-0.6b").q_width == 2048
    assert shape_of("llama3-8b").kv_width == 1024


def write_config(folder: Path, **more: object) -> str:
    values = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "rope_theta": 1e4,
    }
    path = folder / "config.json"
    path.write_text(json.dumps(values | more))
    return str(path)


def test_a_config_file_is_a_model(tmp_path: Path) -> None:
    path = write_config(tmp_path, num_key_value_heads=2)
    assert shape_of(path) == DecoderShape(64, 128, 2, 4, 2, 16, 0, name=tmp_path.name)
    assert shape_of(str(tmp_path)) == shape_of(path)
    assert estimate.decode(model=path, mesh=8, context=32).layers == 2


@pytest.mark.parametrize(
    "more, message",
    [
        ({"num_experts": 8}, "num_experts = 8 is not computed here; only models without it"),
        ({"attention_chunks": 4}, "unknown key 'attention_chunks'; .* or take it out if it changes nothing that"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": -64}, "hidden_size = -64 must be a positive integer"),
        ({"num_key_value_heads": 3}, "num_attention_heads = 4 is not a multiple of num_key_value_heads = 3"),
    ],
)
def test_a_bad_config_file(tmp_path: Path, more: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shape_of(write_config(tmp_path, **more))


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


GEMM_KEYS = "cycles compute_cycles communication_cycles rounds hops routes sram_peak_bytes seconds"
DECODE_KEYS = "cycles_per_layer tokens_per_second communication_cycles_per_layer"
LAYER = "--model dim=2160,ffn=7200,heads=1,layers=1 --mesh 240 --context 2160 --groups 10"


@pytest.mark.slow
@pytest.mark.parametrize(
    "line, keys",
    [
        ("product --device wse3 --mesh 72 --m 5760 --k 720 --n 5760 --algorithm mesh --dtype fp16", GEMM_KEYS),
        ("product --device wse3 --mesh 72x36 --k 720 --n 720 --algorithm ktree --groups 4", GEMM_KEYS),
        ("decode --device wse2 --model smollm2-135m --mesh 48 --context 4096 --groups 8", DECODE_KEYS),
        (f"decode --device wse3 {LAYER}", DECODE_KEYS),
        ("prefill --model smollm2-135m --mesh 48 --tokens 96", "tokens_per_second cycles_per_layer"),
        (
            "request --device wse2 --model smollm2-135m --prefill-mesh 32 --decode-mesh 32 --input 64 --output 12",
            "tokens_per_second prefill_seconds decode_seconds",
        ),
        ("decode --device wse2 --model llama3-8b --mesh 360", "concat_tokens shift_tokens"),
    ],
)
def test_command_line(line: str, keys: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["estimate", *line.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(keys.split()) <= set(found)
    assert cli.main(["estimate", *line.split()]) == 0
    shown = capsys.readouterr().out
    assert "predicted on the wafer" in shown
    assert all(LEGEND.label(key) in shown for key in keys.split())


@pytest.mark.slow
def test_estimating_needs_no_torch() -> None:
    code = (
        "import sys; from wafer_triton.cli import main as cli\n"
        "for one in ('torch', 'triton', 'transformers'): sys.modules[one] = None\n"
        "sys.exit(cli.main('estimate request --model smollm2-135m --prefill-mesh 32 --decode-mesh 32 --input 64'\n"
        "                  ' --output 8'.split()))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["20x60", "40x60", "33x66", "34", "10x70"])
def test_prefill_needs_the_routes_of_its_schedule(mesh: str) -> None:
    on = as_mesh(mesh, replace(device("wse2"), sram_bytes=2**40))
    one = layers.prefill_block(DecoderShape(2, 2, 1, 7, 7, 2, 0), on, constants(on.device))
    (seven,) = layers.prefill_head_group_choices(one, 1, constants(on.device), 7)
    for block in (replace(one, groups=None), replace(seven, groups=(3,))):
        b = Builder(block.mesh, "prefill attention")
        prefill.attention(b, block, 1, 0)
        assert layers.total(layers.prefill_steps(block, 1, constants(on.device))).routes == routes(b.build()).colours
