"""Facts of small schedules that were once wrong in silence: values, counts, and what is refused."""

import copy
import pickle
from threading import Event, Thread

import numpy as np
import pytest
import torch

import wafer_triton
from tiny import checkpoint
from wafer_triton import Builder, Mesh, Schedule, WaferForCausalLM, convert
from wafer_triton.algorithms.collectives import shift
from wafer_triton.algorithms.product import recipe
from wafer_triton.algorithms.reduce import all_reduce
from wafer_triton.count.routes import colours, routes
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.emulate.reference import Reference
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import BackendError, CacheError, ScheduleError
from wafer_triton.schedule.rounds import Cores, Exchange, Local, Moves, Round, Slot
from wafer_triton.schedule.steps import Loop
from wafer_triton.verify.faults import check


def mailboxes() -> Schedule:
    """Core 1 of three adds the tiles of both others, which arrive in slots that are given core by core."""
    b = Builder(Mesh(1, 3), "mailboxes")
    b.buffer("acc", (1,), "fp32", "state")
    b.buffer("mail", (1,), "fp32", slots=2)
    mail, middle = [Slot("mail", np.full(3, number)) for number in range(2)], Cores("x", np.array([1]))
    b.round(
        *(b.exchange("x", "acc", box, [sender], [1]) for box, sender in zip(mail, (0, 2), strict=True)),
        *(b.local("add", "acc", ("acc", box), middle, size=1) for box in mail),
    )
    return b.build()


def test_two_messages_in_slots_by_core_are_both_added():
    schedule, given = mailboxes(), {"acc": torch.tensor([[[1.0], [10.0], [100.0]]])}
    assert not check(schedule).findings
    machine = Reference(schedule, given)
    machine.run()
    assert machine.read("acc").flatten().tolist() == [1, 111, 100]
    for exchange in EXCHANGES:
        program = TorchExecutor(exchange=exchange).bind(schedule, given)
        program.run()
        assert program.read("acc").flatten().tolist() == [1, 111, 100], exchange


EQUAL = {
    "slots in a list": (Slot("a", np.array([0, 1])), Slot("a", [0, 1])),
    "a fixed slot along y": (Slot("a", 1), Slot("a", 1, "y")),
    "messages in any order": (Moves("x", [0, 2], [1, 0]), Moves("x", [2, 0], [0, 1])),
    "lines in any order": (Moves("x", [0], [1], [2, 0]), Moves("x", [0], [1], [0, 2])),
    "lines that move alike": (Moves("x", [[0], [0]], [[1], [1]], [2, 0]), Moves("x", [0], [1], [0, 2])),
    "message by message": (
        Moves("y", [[0, -1], [1, 0]], [[1, -1], [2, 1]]), Moves("y", [1, 0, 0], [2, 1, 1], [1, 1, 0], True)),
    "cores in any order": (Cores("x", [2, 0]), Cores("x", [0, 2])),
    "cores along either axis": (Cores("x", [[0, -1], [2, 1]]), Cores("y", [[0], [1], [1]])),
    "parameters in any order": (Local("f", (), (), {"a": 1, "b": 0.5}), Local("f", (), (), {"b": 0.5, "a": 1})),
}  # fmt: skip
DIFFERENT = {
    "slots": (
        Slot("a", [0, 1]), Slot("a", [1, 1]), Slot("a", [0, 1], "y"), Slot("b", [0, 1]), Slot("a", 0), Slot("a", None)),
    "moves": (
        Moves("x", [0], [1]), Moves("y", [0], [1]), Moves("x", [0], [1], [0]), Moves("x", [1], [0]),
        Moves("x", [0, 0], [1, 2])),
    "cores": (Cores("x", [0]), Cores("y", [0]), Cores("x", [0], [0]), Cores("x", [[0], [1]])),
    "parameters": tuple(Local("f", (), (), {"a": value}) for value in (1, 1.0, True, 0.0, -0.0, 0, "1", (1,))),
}  # fmt: skip


@pytest.mark.parametrize("kind", EQUAL)
def test_values_that_say_the_same_are_equal(kind):
    one, other = EQUAL[kind]
    fresh = pickle.dumps(one)
    assert one == other and len({one, other}) == 1
    assert pickle.dumps(one) == fresh, "without the hash, as texts hash differently in another process"
    assert pickle.loads(fresh) == other


@pytest.mark.parametrize("kind", DIFFERENT)
def test_values_that_say_something_else_differ(kind):
    assert len(set(DIFFERENT[kind])) == len(DIFFERENT[kind])


def test_colours_of_rows_that_change_count_all_times():
    """Check two schedules of the same rounds: only in four times row 2 sends to two places."""
    b = Builder(Mesh(4, 4), "colours")
    b.buffer("a", (1,), "fp32", "state")
    b.buffer("d", (1,), "fp32")
    moves = [Moves("x", [0], [to], [line]) for to, line in ((1, 0), (2, 2))]
    one, two = (Round((Exchange(each, Slot("a"), Slot("d")),)) for each in moves)
    rows = np.array([1, 2, 3, 0])
    turned = [Loop((one,), times, rows) for times in (2, 4)]
    schedules = [Schedule("turning", b.mesh, dict(b.buffers), (each, two)) for each in turned]
    assert [colours(each) for each in schedules] == [routes(each).colours for each in schedules] == [1, 2]


def test_a_middle_iteration_is_checked():
    b = Builder(Mesh(1, 3), "middle")
    b.buffer("B", (1,), "fp32", "state", 9)
    b.buffer("c", (1,), "fp32", "output")
    b.buffer("x", (1,), "fp32", "input")
    for number in range(9):
        sent = b.exchange("x", Slot("B", np.full(3, 5)), "c", [0], [1])
        b.round(sent, b.local("copy", Slot("B", number), "x", size=1))
    with pytest.raises(ScheduleError, match=r"round 5.*core \(0, 0\).*B\[5\]"):
        b.build()


