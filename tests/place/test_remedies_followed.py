"""Refusals of random models that do not fit: each remedy that is followed fits."""

import random
import re
from collections import Counter
from dataclasses import replace

import pytest

from wafer_triton import estimate
from wafer_triton.device import Device, device
from wafer_triton.errors import WaferError
from wafer_triton.shape.decoder import DecoderShape

pytestmark = pytest.mark.large

SMALL = device("wse2").changed(rows=16, cols=16, sram_kib=32, name="small")
KINDS = {
    "decode": lambda of, shape, mesh, tokens: estimate.decode(device=of, model=shape, mesh=mesh, context=tokens),
    "prefill": lambda of, shape, mesh, tokens: estimate.prefill(device=of, model=shape, mesh=mesh, tokens=tokens),
    "kv": lambda of, shape, mesh, tokens: estimate.kv(device=of, model=shape, mesh=mesh),
    "request": lambda of, shape, mesh, tokens: estimate.request(
        device=of, model=shape, prefill_mesh=mesh, decode_mesh=mesh, input=tokens, output=16
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_remedy_that_is_followed_fits_and_no_smaller_one(kind: str) -> None:
    """Follow all remedies of refusals of random models, meshes, contexts and devices."""
    draw, followed = random.Random(kind), Counter[str]()

    def check(name: str, wanted: bool, of: Device, shape: DecoderShape, mesh: object) -> None:
        followed[name] += wanted
        try:
            KINDS[kind](of, shape, mesh, tokens)
        except WaferError as error:
            assert not wanted, f"{name}: {said} | {error}"
        else:
            assert wanted, f"{name} is not the least: {said}"

    while followed.total() < 12:
        heads = draw.choice([2, 4, 8])
        kv_heads, vocabulary = draw.choice([1, heads]), draw.choice([0, 500])
        width, layers = draw.choice([64, 96, 300]), draw.choice([5, 24, 60])
        shape = DecoderShape(heads * 16, width, layers, heads, kv_heads, 16, vocabulary)
        of = SMALL.changed(rows=draw.choice([16, 24]), cols=draw.choice([16, 26]), sram_kib=draw.choice([4, 6, 10.5]))
        mesh, tokens = (
            draw.choice([4, 6, 8] if kind in ("prefill", "request") else [4, 8, (6, 4)]),
            draw.choice([16, 200]),
        )
        try:
            KINDS[kind](of, shape, mesh, tokens)
        except WaferError as error:
            said = str(error)
        else:
            continue
        if size := re.search(r"with ([\d,]+) KiB of SRAM a core", said):
            least = int(size[1].replace(",", ""))
            check("SRAM", True, replace(of, sram_bytes=1024 * least), shape, mesh)
            check("SRAM", False, replace(of, sram_bytes=1024 * (least - 1)), shape, mesh)
        if other := re.search(r"(?:that fits is|the smallest is|; mesh) (\d+x\d+)", said):
            check("mesh", True, of, shape, other[1])
        if kept := re.search(r"it would fit with (\d+) of its", said):
            check("layers", True, of, replace(shape, num_hidden_layers=int(kept[1])), mesh)
            check("layers", False, of, replace(shape, num_hidden_layers=int(kept[1]) + 1), mesh)
        byte = replace(shape, weights=draw.choice(["int8", "fp8"]))
        if kept := re.search(r"int8 or fp8 weights and (\d+) of its", said):
            check("bytes", True, of, replace(byte, num_hidden_layers=int(kept[1])), mesh)
        elif "int8 or fp8 weights" in said:
            check("bytes", True, of, byte, mesh)
    assert min(followed[name] for name in ("SRAM", "layers", "bytes")) > 0, followed
