"""Several compute-shift rounds in one launch, as on a GPU: every core a process, all at once, tiles in shared memory.

The interpreter runs the programs of a launch one after another, so a program that waits for a later one would hang it.
Here each process interprets a launch of one program; its waits and its arrivals are atomic operations on memory that
all processes share. They take turns, which end at stores and atomic operations, in an order that a seed draws: so a run
repeats, and programs that wait for ever are told by the number of turns, not by a time.
"""

from collections.abc import Callable
from multiprocessing import connection
from random import Random

import pytest
import torch
from torch import Tensor, multiprocessing
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

from wafer_triton.emulate.launches import compute_shifts
from wafer_triton.kernels import Operand, one_round, residency, several_rounds
from wafer_triton.kernels._common import programs_per_multiprocessor
from wafer_triton.kernels.protocol import ARRIVALS
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.product import recipe

SIDE = 3
TURNS = 3_000  # ten times what a run takes
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


def operand(values: Tensor, index: Tensor | None = None) -> Operand:
    values = values.flatten(0, 1).contiguous().share_memory_()
    return Operand(values, 0, values.shape[1], index)


def one_core(core: int, launches: list[tuple[int, int]], turns: Turns, launched: Tensor, tensors, sizes) -> None:
    """What the program of one core does, launch after launch; `launched` keeps launches apart, as a GPU does."""
    torch.set_num_threads(1)
    # at the end of a launch the interpreter copies tensors back, here onto themselves while others write to them
    GridExecutor._restore_args_dev = lambda *_: None
    for name in STEPS:
        step = getattr(InterpreterBuilder, name)
        setattr(InterpreterBuilder, name, lambda *args, step=step: [step(*args), turns.pass_on(core)][0])
    c, out, a, b, neighbours, counters = tensors

    def program() -> None:
        for here, rounds in launches:
            several_rounds(
                c, c if here + rounds < SIDE else out, a, b, neighbours, counters, table([core]),
                rounds=rounds, here=here % 2, add=here > 0, **sizes,
            )  # fmt: skip
            launched[core] += 1
            while launched.min() < launched[core]:
                turns.pass_on(core)

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


