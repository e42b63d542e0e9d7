"""Which rounds share a launch, from the rounds alone."""

from dataclasses import replace

import pytest
import torch

from wafer_triton.emulate.launches import compute_shifts, one_by_one, reduction
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.gemm import align_both, meshgemm
from wafer_triton.schedule.product import recipe
from wafer_triton.schedule.reduce import all_reduce
from wafer_triton.schedule.rounds import Schedule, Slot

pytestmark = pytest.mark.slow


def first_run(schedule: Schedule):
    start = next(at for at, round_ in enumerate(schedule.rounds) if any(op.op == "gemm" for op in round_.locals))
    return compute_shifts(schedule, schedule.rounds[start:])


def gemm(side: int, **options):
    return recipe("gemm", Mesh(side, side), "bf16", ((4, 9), (9, 5)), tuple(options.items())).schedule


def test_all_rounds_of_meshgemm_and_the_rounding_of_its_sums_go_together():
    run = first_run(gemm(4))
    assert (run.number, run.rounds, run.c, run.out, run.add) == (4, 5, "c", "out", False)
    assert [str(slot) for slot in (*run.a, *run.b)] == ["a[0]", "a.next[0]", "b[0]", "b.next[0]"]
    assert run.to[0][:4].tolist() == [2, 0, 3, 1] and run.to[1][::4].tolist() == [8, 0, 12, 4], "0, 2, 3, 1 along both"
    assert run.params == {"m": 1, "k": 3, "n": 2, "heads": 1, "kv_heads": 1, "accumulate": "fp32"}


def test_with_an_odd_side_b_goes_home_before_the_sums_are_rounded():
    run = first_run(gemm(3))
    assert (run.number, run.rounds, run.out) == (3, 3, "c")


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
    assert first_run(b.build()).number == 2


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
    start = len(b.rounds)
    meshgemm(b, "a", "w", c or "c", m=2, k=2, n=2)
    for number, round_ in enumerate(b.rounds[start:], start) if add else ():
        ops = tuple(replace(op, params={**op.params, "add": True}) if op.op == "gemm" else op for op in round_.locals)
        b.rounds[number] = replace(round_, locals=ops)
    return b


def same_everywhere(schedule: Schedule) -> None:
    """Both executors, with both exchanges, leave what the torch executor does round by round."""
    generator = torch.Generator().manual_seed(1)
    shapes = {name: (*schedule.mesh.shape, buffer.slots, *buffer.tile) for name, buffer in schedule.buffers.items()}
    given = {
        name: torch.randint(-30, 31, shapes[name], generator=generator).float()
        for name, buffer in schedule.buffers.items()
        if buffer.given and buffer.kept
    }
    results = []
    for on in (TorchExecutor, TritonExecutor):
        for exchange in ("explicit", "elided"):
            program = on(exchange=exchange).bind(schedule, given)
            program.run()
            results.append({name: program.read(name).cpu() for name in given})
    for number, values in enumerate(results):
        assert [name for name in given if not torch.equal(values[name], results[0][name])] == [], number


@pytest.mark.slow
@pytest.mark.parametrize("side", [3, 4])
@pytest.mark.parametrize("into", ["a", "w"])
def test_sums_are_not_rounded_to_where_tiles_still_pass(side, into):
    b = product_of(side, c=Slot("sums"))
    b.round(b.local("copy", into, "sums", size=4))
    same_everywhere(b.build())


def test_sums_in_one_slot_of_several():
    same_everywhere(product_of(3, c=Slot("c", 1), slots=2).build())


def test_sums_that_their_buffer_rounds_are_rounded_every_round():
    same_everywhere(product_of(4, "bf16").build())


def test_a_product_that_does_not_go_all_around_its_rings():
    b = product_of(4)
    del b.rounds[-2:]
    same_everywhere(b.build())


@pytest.mark.parametrize("side", [3, 4])
def test_operands_that_lie_where_the_sums_go(side):
    turn = [*range(1, side), 0]
    same_everywhere(
        product_of(side, add=True, begin=lambda b: b.round(b.exchange("x", "c", "a", turn, list(range(side))))).build()
    )


def test_reductions_that_go_together_are_planned_one_by_one():
    b = Builder(Mesh(2, 9), "several")
    for name, size in (("a", 3), ("b", 5)):
        b.buffer(name, (size,), "fp32", "state")
    all_reduce(b, ("a", "b"), "x", groups=(3,))
    together = b.build()
    apart = one_by_one(together)
    stages = len(together.rounds) - 1  # the last is the broadcast
    assert len(apart.rounds) == 2 * stages + 1 and apart.rounds[-1] is together.rounds[-1]
    assert [round_.exchanges[0].src.buffer for round_ in apart.rounds[:-1]] == ["a"] * stages + ["b"] * stages
    assert reduction(apart.rounds, together.mesh).rounds == stages, "each is a tree"
    assert one_by_one(apart) is apart
