"""Models whose matrices are stored in int8 or fp8: values of torch's own rounding, and bytes of the format."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from tiny import MIXTURE, checkpoint
from wafer_triton.cli.main import main
from wafer_triton.device.dtype import STORED
from wafer_triton.errors import CheckpointError, DtypeError
from wafer_triton.models.checkpoint.checkpoint import Checkpoint
from wafer_triton.models.convert import convert
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.place.cuts import fill, held_tile
from wafer_triton.models.place.storage import converted, magnitude
from wafer_triton.models.precision import perplexity
from wafer_triton.ops import executor
from wafer_triton.place.need import weights_of

PROMPT, TEXT = [5, 1, 9, 200], [int(token) for token in torch.arange(40) * 37 % 256]
SMALL = {"mesh": 4, "max_length": 16, "head_groups": 1}


def reference(weight: torch.Tensor, stored: str) -> torch.Tensor:
    """Return a matrix in fp16 by way of torch's own types of one byte."""
    weight = weight.half().float()
    if stored == "fp8":
        scale = weight.abs().max() / 448
        return ((weight / scale).to(torch.float8_e4m3fn).float() * scale).half()
    scale = weight.abs().max() / 127
    return ((weight / scale).round().to(torch.int8).float() * scale).half()


def is_matrix(name: str) -> bool:
    """Return whether a parameter is stored: norms, biases and routers are not."""
    return not name.endswith(("norm.weight", "bias", "mlp.gate.weight"))


def rounded(weights, stored: str) -> dict[str, torch.Tensor]:
    """Return a model's weights as a core computes with them."""
    return {name: reference(each, stored) if is_matrix(name) else each.half() for name, each in weights.items()}


@pytest.fixture(params=["dense", "mixture", "tied"])
def folder(request, tmp_path):
    base = {"mixture": {"base": MIXTURE}, "tied": {"config": {"tie_word_embeddings": True}}}.get(request.param, {})
    path = checkpoint(tmp_path / "model", **base)
    if request.param == "tied":
        weights = load_file(path / "model.safetensors")
        save_file({name: each for name, each in weights.items() if "lm_head" not in name}, path / "model.safetensors")
    return path


@pytest.mark.parametrize("stored", STORED)
def test_a_number_is_rounded_as_torch_rounds_it(stored) -> None:
    drawn = torch.randn(64, 48, generator=torch.Generator().manual_seed(1)).half()
    assert torch.equal(converted(drawn, stored, magnitude(drawn)), reference(drawn, stored))
    again = converted(drawn, stored, magnitude(drawn))
    assert torch.equal(converted(again, stored, magnitude(again)), again)
    if stored == "int8":  # torch multiplies by the inverse of the scale, so that ties may go the other way
        wide, step = drawn.float(), float(magnitude(drawn) / 127)
        usual = torch.fake_quantize_per_tensor_affine(wide, step, 0, -127, 127)
        assert ((usual - again.float()).abs() > step / 2).float().mean() < 0.01
    assert torch.equal(converted(torch.zeros(3), stored, magnitude(torch.zeros(3))), torch.zeros(3).half())
    assert len(converted(drawn, stored, magnitude(drawn)).unique()) <= 256 < len(drawn.unique())
    assert not converted(torch.zeros(0), stored, magnitude(torch.zeros(0))).numel()


@pytest.mark.parametrize(
    ("folder", "stored"), [("dense", "int8"), ("mixture", "fp8"), ("tied", "int8")], indirect=["folder"]
)
def test_a_run_has_the_bits_of_weights_that_torch_rounded(folder, stored) -> None:
    opened = Checkpoint(folder)
    own = WaferForCausalLM.from_pretrained(opened, dtype=stored, **SMALL)
    weights = rounded(opened.weights(), stored)
    plain = WaferForCausalLM.from_weights(opened.config, weights, dtype="fp16", **SMALL)
    for name, weight in own.state_dict().items():
        assert torch.equal(weight, plain.state_dict()[name]), name
    assert own.config.weights == stored and plain.config.weights is None
    assert list(own.generate(PROMPT, 5)) == list(plain.generate(PROMPT, 5))
    assert own.account().hops == plain.account().hops and own.account().link_bytes < plain.account().link_bytes
    assert own.regions[0].sram_peak_bytes < plain.regions[0].sram_peak_bytes
    assert torch.equal(own(torch.tensor([PROMPT])), plain(torch.tensor([PROMPT])))
    usual = WaferForCausalLM.from_pretrained(opened, dtype="fp16", **SMALL)
    assert not torch.equal(own(torch.tensor([PROMPT])), usual(torch.tensor([PROMPT])))


@pytest.mark.parametrize("stored", STORED)
def test_weights_that_are_loaded_again_are_the_same(folder, stored) -> None:
    model = WaferForCausalLM.from_pretrained(folder, dtype=stored, **SMALL)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.load_state_dict(before)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("options", [{"mesh": (4, 6), "prefill_mesh": 4}, {"mesh": 1}], ids=["other meshes", "a core"])
