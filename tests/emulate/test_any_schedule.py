"""Random elided schedules: in every grouping into launches, the bits equal an execution hop by hop."""

import random

import numpy as np
import pytest
import torch

from test_fold import last_first
from wafer_triton.algorithms.collectives import broadcast
from wafer_triton.algorithms.reduce import all_reduce, reduce
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate import fuse, triton
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.kernels import fused
from wafer_triton.kernels.fused import launch
from wafer_triton.kernels.tree import reduce_tree
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Buffer, Cores
from wafer_triton.schedule.schedule import Schedule

HEADS = 2
NORM = ("squares", "all squares", "scale", "product")
KINDS = (
    *[NORM, "all sum", "product"] * 3, "squares", "all squares", "scale", "sum", "broadcast", "shift", "add", "copy",
    "add somewhere", "row_max", "all rows", "exp_sum", "weighted", "all weighted", "normalize",
)  # fmt: skip


def at_random(seed: int) -> Schedule:
    """Build a schedule of a decoder's operations in random order: vectors, norms, products and attention."""
    any_ = random.Random(seed)
    mesh, n = Mesh(any_.randint(1, 4), any_.choice([1, 2, 3, 4, 6])), any_.choice([3, 20, 40])
    b, rows = Builder(mesh, f"at random, {seed}"), {"heads": HEADS, "m": 1, "n": n, "scale": 0.3}
    half = any_.choice(["fp32", "bf16"])
    for name, tile, dtype in (
        ("x", (1, n), half), ("y", (1, n), half), ("z", (1, n), half), ("w", (n, n), half), ("norm", (n,), half),
        ("squares", (1,), "fp32"), ("s", (HEADS, 1, n), "fp32"), ("bias", (1, n), "fp32"), ("top", (HEADS, 1), "fp32"),
        ("p", (HEADS, 1, n), half), ("total", (HEADS, 1), "fp32"), ("v", (n, 1, 4), half), ("o", (1, HEADS, 4), "fp32"),
        ("att", (1, HEADS, 4), half),
    ):  # fmt: skip
        b.buffer(name, tile, dtype, "state")
    kinds = [any_.choice(KINDS) for _ in range(any_.randint(4, 14))]
    axis = "x"
    for kind in (one for each in kinds for one in (each if each is NORM else [each])):
        axis, (to, of, other) = any_.choice([axis, axis, "x", "y"]), any_.sample("xyz", 3)
        length = mesh.length(axis)
        local = {
            "add": ("add", to, (of, other), {"size": n}),
            "copy": ("copy", to, of, {"size": n}),
            "squares": ("sum_squares", "squares", of, {"m": 1, "n": n}),
            "scale": ("rms_scale", to, (of, "squares", "norm"), {"m": 1, "n": n, "width": 4 * n, "eps": 1e-5}),
            "product": ("gemm", to, (of, "w"), {"m": 1, "k": n, "n": n, "add": any_.random() < 0.2}),
            "row_max": ("row_max", "top", ("s", "bias"), rows),
            "exp_sum": ("exp_sum", ("p", "total"), ("s", "bias", "top"), rows),
            "weighted": ("gemm", "o", ("p", "v"), {"m": 1, "k": n, "n": 4, "heads": HEADS, "kv_heads": 1}),
            "normalize": ("normalize", "att", ("o", "total"), {"m": 1, "heads": HEADS, "n": 4}),
        }
        if kind in local:
            op, outs, ins, params = local[kind]
            b.round(b.local(op, outs, ins, **params))
        elif kind == "add somewhere":
            at = np.array(sorted(any_.sample(range(length), any_.randint(1, length))))
            b.round(b.local("add", to, (of, other), Cores(axis, at), size=n))
        elif kind == "shift":
            b.round(b.exchange(axis, of, to, [*range(1, length), 0], range(length)))
        elif kind == "broadcast":
            broadcast(b, to, axis, any_.randrange(length))
        elif kind == "sum":
            reduce(b, to, axis)
        elif kind == "all rows":
            all_reduce(b, any_.choice(["top", "s", "total"]), axis, op="maximum")
        elif kind == "all weighted":
            all_reduce(b, ("o", "total"), axis)
        else:
            groups = any_.choice([(), None])
            all_reduce(
                b, to if kind == "all sum" else "squares", axis, op=any_.choice(["add", "maximum"]), groups=groups
            )
    return b.build()


