"""Rounds one at a time: the values after each equal the reference's."""

import pytest
import torch

from schedules import LAYERS, MOVES, SUMS, build, given
from wafer_triton import executor
from wafer_triton.algorithms.product import recipe
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.reference import Reference
from wafer_triton.errors import BackendError, MeshError, ScheduleError, ShapeError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores
from wafer_triton.schedule.schedule import Schedule

KINDS = {
    "gemm": build(SUMS["gemm-mesh"], "4x4", "fp16"),
    "gemv": build(SUMS["gemv-ktree-y"], "5x3", "fp32"),
    "collectives": build(MOVES["collectives"], "3x3", "fp32"),
    "decode": build(LAYERS["decode-attend-head-groups"], "4x4", "fp16"),
}


@pytest.mark.parametrize("schedule", KINDS.values(), ids=KINDS)
def test_every_state_is_the_references(schedule):
    tensors = given(schedule, integers=True)
    program, reference = executor("torch").bind(schedule, tensors), Reference(schedule, tensors, poison=False)
    for state in program.rounds():
        reference.run(until=state.round + 1)
        assert state.label == schedule.rounds[state.round].label
        for name in schedule.buffers:
            torch.testing.assert_close(state[name].tiles, reference.read(name), rtol=2e-3, atol=1e-3, equal_nan=True)


def test_a_state_is_not_read_after_the_next_round():
    schedule = KINDS["gemv"]
    program = executor("torch").bind(schedule, given(schedule, integers=True))
    first, *_, last = program.rounds()
    name = next(iter(schedule.buffers))
    assert last[name].tiles.shape[:2] == schedule.mesh.shape
    for late in (first, last):
        program.execute()
        with pytest.raises(ScheduleError, match=f"read '{name}' of round {late.round} before the next"):
            late[name]


def test_a_state_is_read_by_core_and_stays():
    schedule = KINDS["gemm"]
    program = executor("torch").bind(schedule, given(schedule))
    states = program.rounds()
    held = next(states)["a"]
    before = held.core(3, 1).clone()
    assert before.shape == schedule.buffers["a"].tile and torch.equal(before, held.tiles[3, 1])
    for _ in states:
        pass
    assert torch.equal(held.core(3, 1), before)
    with pytest.raises(MeshError, match=r"core \(4, 0\) is not on the mesh of 'a', 4 x 4 cores"):
        held.core(4, 0)
    with pytest.raises(ShapeError, match="no buffer 'q'; it has a, b"):
        next(executor("torch").bind(schedule, given(schedule)).rounds())["q"]


@pytest.mark.parametrize("until", [0, 3, "gemm"])
def test_a_run_ends_before_a_round(until):
    schedule = recipe("gemm", Mesh(4, 4), "fp32", ((8, 8), (8, 8)), ()).schedule
    tensors = given(schedule)
    program, reference = executor("torch").bind(schedule, tensors), Reference(schedule, tensors, poison=False)
    program.run(until=until)
    reference.run(until=until if until != "gemm" else 3)
    for name in schedule.buffers:
        assert torch.equal(program.read(name), reference.read(name))
    assert [round_.label for round_ in schedule.rounds].index("gemm") == 3


@pytest.mark.parametrize(
    ("until", "message"),
    [
        (99, "until = 99 is not one of 0 to"),
        (-1, "until = -1 is not one of"),
        ("x", "no round is labelled 'x'; its labels are"),
    ],
)
def test_a_round_that_is_not_there(until, message):
    with pytest.raises(ScheduleError, match=message):
        executor("torch").bind(KINDS["gemm"], given(KINDS["gemm"])).run(until=until)


def test_elided_rounds_cannot_be_looked_at():
    program = executor("torch", "elided").bind(KINDS["gemm"], given(KINDS["gemm"]))
    with pytest.raises(BackendError, match="elided exchange moves no tiles, .* use exchange='explicit'"):
        next(program.rounds())


def test_a_program_that_is_not_looked_at_plans_nothing_more(monkeypatch):
    """`run` takes the steps of `bind`, however often it is called: looking is planned when it is asked for."""
    program = executor("torch").bind(KINDS["gemm"], given(KINDS["gemm"]))
    steps = list(program.calls)
    monkeypatch.setattr(type(program.executor), "round", None)
    program.run()
    assert program.calls == steps
    assert program.read("out").isfinite().all()


