"""Elided reduce trees: who adds up which chains, and the bits of sums that go hop by hop."""

import numpy as np
import pytest
import torch

from wafer_triton.emulate import triton
from wafer_triton.emulate.gathering import gathered
from wafer_triton.emulate.launches import Tree, reduction
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.kernels.chain import chain
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.reduce import all_reduce, default_groups, reduce
from wafer_triton.schedule.rounds import Schedule


def reduced(
    mesh: Mesh, names: tuple[str, ...] = ("a",), dtype: str = "fp32", to_all: bool = True, sent: bool = False, **options
) -> Schedule:
    """A reduction along x of each named buffer, all together, then twice the sum of the first, or first the sum."""
    b = Builder(mesh, "reduced")
    for name in names:
        b.buffer(name, (5,), dtype, "resident")
    b.buffer("twice", (5,), dtype, "output")
    (all_reduce if to_all else reduce)(b, names, "x", **options)
    if sent:
        b.round(b.exchange("x", names[0], "twice", 4, range(mesh.cols)))
    b.round(b.local("add", "twice", (names[0], names[0]), size=5))
    return b.build()


def tree_of(size: int, groups: tuple[int, ...]) -> Tree:
    made = reduced(Mesh(1, size), groups=groups)
    found = reduction(made.rounds, made.mesh)
    assert found is not None
    return found


def waits(tree: Tree) -> int:
    """How many programs one after another wait for one another."""
    depth = np.zeros(len(tree.parent), np.int64)
    for core in np.argsort(tree.sent, kind="stable"):
        if tree.parent[core] >= 0:
            depth[tree.parent[core]] = max(depth[tree.parent[core]], depth[core] + 1)
    return int(depth.max())


@pytest.mark.parametrize(
    ("size", "groups", "hops", "levels"),
    [
        (64, default_groups(64), 8, 2),
        (64, (), 32, 1),
        (660, default_groups(660), 25, 2),
        (60, (12, 4), 5, 3),
        (3, (), 1, 1),
    ],
)
def test_sums_wait_for_as_many_programs_as_the_tree_has_levels(size, groups, hops, levels):
    tree = tree_of(size, groups)
    flat = gathered(tree)
    assert (waits(tree), waits(flat)) == (hops, levels)
    assert flat.senders is not None and flat.first is not None
    taken = flat.senders[: flat.children.sum()] // 2
    assert np.array_equal(np.sort(taken), np.flatnonzero(tree.parent >= 0)), "everybody's part but the root's, once"
    for core in np.flatnonzero(flat.parent >= 0):
        assert taken[flat.first[flat.parent[core]] + flat.slot[core]] == core


@pytest.fixture
def trees(monkeypatch) -> list:
    """The trees that are launched."""
    seen = []

    def spying(stretches, *args):
        seen.extend(one.tree for one in stretches if one.tree is not None)
        chain(stretches, *args)

    monkeypatch.setattr(triton, "chain", spying)
    return seen


def bits(program, names) -> list[torch.Tensor]:
    program.run()
    return [program.read(name).cpu().contiguous().view(torch.uint8) for name in names]


CASES = {
    "chains": (Mesh(2, 5), {"groups": ()}),
    "two levels": (Mesh(1, 9), {}),
    "lopsided": (Mesh(1, 11), {"groups": (4,)}),
    "three levels": (Mesh(1, 13), {"groups": (6, 3), "dtype": "bf16"}),
    "pairs": (Mesh(2, 6), {"groups": (3,), "op": "maximum"}),
    "segments": (Mesh(1, 9), {"segment": 4, "dtype": "fp16"}),
    "one way": (Mesh(1, 7), {"algorithm": "two-phase"}),
    "together": (Mesh(1, 6), {"names": ("a", "b")}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_bits_are_those_of_every_hop(case, trees):
    mesh, options = CASES[case]
    made = reduced(mesh, **options)
    names = [*options.get("names", ("a",)), "twice"]
    given = {name: torch.randn(*mesh.shape, 5) for name in names[:-1]}
    want = bits(TritonExecutor(poison=True).bind(made, given), names)
    assert trees and all(tree.senders is None for tree in trees)
    trees.clear()
    assert all(map(torch.equal, bits(TorchExecutor().bind(made, given), names), want))
    for shuffle in (None, 3):
        program = TritonExecutor(exchange="elided", poison=True, shuffle=shuffle).bind(made, given)
        assert all(map(torch.equal, bits(program, names), want))
    assert trees and all(tree.senders is not None and tree.mailbox is None for tree in trees)


@pytest.mark.parametrize("sent", [False, True], ids=["told-nobody", "sent-elsewhere"])
def test_what_is_left_on_the_way_stays_where_somebody_may_look_at_it(sent, trees):
    made = reduced(Mesh(1, 9), to_all=False, sent=sent)
    given = {"a": torch.randn(1, 9, 5)}
    want = bits(TorchExecutor().bind(made, given), ["a", "twice"])
    assert all(map(torch.equal, bits(TritonExecutor(exchange="elided").bind(made, given), ["a", "twice"]), want))
    assert [tree.senders for tree in trees] == [None]