def test_values_are_the_same_on_every_mesh(tmp_path, options) -> None:
    folder = checkpoint(tmp_path / "model")
    one, other = (
        WaferForCausalLM.from_pretrained(folder, dtype="int8", max_length=16, **how) for how in ({"mesh": 4}, options)
    )
    assert all(torch.equal(weight, other.state_dict()[name]) for name, weight in one.state_dict().items())
    assert list(one.generate(PROMPT, 4)) == list(other.generate(PROMPT, 4))


def test_perplexity_stays_near_fp32(tmp_path) -> None:
    """Take weights at the scale of a trained model, so that logits are not all noise."""
    opened = Checkpoint(checkpoint(tmp_path / "model"))
    small = {name: weight if "norm" in name else weight * 0.2 for name, weight in opened.weights().items()}
    wide = {"mesh": 4, "max_length": 40, "max_prompt": 40}
    judge = WaferForCausalLM.from_weights(opened.config, small, dtype="fp32", **wide)
    wanted, exact = perplexity(judge, TEXT).perplexity, judge(torch.tensor([TEXT]))
    errors = {}
    for dtype in ("fp16", *STORED):
        model = WaferForCausalLM.from_weights(opened.config, small, dtype=dtype, **wide)
        assert perplexity(model, TEXT).perplexity == pytest.approx(wanted, rel=0.1)
        errors[dtype] = float((model(torch.tensor([TEXT])) - exact).norm() / exact.norm())
    assert errors["fp16"] < errors["int8"] < 0.05 and errors["int8"] < errors["fp8"] < 0.15


@pytest.mark.parametrize("stored", STORED)
def test_convert_stores_the_matrices_of_linear_layers(stored) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(24, 16, bias=False)
    x, wanted = torch.randn(8, 24).half(), reference(layer.weight.detach(), stored)
    plain = torch.nn.Linear(24, 16, bias=False, dtype=torch.float16)
    plain.load_state_dict({"weight": wanted})
    norm = torch.nn.RMSNorm(24, eps=1e-6)
    own, other = (convert(torch.nn.Sequential(one), mesh=4, dtype=how) for one, how in ((layer, stored), (plain, None)))
    assert torch.equal(own(x), other(x))
    assert convert(torch.nn.Sequential(norm), mesh=4, dtype=stored)(x).isfinite().all()


def test_a_part_of_the_cores_has_the_scale_of_the_whole_matrix(tmp_path) -> None:
    """Fill the upper half of a mesh alone, as a rank does, and the whole."""
    model = WaferForCausalLM.from_pretrained(checkpoint(tmp_path / "model"), dtype="int8", **SMALL)
    buffers, mesh = weights_of(model.block, "ffn", "decode"), model.block.mesh
    weights = Checkpoint(tmp_path / "model").weights(torch.float16)
    filled = []
    for rows in (4, 2):
        memory = {name: torch.zeros(rows, 4, *held_tile(buffer)).half() for name, buffer in buffers.items()}
        fill(memory, buffers, weights, 0, mesh, (slice(0, rows), slice(0, 4)))
        filled.append(memory)
    assert all(torch.equal(half, filled[0][name][:2]) for name, half in filled[1].items())
    assert any(buffer.dtype == "int8" for buffer in buffers.values())


@pytest.mark.parametrize("exchange", ["explicit", "elided"])
def test_backends_and_exchanges_agree(tmp_path, exchange) -> None:
    folder, size = checkpoint(tmp_path / "model"), {"mesh": 2, "max_length": 8, "head_groups": 1}
    models = [
        WaferForCausalLM.from_pretrained(folder, dtype="fp8", executor=executor(backend, exchange, "cpu"), **size)
        for backend in ("torch", "triton")
    ]
    runs = [list(model.generate(PROMPT[:2], 2)) for model in models]
    assert runs[0] == runs[1] and len(runs[0]) == 2


def test_commands_take_the_storage(tmp_path, capsys) -> None:
    model = ["--model", str(checkpoint(tmp_path / "model")), "--mesh", "4", "--emulate-on", "cpu"]
    asked = ["generate", *model, "--prompt", "ab", "--max-new-tokens", "3", "--dtype"]
    assert main([*asked, "int8"]) == 0
    assert "int8" in capsys.readouterr().out
    assert main([*asked, "int4"]) == 2
    assert "int8, fp8" in capsys.readouterr().err


def test_a_dtype_that_is_none_and_a_weight_beyond_fp16_are_refused(tmp_path) -> None:
    folder = checkpoint(tmp_path / "model")
    with pytest.raises(DtypeError, match="dtype int4 is not supported; use one of fp32, bf16, fp16, int8, fp8"):
        WaferForCausalLM.from_pretrained(folder, dtype="int4", **SMALL)
    large = checkpoint(tmp_path / "large", weights={"lm_head.weight": torch.full((256, 16), 1e6)})
    with pytest.raises(CheckpointError, match="lm_head.weight holds NaN or infinity as torch.float16"):
        WaferForCausalLM.from_pretrained(large, dtype="int8", **SMALL)
