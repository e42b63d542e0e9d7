"""Weights in int8 and fp8: one byte a number in SRAM and on links, and all else as before."""

from dataclasses import replace

import pytest
import torch

from wafer_triton import estimate, mesh_gemv
from wafer_triton.algorithms.product import recipe
from wafer_triton.cli import main as cli
from wafer_triton.compare.algorithms import compare_gemv
from wafer_triton.cost.cap import weight_bytes
from wafer_triton.count.account import account
from wafer_triton.decoder.block import Block
from wafer_triton.device import device
from wafer_triton.device.dtype import BYTES, STORED, TILES, torch_dtype
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ConfigError, DtypeError, ScheduleError
from wafer_triton.place.need import weights_of
from wafer_triton.schedule.builder import Builder
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.moe import Experts
from wafer_triton.shape.read import shape_of

SHAPE = DecoderShape(96, 160, 2, 4, 2, 24, 200, name="small")
MIXTURE = replace(SHAPE, experts=Experts(4, 2, 48))
FP16_BUFFERS = ("norm", "router")  # parts of the names of buffers that stay in fp16


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("shape", [SHAPE, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize("dtype", STORED)
def test_matrices_take_a_byte_a_number_and_other_weights_keep_theirs(shape, phase, dtype) -> None:
    usual, byte = (Block(replace(shape, weights=own), Mesh(4, 4), "fp16", "fp16") for own in (None, dtype))
    for kind in shape.layers_of:
        before, after = (weights_of(block, kind, phase) for block in (usual, byte))
        assert before.keys() == after.keys()
        for name, buffer in after.items():
            assert buffer.dtype == ("fp16" if name in FP16_BUFFERS else dtype), name
            assert buffer.bytes * (1 if name in FP16_BUFFERS else 2) == before[name].bytes


@pytest.mark.parametrize("shape", [SHAPE, MIXTURE], ids=["dense", "mixture"])
def test_bytes_of_weights_are_the_buffers_of_one_core(shape) -> None:
    """Compare with all buffers on a mesh of one core, where no number is padding."""
    for own in (None, "bf16", "int8"):
        stored = replace(shape, weights=own)
        block = Block(stored, Mesh(1, 1, device("wse2").unbounded()), "fp16", "fp16")
        held = sum(
            buffer.bytes * count
            for kind, count in shape.layers_of.items()
            for buffer in weights_of(block, kind, "decode").values()
        )
        assert weight_bytes(stored, "fp16") == held


def test_a_ring_of_weights_carries_half_the_bytes() -> None:
    shapes, mesh = ((32, 32), (32, 32)), Mesh(4, 4)
    usual, byte = (recipe("gemm", mesh, dtype, shapes, ()).schedule for dtype in ("fp16", "int8"))
    assert byte.buffers["a"].dtype == "fp16" and byte.buffers["b"].dtype == "int8"
    assert account(usual).hops == account(byte).hops
    assert account(byte).link_bytes < account(usual).link_bytes
    assert (
        account(usual).link_bytes - account(byte).link_bytes == account(usual).link_bytes // 4
    )  # b has half of the bytes, and int8 halves these


@pytest.mark.slow
def test_a_model_that_is_too_large_fits_in_bytes() -> None:
    given = {"model": "llama3-8b", "mesh": 420, "context": 2048}
    with pytest.raises(Exception, match="does not fit wse2"):
        estimate.decode(**given)
    int8, fp8 = (estimate.decode(**given, dtype=dtype) for dtype in STORED)
    assert int8.regions == 2 and int8.cycles_per_layer == fp8.cycles_per_layer
    assert "weights in int8 were not measured" in str(int8.outside)
    small = {"model": SHAPE, "mesh": 8, "context": 8}
    usual, byte = estimate.decode(**small), estimate.decode(**small, dtype="int8")
    assert byte.cycles_per_layer == usual.cycles_per_layer and byte.error_band > usual.error_band
    assert estimate.decode(**small, dtype="bf16") == usual


@pytest.mark.slow
def test_every_estimate_of_a_model_takes_the_storage_of_weights() -> None:
    chip = replace(device("wse2"), name="small", rows=40, cols=40)
    asked = [{"model": SHAPE, "device": chip, "dtype": dtype} for dtype in ("int8", None)]
    byte, two = (estimate.kv(mesh=8, head_groups=1, **given).weight_bytes for given in asked)
    assert byte < two
    byte, two = (estimate.prefill(mesh=8, tokens=64, **given).communication_cycles_per_layer for given in asked)
    assert byte <= two
    sizes = {"prefill_mesh": 8, "decode_mesh": 6, "input": 8, "output": 8}
    byte, two = (estimate.request(**sizes, **given).replacement_seconds for given in asked)
    assert byte < two
    byte, two = (estimate.cap(mesh=8, context=8, **given | {"model": MIXTURE}).activated_bytes for given in asked)
    assert byte < two


def test_shape_and_name_say_the_storage() -> None:
    assert shape_of("llama3-8b,weights=int8") == replace(shape_of("llama3-8b", "int8"), name="llama3-8b,weights=int8")
    assert set(TILES) | set(STORED) == set(BYTES)
    for wrong in ("fp32", "int4", "fp64"):
        with pytest.raises((ConfigError, DtypeError), match=f"{wrong}.* fp16, bf16, int8, fp8"):
            shape_of("llama3-8b", wrong)


def test_predictions_of_products_take_bytes() -> None:
    usual, byte = (estimate.gemv(mesh=8, k=512, n=512, dtype=dtype) for dtype in ("fp16", "fp8"))
    assert usual.sram_peak_bytes - byte.sram_peak_bytes == 64 * 64 and byte.cycles == usual.cycles
    assert "weights in fp8 were not measured" in str(byte.outside)
    rows = compare_gemv(8, 64, 64, dtype="int8")
    assert {row.error for row in rows} == {None}


def test_no_product_takes_tiles_in_a_storage_of_weights(capsys: pytest.CaptureFixture[str]) -> None:
    said = "is a storage of a model's weights; give tiles in one of fp32, bf16, fp16"
    with pytest.raises(DtypeError, match=f"dtype int8 {said}"):
        mesh_gemv(torch.ones(8, dtype=torch.int8), torch.ones(8, 8, dtype=torch.int8), mesh=2)
    assert torch_dtype("fp8") == torch.float16  # of an executor's memory, where numbers are converted
    with pytest.raises(DtypeError, match=said):
        compare_gemv(8, 64, 64, dtype="int8", values=True)
    assert cli.main(["draw", "gemv", "--k", "8", "--n", "8", "--mesh", "4", "--dtype", "fp8", "--out", "a.png"]) == 2
    assert f"fp8 {said}" in capsys.readouterr().err


def test_an_operation_on_activations_takes_no_stored_weights() -> None:
    b = Builder(Mesh(2, 2), "demo")
    b.buffer("a", (4,), "int8", "input")
    b.buffer("b", (4,), "fp16", "input")
    b.round(b.local("add", "b", ("b", "a"), size=4))
    with pytest.raises(ScheduleError, match="in int8, but it must be in fp32 or bf16 or fp16"):
        b.build()
