"""Several compute-shift rounds in one launch, as on a GPU: every core a process, all at once, tiles in shared memory.

The interpreter runs the programs of a launch one after another, so a program that waits for a later one would hang it.
Here each process interprets a launch of one program; its waits and its arrivals are atomic operations on memory that
all processes share. Processes take turns, which end at stores and atomic operations. A seed draws their order, so a run
repeats, and the number of turns, not a time, shows that programs wait for ever.
"""

from collections.abc import Callable
from multiprocessing import connection
from random import Random
from types import SimpleNamespace
from weakref import ref

import pytest
import torch
from torch import Tensor, multiprocessing
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

from wafer_triton.algorithms.product import recipe
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.parts import Products
from wafer_triton.emulate.segments import segments
from wafer_triton.errors import BackendError
from wafer_triton.kernels import Operand, _common
from wafer_triton.kernels.compute_shift import all_rounds, one_round, residency
from wafer_triton.kernels.waiting import MAX_POLLS, Alarm, Watch

SIDE = 3
TURNS = 3_000  # ten times as many as a run takes
STEPS = ("create_store", "create_masked_store", "create_atomic_rmw", "create_atomic_cas")
fork = multiprocessing.get_context("fork")


class Turns:
    """Has one of several processes run at a time."""

    def __init__(self, cores: int, seed: int) -> None:
        self.seed, self.turn, self.ended = seed, table([0]), table([0] * cores)
        self.gates = [fork.Semaphore(0) for _ in range(cores)]

    def begin(self) -> None:
        self.gates[0].release()

    def run(self, core: int, program: Callable[[], None]) -> None:
        """Run the program of a core whenever it is its turn."""
        self.gates[core].acquire()
        try:
            program()
        finally:
            self.ended[core] = 1
            self._open()

    def pass_on(self, core: int) -> None:
        if self.turn.item() > TURNS:
            raise TimeoutError(f"core {core} still waits after {TURNS:,} turns")
        self._open()
        self.gates[core].acquire()

    def _open(self) -> None:
        self.turn += 1
        waiting = self.ended.eq(0).nonzero().flatten().tolist()
        if waiting:
            self.gates[Random(self.seed * 2 * TURNS + self.turn.item()).choice(waiting)].release()


def table(values) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int32).share_memory_()


def raised() -> Alarm:
    """Return an alarm that several processes share."""
    return Alarm(torch.zeros(1, dtype=torch.int64).share_memory_(), 1)


def operand(values: Tensor) -> Operand:
    values = values.flatten(0, 1).contiguous().share_memory_()
    return Operand(values, 0, values.shape[1])


def one_core(core: int, turns: Turns, tensors, sizes) -> None:
    """Run the program of one core."""
    torch.set_num_threads(1)
    # at the end of a launch the interpreter copies tensors back, here onto themselves while others write to them
    GridExecutor._restore_args_dev = lambda *_: None
    for name in STEPS:
        step = getattr(InterpreterBuilder, name)
        setattr(InterpreterBuilder, name, lambda *args, step=step: [step(*args), turns.pass_on(core)][0])
    c, out, a, b, neighbours, counters, alarm = tensors

    def program() -> None:
        all_rounds(c, out, a, b, neighbours, counters, table([core]), alarm, rounds=SIDE, add=False, **sizes)

    turns.run(core, program)


def cores_that_failed(programs: list) -> list[int]:
    """Wait until all processes have ended, or one has failed; the rest is killed then."""
    running = {program.sentinel: program for program in programs}
    while running and not any(program.exitcode for program in programs):
        for sentinel in connection.wait(list(running)):
            running.pop(sentinel).join()
    for program in running.values():
        program.kill()
        program.join()
    return [core for core, program in enumerate(programs) if program.exitcode]


