"""Gathers on any mesh, compared with the rows of the table."""

import torch
from torch import Tensor

from wafer_triton import Builder, Mesh, Schedule, executor
from wafer_triton.algorithms.gather import gather
from wafer_triton.device.dtype import torch_dtype

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
