"""`rebind`: one program appends to a KV cache many times, each time with another slot and other rows that shift."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from wafer_triton.algorithms.kv_cache import KvCache
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.parts import Tables
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.emulate.reference import Reference
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.errors import ScheduleError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Moves, Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Part, Ring, Stages, Step, Tree

MESH = Mesh(3, 2)


def append(cache: KvCache, count: int, mesh: Mesh = MESH) -> Schedule:
    b = Builder(mesh, "append")
    b.buffer("cache", (5,), "fp32", "cache", cache.slots)
    b.buffer("new", (5,), "fp32", "state", 2)
    cache.append(b, {"cache": "new"}, count)
    return b.build()


def filled(cache: KvCache) -> dict[str, torch.Tensor]:
    return {"cache": torch.zeros(3, 2, 5 * cache.slots), "new": torch.zeros(3, 2, 10)}


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [None, 3])
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("policy", ["shift", "concat"])
def test_recorded_steps_of_programs_with_shared_tables_are_rebound(policy, exchange, shuffle):
    cache = KvCache(3, 4, policy, prefilled=2)
    on, tables = TritonExecutor(exchange=exchange, shuffle=shuffle), Tables()
    programs = [on.bind(append(cache, 2), filled(cache), tables=tables) for _ in range(2)]
    recorded = [list(program.calls) for program in programs]
    judge = TorchExecutor().bind(append(cache, 2), filled(cache))
    for count in range(2, cache.capacity):
        judge.rebind(append(cache, count))
        schedule = append(cache, count)
        new = torch.randn(3, 2, 10)
        for program in (*programs, judge):
            program.write("new", new)
        for program in programs:
            program.rebind(schedule)
            assert program.schedule is schedule
        for steps in recorded:
            for step in steps:
                step()
        judge.run()
        for program in programs:
            assert torch.equal(program.memory["cache"], judge.memory["cache"])
    assert judge.memory["cache"].any()


def test_a_program_without_tables_is_planned_anew():
    cache = KvCache(3, 4)
    program, judge = (on.bind(append(cache, 2), filled(cache)) for on in (TritonExecutor(), TorchExecutor()))
    for count in (2, 3, 4):
        for each in (program, judge):
            each.write("new", torch.full((3, 2, 10), count + 0.5))
            each.rebind(append(cache, count))
            each.run()
    assert torch.equal(program.memory["cache"], judge.memory["cache"])


def test_a_schedule_that_differs_in_more_than_indices_is_refused():
    cache = KvCache(3, 4, "concat")
    program = TritonExecutor().bind(append(cache, 2), filled(cache), tables=Tables())
    b = Builder(MESH, "every row")
    b.buffer("new", (5,), "fp32", "state", 2)
    b.buffer("cache", (5,), "fp32", "cache", cache.slots)
    b.round(b.local("copy", "cache", "new", size=5))
    words = r"every row: table \d has 6 entries, and 2 in the schedule that was bound; bind this one anew"
    with pytest.raises(ScheduleError, match=words):
        program.rebind(b.build())


@pytest.mark.parametrize("on", [TorchExecutor(), TritonExecutor()], ids=["torch", "triton"])
def test_a_schedule_with_another_operation_is_refused(on):
    cache = KvCache(3, 4, "concat")
    program, made = on.bind(append(cache, 2), filled(cache), tables=Tables()), append(cache, 3)
    (round_,) = made.rounds
    (put,) = round_.locals
    added = replace(round_, locals=(replace(put, op="add", ins=put.ins * 2),))
    with pytest.raises(ScheduleError, match="append: its buffers, operations or .* bind this one anew"):
        program.rebind(replace(made, rounds=(added,)))


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("on", [TorchExecutor, TritonExecutor])
def test_a_schedule_with_a_whole_buffer_in_place_of_a_slot_is_refused(on, exchange):
    def copied(slot: int | None) -> Schedule:
        b = Builder(MESH, "copied")
        b.buffer("slots", (2,), "fp32", "state", 3)
        b.buffer("one", (2,), "fp32", "output")
        b.round(b.local("copy", "one", Slot("slots", slot), size=2))
        return b.build()

    program = on(exchange=exchange).bind(copied(1), {"slots": torch.arange(36.0).view(3, 2, 3, 2)}, tables=Tables())
    with pytest.raises(ScheduleError, match="copied: its buffers, operations or operands .* bind this one anew"):
        program.rebind(copied(None))
    program.rebind(copied(2))
    program.run()
    assert torch.equal(program.read("one"), torch.arange(36.0).view(3, 2, 3, 2)[:, :, 2])


def shifted(senders: list[int], cores: Cores | None = None) -> Schedule:
    b = Builder(MESH, "shifted")
    for name in "xyz":
        b.buffer(name, (2,), "fp32", "state")
    b.round(b.exchange("y", "x", "y", senders, range(len(senders))))
    b.round(b.local("add", "z", ("y", "x"), cores, size=2))
    return b.build()


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("on", [TorchExecutor, TritonExecutor])
@pytest.mark.parametrize("others", [[-1, -1, -1], [-1, 1, -1]], ids=["none", "one"])
def test_a_schedule_whose_operation_runs_on_more_or_fewer_cores_is_refused(on, exchange, others):
    given = {name: torch.arange(12.0).view(3, 2, 2) for name in "xyz"}
    first, second, other = (Cores("x", [[at] for at in columns]) for columns in ([0, 1, 1], [1, 0, 0], others))
    program = on(exchange=exchange).bind(shifted([1, 2, 0], first), given, tables=Tables())
    with pytest.raises(ScheduleError, match="shifted: table .* has .* entries, and 3 in the schedule that was bound"):
        program.rebind(shifted([1, 2, 0], other))
    judge = TorchExecutor().bind(shifted([2, 0, 1], first), given)
    for each in (program, judge):
        each.rebind(shifted([2, 0, 1], second))
        each.run()
    assert torch.equal(program.read("z"), judge.read("z"))


def test_a_schedule_whose_tiles_must_be_copied_where_others_lay_elsewhere_is_refused():
    given = {name: torch.zeros(3, 2, 2) for name in "xyz"}
    program = TorchExecutor(exchange="elided").bind(shifted([1, 2, 0]), given, tables=Tables())
    with pytest.raises(ScheduleError, match="shifted: .* in the schedule that was bound; bind this one anew"):
        program.rebind(shifted([1]))


def test_an_operation_on_no_core_has_tables():
    given = {name: torch.ones(3, 2, 2) for name in "xyz"}
    program = TorchExecutor().bind(shifted([1, 2, 0], Cores("x", [[-1]] * 3)), given, tables=Tables())
    program.run()
    assert program.read("z").eq(1).all()


def stepped(step: Callable[[Builder], Step]) -> Schedule:
    b = Builder(3, "stepped")
    for name in "xy":
        b.buffer(name, (4, 4), "fp32", "state", 2)
        b.like(f"{name}.mail", name)
    for name in "abc":
        b.buffer(name, (4, 4), "fp32", "state")
        b.like(f"{name}.next", name)
    b.steps.append(step(b))
    return b.build(draft=True)


def trees(*slots: tuple[str, int], receiver: int = 1) -> Callable[[Builder], Step]:
    """Return a step of trees in slots of buffers."""
    stages = Stages(tuple(((0, Moves("x", [sender], [receiver])),) for sender in {0, 1, 2} - {receiver}))
    parts = tuple(Part(Slot(name, at), (Slot(f"{name}.mail", at),) * 2, 16) for name, at in slots)
    return lambda b: Tree("add", parts, stages)


def ring(*steps: int) -> Callable[[Builder], Step]:
    """Return a step of products whose operands move by some positions each time."""
    shifts = tuple(Moves(axis, range(3), np.roll(range(3), by)) for axis, by in zip("xy", steps, strict=True))
    hands = tuple((Slot(name), Slot(f"{name}.next")) for name in "ab")
    return lambda b: Ring(b.local("gemm", "c", ("a", "b"), m=4, k=4, n=4), hands, shifts, 3)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (trees(("x", 0)), trees(("x", 1))),
        (trees(("x", 0)), trees(("x", 0), receiver=2)),
        (trees(("x", 0), ("y", 0)), trees(("x", 1), ("y", 1))),
        (ring(1, 1), ring(1, 2)),
    ],
    ids=["slot", "moves", "two trees", "ring"],
)  # fmt: skip
def test_trees_and_rings_follow_slots_and_moves_by_which_they_would_run_at_once(exchange, first, second):
    source = torch.Generator().manual_seed(0)
    buffers = stepped(first).buffers.values()
    given = {each.name: torch.randint(-3, 4, (3, 3, *each.dims), generator=source) for each in buffers if each.given}
    program = TorchExecutor(exchange=exchange).bind(stepped(first), given, tables=Tables())
    program.rebind(stepped(second))
    program.run()
    judge = Reference(stepped(second), given)
    judge.run()
    assert all(torch.equal(program.read(name), judge.read(name)) for name in given)


def test_planning_that_was_interrupted_is_done_again(monkeypatch):
    cache = KvCache(3, 4)
    program = TritonExecutor().bind(append(cache, 0), filled(cache), tables=Tables())
    judge, schedule = TorchExecutor().bind(append(cache, 0), filled(cache)), append(cache, 1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TritonExecutor, "compute", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        program.rebind(schedule)
    for each in (program, judge):
        each.write("new", torch.arange(60.0).view(3, 2, 10))
        each.rebind(schedule)
        each.run()
    assert torch.equal(program.memory["cache"], judge.memory["cache"])
