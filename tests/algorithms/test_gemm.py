"""MeshGEMM, GEMM-T and their rivals: the schedules' shape, then values against fp64."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from local_cases import DTYPES
from pairs import pairs
from wafer_triton import ops
from wafer_triton.algorithms.align import align, transpose_by_rings
from wafer_triton.algorithms.gemm import meshgemm, meshgemm_t
from wafer_triton.algorithms.ring import alignment_sources, ring, ring_position, ring_step
from wafer_triton.count.account import account, per_round
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.emulate.reference import Reference
from wafer_triton.errors import MeshError
from wafer_triton.ops.testing import assert_close
from wafer_triton.schedule.access import overlaps
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.schedule import Schedule

ALGORITHMS = ("mesh", "cannon", "summa", "allgather")
every_size = given(size=st.integers(3, 257))
# Whole schedules take longer.
some_sizes = lambda test: settings(max_examples=20)(given(size=st.integers(3, 100))(test))  # noqa: E731


# --- schedules ---


@settings(max_examples=300)  # all of them
@every_size
def test_the_ring_is_closed_with_steps_of_at_most_two_hops(size):
    order = ring(size)
    assert sorted(order) == list(range(size)), "one ring through every core"
    steps = np.abs(order - np.roll(order, -1))
    assert steps.max() == 2 and steps.min() == 1
    assert (order[ring_position(size)] == np.arange(size)).all()


@settings(max_examples=300)
@every_size
def test_core_i_sends_to_i_plus_or_minus_two_and_the_ends_turn_around(size):
    b = Builder(Mesh(size, size), "step")
    b.buffer("a", (1,), "fp32")
    b.like("a.next", "a")
    exchange = ring_step(b, "x", "a", "a.next")
    receiver = dict(zip(exchange.moves.send.tolist(), exchange.moves.recv.tolist(), strict=True))
    sender = dict(zip(exchange.moves.recv.tolist(), exchange.moves.send.tolist(), strict=True))
    assert all(sender[receiver[core]] == core for core in range(size)), "receive is the inverse of send"
    assert sorted(receiver) == sorted(sender) == list(range(size))
    assert sender[0] == 1 and receiver[1] == 0
    assert receiver[size - 1] == size - 2 or receiver[size - 2] == size - 1
    for core in range(size):
        if core % 2 == 0 and core + 2 < size:
            assert receiver[core] == core + 2
        if core % 2 == 1 and core > 1:
            assert receiver[core] == core - 2


@pytest.mark.slow
@some_sizes
def test_alignment_takes_half_a_ring_and_skews_by_position(size):
    b = Builder(Mesh(size, size), "align")
    b.buffer("a", (1,), "fp32", "state")
    align(b, "a", "x")
    made = b.build()
    each = per_round(made)
    assert sum(counts.stages for counts in each) == size // 2
    assert all(counts.hops <= 2 for counts in each)
    machine = Reference(made, {"a": torch.arange(size).expand(size, size)[..., None]})
    machine.run()
    position = ring_position(size)
    wanted = (position[:, None] + position[None, :]) % size
    assert (position[machine.read("a")[..., 0].int()] == wanted).all()


@pytest.mark.parametrize(("size", "region"), [(1, None), (2, None), (5, None), (8, None), (8, 4), (9, 3)])
def test_aligned_is_where_the_rounds_bring_tiles_from(size, region):
    b = Builder(Mesh(size, size), "align")
    align(b, b.buffer("w", (1,), "fp32", "state"), "y", region=region)
    reference = Reference(b.build(), {"w": torch.arange(size * size).view(size, size, 1)})
    reference.run()
    assert reference.read("w").flatten().tolist() == alignment_sources(size, region).tolist()


def product(size: int, axis: str = "") -> Schedule:
    b = Builder(Mesh(size, size), "gemm")
    for name in ("a", "w", "c"):
        b.buffer(name, (2, 2), "fp32", "output" if name == "c" else "state")
    (partial(meshgemm_t, axis=axis) if axis else meshgemm)(b, "a", "w", "c", m=2, k=2, n=2)
    return b.build()


@some_sizes
def test_meshgemm_is_one_two_hop_round_a_core_of_a_side_beside_the_product(size):
    made = product(size)
    shifts = [round_ for round_ in made.rounds if round_.exchanges]
    assert len(shifts) == size and len(made.rounds) == size + size % 2
    assert all(overlaps(round_) for round_ in shifts), "every shift runs beside a product"
    assert all(counts.hops == 2 * counts.stages for counts in per_round(made))
    total = account(made)
    assert (total.stages, total.hops, total.macs) == (size, 2 * size, 8 * size)
    assert total.messages == 2 * size**3


@pytest.mark.parametrize("size", [2, 3, 8, 13])
@pytest.mark.parametrize(("axis", "circling", "op"), [("x", "w", "gemm_t"), ("y", "a", "gemm_tn")])
def test_gemm_t_and_its_mirror_need_no_alignment_and_two_hop_shifts(size, axis, circling, op):
    made = product(size, axis)
    shifts = [exchange for round_ in made.rounds for exchange in round_.exchanges if exchange.axis != axis]
    assert len(shifts) == size
    assert {exchange.src.buffer for exchange in shifts} == {circling, f"{circling}.next"}
    assert all(np.abs(exchange.moves.send - exchange.moves.recv).max() <= 2 for exchange in shifts)
    assert sum(each.op == op for round_ in made.rounds for each in round_.locals) == size


@pytest.mark.parametrize("size", [2, 3, 8])
def test_the_mirror_of_gemm_t_counts_as_gemm_t_does(size):
    along_x, along_y = (account(product(size, axis)) for axis in "xy")
    assert (along_x.hops, along_x.stages, along_x.link_bytes, along_x.messages) == (
        along_y.hops, along_y.stages, along_y.link_bytes, along_y.messages
    )  # fmt: skip


def test_compute_shift_needs_a_square_grid():
    b = Builder(Mesh(2, 3), "gemm")
    b.buffer("a", (1,), "fp32")
    with pytest.raises(MeshError, match=r"gemm: compute-shift needs a square grid, not 2 x 3; use mesh.square\(\)"):
        align(b, "a", "x")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9])
def test_rings_bring_every_tile_across_the_diagonal(size):
    b = Builder(Mesh(size, size), "transpose")
    b.buffer("a", (2,), "fp32", "input")
    b.buffer("c", (2,), "fp32", "output")
    transpose_by_rings(b, "a", "c")
    tiles = torch.arange(2.0 * size * size).reshape(size, size, 2)
    machine = Reference(b.build(), {"a": tiles})
    machine.run()
    assert torch.equal(machine.read("c"), tiles.transpose(0, 1))


# --- values ---


def integers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(-3, 4, shape).to(dtype)


def operands(op: str, m: int, k: int, n: int, dtype: torch.dtype, make) -> tuple[torch.Tensor, torch.Tensor]:
    shapes = {"mesh_gemm_t": ((m, k), (n, k)), "mesh_gemm_tn": ((k, m), (k, n))}.get(op, ((m, k), (k, n)))
    return make(*shapes[0], dtype=dtype), make(*shapes[1], dtype=dtype)


def plain(op: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.T if op == "mesh_gemm_tn" else a) @ (b.T if op == "mesh_gemm_t" else b)


every_product = pytest.mark.parametrize("op", ["mesh_gemm", "mesh_gemm_t", "mesh_gemm_tn"])
sizes = st.integers(1, 17)
sides = st.integers(1, 5)
dtypes = st.sampled_from(list(DTYPES.values()))


@pytest.mark.slow
@every_product
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=25)
@given(
    m=sizes, k=sizes, n=sizes, mesh=st.tuples(sides, sides), dtype=dtypes, exchange=st.sampled_from(EXCHANGES)
)  # fmt: skip
def test_any_shape_on_any_mesh_is_exact_on_integers(op, algorithm, m, k, n, mesh, dtype, exchange):
    a, b = operands(op, m, k, n, dtype, integers)
    got = getattr(ops, op)(a, b, mesh=mesh, algorithm=algorithm, exchange=exchange)
    assert got.dtype == dtype
    assert torch.equal(got, plain(op, a.double(), b.double()).to(dtype))


@pytest.mark.slow
@every_product
@pytest.mark.parametrize(
    ("algorithm", "dtype", "case"),
    pairs(ALGORITHMS, tuple(DTYPES.values()), [("3", 20, 50, 30), ("5x2", 17, 61, 23), ("7", 9, 5, 3)]),
    ids=str,
)
def test_values_are_as_good_as_plain_torch(op, case, algorithm, dtype):
    mesh, m, k, n = case
    a, b = operands(op, m, k, n, dtype, torch.randn)
    got = getattr(ops, op)(a, b, mesh=mesh, algorithm=algorithm)
    assert_close(got, plain(op, a.double(), b.double()), dtype, plain(op, a, b))
    elided = getattr(ops, op)(a, b, mesh=mesh, algorithm=algorithm, exchange="elided")
    assert torch.equal(got, elided), "explicit and elided differ in bits"


def sequential_fp16(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b with every multiply-add rounded to fp16, k upwards."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total = (total + a[:, k, None].float() * b[None, k].float()).half().float()
    return total.half()


@every_product
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("mesh", ["1", "3", "2x4"])
def test_fp16_accumulation(op, mesh, algorithm):
    a, b = operands(op, 8, 64, 12, torch.float16, torch.randn)
    got = getattr(ops, op)(a, b, mesh=mesh, algorithm=algorithm, accumulate="fp16")
    left, right = (a.T if op == "mesh_gemm_tn" else a), (b.T if op == "mesh_gemm_t" else b)
    assert_close(got, left.double() @ right.double(), "fp16", sequential_fp16(left, right))
    assert torch.equal(
        got, getattr(ops, op)(a, b, mesh=mesh, algorithm=algorithm, accumulate="fp16", exchange="elided")
    )
    wide = getattr(ops, op)(a, b, mesh=mesh, algorithm=algorithm)
    assert not torch.equal(got, wide), "fp16 accumulation rounds more often"


def test_fp16_accumulation_rounds_every_multiply_add():
    # 2048 + 1 is not an fp16 number: one by one the ones are lost, summed first they are not
    a, b = torch.tensor([[2048.0] + [1.0] * 4]).half(), torch.ones(5, 1).half()
    assert ops.mesh_gemm(a, b, mesh=1, accumulate="fp16").item() == 2048
    assert ops.mesh_gemm(a, b, mesh=1).item() == 2052


@pytest.mark.parametrize("mesh", ["2", "3", "2x3"])
def test_the_weights_come_home(mesh):
    square = as_mesh(mesh).square()
    size = square.shape[0]
    for axis in ("", "x", "y"):
        made = product(size, axis)
        for exchange in EXCHANGES:
            given = {name: integers(size, size, 2, 2) for name in ("a", "w")}
            program = ops.executor(exchange=exchange).bind(made, given)
            program.run()
            once = program.read("c").clone()
            assert torch.equal(program.read("w"), given["w"])
            assert axis != "y" or torch.equal(program.read("a"), given["a"])
            program.write("a", given["a"])
            program.run()
            assert torch.equal(program.read("c"), once) and once.any()


def test_infinity_and_nan_stay_in_their_row_and_column():
    a, b = torch.ones(7, 5), torch.ones(5, 6)
    a[2, 3], b[1, 4] = float("inf"), float("nan")
    got = ops.mesh_gemm(a, b, mesh=3)
    torch.testing.assert_close(got, a @ b, equal_nan=True)


@pytest.mark.parametrize("algorithm", ["mesh", "cannon"])
def test_critical_path_of_a_record(algorithm):
    a = torch.zeros(24, 24)
    _, record = ops.mesh_gemm(a, a, mesh=12, algorithm=algorithm, record=True)
    aligning = 12 // 2  # both operands at once
    assert record.stages == aligning + 12
    # 6 steps in a row along MeshGEMM's ring meet one end of the line, where neighbours are one hop apart; along
    # Cannon's one of them wraps around. Every product waits for the longest move.
    assert record.hops == (5 * 2 + 1 + 12 * 2 if algorithm == "mesh" else 5 * 1 + 11 + 12 * 11)


def test_an_unknown_algorithm_lists_the_known():
    with pytest.raises(MeshError, match="algorithm 'strassen': choose one of mesh, cannon, summa, allgather"):
        ops.mesh_gemm(torch.ones(2, 2), torch.ones(2, 2), mesh=2, algorithm="strassen")
