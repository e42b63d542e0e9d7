"""A region holds what its blocks keep, and the working memory of one of them at a time."""

from dataclasses import replace

from tiny import CONFIG
from wafer_triton.cost.constants import constants
from wafer_triton.cost.inference import decode_placed
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import WaferError
from wafer_triton.models.config import DecoderConfig
from wafer_triton.place.need import decode_need

TINY = DecoderConfig.from_dict(CONFIG | {"num_hidden_layers": 6})


def test_every_region_fits_the_sram_of_its_cores():
    chip, found = device("wse2"), set()
    for size in range(300, 2400, 20):
        on = Mesh(4, 4, replace(chip, name="small", sram_bytes=size))
        try:
            block, regions = decode_placed(on, TINY, 16, constants(chip))
        except WaferError:
            continue
        found.add(len(regions))
        for region in regions:
            kinds = [name.split()[-1] for name in region.blocks if name.split()[-1] in TINY.layers_of]
            needs = [decode_need(block, kind) for kind in kinds]
            if len(kinds) == len(region.blocks):
                kept = sum(sum(need.resident.values()) for need in needs)
                assert kept + max(sum(need.workspace.values()) for need in needs) <= size, (size, region.blocks)
    assert len(found) > 3, "small cores take more regions"
