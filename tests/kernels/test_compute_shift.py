"""Several compute-shift rounds in one launch, as on a GPU: every core a process, all at once, tiles in shared memory.

The interpreter runs the programs of a launch one after another, so a program that waits for a later one would hang it.
Here each process interprets a launch of one program; its waits and its arrivals are atomic operations on memory that
all processes share.
"""

import time

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
SECONDS = 60


def table(values) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int32).share_memory_()


def operand(values: Tensor, index: Tensor | None = None) -> Operand:
    values = values.flatten(0, 1).contiguous().share_memory_()
    return Operand(values, 0, values.shape[1], index)


def one_core(core: int, launches: list[tuple[int, int]], ready, tensors, sizes) -> None:
    """What the program of one core does, launch after launch; `ready` keeps launches apart, as a GPU does."""
    torch.set_num_threads(1)
    # at the end of a launch the interpreter copies tensors back, here onto themselves while others write to them
    GridExecutor._restore_args_dev = lambda *_: None
    c, out, a, b, neighbours, counters = tensors
    for here, rounds in launches:
        several_rounds(
            c, c if here + rounds < SIDE else out, a, b, neighbours, counters, table([core]),
            rounds=rounds, here=here % 2, add=here > 0, **sizes,
        )  # fmt: skip
        ready.wait(SECONDS)


def run(launches: list[tuple[int, int]], m: int, k: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """C of aligned operands, the same by one round a launch, and the counters that are left."""
    torch.manual_seed(0)
    mesh = Mesh(SIDE, SIDE)
    made = recipe("gemm", mesh, "bf16", ((m * SIDE, k * SIDE), (k * SIDE, n * SIDE)), ()).schedule
    start = next(at for at, one in enumerate(made.rounds) if one.locals and one.locals[0].op == "gemm")
    found = compute_shifts(made, made.rounds[start:])
    to_a, to_b = (torch.from_numpy(one) for one in found.to)
    a, b = (torch.randn(SIDE, SIDE, size).bfloat16() for size in (m * k, k * n))
    nan = lambda size, dtype: operand(torch.full((SIDE, SIDE, size), float("nan"), dtype=dtype))  # noqa: E731
    sizes = {"m": m, "k": k, "n": n}
    cores = SIDE * SIDE

    hands = [(operand(x.clone()), nan(x.shape[-1], x.dtype)) for x in (a, b)]
    c, out = nan(m * n, torch.float32), nan(m * n, torch.bfloat16)
    neighbours = table(torch.stack([to_a, to_b, to_a.argsort(), to_b.argsort()], dim=1).contiguous())
    counters = table(torch.tensor([[ARRIVALS] * cores, [0] * cores]))
    fork = multiprocessing.get_context("fork")
    ready = fork.Barrier(cores)
    args = (launches, ready, (c, out, *hands, neighbours, counters), sizes)
    programs = [fork.Process(target=one_core, args=(core, *args)) for core in range(cores)]
    for program in programs:
        program.start()
    end = time.monotonic() + SECONDS
    for program in programs:
        program.join(max(0, end - time.monotonic()))
    stuck = [core for core, program in enumerate(programs) if program.exitcode != 0]
    for program in programs:
        program.kill()
    assert not stuck, f"cores {stuck} did not end"

    slots = [(operand(x.clone()), nan(x.shape[-1], x.dtype)) for x in (a, b)]
    c, want = nan(m * n, torch.float32), nan(m * n, torch.bfloat16)
    for number in range(SIDE):
        (a, next_a), (b, next_b) = (pair if number % 2 == 0 else pair[::-1] for pair in slots)
        target = want if number == SIDE - 1 else c
        one_round(c, target, a, b, next_a, next_b, *map(table, (to_a, to_b, range(cores))), **sizes, add=number > 0)
    for hand, slot in zip(hands, slots, strict=True):
        assert torch.equal(hand[SIDE % 2].tensor, slot[SIDE % 2].tensor), "operands end where they should"
    return out.tensor, want.tensor, counters


def test_all_rounds_in_one_launch_give_the_bits_of_one_round_a_launch():
    got, want, counters = run([(0, SIDE)], 16, 16, 16)
    assert torch.equal(got.view(torch.int16), want.view(torch.int16)) and not got.isnan().any()
    assert counters.tolist() == [[0] * 9, [ARRIVALS] * 9], "odd rounds: the next launch begins in the other slots"


def test_rounds_in_two_launches_and_ragged_tiles():
    got, want, counters = run([(0, 2), (2, 1)], 5, 7, 3)
    assert torch.equal(got.view(torch.int16), want.view(torch.int16)) and not got.isnan().any()
    assert counters.tolist() == [[0] * 9, [ARRIVALS] * 9]


def test_a_core_tells_its_neighbours_behind_its_last_copy(monkeypatch):
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
