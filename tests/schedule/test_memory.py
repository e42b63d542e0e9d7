"""What schedules and estimates of a wafer keep in memory."""

import gc
import tracemalloc
from dataclasses import replace

import pytest

from wafer_triton import estimate
from wafer_triton.cost import layers
from wafer_triton.cost.constants import constants
from wafer_triton.cost.phases import phases
from wafer_triton.count.routes import colours
from wafer_triton.decoder import decode, prefill
from wafer_triton.decoder.block import Block, draft
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule import sram
from wafer_triton.shape.read import shape_of


def sub_layers_of(program: str, side: int, head_groups: int) -> list[tuple]:
    """Return the parts of decode and prefill of Llama-3-8B with their blocks and arguments."""
    mesh, shape = Mesh(side, side, device("wse2").unbounded()), shape_of("llama3-8b")
    shape, c = shape.paper_benchmark() if program == "paper-benchmark" else shape, constants(device("wse2"))
    tree = layers.tree_for(mesh, c)
    one = Block(shape, mesh, "fp16", "fp16", -(-4096 // side), None if program == "paper-benchmark" else "shift", tree)
    many = replace(one, head_groups=head_groups, head_tree=None if head_groups == 1 else ())
    sub_layers = [(sub_layer, one, args) for sub_layer, args in decode.layer(one, 4096)]
    return sub_layers + [(sub_layer, many, args) for sub_layer, args in prefill.layer(many, -(-4096 // side))]


@pytest.mark.parametrize(("program", "head_groups"), [("paper-benchmark", 1), ("full", 16)])
def test_schedules_of_a_wafer_are_small(program, head_groups):
    """Hold all of decode and prefill of Llama-3-8B on 720 x 720 cores, with all that pricing makes of it."""
    tracemalloc.start()
    try:
        held = [draft(sub_layer, block, *args) for sub_layer, block, args in sub_layers_of(program, 720, head_groups)]
        built_alone = tracemalloc.get_traced_memory()[0]
        for schedule in held:
            phases(schedule), colours(schedule), sram.account(schedule)
        with_prices = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert max(len(schedule.rounds) for schedule in held) > 25_000
    assert built_alone < 20 * 2**20 and with_prices < 50 * 2**20


def test_estimates_on_many_meshes_keep_little():
    """Estimates on four meshes may leave a few schedules behind, but no walk kept by all of its messages (14 MB)."""
    tracemalloc.start()
    try:
        for side in range(300, 320, 5):
            on = {"model": "qwen2.5-0.5b", "device": "wse2", "mesh": side}
            estimate.prefill(**on, tokens=2048), estimate.decode(**on, context=2048)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 8 * 2**20
