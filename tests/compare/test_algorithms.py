"""The comparison of algorithms, and the paper's complexity table by measurement."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from commands import answer
from wafer_triton.algorithms.product import recipe
from wafer_triton.algorithms.reduce import all_reduce, reduce
from wafer_triton.compare.algorithms import compare_gemm, compare_gemv, compare_own
from wafer_triton.compare.operations import judged
from wafer_triton.compare.product import taking_part, understood
from wafer_triton.cost.price import price
from wafer_triton.count.account import account, per_round
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.errors import ScheduleError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.verify.faults import Intent

SIDES = (4, 8, 16, 32, 64, 128)
WIDTH = 1024  # of the square matrices, the same on every mesh
ROOMY = replace(device("wse2"), sram_bytes=1 << 40)


@cache
def gemm(algorithm: str, side: int) -> Schedule:
    mesh = as_mesh(side, ROOMY)
    return recipe("gemm", mesh, "fp16", ((WIDTH, WIDTH), (WIDTH, WIDTH)), (("algorithm", algorithm),)).schedule


@cache
def gemv(side: int, *options: tuple[str, object]) -> Schedule:
    return recipe("gemv", as_mesh(side, ROOMY), "fp16", ((1, side), (side, side)), options).schedule


def exponent(measure) -> float:
    """Return the slope of log(measure) over log(P) on the larger half of the meshes, where lower terms fade."""
    sides = SIDES[2:]
    return float(np.polyfit(np.log(sides), np.log([measure(side) for side in sides]), 1)[0])


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [("cannon", 1), ("summa", 1), ("allgather", 1)],
    ids=lambda value: str(value),
)
def test_critical_path_of_a_step_grows_as_the_paper_says(algorithm, expected):
    longest = exponent(lambda side: max(one.hops for one in per_round(gemm(algorithm, side))))
    assert longest == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [("mesh", -2), ("cannon", -2), ("summa", -2), ("allgather", -1)],
    ids=lambda value: str(value),
)
def test_memory_grows_as_the_paper_says(algorithm, expected):
    assert exponent(lambda side: account(gemm(algorithm, side)).sram_peak_bytes) == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_a_k_tree_crosses_the_line_once_in_few_stages(levels):
    def tree(side: int) -> Schedule:
        groups = tuple(round(side ** (1 - level / levels)) for level in range(1, levels))
        return gemv(side, ("groups", groups))

    assert exponent(lambda side: account(tree(side)).stages) == pytest.approx(1 / levels, abs=0.17)
    assert exponent(lambda side: account(tree(side)).hops) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [
        ("pipeline", lambda side: side - 1),
        ("star", lambda side: 1),
        ("two-phase", lambda side: 2 * math.isqrt(side) - 2),
        ("ring", lambda side: 2 * (side - 1)),
    ],
    ids=["chain", "star", "two-phase", "ring"],
)
@pytest.mark.parametrize("side", [4, 16, 64])
def test_rounds_are_the_depth_of_the_closed_forms(algorithm, rounds, side):
    """Luczynski et al., HPDC'24; all but the ring end with one more round, the broadcast."""
    made = account(gemv(side, ("algorithm", algorithm)))
    assert made.stages == rounds(side) + (algorithm != "ring")


def test_gemm_verdicts_letter_by_letter():
    rows = {row.algorithm: row for row in compare_gemm(256, 1792, 1792, 1792, values=False)}
    verdicts = {name: "".join(letter for letter, kept in row.verdict.items() if kept) for name, row in rows.items()}
    assert verdicts == {"mesh": "PLMR", "cannon": "PMR", "summa": "PM", "allgather": "P"}
    assert all(row.error is None for row in rows.values())


def test_gemv_rows_carry_their_error():
    rows = compare_gemv(16, 64, 96, dtype="fp32")
    assert [row.algorithm for row in rows] == ["ktree", "pipeline", "two-phase", "star", "ring"]
    assert all(row.error is not None and 0 < row.error < 1e-5 for row in rows)


def test_small_operands_leave_cores_without_work():
    assert not compare_gemm(64, 8, 8, 8, values=False)[0].verdict["P"]


def test_half_of_the_cores_of_a_folded_mesh_are_physical_ones():
    """Of 6 x 6 logical cores two rows hold weights; all of them lie on the first of two rows of cores."""
    assert all(row.verdict["P"] for row in compare_gemm("2x3", 2, 2, 6, values=False))
    assert not any(row.verdict["P"] for row in compare_gemm("2x3", 6, 6, 2, values=False))  # one of three columns
    b = Builder(Mesh(2, 3).square(), "first rows")
    b.buffer("x", (8,), "fp32", "state")
    b.round(b.local("add", "x", ("x", "x"), Cores("y", [0]), size=8))
    assert taking_part(b.build()) == 0.5