def held(made: Schedule) -> dict[str, Buffer]:
    return {name: buffer for name, buffer in made.buffers.items() if buffer.role == "state"}


def ran(made: Schedule, given: dict[str, torch.Tensor], **options) -> list[torch.Tensor]:
    """Return the bits of all buffers after a run, with every NaN alike."""
    program = TritonExecutor(poison=True, **options).bind(made, given)
    program.run()
    read = [program.read(name).cpu().float() for name in given]
    return [torch.where(values.isnan(), torch.nan, values).view(torch.int32) for values in read]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(9))
def test_any_schedule_has_the_bits_of_every_hop(seed, monkeypatch):
    made = at_random(seed)
    torch.manual_seed(seed)
    given = {name: torch.randn(*made.mesh.shape, buffer.numel) for name, buffer in held(made).items()}
    want = ran(made, given)
    for name, value in ({}, {"FOLD_READS": 0}, {"MIN_PROGRAMS": 1})[seed % 3].items():
        monkeypatch.setattr(fuse, name, value)
    # Programs of launches that wait, which here are of trees whose sums are not broadcast, keep their order.
    order = launch

    def backwards(*given_, **more) -> None:
        with monkeypatch.context() as patch:
            last_first(patch)
            order(*given_, **more)

    monkeypatch.setattr(triton, "launch", backwards)
    assert all(map(torch.equal, ran(made, given, exchange="elided", shuffle=seed), want))


def test_most_of_them_have_folds():
    folds = 0
    for made in map(at_random, range(10)):
        given = {name: torch.zeros(*made.mesh.shape, buffer.numel) for name, buffer in held(made).items()}
        folds += "fold" in str(TritonExecutor(exchange="elided").bind(made, given).launches)
    assert folds >= 5


@pytest.fixture
def orders(monkeypatch) -> list[np.ndarray]:
    """Programs are two cores or more; the list has the cores of each tree that is planned, in blocks."""
    orders, blocks = [], fuse.TreeTask.blocks
    monkeypatch.setattr(fused, "ONE_CORE_PROGRAMS", 2)
    monkeypatch.setattr(fuse.TreeTask, "blocks", lambda *args: orders.append(blocks(*args)) or orders[-1])
    return orders


@pytest.mark.slow
def test_programs_of_several_cores_have_the_bits_of_single_ones(orders, monkeypatch):
    filled = 0
    for seed in range(8):
        made = at_random(seed)
        torch.manual_seed(seed)
        given = {name: torch.randn(*made.mesh.shape, buffer.numel) for name, buffer in held(made).items()}
        with monkeypatch.context() as patch:
            patch.setattr(fused, "ONE_CORE_PROGRAMS", 100)
            want = ran(made, given)
        orders.clear()
        assert all(map(torch.equal, ran(made, given, shuffle=seed), want)), made.name
        filled += any(len(order) > made.mesh.cores for order in orders)
    assert filled >= 4, "blocks are filled up"


@pytest.mark.parametrize(("add", "to_all"), [(False, False), (False, True), (True, False), (True, True)])
def test_what_a_launch_writes_lies_apart_from_what_its_roots_send(orders, add, to_all, monkeypatch):
    """On a GPU nothing would order the two, and a core that fills up a block would add twice; here nothing shows it."""
    b, trees = Builder(Mesh(1, 5), "added"), []
    for name, tile in (("x", (1, 3)), ("w", (3, 3)), ("y", (1, 3))):
        b.buffer(name, tile, "fp32", "state")
    b.round(b.local("gemm", "y", ("x", "w"), m=1, k=3, n=3, add=add))
    (all_reduce if to_all else reduce)(b, "y", "x", groups=())
    monkeypatch.setattr(triton, "reduce_tree", lambda *args: trees.append(args) or reduce_tree(*args))
    program = TritonExecutor().bind(b.build(), {name: torch.ones(1, 5, 9 if name == "w" else 3) for name in "xwy"})
    program.run()
    assert program.read("y")[0, 2].unique().item() == (20 if add else 15), "of the root"
    ((tree, ops, _, receivers, *_),) = trees
    assert len(program.launches) == 1 + (add and to_all) and len(ops) == 2 - len(program.launches)
    assert (len(orders[0]) == 5) == (add and not to_all), "its blocks are not filled up"
    if receivers and ops:
        assert tree.acc.tensor.data_ptr() != receivers.sums.tensor.data_ptr()
        assert ops[0].args[0].tensor is tree.acc.tensor
