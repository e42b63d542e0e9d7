"""Refusals of a model that does not fit: each change that they name does make it fit, and no smaller one does."""

import re
from dataclasses import replace

import pytest

from wafer_triton import estimate
from wafer_triton.cli import main as cli
from wafer_triton.device import Device, device
from wafer_triton.errors import WaferError
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.read import shape_of

pytestmark = pytest.mark.slow

SMALL = device("wse2").changed(rows=16, cols=16, sram_kib=32, name="small")
SHAPE = DecoderShape(192, 384, 12, 4, 4, 48, 0, name="deep")


def refusal(shape: DecoderShape, of: Device = SMALL) -> str:
    with pytest.raises(WaferError) as caught:
        estimate.decode(device=of, model=shape, mesh=8, context=64)
    return str(caught.value)


def fits(shape: DecoderShape, of: Device = SMALL) -> bool:
    try:
        estimate.decode(device=of, model=shape, mesh=8, context=64)
    except WaferError:
        return False
    return True


@pytest.mark.slow
def test_layers_a_device_are_the_most_that_fit() -> None:
    found = re.search(r"with (\d+) of its (\d+) layers a device, so on (\d+) such devices", refusal(SHAPE))
    assert found is not None
    kept, every, devices = found.groups()
    assert (int(every), int(devices)) == (12, -(-12 // int(kept)))
    assert fits(replace(SHAPE, num_hidden_layers=int(kept)))
    assert not fits(replace(SHAPE, num_hidden_layers=int(kept) + 1))


@pytest.mark.parametrize("start", [48, 200, 255.5, 280, 281])
def test_the_sram_of_a_core_is_the_least_in_whole_kib_from_any_start(start: float) -> None:
    given = {"model": "mixtral-8x7b", "mesh": 420, "context": 2048}
    with pytest.raises(WaferError, match=r"or with 282 KiB of SRAM a core; as_if=True"):
        estimate.decode(device=device("wse2").changed(sram_kib=start), **given)
    if start == 281:
        assert estimate.decode(device=device("wse2").changed(sram_kib=282), **given).tokens_per_second > 0


@pytest.mark.slow
def test_weights_of_a_byte_are_named_where_they_fit_alone_or_on_fewer_devices() -> None:
    alone = next(n for n in range(2, 30) if not fits(replace(SHAPE, num_hidden_layers=n)))
    just = replace(SHAPE, num_hidden_layers=alone)
    assert "or with int8 or fp8 weights, or with" in refusal(just) and fits(replace(just, weights="int8"))
    deep = replace(SHAPE, num_hidden_layers=80)
    (kept,) = re.findall(r"int8 or fp8 weights and (\d+) of its 80 layers", refusal(deep))
    byte = replace(deep, weights="int8")
    assert fits(replace(byte, num_hidden_layers=int(kept))) and not fits(replace(byte, num_hidden_layers=int(kept) + 1))
    assert "int8" not in refusal(byte).split("it would fit")[1]


def test_a_layer_that_no_core_holds_has_sram_alone() -> None:
    wide = replace(SHAPE, hidden_size=1024, intermediate_size=2048, num_hidden_layers=1)
    assert re.search(r"it would fit with [\d,]+ KiB of SRAM a core", refusal(wide))


@pytest.mark.parametrize("model", ["mixtral-8x7b", "qwen3-30b-a3b"])
def test_mixtures_larger_than_a_wafer_have_remedies(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(f"estimate decode --model {model} --mesh 420 --context 2048".split()) == 2
    said = capsys.readouterr().err
    for text in ("layers a device, so on", "or with int8 or fp8 weights and", "KiB of SRAM a core", "--as-if"):
        assert text in said
    (kept,) = re.findall(r"int8 or fp8 weights and (\d+) of its", said)
    shape = replace(shape_of(model, "int8"), num_hidden_layers=int(kept))
    assert estimate.decode(model=shape, mesh=420, context=2048).tokens_per_second > 0


@pytest.mark.slow
def test_a_plan_names_them_for_one_mesh(capsys) -> None:
    assert cli.main(["plan", "--model", "llama2-13b", "--input", "64", "--output", "64", "--step", "720"]) == 2
    *progress, said = capsys.readouterr().err.splitlines()
    assert re.search(r"; on mesh \d+x\d+ it would fit with \d+ of its 40 layers a device", said)
    assert all(line.startswith("meshes of ") for line in progress), "one line is the refusal"


@pytest.mark.parametrize("policy", ["shared", "replace"])
def test_serving_names_them_too(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = "serve --model llama2-13b --rate 1 --input 512 --output 512 --count 3 --prefill-mesh 300 --decode-mesh 300"
    assert cli.main([*line.split(), "--policy", policy]) == 2
    said = capsys.readouterr().err
    assert "; on mesh 300x300 it would fit with" in said and "int8 or fp8 weights" in said
    (kept,) = re.findall(r"with (\d+) of its 40 layers a device", said)
    assert cli.main([*line.replace("13b", f"13b,layers={kept}").split(), "--policy", policy]) == 0, (
        capsys.readouterr().err
    )


def test_a_split_of_the_columns_names_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    line = "serve --device wse2,rows=100,cols=130 --model {} --rate 1 --input 256 --output 16 --count 3 --policy {}"
    assert cli.main(line.format("smollm2-135m", "split").split()) == 2
    said = capsys.readouterr().err
    found = re.search(
        r"; with (\d+) columns of prefill, meshes (\S+) and (\S+) it would fit with (\d+) of its 30", said
    )
    columns, first, second, kept = found.groups()
    assert "or with int8 or fp8 weights, or with" in said
    sizes = f"--columns {columns} --prefill-mesh {first} --decode-mesh {second}"
    for model in (f"smollm2-135m,layers={kept}", "smollm2-135m --dtype int8"):
        assert cli.main(f"{line.format(model, 'split')} {sizes}".split()) == 0, capsys.readouterr().err
    more = f"smollm2-135m,layers={int(kept) + 1}"
    assert cli.main(f"{line.format(more, 'split')} {sizes}".split()) == 2
    (mesh,) = re.findall(r"; policy shared holds it on mesh (\S+)$", said.rstrip())
    assert cli.main(f"{line.format('smollm2-135m', 'shared')} --prefill-mesh {mesh}".split()) == 0


def test_a_split_of_given_meshes_is_explained_for_these(capsys: pytest.CaptureFixture[str]) -> None:
    line = "serve --model mixtral-8x7b --rate 1 --input 512 --output 128 --policy split --prefill-mesh 600"
    assert cli.main([*line.split(), "--decode-mesh", "360"]) == 2
    said = capsys.readouterr().err
    assert "; with 600 columns of prefill, meshes 600x600 and 360x360 it would fit with" in said
    assert "policy replace" not in said and "policy shared" not in said


@pytest.mark.slow
def test_a_request_names_them_too() -> None:
    own = {"prefill_mesh": 8, "decode_mesh": 8, "input": 32, "output": 32}
    with pytest.raises(WaferError, match="it would fit with"):
        estimate.request(device=SMALL, model=SHAPE, **own)
    with pytest.raises(WaferError, match="it would fit with"):
        estimate.kv(device=SMALL, model=SHAPE, mesh=8)
