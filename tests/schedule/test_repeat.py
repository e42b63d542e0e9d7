"""Repetition as data: the same rounds as one by one, the same counts, and small schedules of large meshes."""

import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from wafer_triton.cost import layers
from wafer_triton.cost.constants import constants
from wafer_triton.cost.phases import phases
from wafer_triton.count.account import account, link_loads
from wafer_triton.count.routes import colours, excess, routes
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ScheduleError
from wafer_triton.schedule import decode, prefill, repeat, sram
from wafer_triton.schedule.align import align_both, transpose_by_rings
from wafer_triton.schedule.block import Block, drafted
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.gemm import meshgemm, meshgemm_t
from wafer_triton.schedule.product import recipe
from wafer_triton.schedule.repeat import Repeat
from wafer_triton.schedule.rounds import Cores, Round, Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.segment_gemm import block_ring, segment_gemm, segment_gemm_t
from wafer_triton.shape.read import shape_of

ROOMY = device("wse2").unbounded()
SIZES = {"m": 2, "k": 2, "n": 2}


class OneByOne(Builder):
    """A builder that repeats nothing."""

    def repeat(self, times, iteration, period=1, rows=None, slots=None):
        for number in range(times):
            iteration(number)


def product(b: Builder) -> None:
    align_both(b, "a", "w")
    meshgemm(b, "a", "w", "c", **SIZES)


def in_segments(width: int) -> Callable[[Builder], None]:
    def add(b: Builder) -> None:
        blocks = block_ring(b.mesh.shape[0], width)
        b.buffer("s", (1, 2, 2), "fp32", "output", blocks.turning)
        segment_gemm_t(b, "a", "w", "s", blocks, **SIZES)
        segment_gemm(b, "s", "w", "c", blocks, **SIZES)

    return add


ALGORITHMS = {
    "meshgemm": product,
    "gemm-t": lambda b: meshgemm_t(b, "a", "w", "c", **SIZES),
    "gemm-t, no overlap": lambda b: meshgemm_t(b, "a", "w", "c", overlap=False, **SIZES),
    "transpose by rings": lambda b: transpose_by_rings(b, "a", "c"),
    "segments of 1": in_segments(1),
    "segments of 2": in_segments(2),
    "segments of 3": in_segments(3),
}
MESHES = [
    Mesh(*sides, ROOMY).square() for sides in ((1, 1), (2, 2), (3, 3), (4, 4), (7, 7), (10, 10), (13, 13), (4, 6))
]


def built(kind: type[Builder], algorithm: str, mesh: Mesh) -> Schedule:
    b = kind(mesh, algorithm)
    for name in ("a", "w"):
        b.buffer(name, (1, 2, 2), "fp32", "input")
    b.buffer("c", (1, 2, 2), "fp32", "output")
    ALGORITHMS[algorithm](b)
    return b.build()


def plain(round_: Round, mesh: Mesh) -> tuple:
    """Return a round as numbers: messages by their cores and slots, operations by theirs."""

    def slot(one: Slot, cores: np.ndarray) -> tuple:
        return one.buffer, None if one.index is None else (one.cells(mesh, 100, cores) % 100).tolist()

    moves = []
    for one in round_.exchanges:
        ends = one.moves.ends(mesh)
        order = np.argsort(ends[1], kind="stable")
        send, recv = (end[order] for end in ends)
        moves.append((one.axis, slot(one.src, send), slot(one.dst, recv), send.tolist(), recv.tolist()))
    ops = []
    for op in round_.locals:
        cores = np.arange(mesh.cores) if op.where is None else np.sort(op.where.flat(mesh))
        ends = [slot(one, cores) for one in (*op.outs, *op.ins)]
        ops.append((op.op, dict(op.params), ends, cores.tolist()))
    return moves, ops, round_.label, None if round_.pattern is None else round_.pattern.kind


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_repeated_steps_are_the_rounds_one_by_one(algorithm, mesh):
    if algorithm.startswith("segments") and int(algorithm[-1]) > mesh.shape[1]:
        return
    once, again = built(OneByOne, algorithm, mesh), built(Builder, algorithm, mesh)
    assert [plain(one, mesh) for one in once.rounds] == [plain(one, mesh) for one in again.rounds]
    assert len(once.rounds) == len(again.rounds) == len(again.rounds.flat)
    assert repeat.uses(again.rounds.steps) == repeat.uses(again.rounds.flat)
    assert sram.account(once) == sram.account(again)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_repeated_steps_count_as_the_rounds_one_by_one(algorithm, mesh):
    if algorithm.startswith("segments") and int(algorithm[-1]) > mesh.shape[1]:
        return
    once, again = built(OneByOne, algorithm, mesh), built(Builder, algorithm, mesh)
    assert account(once) == account(again)
    for way, loads in link_loads(once).items():
        np.testing.assert_array_equal(loads, link_loads(again)[way])
    assert {one: one.times for one in phases(once)} == {one: one.times for one in phases(again)}
    found = routes(once), routes(again)
    assert found[0].colours == found[1].colours == colours(once) == colours(again)
    np.testing.assert_array_equal(found[0].per_core, found[1].per_core)
    few = (replace(one, mesh=replace(one.mesh, device=replace(ROOMY, name="few", routes=2))) for one in (once, again))
    assert len(set(map(excess, few))) == 1


