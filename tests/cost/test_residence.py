"""Whether a model fits a device: regions and their SRAM, refusals that say what is missing."""

import re
from contextlib import suppress
from dataclasses import replace

import pytest

from commands import answer
from wafer_triton import estimate
from wafer_triton.cost import layers
from wafer_triton.cost.constants import constants
from wafer_triton.decoder import prefill
from wafer_triton.decoder.heads import distinct_head_groups
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.errors import MeshError, SramError
from wafer_triton.place.need import block_names, decode_need
from wafer_triton.place.regions import Region, decode_regions, place_prefill
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.read import shape_of

WSE2 = device("wse2")
SHAPE = DecoderShape(96, 160, 6, 4, 2, 24, 200, name="small")
ASK = r"; `wafer-triton plan` searches meshes that fit, in Python smallest_mesh\(...\) and what_fits\(...\) do$"


def wafer(cores: int, sram_bytes: int) -> object:
    """Return a device with `cores` cores, which count because its constants are derived."""
    return replace(WSE2, name="mine", like=None, rows=8, cols=cores // 8, sram_bytes=sram_bytes)


def regions(shape: DecoderShape, cores: int, sram_bytes: int, context: int = 8) -> tuple[Region, ...]:
    mesh = Mesh(8, 8, wafer(cores, sram_bytes))
    return decode_regions(layers.decode_block(shape, mesh, context, constants(mesh.device)))


def bytes_of_shape() -> tuple[list[int], int, list[int]]:
    """Return a core's resident bytes of a layer, its largest workspace, and resident bytes of embedding and head."""
    block = layers.decode_block(SHAPE, Mesh(8, 8, WSE2), 8, constants(WSE2))
    blocks, ends = ([decode_need(block, kind) for kind in kinds] for kinds in (SHAPE.layers_of, ("embedding", "head")))
    workspace = max(sum(need.workspace.values()) for need in (*blocks, *ends))
    return [sum(need.resident.values()) for need in blocks], workspace, [sum(need.resident.values()) for need in ends]


def test_regions_hold_layers_embedding_and_head():
    blocks, workspace, (embedding, head) = bytes_of_shape()
    whole = 6 * sum(blocks) + workspace + embedding + head
    assert len(regions(SHAPE, 64 * 8, whole)) == 1
    assert len(regions(SHAPE, 64 * 8, whole - 1)) == 2
    assert len(regions(replace(SHAPE, vocab_size=0), 64 * 8, 6 * sum(blocks) + workspace)) == 1
    assert len(regions(replace(SHAPE, tie_word_embeddings=True), 64 * 8, whole - embedding)) == 1
    found = regions(SHAPE, 64 * 8, sum(blocks) + workspace + max(embedding, head))
    names = [name for region in found for name in region.blocks]
    assert names == ["embedding", *block_names(SHAPE), "head"], "in order, each once"
    assert all(region.sram_peak_bytes <= sum(blocks) + workspace + max(embedding, head) for region in found)


def test_a_cache_counts():
    blocks, workspace, (embedding, head) = bytes_of_shape()
    whole = 6 * sum(blocks) + workspace + embedding + head
    assert len(regions(SHAPE, 64 * 8, whole, context=8)) == 1
    assert len(regions(SHAPE, 64 * 8, whole, context=64)) == 2


def test_a_full_device_says_how_much_found_room():
    blocks, workspace, (embedding, head) = bytes_of_shape()
    sram_bytes = sum(blocks) + workspace + max(embedding, head)
    with pytest.raises(MeshError) as caught:
        regions(SHAPE, 64 * 2, sram_bytes)
    assert re.fullmatch(
        r"small, decode with 8 tokens of cache on mesh 8x8 does not fit mine: its 14 blocks take (\d+) regions; on 8 x "
        r"16 cores, laid out in rows, 2 regions of 8x8 find room, with (\d+) of the blocks; take fewer layers "
        r"\(small,layers=...\), dtype int8 or fp8, or a larger device",
        str(caught.value),
    )


def test_rectangles_may_leave_cores_over_that_areas_count():
    """Three regions of 420 x 420 are fewer cores than a WSE-2 has, and two find room."""
    block = layers.decode_block(shape_of("llama3-8b"), Mesh(420, 420), 2048, constants(WSE2))
    assert len(decode_regions(block, "area")) == 3 and WSE2.cores > 3 * 420**2
    with pytest.raises(MeshError, match="laid out in rows, 2 regions of 420x420 find room"):
        decode_regions(block)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda: estimate.decode(model="qwen2-72b", mesh=540, context=4096), MeshError,
            r"its 162 blocks take \d+ regions; on 750 x 994 cores, laid out in rows, 1 region of 540x540 "
            r"find room, with \d+ of the blocks; take fewer layers \(qwen2-72b,layers=...\), dtype int8 or fp8",
        ),
        (
            lambda: estimate.decode(model="llama3-8b", mesh=540, context=4096, head_groups=1), MeshError,
            r"llama3-8b, decode with 4,320 tokens of cache on mesh 540x540 does not fit wse2: .*" + ASK,
        ),
        (
            lambda: estimate.prefill(model="qwen2-72b", mesh=600, tokens=16_384), MeshError,
            "qwen2-72b, prefill of 16,384 tokens on mesh 600x600 does not fit wse2: its 162 blocks",
        ),
        (
            lambda: estimate.decode(
                model=replace(SHAPE, vocab_size=60_000), mesh=4, context=8, device=replace(WSE2, rows=7, cols=7)
            ),
            MeshError, "no multiple of mesh 4x4 there holds its head",
        ),
        (
            lambda: estimate.kv(model="qwen2-72b", mesh=360), MeshError,
            r"qwen2-72b, decode with 360 tokens of cache on mesh 360x360 does not fit .*; take fewer layers \(qwen2-",
        ),
    ],
)  # fmt: skip
def test_a_model_that_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("model, mesh, groups", [("smollm2-135m", 48, 3), ("llama3-8b", "100x700", 10)])
def test_the_cache_holds_as_many_tokens_as_decode_fits_and_no_number_of_head_groups_holds_more(model, mesh, groups):
    held = estimate.kv(model=model, mesh=mesh)
    decoded = estimate.decode(model=model, mesh=mesh, context=held.shift_tokens)
    assert held.head_groups == decoded.head_groups == groups
    with pytest.raises((MeshError, SramError)):
        estimate.decode(model=model, mesh=mesh, context=held.shift_tokens + 1)
    found = []
    for each in distinct_head_groups(shape_of(model), as_mesh(mesh).shape[1]):
        with suppress(MeshError, SramError):
            found.append(estimate.kv(model=model, mesh=mesh, head_groups=each.count).shift_tokens)
    assert len(found) > 3 and held.shift_tokens == max(found)


