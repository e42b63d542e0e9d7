"""Windows of compute-shift: no program touches what another writes, the bits are those of the rounds one by one.

So programs may run in any order and at the same time, and within one the barriers order its threads.
"""

from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder

from schedules import given
from tiles import same_bits
from wafer_triton.algorithms.gemm import compute_shift
from wafer_triton.algorithms.product import recipe
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate import triton as executor
from wafer_triton.emulate.parts import Products
from wafer_triton.emulate.program import Program
from wafer_triton.emulate.segments import segments
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.kernels import exchange as kernel
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Rounds

pytestmark = pytest.mark.slow


@pytest.fixture
def accesses(monkeypatch) -> list[tuple[str, tuple, set[int]]]:
    """Record loads and stores of every program: what it does, the program, the addresses; and its barriers."""
    log: list[tuple[str, tuple, set[int]]] = []
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def noted(kind, self, ptrs, mask) -> None:
        log.append((kind, self.grid_idx, set(ptrs.data[mask.data].ravel().tolist())))

    def loads(self, ptrs, mask, *rest):
        noted("load", self, ptrs, mask)
        return load(self, ptrs, mask, *rest)

    def stores(self, ptrs, value, mask, *rest):
        noted("store", self, ptrs, mask)
        return store(self, ptrs, value, mask, *rest)

    def barrier(self) -> None:
        log.append(("barrier", self.grid_idx, set()))

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", loads)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", stores)
    monkeypatch.setattr(InterpreterBuilder, "create_barrier", barrier)
    return log


def races(log: list[tuple[str, tuple, set[int]]]) -> str:
    """Return what two programs, or threads of one without a barrier between, do to one address; else ""."""
    touched, written = defaultdict[int, set](set), set[int]()
    since = defaultdict[tuple, dict[str, set[int]]](lambda: {"load": set(), "store": set()})
    for kind, program, addresses in log:
        if kind == "barrier":
            since.pop(program, None)
            continue
        now = since[program]
        if now["store"] & addresses or (kind == "store" and now["load"] & addresses):
            return f"{kind} without a barrier"
        now[kind] |= addresses
        written |= addresses if kind == "store" else set()
        for address in addresses:
            touched[address].add(program)
    return "programs share what one writes" if any(len(touched[address]) > 1 for address in written) else ""


def product(side: int, tile: tuple[int, int, int], dtype: str = "bf16", add: bool = False, **params) -> Schedule:
    """Build MeshGEMM of operands that are aligned, with buffers whose values are compared."""
    m, k, n = tile
    heads, kv_heads = params.get("heads", 1), params.get("kv_heads", 1)
    b = Builder(Mesh(side, side), "windows")
    for name, numel, of in (("a", heads * m * k, dtype), ("b", k * kv_heads * n, dtype), ("c", m * heads * n, "fp32")):
        b.buffer(name, (numel,), of, "state")
    sizes = {"m": m, "k": k, "n": n, **params}
    compute_shift(b, "a", "b", b.local("gemm", "c", ("a", "b"), add=add, **sizes), label="gemm", reuse_a=side == 3)
    return b.build()


def ran(schedule: Schedule, windows: bool = True) -> Program:
    """Run a schedule twice on random tiles, in windows or round by round, with cores in shuffled order."""
    on = TritonExecutor(poison=True, shuffle=3)
    if not windows:
        on._windows = lambda *_: None
    torch.manual_seed(1)
    program = on.bind(schedule, given(schedule))
    for _ in range(2):
        program.execute()
    return program


