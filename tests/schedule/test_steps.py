"""Steps: loops, rings and trees count as their rounds one by one, and schedules of large meshes are small."""

import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from wafer_triton.algorithms.align import align_both, transpose_by_rings
from wafer_triton.algorithms.gemm import meshgemm, meshgemm_t
from wafer_triton.algorithms.product import recipe
from wafer_triton.algorithms.reduce import reduce
from wafer_triton.algorithms.segment_gemm import BlockRing, segment_gemm, segment_gemm_t
from wafer_triton.cost.phases import phases
from wafer_triton.cost.price import price
from wafer_triton.count.account import account, link_loads
from wafer_triton.count.routes import colours, excess, routes
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import ScheduleError
from wafer_triton.schedule import sram, steps
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Exchange, Local, Moves, Round, Slot
from wafer_triton.schedule.rules import validate
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Loop, Part, Ring, Stages, Tree
from wafer_triton.verify.faults import check

ROOMY = device("wse2").unbounded()
SIZES = {"m": 2, "k": 2, "n": 2}


def product(b: Builder) -> None:
    align_both(b, "a", "w")
    meshgemm(b, "a", "w", "c", **SIZES)


def in_segments(width: int) -> Callable[[Builder], None]:
    def add(b: Builder) -> None:
        blocks = BlockRing(b.mesh.shape[0], width)
        b.buffer("s", (1, 2, 2), "fp32", "output", blocks.rotating_slots)
        segment_gemm_t(b, "a", "w", "s", blocks, **SIZES)
        segment_gemm(b, "s", "w", "c", blocks, **SIZES)

    return add


ALGORITHMS = {
    "meshgemm": product,
    "gemm-t": lambda b: meshgemm_t(b, "a", "w", "c", **SIZES),
    "gemm-tn": lambda b: meshgemm_t(b, "a", "w", "c", axis="y", m=2, k=2, n=2),
    "gemm-t, no overlap": lambda b: meshgemm_t(b, "a", "w", "c", overlap=False, **SIZES),
    "transpose by rings": lambda b: transpose_by_rings(b, "a", "c"),
    "segments of 1": in_segments(1),
    "segments of 2": in_segments(2),
    "segments of 3": in_segments(3),
}
MESHES = [Mesh(*sides, ROOMY).square() for sides in ((1, 1), (3, 3), (4, 4), (7, 7), (10, 10), (4, 6))]


def built(algorithm: str, mesh: Mesh) -> Schedule:
    b = Builder(mesh, algorithm)
    for name in ("a", "w"):
        b.buffer(name, (1, 2, 2), "fp32", "input")
    b.buffer("c", (1, 2, 2), "fp32", "output")
    ALGORITHMS[algorithm](b)
    return b.build()


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_steps_count_as_their_rounds_one_by_one(algorithm, mesh):
    if algorithm.startswith("segments") and int(algorithm[-1]) > mesh.shape[1]:
        return
    again = built(algorithm, mesh)
    once = replace(again, rounds=tuple(again.rounds))
    assert len(once.rounds) == len(again.rounds) == len(again.rounds.flat)
    assert steps.uses(once.rounds.steps) == steps.uses(again.rounds.steps)
    assert sram.account(once) == sram.account(again) and account(once) == account(again)
    for way, loads in link_loads(once).items():
        np.testing.assert_array_equal(loads, link_loads(again)[way])
    assert {one: one.times for one in phases(once)} == {one: one.times for one in phases(again)}
    found = routes(once), routes(again)
    assert found[0].colours == found[1].colours == colours(once) == colours(again)
    np.testing.assert_array_equal(found[0].per_core, found[1].per_core)
    few = (replace(one, mesh=replace(one.mesh, device=replace(ROOMY, name="few", routes=2))) for one in (once, again))
    assert len(set(map(excess, few))) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_a_ring_is_its_products_one_after_another(count):
    """Check every product of two operands that circle on a row of three, of which only later ones add."""
    b, take = Builder(Mesh(3, 3), "ring"), ("a", "w")
    for name in take:
        b.buffer(name, (2, 2), "fp32", "state")
        b.like(f"{name}.next", name)
    b.buffer("c", (2, 2), "fp32", "output")
    spare = tuple(f"{name}.next" for name in take)
    moves = Moves("x", [0, 1, 2], [1, 2, 0]), Moves("y", [0, 1, 2], [1, 2, 0])
    hands = tuple((Slot(name), Slot(other)) for name, other in zip(take, spare, strict=True))
    ring = Ring(b.local("gemm", "c", take, **SIZES), hands, moves, count, "ring")
    for number in range(count):
        here, there = (take, spare) if number % 2 == 0 else (spare, take)
        shifts = [Exchange(by, Slot(frm), Slot(to)) for by, frm, to in zip(moves, here, there, strict=True)]
        b.round(*shifts, b.local("gemm", "c", here, **SIZES, add=number > 0), label="ring")
    assert ring.rounds == b.rounds and ring.count == count and ring.uses == steps.uses(b.rounds)
    held = steps.distinct([ring])
    assert sum(times for _, _, times in held) == count
    assert all(b.rounds[number] == round_ for number, round_, _ in held)
    assert all(times == b.rounds.count(round_) for _, round_, times in held)


