"""Gathered rows are those of the table, bit by bit, and the price chooses between sum and ring."""

from itertools import product

import pytest
import torch
from torch import Tensor

from schedules import ROOMY
from wafer_triton import Builder, Mesh, Schedule, account, as_mesh, executor, price
from wafer_triton.algorithms.gather import ALGORITHMS, gather
from wafer_triton.device.dtype import torch_dtype
from wafer_triton.errors import MeshError, SramError

WIDTH, ROWS, IDS = 5, 3, 4  # of a core: numbers of a row, rows of the table, ids


def build(mesh: Mesh, axis: str, dtype: str, algorithm: str, segment: int | None = None, sizes=(WIDTH, ROWS, IDS)):
    width, rows, ids = sizes
    b = Builder(mesh, f"gather by {algorithm}")
    b.buffer("table", (width, rows), dtype, "weight")
    b.buffer("ids", (ids,), "fp32", "input")
    b.buffer("first", (1,), "fp32", "input")
    b.buffer("out", (ids, width), dtype, "output")
    gather(b, "table", "ids", "first", "out", axis, algorithm=algorithm, segment=segment)
    return b.build()


def on_lines(tiles: Tensor, axis: str) -> Tensor:
    """Return tiles [lines, cores of a line, ...] as [rows, cols, ...]."""
    return tiles if axis == "x" else tiles.transpose(0, 1)


def drawn_ids(algorithm: str, lines: int, size: int) -> dict[str, Tensor]:
    """Return ids [lines, cores, IDS] of four distributions; with "sum" all cores of a line have the same."""
    cores, table = size if algorithm == "ring" else 1, size * ROWS
    shape, last = (lines, cores, IDS), torch.arange(size)[:cores, None] * ROWS + ROWS - 1
    return {
        name: ids.expand(lines, size, IDS).float()
        for name, ids in {
            "even": torch.randint(table, shape),
            "one row for all": torch.full(shape, table - 1),
            "mostly few rows": (table * torch.rand(shape) ** 4).long(),
            "a core's own, and none": torch.where(torch.rand(shape) < 0.3, -1, last),
        }.items()
    }


def check_rows(schedule: Schedule, axis: str, algorithm: str, backend: str, exchange: str, segment=None) -> None:
    """Compare `out` for each distribution with torch's rows of the table, of which each segment has a copy."""
    length = schedule.mesh.length(axis)
    lines, size = schedule.mesh.cores // length, segment or length
    dtype = torch_dtype(schedule.buffers["table"].dtype)
    whole = torch.randn(lines, size * ROWS, WIDTH).to(dtype)
    table = whole.unflatten(1, (size, ROWS)).mT.repeat(1, length // size, 1, 1)
    first = (torch.arange(length) % size * ROWS).float()[:, None].expand(lines, length, 1)
    tiles = {"table": table, "first": first, "ids": torch.zeros(lines, length, IDS)}
    tiles = {name: on_lines(tile, axis) for name, tile in tiles.items()}
    program = executor(backend, exchange).bind(schedule, tiles)
    for name, ids in drawn_ids(algorithm, lines, size).items():
        ids = ids.repeat(1, length // size, 1)
        program.write("ids", on_lines(ids, axis))
        program.run()
        rows = torch.stack([own[at.clamp(0).long()] for own, at in zip(whole, ids, strict=True)])
        wanted = rows.where((ids >= 0)[..., None], 0)
        assert torch.equal(on_lines(program.read("out"), axis), wanted), name


@pytest.mark.parametrize("exchange", ["explicit", "elided"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("mesh", ["1x4", "3x3", "2x5", "8x8"])
def test_rows_equal_the_table_s(mesh, algorithm, exchange):
    for axis, dtype in product("xy", ("fp32", "bf16", "fp16")):
        check_rows(build(as_mesh(mesh), axis, dtype, algorithm), axis, algorithm, "torch", exchange)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("mesh", "axis", "dtype"), [("1x4", "x", "bf16"), ("3x3", "y", "fp32"), ("2x5", "x", "fp16")])
def test_rows_of_kernels_equal_the_table_s(mesh, axis, dtype, algorithm):
    check_rows(build(as_mesh(mesh), axis, dtype, algorithm), axis, algorithm, "triton", "explicit")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_segment_has_a_copy_of_the_table(algorithm):
    for axis, segment in (("x", 2), ("y", 3)):
        schedule = build(as_mesh("6x4"), axis, "fp32", algorithm, segment)
        check_rows(schedule, axis, algorithm, "torch", "explicit", segment)


def test_a_ring_keeps_the_sign_of_zero():
    schedule = build(as_mesh("1x2"), "x", "fp32", "ring")
    table = torch.full((1, 2, WIDTH, ROWS), -0.0)
    first = torch.tensor([0.0, ROWS]).view(1, 2, 1)
    program = executor("torch").bind(schedule, {"table": table, "first": first, "ids": torch.ones(1, 2, IDS)})
    program.run()
    assert program.read("out").signbit().all()


@pytest.mark.parametrize("side", [8, 16, 64])
def test_the_price_chooses_the_ring_from_some_fifty_words_a_core(side):
    """Each line of cores asks for `side` times as many ids as a core has with "ring"; a row has four numbers a core."""
    mesh, cheaper = Mesh(side, side, ROOMY), {}
    for ids in (1, 4, 8, 16, 32):
        by_sum = build(mesh, "x", "fp32", "sum", sizes=(4, ROWS, ids * side))
        ring = build(mesh, "x", "fp32", "ring", sizes=(4, ROWS, ids))
        cheaper[4 * ids] = min((price(by_sum).cycles, "sum"), (price(ring).cycles, "ring"))[1]
    assert [cheaper[words] for words in (4, 16, 64, 128)] == ["sum", "sum", "ring", "ring"], cheaper


def test_bytes_over_links_are_worked_out_by_hand():
    """Ids and rows go round in C - 1 steps, the rows once more; a step's C messages cross 2 (C - 1) links."""
    counts = account(build(as_mesh("3x5"), "x", "fp32", "ring"))
    rows, cols, row = 3, 5, IDS * WIDTH
    assert counts.link_bytes == 4 * rows * 2 * (cols - 1) * ((cols - 1) * (row + IDS) + row)
    assert counts.rounds == cols + 1


def test_wrong_gathers_are_refused():
    with pytest.raises(MeshError, match="gather algorithm 'all-to-all': choose one of sum, ring"):
        build(as_mesh("2"), "x", "fp32", "all-to-all")
    with pytest.raises(MeshError, match="a segment of 3 cores on a line of 2"):
        build(as_mesh("2"), "x", "fp32", "ring", 3)
    with pytest.raises(SramError, match="table"):
        build(as_mesh("2"), "x", "fp32", "ring", sizes=(WIDTH, 3000, IDS))
