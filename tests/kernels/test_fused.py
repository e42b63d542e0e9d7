"""Local operations that share a launch: with each other, and with the reduce tree that follows them."""

import numpy as np
import pytest
import torch

from schedules import agree
from wafer_triton.algorithms.collectives import broadcast
from wafer_triton.algorithms.reduce import all_reduce, reduce
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.parts import Launch
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.kernels import Operand, find
from wafer_triton.kernels.fused import MAX_PROGRAMS, Grid, grid_of, launch, options
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.schedule import Schedule


def tiles(numel: int, value: float = 0.0) -> Operand:
    """Three cores' tiles."""
    return Operand(torch.full((3 * numel,), value), 0, numel)


def test_an_op_reads_the_results_of_earlier_ops():
    x, y, z = tiles(5, 1.0), tiles(5), tiles(5)
    ops = [
        find("add").fused((y,), (x, x), size=5), find("add").fused((z,), (y, x), size=5),
        find("add").fused((y,), (z, z), size=5),
    ]  # fmt: skip
    launch(ops, torch.tensor([2, 0], dtype=torch.int32))
    launch(ops, torch.tensor([], dtype=torch.int32))  # as of `Cores` that name none
    assert [one.tensor[::5].tolist() for one in (y, z)] == [[6, 0, 6], [3, 0, 3]], "core 1 did not run"


@pytest.mark.parametrize(("count", "loops"), [(12, 1), (12, 5), (7, 2)])
def test_a_program_of_several_cores_computes_each_from_its_own_tiles(count, loops):
    """Compare one core at a time, several at once, and several such blocks one after another."""
    torch.manual_seed(1)
    w, x, _, bias = (torch.randn(count * numel) for numel in (5 * 6, 5, 6, 6))
    cores = torch.randperm(count).int()
    found = []
    for grid in (Grid(), Grid(4 if count % 4 == 0 else 1, loops)):
        c, out = (Operand(torch.full((count * 6,), float("nan")), 0, 6) for _ in range(2))
        given = [Operand(values, 0, values.numel() // count) for values in (x, w, bias)]
        ops = [find("gemm").fused((c,), given[:2], m=1, k=5, n=6), find("add").fused((out,), (c, given[2]), size=6)]
        launch(ops, cores, grid=grid)
        found.append(out.tensor)
    assert torch.equal(*found) and not found[0].isnan().any()


@pytest.mark.parametrize(
    ("count", "elements", "grid"),
    [
        (64 * 64, 64, Grid()), (660 * 660, 64, Grid(16)), (660 * 660, 2048, Grid(2, 4)), (660 * 660, 0, Grid(1, 8)),
        (661 * 661, 64, Grid(1, 8)), (128 * 128, 32, Grid()), (0, 64, Grid()),
    ],
)  # fmt: skip
def test_no_launch_has_more_programs_than_the_gpu_begins_in_a_short_time(count, elements, grid):
    op = find("add").fused((tiles(4),), (tiles(4), tiles(4)), size=4)._replace(elements=elements)
    assert grid_of([op], count) == grid and grid.programs(count) <= MAX_PROGRAMS


def test_the_order_of_sums_sets_the_number_of_warps():
    add = find("add").fused((tiles(4096),), (tiles(4096), tiles(4096)), size=4096)
    few, many = (find("gemm").fused((tiles(64 * n),), (tiles(64), tiles(n)), m=64, k=1, n=n) for n in (16, 64))
    assert [one.num_warps for one in (add, few, many)] == [2, 4, 8]
    assert options([add, few], 16)["num_warps"] == 4 and options([add], 16)["num_warps"] == 16
    for ops in ([few], [few, add], [many]):
        assert options(ops, all_ops=[few, many])["num_warps"] == 8, "in every launch the same, whatever goes together"


def test_where_one_op_rounds_every_product_none_is_fused_in_any_launch():
    c, a, b = tiles(4), tiles(4), tiles(4)
    rounding = find("gemm").fused((c,), (a, b), m=2, k=2, n=2, accumulate="fp16")
    plain = find("add").fused((a,), (b, b), size=4)
    assert options([plain])["enable_fp_fusion"]
    assert not options([rounding])["enable_fp_fusion"] and not options([plain], all_ops=[rounding])["enable_fp_fusion"]


def sums(mesh: Mesh, overwritten: bool) -> Schedule:
    """y = h + x, added up along the rows, h the neighbour's x; if `overwritten`, x changes before that is read."""
    b = Builder(mesh, "sums")
    for name, role in (("x", "state"), ("h", "scratch"), ("y", "output"), ("z", "output")):
        b.buffer(name, (6,), "fp32", role)
    cols = mesh.cols
    b.round(b.exchange("x", "x", "h", [*range(1, cols), cols - 1], range(cols)))
    if overwritten:
        b.round(b.local("add", "x", ("x", "x"), size=6))
    else:
        b.round(b.local("add", "z", ("x", "x"), size=6))
    b.round(b.local("add", "y", ("h", "x"), size=6))
    all_reduce(b, "y", "x", groups=())
    return b.build()


@pytest.mark.parametrize("overwritten", [False, True])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_an_op_before_a_tree_joins_it_unless_tiles_clash(exchange, overwritten):
    made = sums(Mesh(2, 4), overwritten)
    (program,) = agree(made, {"x": torch.arange(48.0).view(2, 4, 6)}, TritonExecutor(exchange=exchange, poison=True))
    whats = [step.what.split(", reduce")[0] for step in program.calls if isinstance(step, Launch)]
    # with elided exchange the tiles of h are in x, and move out before x changes
    before = ["exchange"] if exchange == "explicit" else ["copy"] * overwritten
    assert whats[: len(before) + 1] == [*before, "add 2 times"]


def read_elsewhere_and_reduced(mesh: Mesh, kind: str) -> Schedule:
    """t reads a tile that elided exchange leaves in memory of others, which changes in the same launch."""
    b = Builder(mesh, kind)
    for name, role in (("s", "output"), ("t", "output"), ("u", "input"), ("v", "state"), ("h", "scratch")):
        b.buffer(name, (8,), "fp32", role)
    every = np.arange(mesh.cols)
    if kind == "broadcast, then reduced":
        broadcast(b, "s", "x", 0)
        b.round(b.local("add", "t", ("s", "u"), size=8))
    elif kind == "shifted, then reduced":
        b.round(b.exchange("x", "s", "h", every, (every + 1) % mesh.cols))
        b.round(b.local("add", "t", ("h", "u"), size=8))
    else:
        b.round(b.exchange("x", "v", "h", every, (every + 1) % mesh.cols))
        b.round(b.exchange("x", "u", "v", [0], [1]))
        b.round(b.local("add", "t", ("h", "u"), size=8))
        b.round(b.local("add", "s", ("v", "u"), size=8))
    reduce(b, "s", "y")
    return b.build()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(5, 4), (3, 3), (4, 6)])
