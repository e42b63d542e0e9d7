"""What fits a device: the smallest mesh holds the model and no smaller one does, and likewise the most layers."""

from dataclasses import replace

import pytest

from wafer_triton import estimate, smallest_mesh, what_fits
from wafer_triton.cli import main as cli
from wafer_triton.cost.capacity import Fit
from wafer_triton.device import device
from wafer_triton.errors import MeshError, ShapeError, WaferError
from wafer_triton.shape.decoder import DecoderShape

SMALL = device("wse2").changed(rows=24, cols=26, sram_kib=10, name="small")
SHAPE = DecoderShape(128, 192, 6, 4, 4, 32, 500, name="deep")


def holds(side: int, prompt: int = 0, dtype: str | None = None) -> bool:
    try:
        if prompt:
            sizes = {"prefill_mesh": side, "decode_mesh": side, "input": prompt, "output": 64 - prompt}
            estimate.request(device=SMALL, model=SHAPE, dtype=dtype, **sizes)
        else:
            estimate.decode(device=SMALL, model=SHAPE, mesh=side, context=64, dtype=dtype)
    except WaferError:
        return False
    return True


@pytest.mark.parametrize(("prompt", "dtype"), [(0, None), (40, "int8")])
def test_the_smallest_mesh_holds_the_model_and_no_smaller_one_does(prompt: int, dtype: str | None) -> None:
    found = smallest_mesh(SHAPE, device=SMALL, context=64, prompt=prompt, dtype=dtype)
    assert found.rows == found.cols and found.device == SMALL
    assert [holds(side, prompt, dtype) for side in range(1, found.rows + 1)] == [False] * (found.rows - 1) + [True]


def test_bytes_take_a_smaller_mesh_and_a_prompt_no_smaller_one() -> None:
    whole, byte = (smallest_mesh(SHAPE, device=SMALL, context=64, dtype=dtype).rows for dtype in (None, "int8"))
    assert byte < whole <= smallest_mesh(SHAPE, device=SMALL, context=64, prompt=40).rows


def test_no_mesh_holds_a_model_larger_than_the_device() -> None:
    deep = replace(SHAPE, num_hidden_layers=60)
    with pytest.raises(MeshError, match=r"no square mesh of small holds deep with 64 tokens of cache: .* what_fits"):
        smallest_mesh(deep, device=SMALL, context=64)
    with pytest.raises(MeshError, match="no square mesh of wse2 holds qwen2-72b"):
        smallest_mesh("qwen2-72b", context=64)
    with pytest.raises(ShapeError, match="prompt = 64 leaves no token of context = 64 for an answer"):
        smallest_mesh(SHAPE, device=SMALL, context=64, prompt=64)


def test_the_most_layers_fit_and_one_more_does_not() -> None:
    deep = replace(SHAPE, num_hidden_layers=30)
    found = what_fits(deep, device=SMALL, mesh=12, context=64)
    assert 0 < found.layers < 30 and found.tokens == 0
    fits = replace(deep, num_hidden_layers=found.layers)
    assert estimate.decode(device=SMALL, model=fits, mesh=12, context=64).layers == found.layers
    with pytest.raises(WaferError):
        estimate.decode(device=SMALL, model=replace(fits, num_hidden_layers=found.layers + 1), mesh=12, context=64)
    assert what_fits(deep, device=SMALL, mesh=12, context=64, dtype="int8").layers > found.layers


def test_a_model_that_fits_has_all_layers_and_the_tokens_of_its_cache() -> None:
    mesh = smallest_mesh(SHAPE, device=SMALL, context=64)
    found = what_fits(SHAPE, device=SMALL, mesh=mesh)
    assert found == Fit(6, estimate.kv(device=SMALL, model=SHAPE, mesh=mesh).shift_tokens) and found.tokens >= 64
    assert what_fits(SHAPE, device=SMALL, mesh=2) == Fit(0, 0)


@pytest.mark.parametrize(
    "line",
    [
        "estimate decode --model llama3-8b --mesh 40 --context 64",
        "estimate decode --model mixtral-8x7b --mesh 360 --context 8 --routing uniform",
        "sweep decode --over mesh=380,420 --set model=llama3-8b --set context=2048",
        "serve --model llama2-13b --rate 1 --input 512 --output 512 --count 3 --prefill-mesh 300 --decode-mesh 300",
    ],
    ids=lambda line: " ".join(line.split()[:2]),
)
def test_a_refusal_names_what_a_command_can_ask_in_its_one_line(line, capsys) -> None:
    assert cli.main(line.split()) == 2
    *_, said = capsys.readouterr().err.splitlines()
    assert (",layers=...), dtype int8" if "mixtral" in line else "`wafer-triton plan` searches meshes") in said


@pytest.mark.parametrize("command", ["plan", "estimate decode"])
def test_plan_does_not_send_to_itself(command, capsys) -> None:
    sizes = "dim=2048,ffn=8192,heads=32,layers=40,vocab=9"
    rest = "--input 8 --output 8 --step 8" if command == "plan" else "--mesh 16 --context 16"
    assert cli.main(f"{command} --model {sizes} {rest} --device wse2,rows=16,cols=16".split()) == 2
    *_, said = capsys.readouterr().err.splitlines()
    assert "SRAM" in said and ("wafer-triton plan" in said) is (command != "plan")
