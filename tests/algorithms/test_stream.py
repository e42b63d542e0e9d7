"""Streams of blocks over groups of dies: counts by `account`, values by the reference."""

import pytest
import torch

from wafer_triton.algorithms.stream import circle, groups, path, relay, stream
from wafer_triton.algorithms.stream_rounds import gather, reduce
from wafer_triton.count.account import account, per_round
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.reference import Reference
from wafer_triton.errors import MeshError, ScheduleError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Slot

SIZE = 2  # elements of a block
BYTES = 4 * SIZE


def gathered(mesh, moves, dies):
    b = Builder(mesh, "gather")
    own, out = b.buffer("own", (SIZE,), "fp32", "input"), b.buffer("out", (SIZE,), "fp32", "output", moves.size)
    gather(b, moves, dies, own, lambda t, block, where: [b.local("copy", Slot(out, t), block, where, size=SIZE)])
    return b.build()


def reduced(mesh, moves, dies):
    b = Builder(mesh, "reduce")
    parts, own = b.buffer("parts", (SIZE,), "fp32", "input", moves.size), b.buffer("own", (SIZE,), "fp32", "output")
    reduce(b, moves, dies, own, lambda t, part, where: [b.local("copy", part, Slot(parts, t), where, size=SIZE)])
    return b.build()


def block_hops(schedule):
    """Return bytes over all links, in blocks of one hop."""
    return account(schedule).link_bytes / BYTES


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9, 16])
def test_the_relay_takes_n_minus_1_rounds_of_one_hop_in_both_directions(size):
    mesh = Mesh(1, size)
    dies = groups(mesh, "relay", 1, size)
    published, needed = gathered(mesh, relay(size), dies), gathered(mesh, relay(size).without_unused_sends(), dies)
    back = reduced(mesh, relay(size), dies)
    for schedule in (published, needed, back):
        counts = account(schedule)
        assert counts.stages == size - 1
        assert max(entry.hops for entry in per_round(schedule)) == 1
        assert counts.flows == 1, "a directed link carries at most one block in a round"
        assert sum(name.startswith("own") for name in schedule.buffers) <= 5, "the own block and at most four lanes"
    published_hops = size * (3 * size - 4) / 2 if size % 2 == 0 else 3 * (size - 1) ** 2 / 2
    idle = (
        size - 2 if size % 2 == 0 else (size - 3) // 2
    )  # block-hops of returns to positions that no longer need the block
    assert block_hops(published) == published_hops
    assert block_hops(needed) == block_hops(back) == published_hops - idle


@pytest.mark.parametrize(
    ("kind", "shape", "published", "longest"),
    [
        ("relay", (1, 8), 80, 1), ("cycle", (2, 4), 56, 1), ("interleaved", (1, 8), 98, 2), ("wrap", (1, 8), 98, 7),
        ("relay", (1, 16), 352, 1), ("cycle", (4, 4), 240, 1), ("interleaved", (1, 16), 450, 2),
        ("wrap", (1, 16), 450, 15),
    ],
)  # fmt: skip
def test_block_hops_of_the_relay_and_the_three_rings(kind, shape, published, longest):
    mesh = Mesh(*shape)
    schedule = gathered(mesh, stream(kind, mesh.cores), groups(mesh, kind, *shape))
    assert (block_hops(schedule), account(schedule).stages) == (published, mesh.cores - 1)
    assert max(entry.hops for entry in per_round(schedule)) == longest
    assert account(schedule).flows == 1


@pytest.mark.parametrize("moves", [make(size) for size in (1, 2, 3, 4, 5, 8, 9, 31, 32) for make in (relay, circle)])
def test_every_position_has_every_block_once(moves):
    size, half = moves.size, moves.size // 2
    assert all(sorted(row) == list(range(size)) for row in moves.order)
    assert moves.without_unused_sends().order == moves.order
    if any("right" in lane for lane in moves.lanes):  # the relay's order, as docs/temp.md has it
        assert moves.order == tuple(
            tuple((place + t if place < half else place - t) % size for t in range(size)) for place in range(size)
        )


GROUPS = [
    ("relay", (1, 6), (1, 3)), ("relay", (6, 2), (3, 1)), ("relay", (3, 3), (3, 3)), ("relay", (2, 4), (2, 2)),
    ("relay", (1, 1), (1, 1)), ("relay", (1, 5), (1, 5)), ("relay", (4, 2), (4, 2)), ("relay", (1, 2), (1, 2)),
    ("cycle", (4, 8), (2, 4)), ("cycle", (3, 4), (3, 4)), ("cycle", (6, 3), (2, 3)), ("cycle", (1, 4), (1, 2)),
    ("interleaved", (2, 5), (1, 5)), ("wrap", (4, 2), (4, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "shape", "sides"), GROUPS, ids=str)
def test_a_gather_stream_delivers_every_block_and_a_reduce_stream_sums_every_part(kind, shape, sides):
    mesh = Mesh(*shape)
    dies, moves = groups(mesh, kind, *sides), stream(kind, sides[0] * sides[1])
    blocks = torch.arange(mesh.cores * SIZE).float().view(*shape, SIZE)
    parts = torch.randint(-8, 8, (*shape, moves.size, SIZE)).float()
    there, back = (
        Reference(gathered(mesh, moves, dies), {"own": blocks}),
        Reference(reduced(mesh, moves, dies), {"parts": parts}),
    )
    there.run()
    back.run()
    out, sums = there.read("out").view(*shape, moves.size, SIZE), back.read("own")
    for group in dies:
        for place, die in enumerate(group):
            assert out[die].tolist() == [blocks[group[block]].tolist() for block in moves.order[place]]
            of_block = [parts[other][moves.order[at].index(place)] for at, other in enumerate(group)]
            assert sums[die].tolist() == sum(of_block).tolist()


def test_a_path_visits_every_die_once_in_steps_of_one_hop():
    for rows, cols in [(1, 5), (2, 3), (3, 3), (4, 6), (5, 4)]:
        for kind in ("relay", "cycle"):
            if kind == "cycle" and (min(rows, cols) == 1 or rows * cols % 2):
                continue
            dies = path(kind, rows, cols)
            assert len(set(dies)) == rows * cols == len(dies)
            steps = list(zip(dies, dies[1:] + dies[:1] if kind == "cycle" else dies[1:], strict=False))
            assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in steps)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: groups(Mesh(4, 6), "relay", 3, 2), MeshError, "groups of 3 x 2 dies do not tile mesh 4x6"),
        (lambda: path("cycle", 3, 3), MeshError, "no cycle of one-hop transfers through 3 x 3 dies"),
        (lambda: path("cycle", 1, 4), MeshError, "no cycle of one-hop transfers through 1 x 4 dies"),
        (lambda: path("wrap", 2, 2), MeshError, "'wrap' runs on a strip of dies, not on 2 x 2"),
        (lambda: path("star", 2, 2), ScheduleError, "choose one of relay, cycle, interleaved, wrap"),
        (lambda: stream("star", 4), ScheduleError, "choose one of relay, cycle, interleaved, wrap"),
        (lambda: stream("relay", 0), ScheduleError, "give a whole number of at least 1"),
    ],
)
def test_wrong_arguments_of_a_stream_are_refused(call, error, said):
    with pytest.raises(error, match=said):
        call()
