"""The PLMR verdict of every operation of a decoder layer."""

from dataclasses import replace

import pytest

from commands import answer
from wafer_triton import estimate
from wafer_triton.compare.operations import decoder_layer as layer
from wafer_triton.decoder.block import Block
from wafer_triton.device import device
from wafer_triton.device.mesh import as_mesh
from wafer_triton.shape.read import shape_of


def operations(side, entries=32, tokens=0, device="wse2", dtype="fp16"):
    block = Block(shape_of("smollm2-135m"), as_mesh(side, device), dtype, entries=entries)
    return {(one.phase, one.name): one for one in layer(block, tokens)}


def test_a_layer_of_smollm2_keeps_all_letters_on_16_x_16_cores():
    found = operations(16)
    names = {name for phase, name in found if phase == "decode"}
    assert names >= {"rms norm", "qkv", "rope", "scores", "softmax", "attention", "output projection", "silu", "down"}
    assert all(one.ok for one in found.values())


@pytest.mark.parametrize(("model", "mesh"), [("smollm2-135m", 64), ("llama3.2-1b", 250)])
def test_check_and_estimate_give_a_layer_and_its_ends_one_price(model, mesh, capsys):
    checked, _ = answer(f"check --model {model} --mesh {mesh} --context 333", capsys)
    cycles = dict.fromkeys(("decode", "embedding", "head"), 0.0)
    for one in checked["operations"]:
        cycles[one["phase"]] += one["cycles"]
    found = estimate.decode(model=model, mesh=mesh, context=333)
    assert list(cycles.values()) == pytest.approx([found.cycles_per_layer, found.embedding_cycles, found.head_cycles])


@pytest.mark.slow
def test_each_letter_can_be_lost():
    assert not operations(96)["decode", "scores"].verdict["P"]  # 32 rotary pairs on 96 columns
    assert not operations(32, tokens=1)["prefill", "scores"].verdict["L"]  # GEMM-T reduces in every round
    assert not operations(16, entries=2000)["decode", "scores"].verdict["M"]
    few = replace(device("wse2"), routes=4)
    assert not operations(16, tokens=1, device=few)["prefill", "scores"].verdict["R"]
    assert operations(64, tokens=1)["prefill", "scores"].verdict["R"]  # its chains need the routes to neighbours alone
    packets = replace(device("wse2"), routes=None)
    assert operations(16, tokens=1, device=packets)["prefill", "scores"].verdict["R"]  # packets need no routes


def test_command_line(capsys):
    found, err = answer("check --model smollm2-135m --mesh 16 --tokens 16", capsys)
    assert {one["phase"] for one in found["operations"]} == {
        "embedding",
        "decode",
        "head",
        "prefill",
    } and "gate and up" in err
    assert all(fact in err for fact in ("wse2", "16x16", "512 tokens", "48x48")), "what was judged, and where"


def test_a_decoder_without_a_vocabulary_has_layers_alone(capsys):
    found, _ = answer("check --model dim=64,ffn=128,heads=4,layers=2 --mesh 4", capsys)
    assert {one["phase"] for one in found["operations"]} == {"decode"}