@pytest.mark.parametrize(
    "schedule",
    [
        product(1, (17, 5, 3)), product(2, (17, 5, 3)), product(3, (33, 20, 70)), product(4, (5, 7, 6), "fp16", True),
        product(5, (16, 16, 16), "fp32"), product(3, (2, 5, 7), heads=4, kv_heads=2),
        product(4, (6, 5, 7), heads=4, kv_heads=2, add=True), product(3, (5, 4, 6), "fp16", accumulate="fp16"),
        recipe("gemm", Mesh(2, 3), "bf16", ((30, 30), (30, 30)), ()).schedule,
    ],
    ids=lambda schedule: f"{schedule.mesh.shape}, {[buffer.numel for buffer in schedule.buffers.values()]}",
)  # fmt: skip
def test_windows_have_the_bits_of_the_rounds_one_by_one(schedule, monkeypatch):
    """In all buffers: rounds after the products read what the last shift leaves. Rounded sums alone are not kept."""
    tiles, side = schedule.mesh.cores * sum(schedule.buffers[name].bytes for name in "ab"), schedule.mesh.shape[0]
    count = next((one.count for one in segments(schedule) if isinstance(one, Products)), 0)
    exact = {name: name != "c" or "out" not in schedule.buffers or side % 2 for name in schedule.buffers}
    want = ran(schedule, windows=False)
    assert not any("compute-shift" in call.what for call in want.calls)
    for fits in (2, 64):  # rounds in a window; the second number is more than all
        monkeypatch.setattr(executor, "MAX_SLOT_BYTES", fits * tiles)
        got = ran(schedule)
        assert {name: same_bits(got.memory[name], want.memory[name]) for name in schedule.buffers} == exact, fits
        said = sum("compute-shift" in call.what for call in got.calls)
        assert said == -(-count // min(fits, count or 1)), fits


def test_products_of_the_same_buffers_have_windows_of_their_own(monkeypatch):
    """Windows of 2 rounds, then of 3: neither's slots pass for the other's."""
    once = product(4, (5, 7, 6), add=True)
    (ring,) = once.rounds.steps
    schedule = replace(once, rounds=Rounds((ring, replace(ring, count=3))))
    tiles = schedule.mesh.cores * sum(schedule.buffers[name].bytes for name in "ab")
    monkeypatch.setattr(executor, "MAX_SLOT_BYTES", 3 * tiles)
    got, want = ran(schedule), ran(schedule, windows=False)
    assert all(same_bits(got.memory[name], want.memory[name]) for name in schedule.buffers)


@pytest.mark.parametrize("fits", [2, 64])
def test_no_program_touches_what_another_writes(fits, accesses, monkeypatch):
    """Several slices of a tile, of which a program carries one after the other, in two launches a window."""
    for name, value in (("SLICE_BYTES", 16), ("BYTES_AT_ONCE", 512), ("CARRIERS", 4)):
        monkeypatch.setattr(kernel, name, value)
    schedule = recipe("gemm", Mesh(4, 4), "bf16", ((4, 20), (20, 24)), ()).schedule
    monkeypatch.setattr(executor, "MAX_SLOT_BYTES", fits * 16 * 2 * (5 + 30))
    program, kinds = (
        TritonExecutor().bind(schedule, {name: torch.ones(4, 4, n) for name, n in (("a", 5), ("b", 30))}),
        set(),
    )
    for call in program.calls:
        accesses.clear()
        call()
        kinds |= {kind for kind, *_ in accesses}
        assert races(accesses) == "", call.what
        if "steps" in call.what:
            unordered = [each for each in accesses if each[0] != "barrier"]
            assert races(unordered) == "store without a barrier" or "load" in races(unordered), "barriers are needed"
    assert kinds == {"load", "store", "barrier"}
    assert races([("store", (0,), {8}), ("load", (1,), {8})]) == "programs share what one writes"


def test_the_slots_are_bounded_and_counted():
    schedule = recipe("gemm", Mesh(4, 4), "bf16", ((64, 64), (64, 64)), ()).schedule
    program = TritonExecutor().bind(schedule, {name: torch.ones(4, 4, 16, 16) for name in "ab"})
    buffers = sum(16 * buffer.bytes for buffer in schedule.buffers.values())
    assert program.bytes == buffers + 4 * 16 * 2 * 2 * 256, "a slot for each round of both operands"
