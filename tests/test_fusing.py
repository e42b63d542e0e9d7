"""Which rounds share a launch, from the rounds alone."""

import pytest

from wafer_triton.fusing import compute_shifts
from wafer_triton.mesh import Mesh
from wafer_triton.recipes import recipe
from wafer_triton.schedule.gemm import align, meshgemm
from wafer_triton.schedule.rounds import Builder, Schedule


def found(schedule: Schedule):
    start = next(at for at, one in enumerate(schedule.rounds) if any(op.op == "gemm" for op in one.locals))
    return compute_shifts(schedule, schedule.rounds[start:])


def gemm(side: int, **options):
    return recipe("gemm", Mesh(side, side), "bf16", ((4, 9), (9, 5)), tuple(options.items())).schedule


def test_all_rounds_of_meshgemm_and_the_rounding_of_its_sums_go_together():
    run = found(gemm(4))
    assert (run.number, run.rounds, run.c, run.out, run.add) == (4, 5, "c", "out", False)
    assert [str(slot) for slot in (*run.a, *run.b)] == ["a[0]", "a.next[0]", "b[0]", "b.next[0]"]
    assert run.to[0][:4].tolist() == [2, 0, 3, 1] and run.to[1][::4].tolist() == [8, 0, 12, 4], "0, 2, 3, 1 along both"
    assert run.params == {"m": 1, "k": 3, "n": 2, "heads": 1, "kv_heads": 1, "accumulate": "fp32"}


def test_with_an_odd_side_b_goes_home_before_the_sums_are_rounded():
    run = found(gemm(3))
    assert (run.number, run.rounds, run.out) == (3, 3, "c")


@pytest.mark.parametrize("algorithm", ["summa", "allgather"])
def test_other_algorithms_have_no_such_run(algorithm):
    assert found(gemm(4, algorithm=algorithm)) is None


def two_products(read_again: bool = False, other_sizes: bool = False) -> Schedule:
    b = Builder(Mesh(2, 2), "two products")
    for name in ("a", "w"):
        b.buffer(name, (2, 2), "fp32", "input")
    b.buffer("c", (2, 2), "fp32")
    for name in ("out", "again"):
        b.buffer(name, (2, 2), "fp32", "output")
    align(b, "a", "x")
    align(b, "w", "y")
    meshgemm(b, "a", "w", "c", m=2, k=2, n=2)
    b.round(b.local("copy", "out", "c", size=4 if not other_sizes else 3))
    if read_again:
        b.round(b.local("copy", "again", "c", size=4))
    else:
        b.round(b.local("copy", "again", "out", size=4))
    return b.build()


def test_sums_that_are_looked_at_again_stay_where_they_are():
    assert found(two_products()).out == "out"
    assert found(two_products(read_again=True)).out == "c"


def test_a_copy_of_a_part_is_no_rounding():
    assert found(two_products(other_sizes=True)).out == "c"


def test_a_second_product_into_the_same_sums_is_a_run_of_its_own():
    b = Builder(Mesh(2, 2), "twice")
    for name in ("a", "w"):
        b.buffer(name, (2, 2), "fp32", "input")
    b.buffer("c", (2, 2), "fp32", "output")
    meshgemm(b, "a", "w", "c", m=2, k=2, n=2)
    meshgemm(b, "a", "w", "c", m=2, k=2, n=2)
    assert found(b.build()).number == 2