def test_a_program_and_its_states_are_shown_without_their_memory():
    program = executor("torch").bind(KINDS["gemm"], given(KINDS["gemm"]))
    state = next(program.rounds())
    assert repr(KINDS["gemm"]) in repr(program) and len(repr(program)) < 200 > len(repr(state))


def product_with_one() -> tuple[Schedule, dict[str, torch.Tensor]]:
    tiles = {"a": torch.arange(9.0).view(3, 3, 1, 1), "b": torch.eye(3).view(3, 3, 1, 1)}
    return recipe("gemm", Mesh(3, 3), "fp32", ((3, 3), (3, 3)), ()).schedule, tiles


def sum_of_two() -> tuple[Schedule, dict[str, torch.Tensor]]:
    b = Builder(Mesh(1, 2), "sum")
    b.buffer("x", (1,), "fp32", "output")
    b.buffer("mail", (1,), "fp32")
    b.round(b.exchange("x", "x", "mail", [0, 1], [1, 0]))
    b.round(b.local("add", "x", ("x", "mail"), size=1))
    return b.build(), {"x": torch.tensor([1.0, 2]).view(1, 2, 1)}


@pytest.mark.parametrize(
    ("make", "names", "result", "wanted"),
    [(product_with_one, "a, b", "out", list(range(9))), (sum_of_two, "x", "x", [3, 3])],
    ids=["inputs", "an output with values"],
)
def test_a_second_run_on_overwritten_values_is_refused(make, names, result, wanted):
    schedule, tensors = make()
    message = f"have overwritten {names}; give new values by `write`, or bind the schedule anew"
    for begin in (lambda program: program.run(), lambda program: program.run(until=2), lambda p: next(p.rounds())):
        program = executor("torch").bind(schedule, tensors)
        begin(program)
        with pytest.raises(ScheduleError, match=message):
            program.run()
        for name, tiles in tensors.items():
            program.write(name, tiles)
        program.run()
        assert program.read(result).flatten().tolist() == wanted


def copied(name: str, more: tuple[str, ...] = (), shift: int | None = None) -> Schedule:
    b = Builder(Mesh(1, 2), name)
    for buffer in ("x", *more):
        b.buffer(buffer, (1,), "fp32", "input")
    b.buffer("y", (1,), "fp32", "output")
    if shift is not None:
        b.round(b.exchange("x", "x", "y", [0], [shift]), b.local("add", "x", ("x", "x"), Cores("x", [1]), size=1))
    b.round(b.local("copy", "y", (more or ("x",))[0], size=1))
    return b.build(draft=True)


def test_a_program_follows_schedules_of_its_own_buffers():
    program = executor("torch").bind(copied("first"), {"x": torch.ones(1, 2, 1)})
    program.run()
    program.run()
    program.rebind(copied("second", shift=0))
    program.run()
    assert program.read("y").flatten().tolist() == [1, 2]
    with pytest.raises(ScheduleError, match="second: rounds that ran before have overwritten x"):
        program.run()
    with pytest.raises(ScheduleError, match="third: its mesh or buffers are not those of second, which was bound"):
        program.rebind(copied("third", ("z",)))
    with pytest.raises(ScheduleError, match="fourth, round 0: receive off the mesh"):
        program.rebind(copied("fourth", shift=5))


@pytest.mark.parametrize("exchange", ["explicit", "elided"])
@pytest.mark.parametrize("role", ["weight", "cache", "state"])
def test_a_further_run_goes_on_from_resident_tiles_where_the_last_one_left_them(role, exchange):
    b = Builder(Mesh(1, 3), "turned")
    b.buffer("w", (1,), "fp32", role)
    b.buffer("x", (1,), "fp32", "input")
    b.buffer("y", (1,), "fp32", "output")
    b.buffer("mail", (1,), "fp32")
    b.round(b.exchange("x", "w", "mail", [0, 1, 2], [1, 2, 0]))
    b.round(b.exchange("x", "mail", "w", [0, 1, 2], [0, 1, 2]), b.local("add", "y", ("x", "w"), size=1))
    schedule, tensors = b.build(), {"w": torch.tensor([1.0, 2, 3]).view(1, 3, 1), "x": torch.zeros(1, 3, 1)}
    program, held = executor("torch", exchange).bind(schedule, tensors), dict(tensors)
    for turned in ([3, 1, 2], [2, 3, 1], [1, 2, 3], [3, 1, 2]):
        program.run()
        machine = Reference(schedule, held)
        machine.run()
        held["w"] = machine.read("w")
        for name in ("w", "y"):
            assert program.read(name).flatten().tolist() == machine.read(name).flatten().tolist() == turned