def test_all_cores_take_part_where_weights_are_the_same_on_all_rows():
    b = Builder("8x4", "rows of A by columns of B")
    for name, tile, role in (("a", (3, 16), "input"), ("b", (16, 5), "input"), ("c", (3, 5), "output")):
        b.buffer(name, tile, "fp32", role)
    b.round(b.local("gemm", "c", ("a", "b"), m=3, k=16, n=5))
    intent = Intent({"a": "(y m) k", "b": "k (x n)"}, {"c": "(y m) (x n)"})
    assert compare_own({"own": (b.build(), intent)})[0].verdict["P"]


def test_command_line(capsys):
    found, err = answer("compare gemm --m 20 --k 30 --n 10 --mesh 4x6", capsys)
    rows = found["rows"]
    assert [row["algorithm"] for row in rows] == ["mesh", "cannon", "summa", "allgather"]
    # 12 products on the 12 x 12 grid, folded: two logical hops are at most one physical. Of the 6 steps that a tile
    # takes before, one is between the two positions of the last core of its line.
    assert rows[0]["hops"] == 5 + 12 and rows[0]["verdict"].keys() == set("PLMR") and "allgather" in err


def test_a_sum_over_slots_is_no_operation_to_compare():
    b = Builder(Mesh(2, 2), "slots")
    b.buffer("x", (3,), "fp32", "output", 2)
    cuts = {"x": {"i": "y", "j": "slot"}}, {"x": {"i": "y"}}
    with pytest.raises(
        ScheduleError, match="^slots: neither a product nor a sum follows from .*; give partition specs"
    ):
        understood(b.build(), Intent(*cuts))


@pytest.mark.parametrize("cols", [1, 4])
@pytest.mark.parametrize("cores", [1, 4])
def test_check_and_compare_have_one_p_for_a_sum(cols, cores):
    """On one column there is nothing to do, so no core is left out; of four, one core alone adds."""
    b = Builder(Mesh(4, cols), "sum")
    b.buffer("x", (8,), "fp32", "output")
    if cols > 1:
        b.round(b.local("add", "x", ("x", "x"), Cores("x", [0], np.arange(cores)), size=8))
    schedule = b.build()
    rows = compare_own({"sum": (schedule, Intent({"x": "(y r) (x k)"}, {"x": "(y r)"}))})
    assert rows[0].verdict["P"] == judged(schedule).verdict["P"] == (cols == 1)
    assert all(row.verdict["P"] for row in rows[1:])


@pytest.mark.parametrize(("slots", "spec", "size"), [(8, {"c": "slot"}, 128), (8, {}, 16), (1, {}, 16)])
def test_rivals_of_an_own_sum_move_all_of_its_slots(slots, spec, size):
    b = Builder(Mesh(4, 8), "bucket")
    b.buffer("x", (16,), "fp32", "output", slots)
    all_reduce(b, Slot("x", None), "x")
    mapped = Intent({"x": {"r": "y", "k": "x"} | spec}, {"x": {"r": "y"} | spec})
    text = Intent({"x": "(y r) (x k)" + " (slot c)" * bool(spec)}, {"x": "(y r)" + " (slot c)" * bool(spec)})
    rows = compare_own({"bucket": (b.build(), text)})
    assert rows == compare_own({"bucket": (b.build(), mapped)})
    several = compare_own({"bucket": (b.build(), text), "other": (b.build(), mapped)})
    assert [row.algorithm for row in several[:2]] == ["bucket (own)", "other (own)"]
    assert several[1:] == [replace(rows[0], algorithm="other (own)"), *rows[1:]]
    half = Builder(Mesh(4, 4), "half")
    half.buffer("x", (16,), "fp32", "output", slots)
    all_reduce(half, Slot("x", None), "x")
    with pytest.raises(ScheduleError, match=r"half and bucket are all_reduce .* on mesh 4x4 of wse2 and all_reduce "):
        compare_own({"bucket": (b.build(), text), "half": (half.build(), text)})
    assert ("the 8 slots of x hold the same tile" in str(rows)) == (slots == 8 and not spec)
    for row in rows[1:]:
        rival = recipe("all_reduce", Mesh(4, 8), "fp32", ((4, 8, size),), (("algorithm", row.algorithm),)).schedule
        assert row.cycles == price(rival).cycles
        assert row.busiest_link_bytes == account(rival).busiest_link_bytes
        if row.algorithm == "ktree":
            assert (round(row.cycles, 1), row.sram_peak_bytes) == {16: (146.3, 192), 128: (482.3, 1536)}[size]


def test_a_title_says_that_an_own_sum_ends_on_some_cores_alone():
    b = Builder(Mesh(4, 8), "to a root")
    b.buffer("x", (16,), "fp32", "output")
    root = reduce(b, "x", "x")
    intent = Intent({"x": "(y r) (x k)"}, {"x": "(y r)"}, on={"x": Cores("x", [root])})
    note = "to a root leaves x on 4 of 32 cores, built-in algorithms leave it on all"
    assert note in str(compare_own({"to a root": (b.build(), intent)}))
    assert "leave it on all" not in str(compare_own({"to a root": (b.build(), replace(intent, on={}))}))
