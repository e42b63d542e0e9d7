"""The choice of head groups by cost, and the padding that they leave."""

from dataclasses import replace

import pytest

from wafer_triton import estimate
from wafer_triton.cost import layers
from wafer_triton.cost.constants import constants
from wafer_triton.cost.padding import decode_ratio, prefill_ratio
from wafer_triton.decoder.block import Block
from wafer_triton.decoder.heads import HeadGroups, most_groups
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.read import shape_of

C = constants(device("wse2"))
MANY = replace(device("wse2"), name="many", rows=10_000, cols=10_000)  # cores enough for each of them


def cycles(shape: DecoderShape, mesh: Mesh, context: int, number: int | None) -> float:
    block = layers.decode_block(shape, mesh, context, C, head_groups=number)
    return layers.total(layers.decode_steps(block, context, C)).cycles


@pytest.mark.parametrize(("model", "side", "context"), [("smollm2-135m", 24, 512), ("qwen2.5-7b", 90, 2048)])
def test_the_choice_is_nearly_the_fastest_of_all(model, side, context):
    """Only the narrowest tiles are priced, so it need not be the very fastest."""
    shape, mesh = shape_of(model), Mesh(side, side)
    every = [cycles(shape, mesh, context, number) for number in range(1, most_groups(shape, side) + 1)]
    assert min(every) <= cycles(shape, mesh, context, None) <= 1.01 * min(every)


@pytest.mark.parametrize(("model", "side"), [("llama3-8b", 360), ("qwen2-72b", 540)])
def test_head_groups_beat_the_single_head_of_the_paper(model, side):
    best, measured, one = (
        estimate.decode(model=model, mesh=side, context=4096, device=MANY, **more)
        for more in ({}, {"program": "paper-benchmark"}, {"head_groups": 1})
    )
    assert best.cycles_per_layer <= 0.9 * measured.cycles_per_layer < measured.cycles_per_layer < one.cycles_per_layer
    assert best.padding <= 1.25 < one.padding
    assert best.head_groups > 1 == measured.head_groups == one.head_groups


@pytest.mark.parametrize("model", ["llama3-8b", "qwen2-72b"])
def test_prefill_in_groups_beats_the_single_head_of_the_paper(model):
    best, measured, one = (
        estimate.prefill(model=model, mesh=540, tokens=4096, device=MANY, **more)
        for more in ({}, {"program": "paper-benchmark"}, {"head_groups": 1})
    )
    assert best.cycles_per_layer <= measured.cycles_per_layer <= 0.4 * one.cycles_per_layer
    assert best.padding <= 1.27 < 0.5 * one.padding and not best.relayed
    assert best.head_groups > 1 == measured.head_groups == one.head_groups


@pytest.mark.parametrize(("model", "side", "tokens"), [("smollm2-135m", 24, 256), ("qwen2.5-7b", 90, 1024)])
def test_the_choice_for_prefill_is_nearly_the_fastest_of_all(model, side, tokens):
    """Compare a choice by products alone, which hide the moves beside them, with the fastest number of groups."""
    shape, rows = shape_of(model), -(-tokens // side)
    block = layers.prefill_block(shape, Mesh(side, side), C)
    every = {
        number: layers.total(layers.prefill_steps(groups, rows, C)).cycles
        for number in range(1, most_groups(shape, side) + 1)
        for groups in layers.prefill_head_group_choices(block, rows, C, number)
    }
    chosen = layers.prefill_head_group_choices(block, rows, C)[0].head_groups
    assert min(every.values()) <= every[chosen] <= 1.01 * min(every.values())


def test_one_token_of_a_request_has_the_groups_of_the_last():
    asked = {"model": "smollm2-135m", "prefill_mesh": 64, "decode_mesh": 64, "input": 355, "output": 12}
    made, last = estimate.request(**asked), estimate.decode(model="smollm2-135m", mesh=64, context=367)
    assert made.head_groups == last.head_groups
    forced = estimate.request(**asked, head_groups=1)
    assert forced.head_groups == 1 and forced.decode_seconds > made.decode_seconds


def test_groups_that_fit_are_taken_before_the_fastest():
    """Try a device whose cores just miss the SRAM of the fastest groups."""
    shape, roomy = shape_of("llama3-8b"), replace(device("wse2"), name="roomy", sram_bytes=2**20)
    mesh = Mesh(180, 180, roomy)
    block = Block(shape, mesh, "fp16", "fp16", 1024)
    fast = layers.head_group_choices(block, C)[0]
    tight = replace(roomy, name="tight", sram_bytes=layers.decode_bytes(fast) - 1)
    other = layers.head_group_choices(replace(block, mesh=replace(mesh, device=tight)), C)[0]
    assert other.head_groups != fast.head_groups
    assert layers.decode_bytes(other) <= tight.sram_bytes


def test_padding_is_tiles_minus_the_model():
    # 2 x 4 cores, a width of 4 in tiles of 2, a feed-forward width of 6 in tiles of 2; 2 heads of 3 pairs, in 2 groups
    # of 2 columns each, so that a core holds 2 of a group's 3 pairs: 4 of the 3 dimensions that it would have to hold
    shape = DecoderShape(4, 6, 1, 2, 2, 6, 0)
    block = Block(shape, Mesh(2, 4), "fp16", "fp16", entries=1, head_groups=2)
    attention = 8 * (4 * 4 * 2 + 2 * 4 * block.slots), 4 * 4 * 12 + 2 * 12 * 2  # of the mesh, and of the model
    ffn = 8 * 3 * 2 * 2, 3 * 4 * 6
    assert decode_ratio(block, 2) == (attention[0] + ffn[0]) / (attention[1] + ffn[1])


def test_sizes_that_divide_have_no_padding():
    shape = DecoderShape(8, 8, 1, 4, 2, 4, 0)
    block = Block(shape, Mesh(1, 4), "fp16", "fp16", entries=1, policy=None, head_groups=2)
    assert decode_ratio(block, 1) == 1
    assert HeadGroups(shape, 4, 2).busy_columns == 4


def test_padding_of_prefill_includes_padding_of_tokens():
    block = Block(DecoderShape(8, 8, 1, 4, 2, 4, 0), Mesh(4, 4), "fp16", "fp16", head_groups=2, head_tree=())
    assert prefill_ratio(block, 8, 2) == 1
    # 7 tokens take 8 rows in products with weights, and 64 pairs instead of 49 in products of attention
    weights, pairs = 8 * (16 + 8 + 8) + 16 * 8 + 3 * 8 * 8, 2 * 16
    assert prefill_ratio(block, 7, 2) == (8 * weights + 64 * pairs) / (7 * weights + 49 * pairs)
