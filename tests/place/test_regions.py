"""A region holds what its blocks keep, and the working memory of one of them at a time."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

import tiny
from schedules import MIXTURE, ROOMY, SHAPE
from wafer_triton.cost.constants import constants
from wafer_triton.cost.inference import decode_placed
from wafer_triton.cost.price import priced
from wafer_triton.decoder import block, decode, prefill
from wafer_triton.decoder.decode import head_block
from wafer_triton.decoder.expert_places import ExpertRegions
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import WaferError
from wafer_triton.models.config import DecoderConfig
from wafer_triton.place.hand_over import from_corner, hand_over
from wafer_triton.place.layouts import lay_out, region_count
from wafer_triton.place.moves import weight_moves
from wafer_triton.place.need import ENDS, decode_need, prefill_need
from wafer_triton.place.transfers import Shift
from wafer_triton.schedule import sram
from wafer_triton.shape.moe import Experts
from walk import Walk

TINY = tiny.CONFIG | {"num_hidden_layers": 6}
# The largest workspace is that of experts, and a layer without them lies between.
DENSE_BETWEEN = tiny.MIXTURE | {"num_hidden_layers": 6, "mlp_only_layers": [0, 3]}


@pytest.mark.slow
@pytest.mark.parametrize("config", [TINY, DENSE_BETWEEN], ids=["dense", "mixture"])
def test_every_region_fits_the_sram_of_its_cores(config):
    chip, shape, found = device("wse2"), DecoderConfig.from_dict(config), set()
    for size in range(300, 2400, 6):
        on = Mesh(4, 4, replace(chip, name="small", sram_bytes=size))
        try:
            block, regions = decode_placed(on, shape, 16, constants(chip))
        except WaferError:
            continue
        found.add(len(regions))
        head = head_block(block).mesh.shape
        for region in regions:
            assert region.sram_peak_bytes <= size, (size, region.blocks)
            sides = {head if name in ENDS else on.shape for name in region.blocks}
            assert sides == {region.mesh.shape}, (size, region.blocks)
            kinds = [name.split()[-1] for name in region.blocks if name.split()[-1] in shape.layers_of]
            needs = [decode_need(block, kind) for kind in kinds]
            if len(kinds) == len(region.blocks):
                kept = sum(sum(need.resident.values()) for need in needs)
                assert kept + max(sum(need.workspace.values()) for need in needs) <= size, (size, region.blocks)
    assert len(found) > 3, "small cores take more regions"


NEEDS = [
    *product((SHAPE, MIXTURE), ("3", "2x3"), (None,)),
    *product((SHAPE, MIXTURE), ("3", "2x3"), ((1, 0), (3, 0), (3, 2))),
]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("shape", "mesh", "tokens"), NEEDS)
def test_a_block_needs_what_its_sub_layers_hold_in_their_fullest_round(shape, mesh, tokens, overlap):
    """Of prefill on cores of its own all keys and values are held as well, in every round."""
    on = as_mesh(mesh, ROOMY) if tokens is None else as_mesh(mesh, ROOMY).square()
    sizes = block.Block(shape, on, "fp16", entries=5, head_groups=2, overlap=overlap)
    for kind, keep in product(shape.layers_of, (False,) if tokens is None else (False, True)):
        if tokens is None:
            need, sub_layers = decode_need(sizes, kind), decode.sub_layers_of(sizes, kind)
        else:
            need, sub_layers = prefill_need(sizes, kind, *tokens, keep), prefill.sub_layers_of(sizes, kind, *tokens)
        made = [block.schedule(sub_layer, sizes, *args) for sub_layer, args in sub_layers]
        resident = {
            one.name: one.bytes * on.per_core
            for schedule in made
            for one in schedule.buffers.values()
            if one.role in ("weight", "cache") or (keep and one.name in ("keys", "values"))
        }
        rest = [
            {name: live[name] for name in live if name not in resident} for one in made for live in Walk(one).held()
        ]
        assert need.resident == resident
        assert sum(need.workspace.values()) == max(sum(live.values()) for live in rest)


def test_needs_share_resident_buffers_and_have_the_largest_workspace():
    first, second = sram.Need({"w": 10}, {"t": 3}), sram.Need({"v": 4}, {"w": 10, "t": 2})
    assert sram.in_turn([first, second]) == sram.Need({"w": 10, "v": 4}, {"t": 3})
    assert sram.in_turn([sram.Need({"w": 10}, {}), second]) == sram.Need({"w": 10, "v": 4}, {"t": 2})
    assert first.beside(sram.Need({"w": 12, "v": 4}, {"u": 2})) == sram.Need({"w": 12, "v": 4}, {"t": 3})
    assert sram.total([first, first, sram.Need({"w": 1}, {"u": 5})]) == {"w": 21, "u": 5}


def test_regions_of_any_size_lie_in_rows_without_a_core_in_common():
    """Every second row goes from right to left, and a row begins below the highest region of the row above."""
    chip = replace(device("wse2"), name="small", rows=8, cols=4)

    def origins(*sides: tuple[int, int]) -> list[tuple[int, int]]:
        return [mesh.origin for mesh in lay_out([Mesh(*side, chip) for side in sides], "rectangles")]

    assert origins((3, 2), (1, 2), (1, 2), (2, 1), (3, 4), (1, 1)) == [(0, 0), (0, 2), (3, 2), (3, 1), (5, 0)]
    assert region_count(Mesh(3, 3, chip), "rectangles") == 2
    areas = [mesh.origin for mesh in lay_out([Mesh(3, 3, chip)] * 9, "area")]
    assert areas == [(0, 3 * number) for number in range(chip.wafer_cores // 9)]
    assert region_count(Mesh(3, 3, chip), "area") == len(areas)


def test_a_shift_runs_for_each_slice_and_each_time():
    """A core of 100 B sends and receives 50 elements of fp16, 25 at once."""
    on = Mesh(1, 2, replace(device("wse2"), name="small", sram_bytes=100))
    schedule, runs = Shift(on, "x", np.array([0, 1]), np.array([1, 0]), 50, "fp16", times=3).schedule_runs
    assert runs == 3 * 2 and sram.account(schedule).peak_bytes == 2 * 25 * 2


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (Mesh(3, 3, ROOMY), Mesh(3, 3, ROOMY, origin=(0, 3))),
        (Mesh(3, 3, ROOMY), Mesh(3, 2, ROOMY, origin=(0, 1))),
        (Mesh(3, 3, ROOMY, origin=(2, 1)), Mesh(3, 3, ROOMY, origin=(1, 2))),
        (Mesh(4, 3, ROOMY), Mesh(2, 5, ROOMY, origin=(4, 0))),
        (Mesh(2, 5, ROOMY, origin=(4, 2)), Mesh(6, 3, ROOMY, origin=(3, 6))),
        (Mesh(3, 2, ROOMY, origin=(0, 4)), Mesh(4, 4, ROOMY)),
    ],
)
@pytest.mark.parametrize("width", [12, 11])
def test_a_hand_over_brings_the_activation_to_every_column_of_the_next_region(source, target, width):
    meshes = from_corner(source, target)
    schedule = hand_over(*meshes, width, 1, "fp32")
    element = torch.arange(width)
    before, after = (torch.zeros(*schedule.mesh.shape, -(-width // mesh.rows)) for mesh in meshes)
    for tiles, mesh in zip((before, after), meshes, strict=True):
        (top, left), share = mesh.origin, tiles.shape[-1]
        tiles[top + element // share, left : left + mesh.cols, element % share] = 1.0 + element[:, None]
    program = TorchExecutor(poison=True).bind(schedule, {"from": before})
    program.run()
    assert torch.equal(program.read("to").view(after.shape).nan_to_num(), after)


@pytest.mark.parametrize("offset", [(0, 0), (2, 7), (-8, 1), (3, -5)])
@pytest.mark.parametrize(("mesh", "other"), [("2x3", "6"), ("6", "2x3"), ("3x2", "4")])
@pytest.mark.parametrize("regions", [None, ExpertRegions(2, 2)])
def test_each_weight_moves_from_its_core_in_one_region_to_its_core_in_the_other(regions, mesh, other, offset):
    """The gate and the up matrix, of sizes that the cores divide: by the sum of distances over all elements."""
    shape = replace(SHAPE, hidden_size=24, intermediate_size=24)
    if regions:
        shape = replace(shape, experts=Experts(8, 2, 24))
    before = block.Block(shape, as_mesh(mesh, ROOMY), "fp32")
    after = replace(before, mesh=as_mesh(other, ROOMY).square(), expert_regions=regions)
    steps = weight_moves(before, after, "experts" if regions else "ffn", offset=offset)["wgu"]
    moved = priced([step.schedule_runs for step in steps if isinstance(step, Shift)])
    hops, side = 0, regions.side if regions else 1
    for cores, length, fold, by in zip(before.mesh.shape, after.mesh.shape, after.mesh.fold, offset, strict=True):
        for region, element in product(range(side), range(24)):
            core = (region * length // side + element * (length // side) // 24) // fold
            hops += abs(by + element * cores // 24 - core)
    matrices = 2 * (8 // side if regions else 1)
    assert moved.link_bytes == 4 * 24 * matrices * hops
