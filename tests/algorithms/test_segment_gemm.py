"""GEMM-T and MeshGEMM within segments: the place of blocks, the moves of a round, and the values of both together."""

import pytest
import torch

from wafer_triton.algorithms.segment_gemm import BlockRing, segment_gemm, segment_gemm_t
from wafer_triton.count.account import per_round
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.schedule import Schedule

SIZES = [(size, width) for size in (1, 2, 3, 5, 8, 13) for width in range(1, size + 1)]
M, K, N = 2, 3, 1  # of a tile: rows of a, its columns, rows of b


@pytest.mark.parametrize(("size", "width"), SIZES)
def test_every_block_of_a_row_has_one_place_in_each_segment(size, width):
    blocks = BlockRing(size, width)
    for row, held in enumerate(blocks.row_of):
        for start in range(0, size - size % width, width):
            here = held[start : start + width]
            assert sorted(here[here >= 0].tolist()) == list(range(size))
        assert (held[size - size % width :] == -1).all(), "columns left over have none"
        assert row in held[blocks.station == 0][:, 0], "place 0 is the row's own"
    assert (
        blocks.place_counts.max() == blocks.slots and blocks.place_counts[blocks.station >= 0].min() >= blocks.slots - 1
    )


def both(size: int, width: int) -> Schedule:
    """o = (q k^T) v on every segment by itself."""
    blocks, b = BlockRing(size, width), Builder(Mesh(size, size), "both")
    for name, tile in (("q", (M, K)), ("k", (N, K)), ("v", (N, K))):
        b.buffer(name, tile, "fp32", "input")
    b.buffer("s", (M, N), "fp32", slots=blocks.rotating_slots)
    b.buffer("o", (M, K), "fp32", "output")
    segment_gemm_t(b, "q", "k", "s", blocks, m=M, k=K, n=N)
    segment_gemm(b, "s", "v", "o", blocks, m=M, k=N, n=K, label="weighted")
    return b.build()


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["explicit", "elided"])
@pytest.mark.parametrize(("size", "width"), SIZES)
def test_both_products_equal_whole_matrices(size, width, exchange):
    torch.manual_seed(size)
    given = {name: torch.randint(-3, 4, (size, size, rows, K)).float() for name, rows in (("q", M), ("k", N), ("v", N))}
    program = TorchExecutor(exchange=exchange, poison=True).bind(both(size, width), given)
    program.run()
    got = program.read("o")
    for start in range(0, size - size % width, width):
        columns = slice(start, start + width)
        q, k, v = (given[name][:, columns].permute(0, 2, 1, 3).flatten(2).flatten(0, 1) for name in "qkv")
        wanted = (q @ k.T @ v).view(size, M, width, K).permute(0, 2, 1, 3)
        assert torch.equal(got[:, columns], wanted)
    assert got[:, size - size % width :].isnan().all(), "columns left over do nothing"


@pytest.mark.parametrize(("size", "width"), [(8, 4), (13, 5), (9, 3), (12, 12)])
def test_a_round_of_the_ring_moves_one_block_a_column_by_two_hops_at_most(size, width):
    schedule = both(size, width)
    iterations = [
        (round_, counts)
        for round_, counts in zip(schedule.rounds, per_round(schedule), strict=True)
        if round_.label == "weighted"
    ]
    assert len(iterations) == size
    for round_, counts in iterations:
        along, down = sorted(round_.exchanges, key=lambda exchange: exchange.axis)
        assert (along.axis, down.axis) == ("x", "y")
        assert counts.hops <= 2
        columns = list(range(size - size % width))
        assert sorted(along.moves.send.tolist()) == sorted(along.moves.recv.tolist()) == columns