def test_a_layer_that_is_relayed_says_so():
    few = replace(WSE2, routes=4)
    for of, relayed in (("wse2", False), (few, True)):
        assert estimate.decode(device=of, model=SHAPE, mesh=16, context=64).relayed is relayed
        assert estimate.prefill(device=of, model=SHAPE, mesh=16, tokens=64).relayed is relayed
        request = estimate.request(device=of, model=SHAPE, prefill_mesh=16, decode_mesh=16, input=8, output=8)
        assert request.relayed is relayed


def test_a_longer_prompt_is_never_faster():
    shape, side, on = DecoderShape(64, 128, 4, 4, 1, 16, 100), 4, "wse2,sram_kib=10"
    prompts = [rows * side for rows in range(1, 41, 3)]
    alone = [estimate.prefill(device=on, model=shape, mesh=side, tokens=tokens).seconds for tokens in prompts]
    meshes = {"prefill_mesh": side, "decode_mesh": side}
    requests = [
        estimate.request(device=on, model=shape, **meshes, input=tokens, output=8).seconds for tokens in prompts[::3]
    ]
    for seconds in (alone, requests):
        assert seconds == sorted(seconds)


def test_a_prompt_that_does_not_fit_at_once_goes_in_chunks():
    shape, on, c = shape_of("llama3-8b"), Mesh(260, 260), constants(device("wse2"))
    last = layers.decode_block(shape, on, 1, c)
    own = place_prefill([layers.prefill_block(shape, on, c)], last, 2048, layers.prefill_price(c), "area")
    block, at_once = own.block, own.chunk_tokens
    rows = -(-2048 // 260)
    assert 1 <= at_once < rows
    chunks = [(min(at_once, rows - past), past) for past in range(0, rows, at_once)]
    assert len(chunks) > 1 and sum(tokens for tokens, _ in chunks) == rows
    steps = layers.prefill_steps(block, rows, c, at_once)
    one_by_one = [layers.total(layers._steps(block, prefill.layer(block, *chunk), c)) for chunk in chunks]
    assert layers.total(steps).cycles == pytest.approx(sum(cost.cycles for cost in one_by_one), rel=1e-12)
    assert layers.total(steps).cycles > layers.total(layers.prefill_steps(block, rows, c)).cycles
    small = place_prefill([layers.prefill_block(shape, on, c)], last, 260, layers.prefill_price(c), "area")
    assert small.chunk_tokens == 1, "one token a row is no chunk"


def test_a_layer_in_two_regions_is_half_a_layer_a_region(capsys):
    line = "estimate decode --model dim=64,ffn=96,heads=4,kv_heads=2,layers=4,vocab=256 --mesh 1"
    found, text = answer(line, capsys)
    assert found["layers_per_region"] == 0.5 and re.search(r"\nlayers per region +0.5 layers\n", text)
    shape = DecoderShape(64, 96, 4, 4, 2, 16, 256)
    block = layers.decode_block(shape, as_mesh(1), found["shift_tokens"], constants(WSE2))
    parts = [region.blocks for region in decode_regions(block)]
    assert parts[1:3] == [("layer 0 attention",), ("layer 0 ffn",)], "the regions of one layer"
    whole = estimate.kv(model="llama3-8b", mesh=360).layers_per_region
    assert whole == 9 and isinstance(whole, int)