def test_a_tree_is_its_stages_one_after_another():
    """Two buffers that go to the middle of a row of four; the last stage has a message from below alone."""
    b = Builder(Mesh(1, 4), "tree")
    for name, size in (("p", 3), ("q", 5)):
        b.buffer(name, (size,), "fp32", "state")
    reduce(b, ("p", "q"), "x", op="maximum", groups=(), root=2)
    (tree,) = b.steps
    expected = Builder(b.mesh, "rounds")
    expected.buffers.update(b.buffers)
    for ends in ({"up": (0, 1), "down": (3, 2)}, {"up": (1, 2)}):
        moves = [(name, way, *pair) for name in ("p", "q") for way, pair in ends.items()]
        expected.round(
            *(b.exchange("x", name, f"{name}.{way}", [send], [recv]) for name, way, send, recv in moves),
            *(
                b.local("maximum", name, (name, f"{name}.{way}"), Cores("x", [recv]), size=b.buffers[name].numel)
                for name, way, _, recv in moves
            ),
            label="reduce",
        )
    assert tree.rounds == expected.rounds and tree.uses == steps.uses(expected.rounds)


@pytest.mark.parametrize("way", [2, -1, "up"])
def test_a_message_of_a_tree_goes_upwards_or_downwards(way):
    with pytest.raises(ScheduleError, match=f"Stages: way {way!r} is neither 0, upwards, nor 1, downwards"):
        Stages((((0, Moves("x", [0], [1])),), ((way, Moves("x", [2], [1])),)))


@pytest.mark.parametrize(
    ("stages", "fault"),
    [
        ([([1], [2])], None),
        ([([1], [2]), ([0], [1])], r"\(0, 1\) of a tree receives after it has sent"),
        ([([0, 0], [1, 2])], r"\(0, 0\) of a tree sends twice"),
        ([([0], [1]), ([0], [2])], r"\(0, 0\) of a tree sends twice"),
    ],
)
def test_a_core_of_a_tree_sends_once_after_all_that_it_receives(stages, fault):
    b = Builder(Mesh(2, 3), "late")
    b.buffer("a", (3,), "fp32", "state")
    b.like("a.up", "a")
    b.round(b.local("copy", "a", "a", size=3))
    moves = Stages(tuple(((0, Moves("x", *ends)),) for ends in stages))
    b.steps.append(Tree("add", (Part(Slot("a"), (Slot("a.up"), Slot("a.up")), 3),), moves))
    with pytest.raises(ScheduleError, match=rf"late, round 1: core {fault}") if fault else nullcontext():
        b.build()


HANDS = [(Slot("a"), Slot("b")), (Slot("c"), Slot("d"))]
BY_HAND = {
    "Loop: times = -2 must be a whole number of at least 0": lambda: Loop((), -2),
    "Loop: times = 2.0 must be a whole number": lambda: Loop((), 2.0),
    "Loop: axis 'z' is neither 'x' nor 'y'": lambda: Loop((), 2, [1, 0], "z"),
    "Ring: count = 0 must be a whole number of at least 1": lambda: Ring(Local("add", (), ()), (), (), 0),
    "Ring: 1 shifts of 2 operands; give one for each": lambda: Ring(
        Local("add", (), ()), HANDS, [Moves("x", [0], [1])], 2
    ),
}  # fmt: skip


