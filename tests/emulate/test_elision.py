"""Random schedules in both executors: elided, a tile is copied out of memory before another one is written there."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch

from schedules import agree, given
from wafer_triton.algorithms import reduce
from wafer_triton.algorithms.product import recipe
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.local import local_op, registry
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Exchange, Local, Moves, Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Ring

pytestmark = pytest.mark.slow


TILES = {**dict.fromkeys("abcd", ((4, 4), 1)), "many": ((4, 4), 3), **dict.fromkeys(("long", "wide"), ((4, 8), 1))}
SMALL = [*map(Slot, "abcd"), *(Slot("many", slot) for slot in range(3))]  # the slots of tiles of 4 x 4


@pytest.fixture(scope="module")
def own() -> Iterator[None]:
    """Register operations of a user's: one reads what its output holds, one may work in place, one writes a part."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "LOCAL_OPS", dict(registry.LOCAL_OPS))
        sizes = {"tiles": lambda *, size: ((size,),) * 2, "work": lambda *, size: (0, 2 * size)}

        @local_op(**sizes, elementwise=True, updates=("state",))
        def decay_torch(state, a, *, size: int):
            state.mul_(0.5).add_(a)

        @local_op(**sizes, elementwise=True)
        def beyond_torch(out, a, *, size: int):
            out.zero_()
            out.add_(a).add_(1)

        @local_op(tiles=lambda *, count: ((count,),) * 2, work=lambda *, count: (0, count), partial=True)
        def head_torch(out, a, *, count: int):
            out[..., :count] = a[..., :count]

        yield


def program(seed: int, own: bool = False) -> Schedule:
    """Build moves, copies of tiles and parts, sums, trees, rings and products, on tiles of two sizes and in slots."""
    rng = Random(seed)
    rows = rng.randint(1, 3)
    b = Builder(Mesh(rows, rng.choice([rows, rng.randint(1, 3)])), f"random, {seed}")
    dtype = rng.choice(["fp32", "bf16"])
    for name, (tile, slots) in TILES.items():
        b.buffer(name, tile, dtype, "state", slots)
    product = True  # one at the most, so that all numbers are exact
    for _ in range(rng.randint(2, 8)):
        kind = rng.choice(["round"] * 6 + ["tree"] + ["ring"] * product)
        product &= kind != "ring"
        if kind == "tree":
            reduce.all_reduce(b, rng.choice([*"abcd", "long", ("a", "long")]), rng.choice("xy"))
        elif kind == "ring":
            ring(rng, b)
        else:
            order, (long, wide) = rng.sample(SMALL, len(SMALL)), rng.sample([Slot("long"), Slot("wide")], 2)
            ways = [(order[0], order[1]), (rng.choice((order[0], order[3])), order[2]), (long, wide)]
            sent = rng.sample(ways, rng.randint(0, 2))
            steps = [exchange(rng, b, *way) for way in sent]
            if rng.random() < 0.6:
                of = rng.choice(["add", "copy", "part", *["decay", "beyond", "head"] * own, *["gemm"] * product])
                free = [slot for slot in (*SMALL, long) if slot not in [src for src, _ in sent]]
                steps.append(local(rng, b, of, free))
                product &= of != "gemm"
            b.round(*steps)
    return b.build()


def local(rng: Random, b: Builder, kind: str, free: list[Slot]) -> Local:
    """Return an operation on some cores, which writes one of the `free` slots."""
    where = rng.choice([None, None, Cores("x", [rng.randrange(b.mesh.cols)]), Cores("y", [0])])
    part, small = rng.choice((16, 11)), [slot for slot in free if slot in SMALL]
    out = rng.choice(small)
    a, other = rng.choices([slot for slot in SMALL if kind not in ("gemm", "head") or slot != out], k=2)
    if kind == "gemm":
        return b.local("gemm", out, (a, other), where, m=4, k=4, n=4, add=rng.random() < 0.5)
    if kind == "part":  # of a longer tile, or into it
        into = Slot("long") in free and rng.random() < 0.4
        return b.local(
            "copy", *((Slot("long"), a) if into else (out, Slot(rng.choice(["long", "wide"])))), where, size=part
        )
    if kind == "head":
        return b.local("head", out, a, where, count=part)
    a = out if rng.random() < 0.3 else a
    return b.local(kind, out, (a, other) if kind == "add" else a, where, size=part if kind == "copy" else 16)


def exchange(rng: Random, b: Builder, src: Slot, dst: Slot) -> Exchange:
    axis = rng.choice("xy")
    size, across = (b.mesh.length(one) for one in (axis, "yx"["xy".index(axis)]))
    kind = rng.choice(["permute", "gather", "some"])
    recv = sorted(rng.sample(range(size), rng.randint(1, size))) if kind == "some" else list(range(size))
    send = rng.sample(range(size), size) if kind == "permute" else rng.choices(range(size), k=len(recv))
    lines = rng.choice([None, sorted(rng.sample(range(across), rng.randint(1, across)))])
    return b.exchange(axis, src, dst, send, recv, lines)


