"""Models whose user gives no mesh: the choice of the cost model, and the place of the model."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from tiny import DEEP as CONFIG
from tiny import drawn
from wafer_triton import estimate
from wafer_triton.device import PRESETS
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import (
    BackendError,
    DeviceError,
    DtypeError,
    MeshError,
    SramError,
    WaferError,
)
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.decoder import WaferForCausalLM

pytestmark = pytest.mark.slow

SMALL = replace(PRESETS["wse2"], name="small", rows=9, cols=10, sram_bytes=7 * 1024)
TOKENS = torch.randint(31, (20,), generator=torch.Generator().manual_seed(1)).tolist()
LENGTHS = {"max_prompt": 14, "max_length": 40}


def placed(**options) -> WaferForCausalLM:
    return WaferForCausalLM.from_weights(CONFIG, drawn(CONFIG, 0.3), **({"device": SMALL} | LENGTHS | options))


def sides(model: WaferForCausalLM) -> tuple[int, int]:
    decode, prefill = model.placement.decode.mesh, model.placement.prefill.mesh
    assert decode.rows == decode.cols and prefill.rows == prefill.cols
    return decode.rows, prefill.rows


FEW = replace(SMALL, rows=4, cols=5, sram_bytes=12 * 1024)


def test_the_fastest_meshes_that_hold_the_model():
    plans = {}
    for decode, prefill in product(range(1, 5), repeat=2):
        try:
            placed(device=FEW, mesh=decode, prefill_mesh=prefill)
        except WaferError:
            continue
        plans[decode, prefill] = estimate.request(
            device=FEW, model=CONFIG, prefill_mesh=prefill, decode_mesh=decode, input=14, output=26,
        ).seconds  # fmt: skip
    fastest = min(plans, key=lambda pair: plans[pair])
    planned = placed(device=FEW)
    assert len(plans) > 1 and sides(planned) == fastest and planned.placement.decode.head_groups in range(2, 5)


def test_a_planned_model_is_the_model_on_those_meshes():
    planned = placed(device=FEW)
    decode, prefill = sides(planned)
    trees = {"groups": planned.placement.decode.groups, "prefill_groups": planned.placement.prefill.groups}
    same = placed(device=FEW, mesh=decode, prefill_mesh=prefill, **trees)
    for model in (planned, same):
        model.prefill(TOKENS[:14])
    assert torch.equal(planned.step(TOKENS[14]), same.step(TOKENS[14]))
    assert planned.account() == same.account()
    wide = placed(mesh=2, device="wse2,sram_kib=1464")
    planned.reset()
    assert list(planned.generate(TOKENS[:9], 8)) == list(wide.generate(TOKENS[:9], 8))


def test_given_options_override_the_plan():
    model = placed(device=FEW, prefill_mesh=3, groups=(2,), prefill_groups=(1,))
    assert sides(model)[1] == 3
    assert (model.placement.decode.groups, model.placement.prefill.groups) == ((2,), (1,))
    assert placed(mesh=8).block.groups is None, "about the root of 8"
    chains, trees = placed(mesh=8, groups=()), placed(mesh=8)
    for model in (chains, trees):
        model.prefill(TOKENS[:5])
        model.step(3)
    assert chains.account().rounds > trees.account().rounds, "one level takes more stages"
    mine = Mesh(3, 4, replace(SMALL, name="mine", sram_bytes=2**20))
    assert placed(mesh=mine, device=None).block.mesh == mine, "a Mesh keeps its device"


@pytest.mark.parametrize(
    "device, error, message",
    [
        (
            replace(SMALL, sram_bytes=512),
            MeshError,
            "no mesh of small holds tiny; take a larger device ",
        ),
        (replace(SMALL, rows=1, cols=1), MeshError, r"no mesh of small holds tiny; .* over the 7,168 B"),
        ("wsee", DeviceError, "unknown device 'wsee'; did you mean"),
    ],
)
def test_nothing_to_plan(device, error, message):
    with pytest.raises(error, match=message):
        placed(device=device)


def test_decode_fits_but_no_prefill():
    message = (
        "no mesh that was tried on small holds tiny.*"
        "prefill of 14 tokens, attention on mesh 2x2: every core .* over the 5,120 B"
    )
    with pytest.raises(MeshError, match=message):
        placed(device=replace(SMALL, rows=4, cols=13, sram_bytes=5 * 1024), prefill_mesh=2)


def test_a_prompt_that_only_fits_in_chunks_has_a_place():
    few = replace(SMALL, rows=3, cols=3, sram_bytes=20 * 1024)
    config = DecoderConfig(48, 40, 2, 1, 1, 4, 31, 4096)
    model = WaferForCausalLM.from_config(config, device=few, max_length=200, max_prompt=700)
    assert sides(model) == (3, 3) and model.placement.chunk_tokens < 200 // 3


def test_a_prompt_without_a_plan_is_refused_by_its_placement():
    few = replace(SMALL, rows=4, cols=5, sram_bytes=11 * 1024)
    config = DecoderConfig(48, 40, 2, 1, 1, 4, 31, 4096)
    with pytest.raises(MeshError, match="^no mesh that was tried on small holds decoder; take a larger device "):
        WaferForCausalLM.from_config(config, device=few, max_length=1000, max_prompt=900, dtype="fp16")


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"accumulate": "fp64"}, DtypeError, "dtype fp64 is not supported"),
        ({"dtype": "fp64"}, DtypeError, "dtype fp64 is not supported"),
        ({"prefill_mesh": "four"}, MeshError, "mesh 'four': give a side such as 16"),
        (
            {"prefill_mesh": Mesh(2, 2)},
            MeshError,
            "prefill_mesh is on wse2, the mesh of decode on small; give",
        ),
        ({"executor": "torch"}, BackendError, "executor 'torch': give a result of wafer_triton.ops.executor"),
    ],
)
@pytest.mark.parametrize("mesh", [None, 4])
def test_errors_unrelated_to_meshes_pass_the_planner(mesh, options, error, message):
    with pytest.raises(error, match=message):
        placed(mesh=mesh, **options)


def test_where_a_mesh_was_does_not_matter():
    """Check that a model is placed from the corner; a folded mesh is compared by the mesh that it was folded from."""
    few = replace(SMALL, rows=4, cols=4, sram_bytes=2**20)
    for mesh in (Mesh(2, 2, few), Mesh(2, 2, few, origin=(1, 2))):
        model = placed(mesh=mesh, prefill_mesh=Mesh(2, 2, few, origin=(2, 0)), device=None)
        assert len(model.regions) == 1 and model.placement.prefill_regions is model.placement.regions
    assert placed(mesh=Mesh(2, 4, few).square(), device=None).block.mesh == Mesh(2, 4, few)


def test_a_head_that_no_multiple_of_the_mesh_holds():
    tall, device = replace(CONFIG, vocab_size=8000), replace(SMALL, rows=11, cols=12, sram_bytes=12 * 1024)
    with pytest.raises(
        MeshError, match="does not fit small: no multiple of mesh 4x4 there holds its head; .* mesh 8x8"
    ):
        WaferForCausalLM.from_config(tall, mesh=4, device=device, **LENGTHS)
    less = replace(CONFIG, vocab_size=4000, tie_word_embeddings=True)
    model = WaferForCausalLM.from_config(less, mesh=Mesh(4, 4, device, origin=(6, 7)), **LENGTHS)
    assert str(model.placement.head.mesh) == "8x8", "wherever the mesh was"


def test_a_larger_mesh_shares_the_cache_out_anew():
    long = {"device": "wse2", "max_length": 20_000, "max_prompt": 4, "head_groups": 2}
    with pytest.raises(SramError, match="over the 49,152 B of SRAM"):
        placed(mesh=3, **long)
    assert placed(mesh=60, **long).block.mesh.rows == 60