@pytest.mark.parametrize(("message", "make"), BY_HAND.items(), ids=BY_HAND)
def test_steps_by_hand_that_make_no_sense_are_refused(message, make):
    with pytest.raises(ScheduleError, match=f"^{message}"):
        make()


def test_loops_without_rounds_count_nothing():
    b = Builder(Mesh(1, 2), "idle")
    b.buffer("a", (3,), "fp32", "state")
    copy = b.round(b.local("copy", "a", "a", size=3))
    b.steps[:] = [Loop((), 3), Loop((copy, Loop((Loop((copy,), 0),), 2)), 4)]
    assert account(b.build()).rounds == 4


def test_a_loop_of_no_times_is_as_if_it_were_not_there():
    b = Builder(Mesh(1, 3), "idle")
    b.buffer("a", (3,), "fp32", "state")
    b.buffer("out", (3,), "fp32", "output")
    b.like("arrived", "a")
    b.round(b.exchange("x", "a", "arrived", [1, 2, 0], [0, 1, 2]))
    b.round(b.local("copy", "out", "arrived", size=3))
    none = Loop((*b.steps, *b.steps), 0, [9])  # a row that is off the mesh
    plain, looped = b.build(), replace(b.build(), rounds=(*b.steps, Loop((none,), 2), none))
    assert account(looped) == account(plain) and price(looped) == price(plain)
    assert sram.spans(looped) == sram.spans(plain)
    a = torch.arange(9.0).view(1, 3, 3)
    program = TorchExecutor(exchange="elided", poison=True).bind(looped, {"a": a})
    program.run()
    assert torch.equal(program.read("out"), a.roll(-1, 1))


@pytest.mark.parametrize("kind", ["tree", "loop"])
def test_a_draft_with_positions_off_the_mesh_is_read_as_far_as_it_can_be(kind):
    b, off = Builder(Mesh(2, 2), "off"), Moves("y", [0], [9])
    b.buffer("a", (3,), "fp32", "state")
    b.like("mail", "a")
    if kind == "tree":
        b.steps.append(Tree("add", (Part(Slot("a"), (Slot("mail"), Slot("mail")), 3),), Stages((((0, off),),))))
    else:
        b.steps.append(Loop((Round((Exchange(off, Slot("a"), Slot("mail")),)),), 2, [1, 0]))
    (found,) = check(b.build(draft=True)).findings
    assert found.verdict == "off-mesh" and "position 9 along y" in found.message


def test_the_counts_of_a_draft_whose_operation_lacks_a_parameter_say_so():
    b = Builder(Mesh(1, 2), "lacking")
    b.buffer("a", (3,), "fp32", "state")
    b.round(b.local("gemm", "a", ("a", "a"), m=1))
    for count in (account, price):
        with pytest.raises(ScheduleError, match="lacking, round 0: gemm lacks its parameter 'k'"):
            count(b.build(draft=True))


@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize("moved", [[1, 2, 3, 0], [2, 3, 0, 1], [1, 0, 3, 2]])
def test_a_loop_moves_lines_from_time_to_time(moved, axis):
    """Check a loop around a ring, a tree and a round with slots by line, against the same rounds, line by line."""
    mesh, lines, other = Mesh(4, 4), np.array(moved), "y" if axis == "x" else "x"

    def once(b: Builder, to: np.ndarray) -> None:
        by_line = np.empty(4, int)
        by_line[to] = [0, 1, 2, 3]
        b.round(b.exchange(axis, Slot("s", by_line, other), "d", [0], [3], lines=to[[0, 2]]))
        b.round(b.local("copy", "d", "a", Cores(axis, [1], to[[3]]), size=4))
        reduce(b, "a", axis, root=(to.argsort() + 1) % 4)

    def declared() -> Builder:
        b = Builder(mesh, "rows")
        b.buffer("a", (4,), "fp32", "state")
        b.buffer("d", (4,), "fp32", "state")
        b.buffer("s", (4,), "fp32", "state", 4)
        return b

    looped, plain, to = declared(), declared(), np.arange(4)
    with looped.loop(5, **{"rows" if axis == "x" else "cols": lines}):
        once(looped, to)
    for _ in range(5):
        once(plain, to)
        to = lines[to]
    assert looped.build().rounds.flat == plain.build().rounds.flat
    assert len(looped.steps) == 1 and link_loads(looped.build()).keys() == link_loads(plain.build()).keys()
    for way, loads in link_loads(plain.build()).items():
        np.testing.assert_array_equal(loads, link_loads(looped.build())[way])