def run(launches: list[tuple[int, int]], m: int, k: int, n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """C of aligned operands, the same by one round a launch, and the counters left; `seed` orders the turns."""
    torch.manual_seed(0)
    mesh = Mesh(SIDE, SIDE)
    schedule = recipe("gemm", mesh, "bf16", ((m * SIDE, k * SIDE), (k * SIDE, n * SIDE)), ()).schedule
    start = next(
        number for number, round_ in enumerate(schedule.rounds) if round_.locals and round_.locals[0].op == "gemm"
    )
    to_a, to_b = map(torch.from_numpy, compute_shifts(schedule, schedule.rounds[start:]).to)
    a, b = (torch.randn(SIDE, SIDE, size).bfloat16() for size in (m * k, k * n))
    nan = lambda size, dtype: operand(torch.full((SIDE, SIDE, size), float("nan"), dtype=dtype))  # noqa: E731
    sizes = {"m": m, "k": k, "n": n}
    cores = SIDE * SIDE

    hands = [(operand(x.clone()), nan(x.shape[-1], x.dtype)) for x in (a, b)]
    c, out = nan(m * n, torch.float32), nan(m * n, torch.bfloat16)
    neighbours = table(torch.stack([to_a, to_b, to_a.argsort(), to_b.argsort()], dim=1).contiguous())
    counters = table(torch.tensor([[ARRIVALS] * cores, [0] * cores]))
    turns = Turns(cores, seed)
    args = (launches, turns, table([0] * cores), (c, out, *hands, neighbours, counters), sizes)
    programs = [fork.Process(target=one_core, args=(core, *args)) for core in range(cores)]
    for program in programs:
        program.start()
    turns.begin()
    assert cores_that_failed(programs) == []

    slots = [(operand(x.clone()), nan(x.shape[-1], x.dtype)) for x in (a, b)]
    c, want = nan(m * n, torch.float32), nan(m * n, torch.bfloat16)
    for number in range(SIDE):
        (a, next_a), (b, next_b) = (pair if number % 2 == 0 else pair[::-1] for pair in slots)
        target = want if number == SIDE - 1 else c
        one_round(c, target, a, b, next_a, next_b, *map(table, (to_a, to_b, range(cores))), **sizes, add=number > 0)
    for hand, slot in zip(hands, slots, strict=True):
        assert torch.equal(hand[SIDE % 2].tensor, slot[SIDE % 2].tensor), "operands end where they should"
    return out.tensor, want.tensor, counters


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_all_rounds_in_one_launch_give_the_bits_of_one_round_a_launch(seed):
    got, want, counters = run([(0, SIDE)], 16, 16, 16, seed)
    assert torch.equal(got.view(torch.int16), want.view(torch.int16)) and not got.isnan().any()
    assert counters.tolist() == [[0] * 9, [ARRIVALS] * 9], "odd rounds: the next launch begins in the other slots"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_rounds_in_two_launches_and_ragged_tiles(seed):
    got, want, counters = run([(0, 2), (2, 1)], 5, 7, 3, seed)
    assert torch.equal(got.view(torch.int16), want.view(torch.int16)) and not got.isnan().any()
    assert counters.tolist() == [[0] * 9, [ARRIVALS] * 9]


def test_programs_that_wait_for_ever_are_told():
    """A core whose neighbours never arrive."""
    turns, hand = Turns(1, 0), operand(torch.ones(1, 1, 1))
    c, out = operand(torch.zeros(1, 1, 1)), operand(torch.zeros(1, 1, 1))
    counters = table([[0], [0]])
    tensors = (c, out, (hand, hand), (hand, hand), table([[0] * 4]), counters)
    program = fork.Process(
        target=one_core, args=(0, [(0, 1)], turns, table([0]), tensors, {"m": 1, "k": 1, "n": 1}), daemon=True
    )
    program.start()
    turns.begin()
    assert cores_that_failed([program]) == [0] and turns.turn.item() > TURNS


def test_a_core_tells_its_neighbours_after_its_last_copy(monkeypatch):
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
    counters = table([[ARRIVALS], [0]])
    several_rounds(c, out, *hands, table([[0] * 4]), counters, table([0]), rounds=1, here=0, m=m, k=k, n=n)
    assert events == ["copy"] * 10 + ["arrive", "copy"]
    for here, there in hands:
        assert torch.equal(here.tensor, there.tensor)
    assert counters.tolist() == [[0], [ARRIVALS]]


def test_several_rounds_need_a_gpu_that_holds_the_programs():
    """Under the interpreter nothing is resident; nor are tiles of more than one block of sums."""
    tile = Operand(torch.zeros(9, 16 * 16), 0, 256)
    flags = torch.zeros(2, 9, dtype=torch.int32)
    cores = torch.arange(9, dtype=torch.int32)
    shared = (tile, tile, (tile, tile), (tile, tile), flags, flags, cores)
    assert residency(*shared, m=16, k=16, n=16) == 0


def test_programs_per_multiprocessor_by_what_runs_out_first():
    hopper = {"has_threads": 2048, "has_registers": 65536, "has_shared_bytes": 228 * 1024}
    count = lambda **needs: programs_per_multiprocessor(**needs, **hopper)  # noqa: E731
    assert count(threads=128, registers=88, shared_bytes=16384) == 5, "registers"
    assert count(threads=128, registers=86, shared_bytes=16384) == 5, "registers are given in eights"
    assert count(threads=64, registers=104, shared_bytes=0) == 8, "a part has registers for 4 of its warps, not 4.9"
    assert count(threads=64, registers=88, shared_bytes=0) == 10, "and here for 5"
    assert count(threads=1024, registers=16, shared_bytes=0) == 2, "threads"
    assert count(threads=128, registers=32, shared_bytes=48 * 1024) == 4, "shared memory, 1 KiB of it the system's"
    assert count(threads=128, registers=32, shared_bytes=15652) == 13, "shared memory is given by 128 B"
    assert count(threads=32, registers=16, shared_bytes=0) == 16
    assert count(threads=1024, registers=255, shared_bytes=0) == 0