def sub_layers_of(program: str, side: int, head_groups: int) -> list[tuple]:
    """Return the parts of decode and prefill of Llama-3-8B with their blocks and arguments."""
    mesh, shape = Mesh(side, side, ROOMY), shape_of("llama3-8b")
    shape, c = shape.paper_benchmark() if program == "paper-benchmark" else shape, constants(device("wse2"))
    tree = layers.tree_for(mesh, c)
    one = Block(shape, mesh, "fp16", "fp16", -(-4096 // side), None if program == "paper-benchmark" else "shift", tree)
    many = replace(one, head_groups=head_groups, head_tree=None if head_groups == 1 else ())
    sub_layers = [(sub_layer, one, args) for sub_layer, args in decode.layer(one, 4096)]
    return sub_layers + [(sub_layer, many, args) for sub_layer, args in prefill.layer(many, -(-4096 // side))]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "head_groups"), [("paper-benchmark", 1), ("full", 16)])
def test_schedules_of_a_wafer_are_small(program, head_groups):
    """Return all of decode and prefill of Llama-3-8B on 720 x 720 cores, with all that pricing makes of it."""
    tracemalloc.start()
    try:
        held = [drafted(sub_layer, block, *args) for sub_layer, block, args in sub_layers_of(program, 720, head_groups)]
        built_alone = tracemalloc.get_traced_memory()[0]
        for schedule in held:
            phases(schedule), colours(schedule), sram.account(schedule)
        with_prices = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert max(len(schedule.rounds) for schedule in held) > 25_000
    assert built_alone < 20 * 2**20 and with_prices < 50 * 2**20


def test_rows_of_a_repetition_are_each_row_once():
    b = Builder(Mesh(4, 4), "mine")
    b.buffer("a", (4,), "fp32", "state")

    def copied(number: int) -> None:
        b.round(b.local("copy", "a", "a", Cores("x", np.array([number % 4]), np.array([0])), size=4))

    with pytest.raises(ScheduleError, match=r"mine: rows array\(\[0, 0, 1, 2\]\) of repeat do not name each of 4 rows"):
        b.repeat(4, copied, rows=np.array([0, 0, 1, 2]))


def test_rows_of_a_repetition_do_not_change_moves_along_y():
    b = Builder(Mesh(4, 4), "mine")
    for name in ("a", "b"):
        b.buffer(name, (4,), "fp32", "state")
    message = r"mine: rows of repeat change the exchange along y a\[0\] to b\[0\]; repeat iterations in which"
    with pytest.raises(ScheduleError, match=message):
        b.repeat(4, lambda _: b.round(b.exchange("y", "a", "b", [0], [1])), rows=np.array([1, 2, 3, 0]))


@pytest.mark.parametrize(("period", "every"), [(1, 5), (2, 3)])
def test_an_iteration_that_differs_otherwise_is_refused(period, every):
    b = Builder(Mesh(1, 5), "mine")
    b.buffer("a", (4,), "fp32", "state")
    b.buffer("b", (4,), "fp32", "scratch")
    at = np.arange(5)
    message = f"mine: iteration {period} of repeat differs from iteration 0 in more than `rows` and `slots` say; give"
    b.repeat(6, lambda number: b.round(b.exchange("x", "a", "b", at, (at + number % every) % 5)), period=period)
    with pytest.raises(ScheduleError, match=message):
        b.build()


def test_a_repetition_may_not_reach_a_slot_beyond_the_buffer():
    b = Builder(Mesh(2, 2), "mine")
    b.buffer("a", (4,), "fp32", "input")
    b.buffer("c", (4,), "fp32", "output", slots=3)
    b.repeat(4, lambda number: b.round(b.local("copy", Slot("c", number), "a", size=4)), slots={"c": 1})
    with pytest.raises(ScheduleError, match=r"mine, round 3: slot 3..3 of 'c' does not exist; it has 3"):
        b.build()


def test_rows_of_a_repetition_are_listed_by_time():
    """Check the positions of five rows that rotate, and of one that stays, over seven repetitions."""
    rows = np.array([1, 2, 3, 4, 0, 5])
    one = Repeat((Round(),), 7, rows)
    assert one.first_time(np.array([0, 2, 5])).tolist() == [0, 1, 0, 1, 2, 0]
    assert Repeat((Round(),), 2, rows).first_time(np.array([0])).tolist() == [0, 1, 2, 2, 2, 2]
    counts, place, total = np.array([3, 0, 1, 0, 0, 2]), np.arange(6), np.zeros(6, int)
    for _ in range(7):
        total[place] += counts
        place = rows[place]
    assert one.over_all_times(counts).tolist() == total.tolist()


@pytest.mark.parametrize("name", ["gemm", "gemv", "rms_norm", "softmax"])
def test_a_pickled_schedule_has_the_same_rounds(name):
    shapes = {"gemm": ((9, 9), (9, 9)), "gemv": ((1, 9), (9, 9)), "rms_norm": ((2, 9), (9,)), "softmax": ((2, 9),)}
    made = recipe(name, Mesh(3, 3), "fp32", shapes[name]).schedule
    again = pickle.loads(pickle.dumps(made))
    assert list(again.rounds) == list(made.rounds) and account(again) == account(made)