def run(m: int, k: int, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """C of aligned operands, and the same by one round a launch; `seed` orders the turns."""
    torch.manual_seed(0)
    mesh = Mesh(SIDE, SIDE)
    schedule = recipe("gemm", mesh, "bf16", ((m * SIDE, k * SIDE), (k * SIDE, n * SIDE)), ()).schedule
    to_a, to_b = map(torch.from_numpy, next(one for one in segments(schedule) if isinstance(one, Products)).receivers)
    a, b = (torch.randn(SIDE, SIDE, size).bfloat16() for size in (m * k, k * n))
    nan = lambda size, dtype: operand(torch.full((SIDE, SIDE, size), float("nan"), dtype=dtype))  # noqa: E731
    sizes = {"m": m, "k": k, "n": n}
    cores = SIDE * SIDE

    hands = [(operand(x.clone()), nan(x.shape[-1], x.dtype)) for x in (a, b)]
    c, out = nan(m * n, torch.float32), nan(m * n, torch.bfloat16)
    neighbours = table(torch.stack([to_a, to_b, to_a.argsort(), to_b.argsort()], dim=1).contiguous())
    counters, alarm = table(torch.zeros(2, cores)), raised()
    turns = Turns(cores, seed)
    args = (turns, (c, out, *hands, neighbours, counters, alarm), sizes)
    programs = [fork.Process(target=one_core, args=(core, *args)) for core in range(cores)]
    for program in programs:
        program.start()
    turns.begin()
    assert cores_that_failed(programs) == []

    slots = [(operand(x.clone()), nan(x.shape[-1], x.dtype)) for x in (a, b)]
    c = nan(m * n, torch.float32)
    for number in range(SIDE):
        (a, next_a), (b, next_b) = (pair if number % 2 == 0 else pair[::-1] for pair in slots)
        one_round(c, a, b, next_a, next_b, *map(table, (to_a, to_b, range(cores))), **sizes, add=number > 0)
    for hand, slot in zip(hands, slots, strict=True):
        assert torch.equal(hand[SIDE % 2].tensor, slot[SIDE % 2].tensor), "operands end where they should"
    assert not counters.any() and not alarm.word.any()
    return out.tensor, c.tensor.bfloat16()


@pytest.mark.slow
def test_all_rounds_in_one_launch_give_the_bits_of_one_round_a_launch():
    got, want = run(16, 16, 16, seed=0)
    assert torch.equal(got.view(torch.int16), want.view(torch.int16)) and not got.isnan().any()


@pytest.mark.slow
def test_rounds_of_ragged_tiles():
    got, want = run(5, 7, 3, seed=1)
    assert torch.equal(got.view(torch.int16), want.view(torch.int16)) and not got.isnan().any()


def alone(rounds: int, alarm: Alarm):
    """Run a core of a larger mesh without its neighbours: its tiles, and the counters of all four."""
    hands = [[operand(torch.ones(1, 1, 1).bfloat16()) for _ in range(2)] for _ in "ab"]
    c, counters = operand(torch.zeros(1, 1, 1)), torch.zeros(2, 4, dtype=torch.int32)
    neighbours = torch.tensor([[1, 2, 3, 1]], dtype=torch.int32)
    core = torch.zeros(1, dtype=torch.int32)
    all_rounds(c, c, *hands, neighbours, counters, core, alarm, rounds=rounds, m=1, k=1, n=1)
    return hands, counters


def test_a_core_without_arrivals_gives_up_with_core_and_round():
    watch = Watch("cpu")
    counters = torch.ones(3)
    alone(1, watch.alarm("one round", 2, counters.zero_, lambda core, round_: round_))
    watch.check()  # no core waits in the first round
    assert counters.all()
    alarm = watch.alarm("MeshGEMM", 2, counters.zero_, lambda core, round_: 10 * core + round_)
    alone(3, alarm)
    words = r"MeshGEMM: core \(0, 0\) gave up waiting for its neighbours in round 1, .*run again"
    with pytest.raises(BackendError, match=words):
        watch.check()
    assert not counters.any(), "ready to run again"
    watch.check()


def test_after_one_core_gives_up_no_core_waits_long(monkeypatch):
    looks = []
    real = InterpreterBuilder.create_atomic_cas
    monkeypatch.setattr(InterpreterBuilder, "create_atomic_cas", lambda *args: [looks.append(1), real(*args)][1])
    watch = Watch("cpu")
    alarm = watch.alarm("MeshGEMM", 2, list, lambda core, round_: round_)
    alone(2, alarm)
    assert len(looks) > MAX_POLLS.value
    looks.clear()
    alone(9, alarm)
    assert len(looks) == 2 * 8, "in each round that waits, one poll and one more after the flag is read as raised"
    with pytest.raises(BackendError, match="in round 1,"):
        watch.check()


def test_a_core_signals_its_neighbours_after_its_last_copy(monkeypatch):
    """Five blocks of k, each copied to both neighbours, before the one arrival; then the sums."""
    events = []

    def log(name: str, what: str) -> None:
        real = getattr(InterpreterBuilder, name)
        monkeypatch.setattr(InterpreterBuilder, name, lambda *args: [events.append(what), real(*args)][1])

    for name, what in (("create_store", "copy"), ("create_masked_store", "copy"), ("create_atomic_rmw", "arrive")):
        log(name, what)
    m, k, n = 16, 130, 16
    hands = [[operand(torch.randn(1, 1, size).bfloat16()) for _ in range(2)] for size in (m * k, k * n)]
    c, out = operand(torch.zeros(1, 1, m * n)), operand(torch.zeros(1, 1, m * n))
    counters = table([[0], [0]])
    all_rounds(c, out, *hands, table([[0] * 4]), counters, table([0]), raised(), rounds=2, m=m, k=k, n=n)
    assert events == [*["copy"] * 10, "arrive"] * 2 + ["copy"]
    for here, there in hands:
        assert torch.equal(here.tensor, there.tensor)
    assert not counters.any(), "nothing arrives in the last round"


def test_all_rounds_need_a_gpu_that_holds_the_programs():
    """Under the interpreter nothing is resident; nor are tiles of more than one block of sums."""
    tile = Operand(torch.zeros(9, 16 * 16), 0, 256)
    flags = torch.zeros(2, 9, dtype=torch.int32)
    cores = torch.arange(9, dtype=torch.int32)
    shared = (tile, tile, (tile, tile), (tile, tile), flags, flags, cores, raised())
    assert residency(*shared, m=16, k=16, n=16) == 0


@pytest.fixture
def gpu(monkeypatch):
    """Return a function that patches a GPU of 132 multiprocessors and the driver's answers, programs or a failure."""

    def holds(programs: int, failure: int = 0, cooperative: int = 1) -> list:
        asked = []

        def occupancy(found, function, threads, shared):
            asked.append((function.value, threads, shared.value))
            found._obj.value = programs
            return failure

        def attribute(found, which, gpu):
            found._obj.value = cooperative if which == 95 else 0
            return 0

        driver = SimpleNamespace(
            cuOccupancyMaxActiveBlocksPerMultiprocessor=occupancy, cuDeviceGetAttribute=attribute,
            cuCtxGetDevice=lambda gpu: 0,
        )  # fmt: skip
        has = SimpleNamespace(name="Some GPU", multi_processor_count=132, warp_size=32)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: has)
        monkeypatch.setattr(_common, "INTERPRET", False)
        monkeypatch.setattr(_common.ctypes, "CDLL", lambda name: driver)
        return asked

    return holds