@pytest.mark.parametrize("rows", [[0, 0, 1, 2], [0, 1, 2], [1, 2, 3, 4], [-1, 0, 1, 2]])
def test_rows_of_a_loop_are_each_row_once(rows):
    b = Builder(Mesh(4, 4), "mine")
    for name in ("a", "b"):
        b.buffer(name, (4,), "fp32", "state")
    with b.loop(2), b.loop(4, rows=rows):
        b.round(b.exchange("x", "a", "b", [0], [1], [3]))
    with pytest.raises(ScheduleError, match=r"mine, round 0: rows of a loop \[.*\] do not name each of 4 rows"):
        b.build()


def test_rows_of_a_loop_may_be_a_list():
    assert steps.Loop((), 2, [1, 0]) == steps.Loop((), 2, np.array([1, 0]))


@pytest.mark.parametrize("broken", ["off", "slots", "tree"])
def test_a_broken_rule_in_loops_is_named_without_making_all_rounds(broken):
    b, line = Builder(Mesh(3, 3), "mine"), [0, 1, 2]
    for name, slots in (("a", 1), ("b", 1), ("two", 2)):
        b.buffer(name, (4,), "fp32", "state", slots)
    wrong, message = {
        "off": (b.exchange("x", "a", "b", [0], [3], [1]), r"receive off the mesh: position 3 along x of 3"),
        "slots": (b.exchange("x", "a", Slot("two", [0, 1], "y"), [0], [1]), "'two' names 2 slots for 3 positions"),
        "tree": (None, r"core \(0, 1\) of a tree receives after it has sent"),
    }[broken]
    with b.loop(1000):
        b.round(b.local("copy", "b", "a", size=4))
        with b.loop(1000, rows=[1, 2, 0]):
            b.round(b.exchange("y", "a", "b", line, [1, 2, 0]))
            if wrong is None:
                stages = Stages((((0, Moves("x", [1], [0])),), ((0, Moves("x", [2], [1])),)))
                b.steps.append(Tree("add", (Part(Slot("a"), (Slot("b"), Slot("b")), 4),), stages, "second"))
            else:
                b.round(wrong, label="second")
    draft = b.build(draft=True)
    with pytest.raises(ScheduleError, match=rf"^mine, round 2 \(second\): {message}"):
        validate(draft)
    assert "flat" not in vars(draft.rounds)


@pytest.mark.parametrize(("kind", "along"), [("rows", "y"), ("cols", "x")])
@pytest.mark.parametrize("outer", [False, True])
def test_lines_of_a_loop_do_not_change_moves_along_the_other_axis(outer, kind, along):
    b = Builder(Mesh(4, 4), "mine")
    for name in ("a", "b"):
        b.buffer(name, (4,), "fp32", "state")
    with b.loop(4, **{kind: [1, 2, 3, 0]}), b.loop(2) if outer else nullcontext():
        b.round(b.exchange(along, "a", "b", [0], [1]))
    with pytest.raises(
        ScheduleError, match=rf"mine, round 0: {kind[:3]}\w* of a loop change an exchange along {along} from .*0.* to"
    ):
        b.build()


def test_a_loop_turns_rows_or_columns():
    b = Builder(Mesh(4, 4), "mine")
    with (
        pytest.raises(ScheduleError, match="mine: a loop turns rows or columns; put one in another"),
        b.loop(2, rows=[1, 2, 3, 0], cols=[1, 2, 3, 0]),
    ):
        pass


@pytest.mark.parametrize("name", ["gemm", "gemv", "rms_norm", "softmax"])
def test_a_pickled_schedule_has_the_same_rounds(name):
    shapes = {"gemm": ((9, 9), (9, 9)), "gemv": ((1, 9), (9, 9)), "rms_norm": ((2, 9), (9,)), "softmax": ((2, 9),)}
    made = recipe(name, Mesh(3, 3), "fp32", shapes[name]).schedule
    again = pickle.loads(pickle.dumps(made))
    assert list(again.rounds) == list(made.rounds) and account(again) == account(made)
