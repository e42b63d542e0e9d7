"""Programs at rest: planned once, never shared, and without a trace of the call before."""

import gc
import sys
from collections.abc import Iterator
from threading import Barrier, Thread
from weakref import ref

import pytest
import torch

import wafer_triton
from schedules import LAYERS, MOVES, SUMS, build, given
from wafer_triton.algorithms.product import clear_recipes, recipe
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate import executor as executors
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.pool import POOL, Pool
from wafer_triton.emulate.program import Program
from wafer_triton.emulate.reference import Reference
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import ScheduleError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores
from wafer_triton.schedule.schedule import Schedule


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    wafer_triton.clear_cache()
    yield
    wafer_triton.clear_cache()


@pytest.fixture
def plans(monkeypatch) -> list[str]:
    """Record the names of the schedules that are planned."""
    planned, plan = list[str](), Executor.plan
    monkeypatch.setattr(Executor, "plan", lambda on, one, memory: planned.append(one.name) or plan(on, one, memory))
    return planned


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-4, 5, shape).float()


@pytest.mark.slow
def test_a_second_call_plans_nothing(plans):
    a, b = integers(9, 12), integers(12, 10)
    for exchange in ("explicit", "elided"):
        for _ in range(3):
            assert torch.equal(wafer_triton.mesh_gemm(a, b, mesh=3, exchange=exchange), a @ b)
    assert len(plans) == 2
    wafer_triton.clear_cache()
    assert POOL.bytes == 0
    wafer_triton.mesh_gemm(a, b, mesh=3)
    assert len(plans) == 3


def test_no_schedule_of_a_recorded_call_outlives_the_cache():
    wafer_triton.mesh_gemm(integers(9, 12), integers(12, 10), mesh=3, record=True)
    options = (("algorithm", "mesh"), ("accumulate", "fp32"))
    schedule = ref(recipe("gemm", 3, "fp32", ((9, 12), (12, 10)), options).schedule)
    assert schedule() is not None
    wafer_triton.clear_cache()
    gc.collect()
    assert schedule() is None


def test_a_schedule_that_is_built_again_finds_its_program(plans):
    a, b = integers(9, 12), integers(12, 10)
    for _ in range(3):
        clear_recipes()
        assert torch.equal(wafer_triton.mesh_gemm(a, b, mesh=3), a @ b)
    assert len(plans) == 1


def test_a_warm_product_makes_few_python_calls():
    a, b, calls = integers(64, 64), integers(64, 64), [0]
    for _ in range(2):
        wafer_triton.mesh_gemm(a, b, mesh=8)
    sys.setprofile(lambda frame, event, _: calls.__setitem__(0, calls[0] + (event == "call")))
    try:
        wafer_triton.mesh_gemm(a, b, mesh=8)
    finally:
        sys.setprofile(None)
    assert calls[0] <= 250


@pytest.mark.parametrize("exchange", ["explicit", "elided"])
def test_memory_made_in_inference_mode_serves_outside_of_it(exchange):
    a, b = integers(9, 12), integers(12, 10)
    made = recipe("gemm", Mesh(3, 3), "fp32", ((9, 12), (12, 10))).schedule
    tensors = given(made, integers=True)
    with torch.inference_mode():
        inside = wafer_triton.mesh_gemm(a, b, mesh=3, exchange=exchange)
        program = TorchExecutor(exchange=exchange).bind(made, tensors)
        machine = Reference(made, tensors)
    assert inside.is_inference() and torch.equal(inside.clone(), a @ b)
    assert torch.equal(wafer_triton.mesh_gemm(a, b, mesh=3, exchange=exchange), a @ b)
    program.run()
    machine.run()
    assert torch.equal(program.read("c"), machine.read("c"))
    program.write("a", tensors["a"])