@pytest.mark.parametrize("name", ["acc.sums", "acc.settled", "acc.halo0"])
def test_a_buffer_may_have_a_name_like_memory_of_executors(name):
    b = Builder(Mesh(1, 4), "names")
    for each, role in (("acc", "state"), ("x", "state"), (name, "scratch"), ("out", "output")):
        b.buffer(each, (1,), "fp32", role)
    shift(b, "x", name, "x", wrap=True)
    all_reduce(b, "acc", "x")
    b.round(b.local("add", "out", (name, name), size=1))
    schedule, tiles = b.build(), torch.arange(4.0).view(1, 4, 1)
    for exchange in EXCHANGES:
        program = TorchExecutor(exchange=exchange, poison=True).bind(schedule, {"acc": tiles, "x": 10 + tiles})
        program.run()
        assert program.read("out").flatten().tolist() == [26, 20, 22, 24], exchange
    with pytest.raises(ScheduleError, match="acc~sums"):
        b.buffer("acc~sums", (1,), "fp32")


def test_a_converted_layer_is_planned_once(monkeypatch):
    planned, plan = [], Executor.plan
    monkeypatch.setattr(Executor, "plan", lambda *given: planned.append(given[1]) or plan(*given))
    wafer_triton.clear_cache()
    model, x = convert(torch.nn.Sequential(torch.nn.Linear(64, 64)), mesh=4), torch.randn(1, 64)
    for _ in range(5):
        model(x)
    assert len(planned) == 1


def test_programs_of_one_executor_are_for_one_thread_at_a_time():
    schedule = recipe("gemm", Mesh(4, 4), "fp32", ((8, 8), (8, 8)), ()).schedule
    on, tiles = TorchExecutor(), {name: torch.zeros(4, 4, 4) for name in ("a", "b")}
    first, second = on.bind(schedule, tiles), on.bind(schedule, tiles)
    inside, done = Event(), Event()
    first.calls.insert(0, lambda: (inside.set(), done.wait(60)))
    thread = Thread(target=first.run)
    thread.start()
    assert inside.wait(60)
    try:
        with pytest.raises(BackendError, match="another thread"):
            second.run()
    finally:
        done.set()
    thread.join()
    second.execute()
    with pytest.raises(BackendError, match="not copied"):
        copy.deepcopy(first)


def test_an_index_array_may_change_after_it_is_given():
    index, send, recv, lines, at = np.array([0, 1, 0]), np.array([0]), np.array([1]), np.array([0]), np.array([2])
    b = Builder(Mesh(1, 3), "arrays")
    b.buffer("t", (1,), "fp32", "state", 2)
    b.buffer("o", (1,), "fp32", "output")
    b.round(
        b.exchange("x", Slot("t", index), "o", send, recv, lines),
        b.local("copy", "o", Slot("t", 1), Cores("x", at, lines), size=1),
    )
    schedule = b.build()
    for array in (index, send, recv, lines, at):
        array[:] = 7
    program = TorchExecutor(poison=True).bind(schedule, {"t": torch.tensor([[[1.0, 2], [3, 4], [5, 6]]])})
    program.run()
    assert program.read("o").flatten().tolist()[1:] == [1, 6]


def test_a_model_is_for_one_thread_at_a_time(tmp_path):
    model = WaferForCausalLM.from_pretrained(checkpoint(tmp_path / "tiny"), mesh=2, max_length=8)
    inside, done, said = Event(), Event(), []
    run = model.layers.run
    model.layers.run = lambda *given: (inside.set(), done.wait(60), run(*given))[-1]
    thread = Thread(target=lambda: said.append(model.step(1)))
    thread.start()
    assert inside.wait(60)
    try:
        for call in (lambda: model.step(2), lambda: model.prefill([1, 2]), model.reset):
            with pytest.raises(CacheError, match="another thread"):
                call()
    finally:
        done.set()
    thread.join()
    assert model.count == 1 and len(said) == 1


@pytest.mark.parametrize(
    ("send", "recv", "fact"),
    [
        ([[0], [0], [-1]], [[1], [2], [-1]], "3"),
        ([[0], [0], [3], [0]], [[1], [2], [-1], [3]], "receiver"),
        ([[0, 0]] * 3 + [[-1, -1]], [[1, -2]] * 3 + [[-1, -1]], "-2"),
    ],
    ids=["too few lines", "a sender alone", "off the mesh"],
)
def test_lines_spelled_out_are_judged_before_idle_ones_go(send, recv, fact):
    b = Builder(Mesh(4, 4), "lines")
    b.buffer("a", (1,), "fp32", "input")
    b.buffer("c", (1,), "fp32", "output")
    with pytest.raises(ScheduleError, match=fact):
        b.round(b.exchange("x", "a", "c", send, recv))
        b.build()


def test_a_buffer_of_one_slot_may_be_sent_by_core():
    b = Builder(Mesh(1, 3), "by core")
    b.buffer("a", (1,), "fp32", "input")
    b.buffer("c", (1,), "fp32", "output")
    b.round(b.exchange("x", Slot("a", np.zeros(3, int)), "c", [0, 1, 2], [1, 2, 0]))
    for exchange in EXCHANGES:
        program = TorchExecutor(exchange=exchange).bind(b.build(), {"a": torch.arange(3.0).view(1, 3, 1)})
        program.run()
        assert program.read("c").flatten().tolist() == [2, 0, 1], exchange


def test_a_copied_executor_has_memory_of_its_own():
    on = TorchExecutor()
    assert copy.deepcopy(on).workspace is not on.workspace
