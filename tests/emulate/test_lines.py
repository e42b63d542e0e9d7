"""Launches of lines: the bits of sums that go hop by hop, in any slices, and what may not share a launch."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

from wafer_triton.emulate import triton
from wafer_triton.emulate.launches import Tree, reduction
from wafer_triton.emulate.lines import folds
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.kernels.lines import Slices, lines
from wafer_triton.mesh import Mesh
from wafer_triton.models.random import config_of
from wafer_triton.schedule import decode
from wafer_triton.schedule.block import Block, schedule
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.gemv import meshgemv
from wafer_triton.schedule.reduce import all_reduce, default_groups, reduce
from wafer_triton.schedule.rounds import Schedule


def reduced(
    mesh: Mesh, names: tuple[str, ...] = ("a",), dtype: str = "fp32", to_all: bool = True, sent: bool = False, **options
) -> Schedule:
    """A reduction along x of each named buffer, all together, then twice the sum of the first, or first the sum."""
    b = Builder(mesh, "reduced")
    for name in names:
        b.buffer(name, (5,), dtype, "state")
    b.buffer("twice", (5,), dtype, "output")
    (all_reduce if to_all else reduce)(b, names, "x", **options)
    if sent:
        b.round(b.exchange("x", names[0], "twice", 4, range(mesh.cols)))
    b.round(b.local("add", "twice", (names[0], names[0]), size=5))
    return b.build()


def tree_of(mesh: Mesh, **options) -> Tree:
    made = reduced(mesh, **options)
    found = reduction(made.rounds, made.mesh)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("size", "groups", "kept"),
    [(64, default_groups(64), 3), (64, (), 1), (660, default_groups(660), 3), (60, (12, 4), 4), (9, (), 1)],
)
def test_few_sums_wait_for_others(size, groups, kept):
    tree = tree_of(Mesh(2, size), groups=groups)
    (found,) = folds(tree, Mesh(2, size)).values()
    cores, codes, most = found
    assert most == kept
    assert np.array_equal(np.sort(cores, axis=1), np.arange(2 * size).reshape(2, size)), "everybody's part once"
    roots = np.flatnonzero(tree.parent < 0)
    assert sorted(codes[codes // 16 % 2 == 1] // 32) == [*roots]


def test_a_line_that_would_keep_too_many_sums_goes_hop_by_hop():
    """A sum that waits for each further level of a tree of pairs, two of them but for the first."""
    mesh, pairs = Mesh(1, 2**9), {"groups": tuple(2**level for level in range(8, 0, -1))}
    assert folds(tree_of(mesh, **pairs), mesh) == {}
    program = TritonExecutor(exchange="elided").bind(reduced(mesh, **pairs), {"a": torch.ones(1, 512, 5)})
    assert "by lines" not in str(program.launches)


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
def test_the_bits_are_those_of_every_hop(case):
    mesh, options = CASES[case]
    made = reduced(mesh, **options)
    names = [*options.get("names", ("a",)), "twice"]
    given = {name: torch.randn(*mesh.shape, 5) for name in names[:-1]}
    program = TritonExecutor(poison=True).bind(made, given)
    assert "by lines" not in str(program.launches)
    want = bits(program, names)
    assert all(map(torch.equal, bits(TorchExecutor().bind(made, given), names), want))
    for shuffle in (None, 3):
        program = TritonExecutor(exchange="elided", poison=True, shuffle=shuffle).bind(made, given)
        assert all(map(torch.equal, bits(program, names), want))
        (launch,) = program.launches
        assert launch.startswith("reduce tree") and launch.endswith(" by lines")


@pytest.mark.parametrize("sent", [False, True], ids=["told-nobody", "sent-elsewhere"])
def test_what_is_left_on_the_way_stays_where_somebody_may_look_at_it(sent):
    made = reduced(Mesh(1, 9), to_all=False, sent=sent)
    given = {"a": torch.randn(1, 9, 5)}
    want = bits(TorchExecutor().bind(made, given), ["a", "twice"])
    program = TritonExecutor(exchange="elided").bind(made, given)
    assert all(map(torch.equal, bits(program, ["a", "twice"]), want))
    assert "by lines" not in str(program.launches)


BLOCK = Block(
    replace(config_of("llama3-8b"), hidden_size=96, intermediate_size=144, num_attention_heads=4,
            num_key_value_heads=2, head_dim=24, num_hidden_layers=1),
    Mesh(3, 2), "bf16", entries=5,
)  # fmt: skip


DECODING = (decode.project, decode.attend, decode.output, decode.ffn)


@pytest.fixture
def cuts(monkeypatch) -> list[Slices]:
    """How the launches of lines are cut."""
    seen = []

    def spying(phases, slices, *args):
        seen.append(slices)
        lines(phases, slices, *args)

    monkeypatch.setattr(triton, "lines", spying)
    return seen


def last_first(monkeypatch) -> None:
    """The interpreter runs programs from the last to the first, as a GPU may where nobody waits."""
    builder, grid = interpreter.interpreter_builder, [0]
    sized, begun = builder.set_grid_dim, builder.set_grid_idx

    def size(*dims: int) -> None:
        grid[0] = dims[0]
        sized(*dims)

    monkeypatch.setattr(builder, "set_grid_dim", size)
    monkeypatch.setattr(builder, "set_grid_idx", lambda x, y, z: begun(grid[0] - 1 - x, y, z))


def drawn(made: Schedule) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return {
        name: torch.randn(*made.mesh.shape, buffer.slots * buffer.numel)
        for name, buffer in made.buffers.items()
        if buffer.given
    }


@pytest.mark.parametrize("order", ["forwards", "backwards"])
@pytest.mark.parametrize("batch", [1, 3, 6])
@pytest.mark.parametrize("adds", DECODING, ids=lambda part: part.title)
def test_slices_of_a_decode_layer_have_the_bits_of_every_hop(adds, batch, order, cuts, monkeypatch):
    made = schedule(adds, replace(BLOCK, batch=batch), *((batch - 1,) if adds is decode.attend else ()))
    names = [name for name, buffer in made.buffers.items() if buffer.kept]
    want = bits(TritonExecutor(poison=True).bind(made, drawn(made)), names)
    if order == "backwards":
        last_first(monkeypatch)
    assert not cuts
    for shuffle in (None, 3):
        program = TritonExecutor(exchange="elided", poison=True, shuffle=shuffle).bind(made, drawn(made))
        assert all(map(torch.equal, bits(program, names), want))
    assert max(cut.number for cut in cuts) > 1, "slices of columns, or of the rows that are heads"
    assert all(not cut.arrived.any() for cut in cuts), "ready for the next run"


def test_the_blocks_of_an_older_triton_have_the_same_bits(monkeypatch, cuts):
    made = schedule(decode.ffn, BLOCK)
    want = bits(TritonExecutor().bind(made, drawn(made)), "x")
    monkeypatch.setattr(import_module("wafer_triton.kernels.gemm"), "K_FIRST", tl.constexpr(False))
    program = TritonExecutor(exchange="elided").bind(made, drawn(made))
    assert all(map(torch.equal, bits(program, "x"), want)) and cuts


def test_a_sum_of_every_slice_goes_elsewhere_than_its_parts(monkeypatch):
    """Else a slice could add up what another has added up already, see `protocol.lines`."""
    seen = []
    monkeypatch.setattr(triton, "lines", lambda phases, *_: seen.extend(phases))
    TritonExecutor(exchange="elided").bind(
        schedule(decode.project, BLOCK), drawn(schedule(decode.project, BLOCK))
    ).run()
    squares, sums, *_ = seen
    (of_norm, of_product) = (phase.fold for phase in seen if phase.fold)
    assert squares.part.args[0].tensor is of_norm.tiles.tensor is not of_norm.total.tensor and sums.fold is of_norm
    assert of_product.tiles is of_product.total, "each slice has columns of its own"


def test_no_message_of_a_folded_tree_has_room(monkeypatch):
    works, lined = [], triton.lined
    monkeypatch.setattr(triton, "lined", lambda steps, *rest: (works.extend(steps), lined(steps, *rest))[1])
    TritonExecutor(exchange="elided").bind(reduced(Mesh(1, 9)), {"a": torch.ones(1, 9, 5)})
    (tree,) = (work.tree for work in works if work.tree)
    assert tree.mailbox.tensor.numel() == 0


@pytest.mark.parametrize("first", ["add", "reduce tree"])
def test_what_changes_what_it_reads_is_not_done_by_every_slice(first):
    b = Builder(Mesh(3, 2), "x + y, or all x, times w")
    for name, tile in (("x", (1, 4)), ("y", (1, 4)), ("w", (4, 40))):
        b.buffer(name, tile, "bf16", "state")
    b.buffer("z", (1, 40), "fp32", "output")
    if first == "add":
        b.round(b.local("add", "x", ("x", "y"), size=4))
    else:
        all_reduce(b, "x", "y")
    meshgemv(b, "x", "w", "z", "y", m=1, k=4, n=40)
    made = b.build()
    program = TritonExecutor(exchange="elided").bind(made, drawn(made))
    assert [what.split(",")[0] for what in program.launches][:2] == [first, "gemm"]
    assert all(map(torch.equal, bits(program, "xz"), bits(TritonExecutor().bind(made, drawn(made)), "xz")))


def test_a_launch_ends_where_a_line_reads_what_another_writes_in_it():
    b = Builder(Mesh(3, 2), "a sum along x, then the neighbour's along y")
    for name, role in (("s", "state"), ("x", "scratch"), ("h", "scratch"), ("z", "output")):
        b.buffer(name, (5,), "fp32", role)
    all_reduce(b, "s", "x")
    b.round(b.local("add", "x", ("s", "s"), size=5))
    b.round(b.exchange("y", "x", "h", [0, 1, 2], [1, 2, 0]))
    b.round(b.local("add", "z", ("h", "s"), size=5))
    made = b.build()
    program = TritonExecutor(exchange="elided", poison=True).bind(made, drawn(made))
    assert program.launches[0] == "reduce tree, 1 rounds, add by lines" and len(program.launches) > 1
    assert all(map(torch.equal, bits(program, "z"), bits(TritonExecutor().bind(made, drawn(made)), "z")))