def test_autocast_changes_no_run():
    layer = build(LAYERS["decode-attend"], "2x3", "fp32")
    tensors = given(layer)

    def results(on: TorchExecutor) -> dict[str, torch.Tensor]:
        program, machine = on.bind(layer, tensors), Reference(layer, tensors)
        program.run()
        machine.run()
        return {f"{name} of {of}": of.read(name) for name in layer.buffers for of in (program, machine)}

    wanted = [*results(TorchExecutor()).values()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(map(same, results(TorchExecutor()).values(), wanted))
        assert torch.is_autocast_enabled("cpu")


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def test_other_dtypes_shapes_and_meshes_have_programs_of_their_own(plans):
    for dtype in 2 * [torch.float32, torch.bfloat16, torch.float16]:
        for shape in ((9, 12, 10), (9, 12, 11)):
            for mesh in (2, 3):
                a, b = (integers(*shape[at : at + 2]).to(dtype) for at in (0, 1))
                got = wafer_triton.mesh_gemm(a, b, mesh=mesh)
                assert got.dtype == dtype and torch.equal(got.float(), a.float() @ b.float())
    assert len(plans) == 12


def test_results_share_no_memory_with_the_pool_or_each_other():
    a, b = integers(4, 4), torch.eye(4)
    for mesh in (1, 2):
        first = wafer_triton.mesh_gemm(a, b, mesh=mesh)
        tiles = wafer_triton.mesh_gemm(wafer_triton.scatter(a, Mesh(mesh, mesh), "(y m) (x k)"), b).tiles
        kept = first.clone(), tiles.clone()
        for _ in range(2):
            wafer_triton.mesh_gemm(a + 1, b, mesh=mesh).zero_()
        assert torch.equal(first, kept[0]) and torch.equal(tiles, kept[1])


PARTLY = {  # rounds after which "t" has something of what it had before
    "all": lambda b: b.local("copy", "out", "x", size=3),
    "some elements": lambda b: b.local("copy", "t", "x", size=2),
    "some cores": lambda b: b.local("copy", "t", "x", Cores("x", [0]), size=3),
    "some receivers": lambda b: b.exchange("x", "x", "t", [0], [1]),
    "sums that go on": lambda b: b.local("gemm", "t", ("one", "x"), m=1, k=1, n=3, add=True),
}


def reads_what_no_round_wrote(part: str) -> Schedule:
    b = Builder(Mesh(2, 2), part)
    for name, role in (("x", "input"), ("t", "scratch"), ("out", "output"), ("half", "output")):
        b.buffer(name, (3,), "fp32", role)
    b.buffer("one", (1,), "fp32", "input")
    b.round(PARTLY[part](b))
    b.round(b.local("add", "out", ("t", "x"), size=3))
    b.round(b.local("copy", "half", "out", size=2))
    b.round(b.local("copy", "t", "x", size=3))
    return b.build()


@pytest.mark.parametrize("poison", [False, True])
@pytest.mark.parametrize("part", PARTLY)
def test_a_borrowed_program_is_as_a_fresh_one(part, poison):
    """What the last run left would be added to, and the last element of "half" is never written."""
    schedule, on = reads_what_no_round_wrote(part), TorchExecutor(poison=poison)
    for number in range(3):
        given = {"x": torch.arange(1.0, 13).view(2, 2, 3) + number, "one": torch.ones(2, 2, 1)}
        program, fresh = on.borrow(schedule), on.bind(schedule, given)
        for name, tiles in given.items():
            program.write(name, tiles)
        program.captured()
        fresh.run()
        for name in ("out", "half"):
            assert torch.equal(program.read(name).view(torch.int32), fresh.read(name).view(torch.int32))
        POOL.give(program)


@pytest.mark.parametrize("name", [*SUMS, *LAYERS, *MOVES])
def test_a_second_run_of_a_borrowed_program_equals_the_first(name):
    """Check that no value of the first run is left: in between, all of its memory is NaN."""
    schedule, on = build({**SUMS, **LAYERS, **MOVES}[name], "3x3", "fp32"), TorchExecutor()
    kept, runs = [buffer.name for buffer in schedule.buffers.values() if buffer.kept], []
    tensors = given(schedule)
    for _ in range(2):
        program = on.borrow(schedule)
        for one, values in tensors.items():
            program.write(one, values)
        program.run()
        runs.append({one: program.read(one) for one in kept})
        for tensor in program.memory.values():
            tensor.fill_(float("nan"))
        POOL.give(program)
    assert [one for one in kept if not torch.equal(runs[0][one], runs[1][one])] == []


def test_threads_never_share_a_program():
    a = [integers(8, 8) for _ in range(4)]
    wrong, start = list[int](), Barrier(4)

    def work(number: int) -> None:
        start.wait()
        for _ in range(20):
            if not torch.equal(wafer_triton.mesh_gemm(a[number], a[number - 1], mesh=2), a[number] @ a[number - 1]):
                wrong.append(number)

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_program_serves_calls_on_one_stream(monkeypatch):
    """Check a GPU, where work of the last call may still run on its stream as a call on another one begins."""
    on, schedule = TorchExecutor(), reads_what_no_round_wrote("all")
    monkeypatch.setattr(on, "allocate_all", lambda schedule, names: {name: torch.zeros(4, 3) for name in names})
    monkeypatch.setattr(on, "plan", lambda schedule, memory: [])
    monkeypatch.setattr(executors, "Workspace", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    on.device, programs = "cuda", []
    for stream in ("first", "second", "first", "second"):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, stream=stream: stream)
        programs.append(on.borrow(schedule))
        POOL.give(programs[-1])
    assert programs[0] is programs[2] is not programs[1] is programs[3]


def test_the_least_recently_used_programs_go():
    on, pool = TorchExecutor(), Pool(most=2 * 600)
    programs: list[Program] = []
    for name in ("first", "second", "third"):
        b = Builder(Mesh(1, 1), name)
        b.buffer("x", (150,), "fp32", "output")
        b.round(b.local("add", "x", ("x", "x"), size=150))
        programs.append(on.borrow(b.build()))
    first, second, third = (program.key for program in programs)
    pool.give(programs[0])
    pool.give(programs[1])
    assert pool.bytes == 1200 and pool.take(first) is programs[0]
    pool.give(programs[0])
    pool.give(programs[2])
    assert pool.take(second) is None and pool.take(first) is programs[0] and pool.take(third) is programs[2]
    assert pool.bytes == 0


@pytest.mark.parametrize("take", [TorchExecutor.borrow, lambda executor, made: executor.bind(made, {})])
def test_a_draft_that_breaks_a_rule_never_runs(take):
    b = Builder(Mesh(2, 2), "draft")
    b.buffer("y", (1,), "fp32", "output")
    b.round(b.exchange("x", "y", "y", send=[0], recv=[5]))
    with pytest.raises(ScheduleError, match="draft, round 0: receive off the mesh"):
        take(TorchExecutor(), b.build(draft=True))