@pytest.mark.parametrize("kind", ["broadcast, then reduced", "shifted, then reduced", "shifted, then overwritten"])
def test_tiles_that_a_launch_overwrites_are_read_before(kind, shape):
    made = read_elsewhere_and_reduced(Mesh(*shape), kind)
    tiles = {name: torch.randn(*shape, 8) for name, one in made.buffers.items() if one.role != "scratch"}
    agree(made, tiles, *(TritonExecutor(exchange="elided", shuffle=shuffle) for shuffle in (None, 3)))


CLIP = """
import triton
import triton.language as tl

@triton.jit
def clip(x):
    return tl.minimum(x, {limit})
"""


@pytest.mark.slow
def test_functions_of_one_name_are_distinguished_by_their_source(tmp_path, compiling):
    """Check the key of Triton's cache: by default it has a tuple's functions by name alone, without their source."""
    for limit in (1, 6):
        (tmp_path / str(limit)).mkdir()
        (tmp_path / str(limit) / "user.py").write_text(CLIP.format(limit=float(limit)))
    script = """
import sys, torch
from wafer_triton.kernels import Operand, find
from wafer_triton.kernels.elementwise import elementwise
from wafer_triton.kernels.fused import source_key

x = Operand(torch.zeros(4), 0, 4)
gemm = find("gemm").fused((x,), (x, x), m=2, k=2, n=2)
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    sys.modules.pop("user", None)
    import user
    print(source_key([elementwise(user.clip).fused((x,), (x,), size=4), gemm]))
"""
    found = [line.split() for line in compiling("-c", script, tmp_path / "1", tmp_path / "6").splitlines()]
    assert [len(keys) for keys in found] == [4, 4], "the loop, its body, the function that this calls, and the product"
    assert [one == two for one, two in zip(*found, strict=True)] == [True, True, False, True]