def ring(rng: Random, b: Builder) -> None:
    """Add products of "a" and of a tile of "b" or "many", while both circle, and round their sum into "c"."""
    other = rng.choice([Slot("b"), Slot("many", 0), Slot("many", 2)])
    sums = b.buffer("sums", (4, 4), "fp32")
    hands = [(slot, replace(slot, buffer=b.like(f"{slot.buffer}.next", slot.buffer))) for slot in (Slot("a"), other)]
    circles = []
    for axis in rng.choice(["xy", "xy", "yx"]):
        at = np.arange(b.mesh.length(axis))
        circles.append(Moves(axis, at, np.roll(at, rng.choice((1, -1)))))
    product, count = b.local("gemm", sums, ("a", other), m=4, k=4, n=4), rng.choice((b.mesh.rows, b.mesh.rows, 2))
    b.steps.append(Ring(product, tuple(hands), tuple(circles), count))
    if rng.random() < 0.7:
        b.round(b.local("copy", "c", sums, size=16))
    for first, second in hands if count % 2 else ():
        b.round(b.local("copy", first, second, size=16))


def leaves_the_values_of_the_reference(executor: type[Executor], schedule: Schedule) -> None:
    """Run twice in the same memory, with explicit and with elided exchange."""
    agree(schedule, given(schedule, integers=True), *[executor(exchange=how) for how in EXCHANGES], runs=2)


@pytest.mark.usefixtures("own")
def test_torch_leaves_the_values_of_the_reference_in_random_schedules():
    for seed in range(250):
        leaves_the_values_of_the_reference(TorchExecutor, program(seed, own=True))


def test_triton_leaves_the_values_of_the_reference_in_random_schedules():
    for seed in range(10):
        leaves_the_values_of_the_reference(TritonExecutor, program(seed))


def test_slots_of_rows_are_moved_and_not_renamed():
    b = Builder(Mesh(3, 2), "slots")
    b.buffer("cache", (1,), "fp32", "cache", 3)
    b.buffer("v", (1,), "fp32", "output")
    b.round(b.exchange("y", Slot("cache", np.array([0, 1, 2]), "y"), "v", [1, 2, 0], [0, 1, 2]))
    for exchange in EXCHANGES:
        program = TorchExecutor(exchange=exchange).bind(b.build(), {"cache": torch.arange(18.0).view(3, 2, 3)})
        program.run()
        assert program.read("v").flatten().tolist() == [7, 10, 14, 17, 0, 3], exchange


def test_elision_really_saves_the_moves():
    schedule = recipe("gemm", Mesh(4, 4), "fp32", ((8, 8), (8, 8)), ()).schedule
    given = {name: torch.zeros(4, 4, 2, 2) for name in "ab"}
    explicit, elided = (TorchExecutor(exchange=exchange).bind(schedule, given) for exchange in EXCHANGES)
    products = sum(op.op == "gemm" for round_ in schedule.rounds for op in round_.locals)
    moves = sum(len(round_.exchanges) for round_ in schedule.rounds)
    assert len(explicit.calls) >= products + moves
    assert len(elided.calls) < len(explicit.calls) - products


def turning(seed: int) -> Schedule:
    """Build slots that are filled, then turn along lines of the mesh, and are added to an output meanwhile."""
    rng = Random(seed)
    b = Builder(Mesh(rng.randint(1, 4), rng.randint(2, 4)), f"turning, {seed}")
    for name, role, slots in (("given", "input", 3), ("turn", "scratch", 3), ("out", "state", 1)):
        b.buffer(name, (2, 3), "fp32", role, slots)
    b.round(*(b.local("copy", Slot("turn", slot), Slot("given", slot), size=6) for slot in range(3)))
    for _ in range(rng.randint(1, 8)):
        axis, now, then = rng.choice("xy"), *rng.sample(range(3), 2)
        length, across = b.mesh.length(axis), b.mesh.length("xy".replace(axis, ""))
        send = rng.sample(range(length), rng.randint(1, length))
        slots = [then, np.array([rng.choice([then, 3 - now - then]) for _ in range(length)])]
        lines = rng.choice([None, sorted(rng.sample(range(across), rng.randint(1, across)))])
        where = None if rng.random() < 0.5 else Cores("x", [rng.randrange(b.mesh.cols)])
        to, recv = Slot("turn", rng.choice(slots), axis), rng.sample(range(length), len(send))
        moved = b.exchange(axis, Slot("turn", now), to, send, recv, lines)
        b.round(moved, b.local("add", "out", ("out", Slot("turn", now)), where, size=6))
    return b.build()


@pytest.mark.parametrize("executor", [TorchExecutor, TritonExecutor])
def test_slots_that_only_turn_stay_in_place(executor):
    for seed in range(60):
        made = turning(seed)
        (program,) = agree(made, given(made, integers=True), executor(exchange="elided", poison=True))
        assert "exchange" not in str(program.launches)


def test_messages_of_a_tree_that_is_not_fused_move_once(monkeypatch):
    """Each is combined in place at once: noted where it lies, it would be copied before."""
    monkeypatch.setattr(TorchExecutor, "fuses", False)
    b = Builder(Mesh(1, 9), "sum")
    b.buffer("x", (4,), "fp32", "state")
    reduce.all_reduce(b, "x", "x", groups=())
    schedule, x = b.build(), {"x": torch.ones(1, 9, 4)}
    explicit, elided = (len(TorchExecutor(exchange=each).bind(schedule, x).calls) for each in EXCHANGES)
    assert elided <= explicit + 1  # the broadcast is settled as a copy
