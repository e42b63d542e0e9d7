"""Segments of a schedule, from its rings and trees, and the same bits round by round."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from pairs import pairs
from schedules import LAYERS, MOVES, SUMS, agree, build, given, results
from wafer_triton.algorithms.align import align_both
from wafer_triton.algorithms.gemm import meshgemm
from wafer_triton.algorithms.product import recipe
from wafer_triton.algorithms.reduce import all_reduce, reduce
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.parts import Products, Reduction, Segment
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.emulate.segments import segments
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Moves, Round, Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Ring


def first_run(schedule: Schedule) -> Products | None:
    return next((one for one in segments(schedule) if isinstance(one, Products)), None)


def trees(schedule: Schedule) -> list[Reduction]:
    return [one for one in segments(schedule) if isinstance(one, Reduction)]


def gemm(side: int, **options):
    return recipe("gemm", Mesh(side, side), "bf16", ((4, 9), (9, 5)), tuple(options.items())).schedule


@pytest.mark.parametrize("kind", [*SUMS.values(), *LAYERS.values(), *MOVES.values()], ids=[*SUMS, *LAYERS, *MOVES])
def test_segments_hold_every_step_once(kind):
    schedule = build(kind, "4x4", "fp32")
    steps = Counter(step for round_ in schedule.rounds for step in (*round_.exchanges, *round_.locals))
    held = segments(schedule)
    rounds = [round_ for one in held for round_ in one.rounds]
    assert Counter(step for round_ in rounds for step in (*round_.exchanges, *round_.locals)) == steps
    assert [one.start for one in held] == sorted(one.start for one in held) and segments(schedule) is held


def one_by_one(schedule: Schedule) -> Schedule:
    return replace(schedule, rounds=tuple(schedule.rounds))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "on", "exchange"),
    pairs(
        ["gemm-mesh", "gemm-beside", "gemv-ktree-x", "all-reduce-ktree-y-max", "all-reduce-segments-x"],
        [TorchExecutor, TritonExecutor], tuple(EXCHANGES),
    ),
)  # fmt: skip
def test_rounds_one_by_one_give_the_same_bits(name, on, exchange):
    schedule = build({**SUMS, **MOVES}[name], "3x4" if name.startswith("gemv") else "3x3", "bf16")
    plain = one_by_one(schedule)
    assert {type(one) for one in segments(plain)} == {Segment} != {type(one) for one in segments(schedule)}
    tensors, executor = given(schedule), on(exchange=exchange, poison=True)
    found, wanted = (results(executor.bind(one, tensors)) for one in (schedule, plain))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_all_rounds_of_meshgemm_and_the_rounding_of_its_sums_go_together():
    run = first_run(gemm(4))
    assert (run.count, len(run.rounds), run.c, run.out, run.add) == (4, 5, "c", "out", False)
    assert [str(slot) for slot in (*run.a, *run.b)] == ["a[0]", "a.next[0]", "b[0]", "b.next[0]"]
    assert [ring.tolist() for ring in run.rings] == [[0, 2, 3, 1]] * 2
    assert [moves.axis for moves in run.shifts] == ["x", "y"], "of a and of b"
    assert run.params == {"m": 1, "k": 3, "n": 2, "accumulate": "fp32"}


def test_with_an_odd_side_b_goes_home_before_the_sums_are_rounded():
    run = first_run(gemm(3))
    assert (run.count, len(run.rounds), run.out) == (3, 3, "c")
    assert [ring.tolist() for ring in run.rings] == [[0, 2, 1]] * 2


@pytest.mark.parametrize("algorithm", ["summa", "allgather"])
def test_other_algorithms_have_no_such_run(algorithm):
    assert first_run(gemm(4, algorithm=algorithm)) is None


def two_products(read_again: bool = False, other_sizes: bool = False) -> Schedule:
    b = Builder(Mesh(2, 2), "two products")
    for name in ("a", "w"):
        b.buffer(name, (2, 2), "fp32", "input")
    b.buffer("c", (2, 2), "fp32")
    for name in ("out", "again"):
        b.buffer(name, (2, 2), "fp32", "output")
    align_both(b, "a", "w")
    meshgemm(b, "a", "w", "c", m=2, k=2, n=2)
    b.round(b.local("copy", "out", "c", size=4 if not other_sizes else 3))
    if read_again:
        b.round(b.local("copy", "again", "c", size=4))
    else:
        b.round(b.local("copy", "again", "out", size=4))
    return b.build()


def test_sums_that_are_looked_at_again_stay_where_they_are():
    assert first_run(two_products()).out == "out"
    assert first_run(two_products(read_again=True)).out == "c"


def test_a_copy_of_a_part_is_no_rounding():
    assert first_run(two_products(other_sizes=True)).out == "c"


def test_a_second_product_into_the_same_sums_is_a_run_of_its_own():
    b = Builder(Mesh(2, 2), "twice")
    for name in ("a", "w"):
        b.buffer(name, (2, 2), "fp32", "input")
    b.buffer("c", (2, 2), "fp32", "output")
    meshgemm(b, "a", "w", "c", m=2, k=2, n=2)
    meshgemm(b, "a", "w", "c", m=2, k=2, n=2)
    assert first_run(b.build()).count == 2


# --- sums that cannot wait in registers, and tiles that lie where the sums go ---


def product_of(side: int, dtype: str = "fp32", c: Slot | None = None, slots: int = 1, add: bool = False, begin=None):
    """C = A B (or += with `add`) on tiles of 2 x 2, all of whose buffers can be read."""
    b = Builder(Mesh(side, side), "product")
    for name in ("a", "w"):
        b.buffer(name, (2, 2), dtype, "state")
    b.buffer("c", (2, 2), dtype, "state", slots)
    b.buffer("sums", (2, 2), "fp32")
    if begin is not None:
        begin(b)
    meshgemm(b, "a", "w", c or "c", m=2, k=2, n=2)
    if add:
        b.steps = [
            replace(step, product=replace(step.product, params={**step.product.params, "add": True}))
            if isinstance(step, Ring) else step
            for step in b.steps
        ]  # fmt: skip
    return b


def same_everywhere(schedule: Schedule) -> None:
    """Compare both executors, with both exchanges, with the reference, which runs round by round."""
    torch.manual_seed(1)
    tiles = {name: 11 * each for name, each in given(schedule, integers=True).items()}  # of bf16 sums are rounded
    agree(
        schedule, tiles, *[on(exchange=how, poison=True) for on in (TorchExecutor, TritonExecutor) for how in EXCHANGES]
    )


@pytest.mark.slow
@pytest.mark.parametrize("side", [3, 4])
@pytest.mark.parametrize("into", ["a", "w"])
def test_sums_are_not_rounded_to_where_tiles_still_pass(side, into):
    b = product_of(side, c=Slot("sums"))
    b.round(b.local("copy", into, "sums", size=4))
    same_everywhere(b.build())


def test_sums_in_one_slot_of_several():
    same_everywhere(product_of(3, c=Slot("c", 1), slots=2).build())


@pytest.mark.slow
def test_sums_that_their_buffer_rounds_are_rounded_every_round():
    same_everywhere(product_of(4, "bf16").build())


def test_a_product_that_does_not_go_all_around_its_rings():
    b = product_of(4)
    b.steps[-1] = replace(b.steps[-1], count=2)
    same_everywhere(b.build())


AROUND = [1, 2, 0]
SHIFTS = {  # of A along x
    "on one row": Moves("x", AROUND, [0, 1, 2], [1]),
    "not around": Moves("x", [0, 1], [1, 2]),
    "multicast": Moves("x", [0, 0, 0], [0, 1, 2]),
    "rows by steps of their own": Moves("x", [AROUND[::-1], [2, 0, 1], AROUND], [[2, 1, 0], [0, 1, 2], [0, 1, 2]]),
    "two circles": Moves("x", [1, 0, 2], [0, 1, 2]),
}


@pytest.mark.parametrize("shift", SHIFTS)
def test_a_ring_whose_tiles_do_not_all_circle_is_its_rounds(shift):
    b = product_of(3)
    for name in "aw":
        b.steps.insert(0, b.local("copy", f"{name}.next", name, size=4))
    b.steps[:2] = [Round((), tuple(b.steps[:2]))]
    at = next(number for number, step in enumerate(b.steps) if isinstance(step, Ring))
    b.steps[at] = replace(b.steps[at], shifts=(SHIFTS[shift], b.steps[at].shifts[1]))
    same_everywhere(b.build())


@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_ring_whose_slots_differ_between_cores_is_its_rounds(axis):
    b = Builder(Mesh(3, 3), "slots")
    for name, slots in (("a", 2), ("w", 2), ("c", 1)):
        b.buffer(name, (2, 2), "fp32", "state", slots)
    hands = (Slot("a", [0, 1, 0], axis), Slot("a", [1, 0, 1], axis)), (Slot("w", 0), Slot("w", 1))
    product = b.local("gemm", "c", (hands[0][0], hands[1][0]), m=2, k=2, n=2)
    shifts = Moves("x", AROUND, [0, 1, 2]), Moves("y", AROUND, [0, 1, 2])
    b.steps.append(Ring(product, hands, shifts, 3))
    same_everywhere(b.build())


def test_a_ring_on_some_cores_is_its_rounds():
    b = product_of(3)
    at = next(number for number, step in enumerate(b.steps) if isinstance(step, Ring))
    b.steps[at] = replace(b.steps[at], product=replace(b.steps[at].product, where=Cores("x", [1])))
    same_everywhere(b.build())


@pytest.mark.parametrize("side", [3, 4])
def test_operands_that_lie_where_the_sums_go(side):
    turn = [*range(1, side), 0]
    same_everywhere(
        product_of(side, add=True, begin=lambda b: b.round(b.exchange("x", "c", "a", turn, list(range(side))))).build()
    )


@pytest.mark.parametrize("sent", [False, True])
def test_a_sum_in_one_slot_leaves_the_others(sent):
    b = Builder(Mesh(3, 2), "slots")
    b.buffer("e", (4,), "fp32", "state", 2)
    b.buffer("a", (4,), "fp32", "state")
    all_reduce(b, "e", "x")
    own = Slot("e", 1)
    b.round(b.exchange("x", own, "a", [1, 0], [0, 1]) if sent else b.local("copy", "a", own, size=4))
    same_everywhere(b.build())


@pytest.mark.parametrize("read", [Slot("e"), Slot("e", 1), Slot("e", [0, 1]), Slot("e", None)], ids=str)
def test_a_sum_in_one_slot_is_read_once(read):
    b = Builder(Mesh(3, 2), "slots")
    b.buffer("e", (4,), "fp32", "state", 2)
    into = Slot("a", None if read.index is None else 0)
    b.buffer("a", (4,), "fp32", "state", 2)
    reduce(b, "e", "x")
    b.round(b.local("copy", into, read, size=b.buffers["e"].slot_numel(read)))
    same_everywhere(b.build())


def test_reductions_that_go_together_are_trees_of_their_own():
    b = Builder(Mesh(2, 9), "several")
    for name, size in (("a", 3), ("b", 5)):
        b.buffer(name, (size,), "fp32", "state")
    all_reduce(b, ("a", "b"), "x", groups=(3,))
    schedule = b.build()
    first, second = trees(schedule)
    stages = len(schedule.rounds) - 1  # the last is the broadcast
    assert [one.count for one in (first, second)] == [stages, stages]
    for tree in (first, second):
        assert {exchange.src.buffer for round_ in tree.rounds for exchange in round_.exchanges} == {tree.acc}
        assert len(tree.broadcast) == 1 and (tree.roots == [4] * 9 + [13] * 9).all()
        assert tree.children.sum() == 16 and (tree.parent < 0).sum() == 2


def test_one_reduction_after_another_is_a_tree_of_its_own():
    b = Builder(Mesh(1, 5), "twice")
    b.buffer("a", (3,), "fp32", "state")
    reduce(b, "a", "x")
    reduce(b, "a", "x")
    schedule = b.build()
    assert [(one.start, len(one.rounds)) for one in trees(schedule)] == [(0, 2), (2, 2)]


def test_a_tree_whose_mailbox_is_read_later_runs_round_by_round():
    b = Builder(Mesh(1, 3), "mailbox")
    b.buffer("a", (3,), "fp32", "state")
    b.buffer("out", (3,), "fp32", "output")
    reduce(b, "a", "x")
    b.round(b.local("copy", "out", "a.up", size=3))
    assert trees(b.build()) == []
