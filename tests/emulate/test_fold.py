"""Folds: sums of reduce trees that one program adds up have the bits of every hop, in whatever launch."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from pairs import pairs
from schedules import given, results
from wafer_triton.algorithms.gemm import meshgemm_t
from wafer_triton.algorithms.gemv import meshgemv
from wafer_triton.algorithms.reduce import all_reduce, reduce
from wafer_triton.algorithms.segment_gemm import BlockRing, segment_gemm, segment_gemm_t
from wafer_triton.algorithms.trees import default_groups
from wafer_triton.decoder import decode
from wafer_triton.decoder.block import Block, schedule
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate import fuse
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.parts import Reduction
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.emulate.segments import segments
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.models.random import config_of
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Slot
from wafer_triton.schedule.schedule import Schedule

pytestmark = pytest.mark.slow


def reduced(
    mesh: Mesh, names: tuple[str, ...] = ("a",), dtype: str = "fp32", to_all: bool = True, sent: bool = False, **options
) -> Schedule:
    """Build a reduction along x of all named buffers together, then twice the first sum (`sent`: moved before)."""
    b = Builder(mesh, "reduced")
    for name in names:
        b.buffer(name, (5,), dtype, "state")
    b.buffer("twice", (5,), dtype, "output")
    (all_reduce if to_all else reduce)(b, names, "x", **options)
    if sent:
        b.round(b.exchange("x", names[0], "twice", 4, range(mesh.cols)))
    b.round(b.local("add", "twice", (names[0], names[0]), size=5))
    return b.build()


def tree_of(mesh: Mesh, **options) -> Reduction:
    found = segments(reduced(mesh, **options))[0]
    assert isinstance(found, Reduction)
    return found


@pytest.mark.parametrize(
    ("size", "groups"), [(64, default_groups(64)), (64, ()), (128, default_groups(128)), (60, (12, 4)), (9, ())]
)
def test_a_fold_combines_every_part_and_sum_once(size, groups):
    tree = tree_of(Mesh(2, size), groups=groups)
    found = fuse.as_fold(tree, 5)
    assert found is not None
    assert sorted(found.order) == [*range(size)] and [*found.first] == [0, size], "each part once"
    assert [*found.roots] == [*np.flatnonzero(tree.parent < 0)]
    assert sorted(value for pair in found.pairs for value in pair) == [*range(2 * size - 2)], "all but the last sum"
    assert all(max(pair) < size + number for number, pair in enumerate(found.pairs)), "sums that are there by then"


@pytest.mark.parametrize("options", [{"segment": 4}, {"groups": (4,), "segment": 200}], ids=["unlike", "long"])
def test_trees_that_are_not_alike_or_long_go_hop_by_hop(options):
    mesh = Mesh(1, 9 if options["segment"] < 9 else 200)
    assert fuse.as_fold(tree_of(mesh, **options), 5) is None
    program = TritonExecutor(exchange="elided").bind(reduced(mesh, **options), {"a": torch.ones(*mesh.shape, 5)})
    assert "fold" not in str(program.launches)


def drawn(made: Schedule) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return given(made)


def bits(made: Schedule, tiles: dict[str, torch.Tensor], executor: Executor) -> list[torch.Tensor]:
    return [*results(executor.bind(made, tiles)).values()]


def launches(made: Schedule, tiles: dict[str, torch.Tensor] | None = None, before=lambda: None) -> tuple[str, ...]:
    """Return the launches of an elided run, after `before`; it has the bits of every hop."""
    tiles = tiles or drawn(made)
    want = bits(made, tiles, TritonExecutor(poison=True))
    on = TritonExecutor(exchange="elided", poison=True, shuffle=3)
    named = on.bind(made, tiles).launches
    before()
    assert all(map(torch.equal, bits(made, tiles, on), want))
    return named


CASES = {
    "chains": (Mesh(2, 5), {"groups": ()}),
    "two levels": (Mesh(1, 9), {}),
    "lopsided": (Mesh(1, 11), {"groups": (4,)}),
    "three levels": (Mesh(1, 13), {"groups": (6, 3), "dtype": "bf16"}),
    "pairs": (Mesh(2, 6), {"groups": (3,), "op": "maximum"}),
    "segments": (Mesh(2, 8), {"segment": 4, "dtype": "fp16"}),
    "one way": (Mesh(1, 7), {"algorithm": "two-phase"}),
    "together": (Mesh(1, 6), {"names": ("a", "b")}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fold_equals_hop_by_hop_sums_bit_for_bit(case):
    mesh, options = CASES[case]
    made = reduced(mesh, **options)
    tiles = drawn(made)
    hops, in_order = TritonExecutor(poison=True), TritonExecutor(exchange="elided", poison=True)
    assert "fold" not in str(hops.bind(made, tiles).launches)
    want = bits(made, tiles, hops)
    assert all(all(map(torch.equal, bits(made, tiles, other), want)) for other in (TorchExecutor(), in_order))
    found = str(launches(made, tiles))
    assert "fold" in found and "reduce tree" not in found


def test_a_fold_in_another_order_has_other_bits(monkeypatch):
    made = reduced(Mesh(1, 9))
    from_the_left = [(0, 1), *((size, size - 7) for size in range(9, 16))]  # a sum has the number of 9 parts and more
    monkeypatch.setattr(fuse, "_fold_order", lambda *_: ([*range(9)], from_the_left))
    hops, elided = (bits(made, drawn(made), TritonExecutor(exchange=how)) for how in EXCHANGES)
    assert not all(map(torch.equal, elided, hops))


@pytest.mark.parametrize("sent", [False, True], ids=["no-broadcast", "sent-elsewhere"])
def test_partial_sums_stay_where_a_round_may_read_them(sent):
    assert "fold" not in str(launches(reduced(Mesh(1, 9), to_all=False, sent=sent)))


BLOCK = Block(
    replace(config_of("llama3-8b"), hidden_size=96, intermediate_size=144, num_attention_heads=4,
            num_key_value_heads=2, head_dim=24, num_hidden_layers=1),
    Mesh(3, 2), "bf16", entries=5,
)  # fmt: skip
DECODING = (decode.project, decode.attend, decode.output, decode.ffn)
# the constants of `fuse` that choose: by default; every fold alone; several cores a program
CHOICES = {"default": {}, "alone": {"FOLD_READS": 0}, "several cores": {"MIN_PROGRAMS": 1}}


def last_first(monkeypatch) -> None:
    """Make the interpreter run programs from the last to the first, as a GPU may where none waits."""
    builder, grid = interpreter.interpreter_builder, [0]
    sized, begun = builder.set_grid_dim, builder.set_grid_idx

    def size(*dims: int) -> None:
        grid[0] = dims[0]
        sized(*dims)

    monkeypatch.setattr(builder, "set_grid_dim", size)
    monkeypatch.setattr(builder, "set_grid_idx", lambda x, y, z: begun(grid[0] - 1 - x, y, z))


@pytest.mark.parametrize(
    ("adds", "batch", "choice"), pairs(DECODING, (1, 3, 6), tuple(CHOICES)), ids=lambda one: getattr(one, "title", None)
)
def test_folds_of_a_decode_layer_have_the_bits_of_every_hop(adds, batch, choice, monkeypatch):
    made = schedule(adds, replace(BLOCK, batch=batch), *((batch - 1,) if adds is decode.attend else ()))
    for name, value in CHOICES[choice].items():
        monkeypatch.setattr(fuse, name, value)
    assert "reduce tree" not in str(launches(made, before=partial(last_first, monkeypatch)))


@pytest.mark.parametrize("first", ["add", "reduce tree"])
def test_parts_that_an_operation_updates_are_folded_elsewhere(first, monkeypatch):
    b = Builder(Mesh(3, 2), "x + y, or all x, times w")
    for name, tile in (("x", (1, 4)), ("y", (1, 4)), ("w", (4, 40))):
        b.buffer(name, tile, "bf16", "state")
    b.buffer("z", (1, 40), "fp32", "output")
    if first == "add":
        b.round(b.local("add", "x", ("x", "y"), size=4))
    all_reduce(b, "x", "y")
    meshgemv(b, "x", "w", "z", "y", m=1, k=4, n=40)
    found = launches(b.build(), before=partial(last_first, monkeypatch))
    assert "fold, gemm" in found, "each program folds for itself"


def products_along_chains(size: int, width: int, axis: str = "x", dtype: str = "bf16", m: int = 5) -> Schedule:
    """Build C = A B^T in segments of `width`, or on the whole mesh; with axis "y" A^T B."""
    b, k, n = Builder(Mesh(size, size), "along chains"), 4, 3
    if width < size:
        blocks, heads = BlockRing(size, width), {"heads": 2, "kv_heads": 1}
        b.buffer("a", (m, 2, k), dtype, "input")
        b.buffer("b", (n, 1, k), dtype, "input")
        b.buffer("c", (2, m, n), dtype, "output", blocks.slots)
        segment_gemm_t(b, "a", "b", "c", blocks, m=m, k=k, n=n, **heads)
        return b.build()
    for name, tile in (("a", (m, k)), ("b", (n, k))):
        b.buffer(name, tile if axis == "x" else tile[::-1], dtype, "input")
    b.buffer("c", (m, n), dtype, "output")
    if axis == "y":
        b.buffers["b"] = replace(b.buffers["b"], tile=(k, n))
    meshgemm_t(b, "a", "b", "c", m=m, k=k, n=n, axis=axis)
    return b.build()


@pytest.mark.parametrize(
    "case",
    [
        (5, 2),
        (4, 2, "x", "fp16", 2),
        (5, 3, "x", "fp32"),
        (4, 4),
        (3, 3, "x", "fp32", 17),
        (4, 4, "y", "fp32"),
        (3, 3, "y"),
    ],
    ids=str,
)
def test_products_along_chains_have_the_bits_of_every_hop(case, monkeypatch):
    made = products_along_chains(*case)
    for scale in (1, 1e-22):  # of bf16 the small ones are zeros with a sign
        tiles = {name: scale * each for name, each in drawn(made).items()}
        with monkeypatch.context() as patched:
            found = launches(made, tiles, partial(last_first, patched))
        assert f"sums of {case[0]} products" in found and "reduce tree" not in str(found)


@pytest.mark.parametrize(
    ("size", "width", "m", "dtype", "accumulate"),
    [(5, 3, 5, "bf16", "fp32"), (4, 2, 17, "fp32", "fp32"), (4, 4, 2, "bf16", "fp32"), (3, 2, 3, "fp16", "fp16")],
)
def test_products_that_add_in_turn_are_a_loop_with_the_bits_of_every_round(size, width, m, dtype, accumulate):
    blocks, b = BlockRing(size, width), Builder(Mesh(size, size), "in turn")
    for name, tile in (("q", (m, 2, 3)), ("k", (3, 1, 3)), ("v", (3, 1, 4))):
        b.buffer(name, tile, dtype, "input")
    b.buffer("s", (2, m, 3), dtype, slots=blocks.rotating_slots)
    b.buffer("o", (m, 2, 4), dtype, "output")
    run = {"m": m, "heads": 2, "accumulate": accumulate}
    segment_gemm_t(b, "q", "k", "s", blocks, k=3, n=3, **run)
    segment_gemm(b, "s", "v", "o", blocks, k=3, n=4, **run)
    assert launches(b.build())[-2:] == (f"sums of {size} products", f"gemm {size} times")


@pytest.mark.parametrize("case", ["slots in place", "another operand", "another product", "another result"])
def test_a_loop_has_products_that_differ_in_tiles_alone(case):
    b = Builder(Mesh(2, 2), case)
    for name, slots in (("a", 3), ("b", 1), ("other", 1), ("c", 1), ("d", 1)):
        b.buffer(name, (3, 3), "bf16", "output" if name in "cd" else "input", slots)
    b.round(b.local("gemm", "d", ("a", "b"), m=3, k=3, n=3))
    for number in range(3):
        changed = number == 2
        ins = Slot("a", number), "other" if changed and case == "another operand" else "b"
        product = "gemm_t" if changed and case == "another product" else "gemm"
        out = "d" if changed and case == "another result" else "c"
        b.round(b.local(product, out, ins, m=3, k=3, n=3, add=number > 0))
    launches(b.build())


SHARED = {
    "apart": ["sums of 2 products"],
    "one place": ["2 x sums of 1 products"],
    "parts read later": ["sums of 1 products"],
    "fp32": [],
}


@pytest.mark.parametrize("case", SHARED)
def test_sums_of_products_share_a_launch_unless_it_could_be_seen(case):
    b, dtype = Builder(Mesh(1, 5), case), "fp32" if case == "fp32" else "bf16"  # which keeps sums that bf16 would round
    for name, role in (("a", "input"), ("b", "input"), ("part", "scratch"), ("c", "output"), ("d", "output")):
        b.buffer(name, (3, 3), dtype if name == "c" else "bf16", role)
    for root in (1, 1 if case == "one place" else 3):
        b.round(b.local("gemm_t", "part", ("a", "b"), m=3, k=3, n=3))
        reduce(b, "part", "x", root=root, groups=())
        b.round(b.local("copy", "c", "part", Cores("x", np.array([root])), size=9))
    b.round(b.local("copy", "d", "part" if case == "parts read later" else "a", size=9))
    assert [what for what in launches(b.build()) if "sums" in what] == SHARED[case]


def test_a_launch_ends_where_a_core_reads_a_tile_of_another_that_is_written_in_it():
    b = Builder(Mesh(3, 2), "a sum along x, then the neighbour's along y")
    for name, role in (("s", "state"), ("x", "scratch"), ("h", "scratch"), ("z", "output")):
        b.buffer(name, (5,), "fp32", role)
    all_reduce(b, "s", "x")
    b.round(b.local("add", "x", ("s", "s"), size=5))
    b.round(b.exchange("y", "x", "h", [0, 1, 2], [1, 2, 0]))
    b.round(b.local("add", "z", ("h", "s"), size=5))
    assert launches(b.build()) == ("fold, add", "add, copy")
