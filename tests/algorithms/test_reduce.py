"""K-trees in closed form, their rivals, and the values of reductions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pairs import pairs
from wafer_triton import ops
from wafer_triton.algorithms.collectives import transpose
from wafer_triton.algorithms.reduce import all_reduce, broadcast, reduce
from wafer_triton.algorithms.trees import default_groups, ktree
from wafer_triton.count.account import account
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import MeshError
from wafer_triton.ops.testing import assert_close
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Slot

# (P, group_num) that the paper's CSL kernels use
PAPER = [(240, 15), (256, 16), (300, 15), (360, 18), (420, 20), (480, 20), (512, 32), (540, 20), (600, 24), (660, 22)]
PAPER += [(720, 24)]
executors = pytest.mark.parametrize("exchange", ["explicit", "elided"])


def line(size: int, rows: int = 1) -> Builder:
    b = Builder(Mesh(rows, size), "line")
    b.buffer("acc", (3,), "fp32", "state")
    return b


@pytest.mark.parametrize(("size", "groups"), PAPER, ids=lambda value: str(value))
def test_two_level_tree_of_the_paper_in_closed_form(size, groups):
    g = size // groups
    root1, root2 = g // 2, groups // 2 * g + g // 2
    inside, across = max(root1, g - 1 - root1), max(groups // 2, groups - 1 - groups // 2)
    stages, root = ktree(size, (groups,))
    assert root == root2
    assert len(stages) == inside + across
    hops = [max(abs(a - b) for pairs in stage for a, b in pairs) for stage in stages]
    assert hops == [1] * inside + [g] * across

    b = line(size)
    all_reduce(b, "acc", "x", groups=(groups,))
    found = account(b.build())
    assert found.stages == inside + across + 1
    assert found.hops == inside + across * g + max(root2, size - 1 - root2)


@st.composite
def trees(draw):
    size = draw(st.integers(1, 120))
    groups, left = [], size
    for _ in range(draw(st.integers(0, 3))):  # K = 1 to 4
        left = draw(st.integers(1, left))
        groups.append(left)
    return size, tuple(groups), draw(st.none() | st.integers(0, size - 1))


@given(trees())
def test_every_core_sends_once_and_all_of_it_reaches_the_root(drawn):
    size, groups, asked = drawn
    stages, root = ktree(size, groups, asked)
    assert asked in (None, root)
    held = {core: {core} for core in range(size)}
    gone: set[int] = set()
    for up, down in stages:
        assert all(a < b for a, b in up) and all(a > b for a, b in down)
        pairs = [*up, *down]
        senders = [a for a, _ in pairs]
        assert len(set(senders)) == len(senders) and not gone & {core for pair in pairs for core in pair}
        assert not set(senders) & {b for _, b in pairs}, "no core sends and receives in one stage"
        for a, b in pairs:
            assert not held[a] & held[b]
            held[b] |= held.pop(a)
        gone |= set(senders)
    assert held == {root: set(range(size))}


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_a_k_tree_over_p_cores_has_about_half_k_times_the_kth_root_of_p_stages(levels):
    side = {1: 4096, 2: 64, 3: 16, 4: 8}[levels]
    stages, _ = ktree(4096, tuple(side**power for power in range(levels - 1, 0, -1)))
    assert len(stages) == levels * (side // 2)


@pytest.mark.parametrize(("size", "groups"), [(1, ()), (2, ()), (4, ()), (5, (2,)), (16, (4,)), (360, (18,))])
def test_default_groups_balance_two_levels(size, groups):
    assert default_groups(size) == groups


def test_groups_must_fit_their_level():
    for size, groups, message in (
        (3, (4,), "K-tree over 3 cores: level 1 has 3 cores for 4 groups"),
        (9, (3, 4), "level 2 has 3 cores for 4 groups"),
        (9, (0,), "level 1 has 9 cores for 0 groups"),
    ):
        with pytest.raises(MeshError, match=message):
            ktree(size, groups)


# --- values ---


def run_line(b: Builder, exchange: str, **tiles: torch.Tensor) -> dict[str, torch.Tensor]:
    program = TorchExecutor(exchange=exchange, poison=True).bind(b.build(), tiles)
    program.run()
    return {name: program.read(name) for name in tiles}


def run(b: Builder, tiles: torch.Tensor, exchange: str) -> torch.Tensor:
    return run_line(b, exchange, acc=tiles)["acc"]


@executors
@pytest.mark.parametrize(
    ("size", "groups", "op"),
    [(1, (), "add"), (2, (), "maximum"), (3, (3,), "add"), (7, (2,), "maximum"), (13, (6, 3, 2), "add")],
    ids=str,
)
def test_every_root_gets_the_whole_line(size, groups, op, exchange):
    tiles = torch.randint(-9, 10, (2, size, 3)).float()
    wanted = tiles.sum(1) if op == "add" else tiles.amax(1)
    for root in (None, *range(size)):
        b = line(size, 2)
        place = reduce(b, "acc", "x", op=op, groups=groups, root=root)
        assert root in (None, place)
        assert torch.equal(run(b, tiles, exchange)[:, place], wanted)


@pytest.mark.parametrize("roots", [[0, 5, 1], [2, -1, 4]], ids=str)
def test_no_line_has_its_root_off_the_mesh(roots):
    with pytest.raises(MeshError, match=f"K-tree over 5 cores: root {roots[1]} is off the line"):
        reduce(line(5, 3), "acc", "x", root=roots)


@executors
@pytest.mark.parametrize("roots", [[0, 0, 0], [4, 2, 0], [1, 3, 3]], ids=str)
@pytest.mark.parametrize("axis", ["x", "y"])
def test_every_line_may_have_its_own_root(roots, axis, exchange):
    tiles = torch.randint(-9, 10, (3, 5, 3)).float()
    b = Builder(Mesh(3, 5) if axis == "x" else Mesh(5, 3), "roots")
    b.buffer("acc", (3,), "fp32", "state")
    reduce(b, "acc", axis, root=roots)
    given = tiles if axis == "x" else tiles.transpose(0, 1)
    got = run(b, given, exchange)
    got = got if axis == "x" else got.transpose(0, 1)
    assert torch.equal(got[np.arange(3), roots], tiles.sum(1))


@executors
@pytest.mark.parametrize("root", [0, 2, 4])
def test_broadcast_reaches_every_core_both_ways_at_once(root, exchange):
    b = line(5, 2)
    broadcast(b, "acc", "x", root)
    tiles = torch.randn(2, 5, 3)
    assert torch.equal(run(b, tiles, exchange), tiles[:, root : root + 1].expand(-1, 5, -1))
    found = account(b.build())
    assert (found.stages, found.hops) == (1, max(root, 4 - root))
    assert found.link_bytes == 2 * 4 * 12, "a multicast crosses each link once"


@executors
@pytest.mark.parametrize("slots", [[1, 1], [2, 0]])
def test_slots_that_are_not_the_first_are_summed(slots, exchange):
    b = Builder(Mesh(2, 5), "line")
    b.buffer("acc", (3,), "fp32", "state", slots=3)
    all_reduce(b, Slot("acc", slots[0] if slots[0] == slots[1] else slots, "y"), "x")
    tiles = torch.randint(-9, 10, (2, 5, 3, 3)).float()
    wanted = tiles.clone()
    for row, slot in enumerate(slots):
        wanted[row, :, slot] = tiles[row, :, slot].sum(0)
    assert torch.equal(run(b, tiles, exchange), wanted)


@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize(
    ("mesh", "algorithm", "op"),
    pairs(
        ["1", "2x3", "3x2", "7x1", "1x8", "5"], ["ktree", "pipeline", "two-phase", "star", "ring"], ("add", "maximum")
    ),
)
def test_all_reduce(mesh, axis, op, algorithm):
    rows, cols = (int(side) for side in (mesh.split("x") * 2)[:2])
    x = torch.randint(-9, 10, (rows, cols, 2, 5)).float()
    dim = 1 if axis == "x" else 0
    wanted = x.sum(dim, keepdim=True) if op == "add" else x.amax(dim, keepdim=True)
    for exchange in ("explicit", "elided"):
        got = ops.all_reduce(x, axis=axis, op=op, algorithm=algorithm, mesh=mesh, exchange=exchange)
        assert torch.equal(got, wanted.expand_as(x)), exchange


@pytest.mark.parametrize("algorithm", ["ktree", "pipeline", "two-phase", "star", "ring"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_all_reduce_rounds_every_sum_to_the_dtype(dtype, algorithm):
    x = torch.randn(1, 9, 40, dtype=dtype)
    got = ops.all_reduce(x, axis="x", algorithm=algorithm, mesh="1x9")
    one_by_one = x[:, 0]
    for core in range(1, 9):
        one_by_one = one_by_one + x[:, core]
    assert_close(got[:, 0], x.double().sum(1), dtype, one_by_one)
    assert torch.equal(got, got[:, :1].expand_as(got))


def test_a_maximum_keeps_nan():
    x = torch.zeros(2, 5, 1)
    x[0, 3] = float("nan")
    got = ops.all_reduce(x, axis="x", op="maximum", mesh="2x5")
    assert got[0].isnan().all() and got[1].eq(0).all()


@pytest.mark.parametrize("roots", [[0, 1], [0, 1, 2, 3], [[0, 1, 2]], [0.5, 1.5, 2.5]], ids=str)
def test_roots_are_one_whole_number_for_each_line(roots):
    with pytest.raises(MeshError, match="are not one whole number for each of 3 lines"):
        reduce(line(5, 3), "acc", "x", root=roots)


# --- segments of a line, several buffers together ---


@executors
@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize(("size", "segment"), [(12, 4), (13, 4), (7, 1), (5, 5), (9, 5), (40, 13)])
def test_segments_are_summed_by_themselves(size, segment, axis, exchange):
    mesh = Mesh(2, size) if axis == "x" else Mesh(size, 2)
    b = Builder(mesh, "segments")
    b.buffer("acc", (3,), "fp32", "state")
    all_reduce(b, "acc", axis, segment=segment)
    tiles = torch.randint(-9, 9, (*mesh.shape, 3)).float()
    along = tiles if axis == "x" else tiles.transpose(0, 1)
    wanted = along.clone()
    for first in range(0, size - segment + 1, segment):
        wanted[:, first : first + segment] = along[:, first : first + segment].sum(1, keepdim=True)
    got = run(b, tiles, exchange)
    assert torch.equal(got if axis == "x" else got.transpose(0, 1), wanted)


def test_segments_reduce_at_the_same_time_over_disjoint_links():
    whole, parts = line(12), line(63)
    all_reduce(whole, "acc", "x", groups=(3,))
    all_reduce(parts, "acc", "x", groups=(3,), segment=12)
    one, five = (account(b.build()) for b in (whole, parts))
    assert (five.rounds, five.stages, five.hops) == (one.rounds, one.stages, one.hops)
    assert five.link_bytes == 5 * one.link_bytes and five.busiest_link_bytes == one.busiest_link_bytes


@executors
def test_buffers_reduced_together_have_the_sums_of_single_reductions(exchange):
    def built(together: bool) -> Builder:
        b = Builder(Mesh(3, 11), "several")
        b.buffer("acc", (3,), "fp32", "state")
        b.buffer("more", (5,), "fp16", "state")
        for names in [("acc", "more")] if together else [("acc",), ("more",)]:
            all_reduce(b, names, "x", groups=(3,))
        return b

    tiles = {"acc": torch.randn(3, 11, 3), "more": torch.randn(3, 11, 5).half()}
    apart, together = (run_line(built(how), exchange, **tiles) for how in (False, True))
    assert all(torch.equal(apart[name], together[name]) for name in tiles)
    separate, joint = (account(built(how).build()) for how in (False, True))
    assert joint.rounds == separate.rounds // 2 and joint.stages == separate.stages // 2
    assert joint.link_bytes == separate.link_bytes and joint.hops == separate.hops // 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"segment": 9}, "line: a segment of 9 cores on a line of 8; give from 1 to 8"),
        ({"segment": 0}, "a segment of 0 cores on a line of 8"),
        ({"segment": 4, "algorithm": "ring"}, "'ring' takes whole lines, no segments; use a tree"),
    ],
)
def test_wrong_segments_are_refused(arguments, message):
    with pytest.raises(MeshError, match=message):
        all_reduce(line(8), "acc", "x", **arguments)


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda b: reduce(b, "x", "x", algorithm="pipeline", groups=(2,)), "'pipeline' takes no groups; use 'kt"),
        (lambda b: all_reduce(b, "x", "x", algorithm="star", groups=(2,)), "'star' takes no groups; use 'ktree'"),
        (lambda b: all_reduce(b, Slot("x", None), "x", algorithm="ring"), "'ring' takes the first slot of a b"),
        (lambda b: all_reduce(b, ("x",), "x", algorithm="ring"), "'ring' takes the first slot of a buffer; use a tree"),
        (lambda b: reduce(b, "x", "x", root=[0, 1, 2], groups=(2,)), "reached by chains, without groups"),
        (lambda b: reduce(b, "x", "x", root=[0, 1, 2], segment=4), "reached by chains, without groups or segments"),
        (lambda b: transpose(b, "x", "turned"), "only a square mesh can be transposed, not 3 x 4"),
    ],
)
def test_wrong_operands_of_a_reduction_or_transpose_are_refused(add, message):
    b = Builder(Mesh(3, 4), "wrong")
    b.buffer("x", (2,), "fp32", "state", 2)
    b.buffer("turned", (2,), "fp32", "output")
    with pytest.raises(MeshError, match=message):
        add(b)