def test_the_driver_says_how_many_programs_a_gpu_holds(gpu):
    metadata = SimpleNamespace(num_warps=4, shared=16384)
    kernel = SimpleNamespace(name="rounds", _init_handles=lambda: None, function=0xABC, metadata=metadata)
    asked = gpu(5)
    assert _common.resident_programs(kernel, torch.device("cuda")) == 5 * 132 and asked == [(0xABC, 128, 16384)]
    assert _common.resident_programs(kernel, torch.device("cpu")) == 0
    for answer, why in (
        ({"failure": 400}, r"does not say what it holds at once \(CUDA error 400\)"),
        ({"cooperative": 0}, "has no cooperative launches"),
    ):
        gpu(5, **answer)
        words = (
            f"^the driver of Some GPU {why}: each round of explicit MeshGEMM is a launch of its own, .* exchange='elid"
        )
        with pytest.warns(UserWarning, match=words):
            assert _common.resident_programs(kernel, torch.device("cuda")) == 0


def test_a_watch_keeps_no_memory_of_programs_that_are_gone():
    watch, counters = Watch("cpu"), torch.ones(3)
    kept, gone = watch.alarm("kept", 2, counters.zero_, lambda core, round_: round_), ref(counters)
    del counters, kept
    assert gone() is None
    watch.word.fill_((1 << 40) + (2 << 24) + 3)
    with pytest.raises(BackendError, match=r"a program that is gone: core \(3, 0\) gave up .* in round 2,"):
        watch.check()
