"""The torch executor: the round rule, what poison may reach, and elision, which must not change a bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wafer_triton.errors import BackendError, ShapeError
from wafer_triton.mesh import Mesh, as_mesh
from wafer_triton.ops import run
from wafer_triton.recipes import recipe
from wafer_triton.schedule.rounds import Builder, Cores, Schedule, Slot
from wafer_triton.torch_executor import TorchExecutor

pytestmark = pytest.mark.slow

EXCHANGES = ("explicit", "elided")
exchanges = pytest.mark.parametrize("exchange", EXCHANGES)


def values(made: Schedule, given: dict[str, torch.Tensor], exchange: str = "explicit", **options) -> dict:
    program = TorchExecutor(exchange=exchange, **options).bind(made, given)
    program.run()
    return {name: program.read(name) for name, buffer in made.buffers.items() if buffer.role != "scratch"}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]), f"{name}: {value.flatten().tolist()} and {two[name].flatten().tolist()}"


# --- poison ---

CASES = {
    "gemm": ((7, 5), (5, 9)),
    "gemm-transposed": ((7, 5), (9, 5)),
    "gemv": ((2, 7), (7, 5)),
    "rms_norm": ((7, 5), (5,)),
    "softmax": ((7, 5),),
}
OPTIONS = {
    "gemm": [{"algorithm": one} for one in ("mesh", "cannon", "summa", "allgather")],
    "gemv": [{"algorithm": one} for one in ("ktree", "pipeline", "two-phase", "star", "ring")],
}


def named() -> list:
    found = []
    for case, shapes in CASES.items():
        name = case.split("-")[0]
        for options in OPTIONS.get(name, [{}]):
            more = options | ({"transposed": True} if case.endswith("transposed") else {})
            found.append(pytest.param(name, shapes, tuple(more.items()), id="-".join([case, *options.values()])))
    return found


@exchanges
@pytest.mark.parametrize("mesh", ["1", "2", "5", "2x3", "4x1"])
@pytest.mark.parametrize(("name", "shapes", "options"), named())
def test_poison_reaches_no_result(name, shapes, options, mesh, exchange):
    made = recipe(name, as_mesh(mesh), "fp32", shapes, options)
    operands = tuple(torch.randn(shape) for shape in shapes)
    clean = run(made, operands, TorchExecutor(exchange=exchange)).gather()
    poisoned = run(made, operands, TorchExecutor(exchange=exchange, poison=True)).gather()
    assert not poisoned.isnan().any()
    assert torch.equal(clean, poisoned)


@exchanges
@pytest.mark.parametrize("algorithm", ["ktree", "pipeline", "two-phase", "star", "ring"])
def test_poison_reaches_no_all_reduce(algorithm, exchange):
    x = torch.randn(3, 5, 7)
    made = recipe("all_reduce", Mesh(3, 5), "fp32", ((3, 5, 7),), (("axis", "x"), ("algorithm", algorithm)))
    got = run(made, (x,), TorchExecutor(exchange=exchange, poison=True)).tiles
    torch.testing.assert_close(got, x.sum(1, keepdim=True).expand_as(x))


def test_poison_is_seen_where_it_is_read():
    b = Builder(Mesh(1, 2), "poisoned")
    b.buffer("s", (1,), "fp32")
    b.buffer("out", (1,), "fp32", "output")
    b.round(b.local("copy", "out", "s", size=1))
    assert values(b.build(), {}, poison=True)["out"].isnan().all()
    assert values(b.build(), {})["out"].eq(0).all()


# --- rounds ---


def test_all_messages_of_a_round_leave_before_any_arrives_elsewhere():
    b = Builder(Mesh(1, 4), "round")
    for name in ("a", "b"):
        b.buffer(name, (1,), "fp32", "resident")
    b.round(b.exchange("x", "a", "b", [3, 0, 1, 2], [0, 1, 2, 3]), b.local("add", "b", ("b", "a"), size=1))
    a = torch.tensor([1.0, 2, 4, 8]).view(1, 4, 1)
    for exchange in EXCHANGES:
        got = values(b.build(), {"a": a, "b": torch.zeros(1, 4, 1)}, exchange)
        assert got["b"].flatten().tolist() == [9, 3, 6, 12] and torch.equal(got["a"], a)


def test_what_a_buffer_stores_is_rounded_to_its_dtype():
    b = Builder(Mesh(1, 2), "rounding")
    b.buffer("x", (2,), "fp32", "input")
    for name in ("fp16", "bf16", "fp32"):
        b.buffer(name, (2,), name, "output")
        b.round(b.local("copy", name, "x", size=2))
    x = torch.tensor([[[1 + 2**-12, 70000.0], [1 / 3, -1e-9]]])
    for exchange in EXCHANGES:
        got = values(b.build(), {"x": x}, exchange)
        for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16), ("fp32", torch.float32)):
            assert torch.equal(got[name], x.to(dtype))


def test_inputs_are_rounded_and_copied():
    b = Builder(Mesh(1, 1), "given")
    b.buffer("x", (1,), "fp16", "resident")
    b.round(b.local("add", "x", ("x", "x"), size=1))
    given = torch.full((1, 1, 1), 1 / 3)
    program = TorchExecutor().bind(b.build(), {"x": given})
    program.run()
    assert given.item() == torch.tensor(1 / 3).item()
    assert program.read("x").item() == (torch.tensor(1 / 3).half() * 2).item()


@exchanges
def test_a_program_runs_again_on_new_inputs(exchange):
    made = recipe("gemm", Mesh(2, 3), "fp32", ((6, 6), (6, 6)), ()).schedule
    executor = TorchExecutor(exchange=exchange, poison=True)
    first, second = ({name: torch.randn(6, 6, 1, 1) for name in "ab"} for _ in range(2))
    program = executor.bind(made, first)
    for tensors in (first, second, first):
        for name, tiles in tensors.items():
            program.write(name, tiles)
        program.run()
        fresh = executor.bind(made, tensors)
        fresh.run()
        assert torch.equal(program.read("out"), fresh.read("out"))
        assert program.read("out").isfinite().all()


@exchanges
def test_programs_share_memory(exchange):
    b = Builder(Mesh(1, 3), "shared")
    b.buffer("x", (2,), "fp32", "resident")
    b.like("x.next", "x")
    b.round(b.exchange("x", "x", "x.next", [2, 0, 1], [0, 1, 2]))
    b.round(b.local("copy", "x", "x.next", size=2))
    made, executor = b.build(), TorchExecutor(exchange=exchange)
    x = torch.arange(6.0).view(1, 3, 2)
    scratch: dict = {}
    first = executor.bind(made, {"x": x}, None, scratch)
    second = executor.bind(made, {}, first.memory, scratch)
    assert first.memory["x"] is second.memory["x"] and first.memory["x.next"] is second.memory["x.next"]
    first.run()
    second.run()
    assert torch.equal(first.read("x"), x.roll(2, 1))
    other = executor.bind(made, {"x": x}, None, scratch)
    assert other.memory["x"] is not first.memory["x"]


# --- elision: renamings must settle whenever memory is written that others lie in ---


def elision(name: str) -> Schedule:
    b = Builder(Mesh(3, 3), name)
    for one in ("a", "b", "c", "out"):
        b.buffer(one, (4,), "fp32", "resident")
    ring, here = [2, 0, 1], [0, 1, 2]

    def move(src, dst, axis="x", send=ring, recv=here, lines=None):
        return b.exchange(axis, src, dst, send, recv, lines)

    def copy(out, src, where=None):
        return b.local("copy", out, src, where, size=4)

    some = Cores("x", np.array([1]))
    if name == "chain":
        b.round(move("a", "b"))
        b.round(move("b", "c", "y"))
        b.round(move("c", "a"))
    elif name == "source-overwritten":
        b.round(move("a", "b"))
        b.round(copy("a", "c"))
    elif name == "source-partly-overwritten":
        b.round(move("a", "b"))
        b.round(copy("a", "c", some))
    elif name == "source-accumulated":
        b.round(move("a", "b"))
        b.round(b.local("add", "a", ("a", "b"), size=4))
    elif name == "target-partly-overwritten":
        b.round(move("a", "b"))
        b.round(copy("b", "c", some))
    elif name == "target-overwritten":
        b.round(move("a", "b"))
        b.round(copy("b", "c"))
    elif name == "swap":
        b.round(move("a", "c"))
        b.round(move("b", "a"))
        b.round(move("c", "b"))
    elif name == "swap-along-both-axes":
        b.round(move("a", "c"), move("b", "out", "y"))
        b.round(move("out", "a", "y"))
        b.round(move("c", "b", "x", here, ring))
        b.round(copy("out", "a", some))
    elif name == "cycle-of-three":
        b.round(move("a", "out"))
        b.round(move("b", "a", "y"))
        b.round(move("c", "b"))
        b.round(move("out", "c"))
        b.round(b.local("add", "out", ("b", "c"), size=4))
        b.round(b.local("add", "a", ("a", "out"), size=4))
    elif name == "one-buffer-twice":
        b.round(move("a", "b"), move("a", "c", "y"))
        b.round(copy("a", "b"))
    elif name == "back-and-forth":
        b.round(move("a", "b"))
        b.round(move("b", "a", "x", here, ring))
        b.round(move("a", "b"))
    elif name == "partial-move-into-the-source":
        b.round(move("a", "b"))
        b.round(move("c", "a", "x", [0], [1]))
    elif name == "partial-move-out-of-a-renamed":
        b.round(move("a", "b"))
        b.round(move("b", "c", "y", [0], [2]))
    elif name == "lines-of-a-renamed":
        b.round(move("a", "b"))
        b.round(move("b", "c", "y", lines=[0, 2]))
    elif name == "multicast":
        b.round(move("a", "b", "x", 1, here))
        b.round(move("b", "c", "y", 2, here))
        b.round(copy("a", "out"))
    elif name == "stale":
        b.round(move("a", "b"))
        b.round(move("b", "c"), move("out", "a", "x", [0], [1]))
    elif name == "read-by-some":
        b.round(move("a", "b"))
        b.round(copy("out", "b", Cores("x", np.array([[0], [2], [1]]))))
        b.round(copy("a", "c"))
    elif name == "product":
        b.round(move("a", "b"))
        b.round(b.local("gemm", "out", ("a", "b"), m=2, k=2, n=2), move("b", "c"))
        b.round(b.local("gemm", "out", ("b", "c"), m=2, k=2, n=2, add=True))
        b.round(b.local("gemm", "b", ("a", "c"), m=2, k=2, n=2))
    return b.build()


NAMES = (
    "chain", "source-overwritten", "source-partly-overwritten", "source-accumulated", "target-partly-overwritten",
    "target-overwritten", "swap", "swap-along-both-axes", "cycle-of-three", "one-buffer-twice", "back-and-forth",
    "partial-move-into-the-source", "partial-move-out-of-a-renamed", "lines-of-a-renamed", "multicast", "stale",
    "read-by-some", "product",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_renamed_tiles_settle(name):
    made = elision(name)
    tiles = (1 + torch.arange(36.0)).view(3, 3, 4)
    given = {one: 100.0**number * tiles for number, one in enumerate(("a", "b", "c", "out"))}
    explicit = values(made, given)
    program = TorchExecutor(exchange="elided").bind(made, given)
    for _ in range(2):
        program.run()
        same(explicit, {one: program.read(one) for one in explicit})
        for one in given:
            program.write(one, given[one])


@st.composite
def programs(draw):
    """Random valid rounds of full and partial moves, copies and sums over four buffers."""
    rows, cols = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    b = Builder(Mesh(rows, cols), "random")
    names = ["a", "b", "c", "d"]
    for name in names:
        b.buffer(name, (1,), "fp32", "resident")
    for _ in range(draw(st.integers(1, 7))):
        steps, order = [], draw(st.permutations(names))
        for src, dst in ((order[0], order[1]), (order[0], order[2]))[: draw(st.integers(0, 2))]:
            axis = draw(st.sampled_from("xy"))
            size = b.mesh.length(axis)
            kind = draw(st.sampled_from(["permute", "gather", "some"]))
            recv = list(range(size)) if kind != "some" else sorted(draw(st.sets(st.integers(0, size - 1), min_size=1)))
            send = draw(st.permutations(range(size))) if kind == "permute" else [
                draw(st.integers(0, size - 1)) for _ in recv
            ]  # fmt: skip
            steps.append(b.exchange(axis, src, dst, send, recv))
        if draw(st.booleans()):
            where = None if draw(st.booleans()) else Cores("x", np.array([draw(st.integers(0, cols - 1))]))
            out = draw(st.sampled_from(order[1:] if steps else order))
            ins = [draw(st.sampled_from(names)) for _ in range(2)]
            steps.append(b.local("add", out, ins, where, size=1))
        b.round(*steps)
    return b.build()


@settings(max_examples=300)
@given(programs())
def test_elision_changes_nothing_in_random_schedules(made):
    rows, cols = made.mesh.shape
    given = {
        name: 100.0**number * (1 + torch.arange(rows * cols)).view(rows, cols, 1) for number, name in enumerate("abcd")
    }
    same(values(made, given), values(made, given, "elided"))


def test_a_copy_of_part_of_a_tile_leaves_the_rest():
    b = Builder(Mesh(1, 2), "part")
    for name in ("a", "b", "c"):
        b.buffer(name, (4,), "fp32", "resident")
    b.round(b.exchange("x", "a", "b", [1, 0], [0, 1]))
    b.round(b.local("copy", "b", "c", size=2))
    given = {name: 10.0**number * (1 + torch.arange(8.0)).view(1, 2, 4) for number, name in enumerate("abc")}
    same(values(b.build(), given), values(b.build(), given, "elided"))


def test_slots_of_rows_are_moved_and_not_renamed():
    b = Builder(Mesh(3, 2), "slots")
    b.buffer("cache", (1,), "fp32", "resident", 3)
    b.buffer("v", (1,), "fp32", "output")
    b.round(b.exchange("y", Slot("cache", np.array([0, 1, 2]), "y"), "v", [1, 2, 0], [0, 1, 2]))
    cache = torch.arange(18.0).view(3, 2, 3)
    for exchange in EXCHANGES:
        assert values(b.build(), {"cache": cache}, exchange)["v"].flatten().tolist() == [7, 10, 14, 17, 0, 3], exchange


def test_elision_really_saves_the_moves():
    made = recipe("gemm", Mesh(4, 4), "fp32", ((8, 8), (8, 8)), ()).schedule
    given = {name: torch.zeros(4, 4, 2, 2) for name in "ab"}
    explicit, elided = (TorchExecutor(exchange=exchange).bind(made, given) for exchange in EXCHANGES)
    products = sum(op.op == "gemm" for round_ in made.rounds for op in round_.locals)
    moves = sum(len(round_.exchanges) for round_ in made.rounds)
    assert len(explicit.steps) >= products + moves
    assert len(elided.steps) < len(explicit.steps) - products


# --- messages of a tree ---


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("alike", [False, True])
def test_messages_are_added_where_they_arrive(alike, slots, exchange):
    b = Builder(Mesh(3, 4), "messages")
    b.buffer("acc", (4,), "fp32", "output")
    b.buffer("inbox", (4,), "fp32", "scratch", slots)
    ends = ([0], [1], None) if alike else ([[0], [1], [2]], [[1], [2], [3]], np.arange(3))
    move = b.exchange("x", "acc", "inbox", *ends)
    b.round(move, b.local("add", "acc", ("acc", "inbox"), move.receivers, size=4))
    x = torch.randn(3, 4, 4)
    wanted = x.clone()
    for row in range(3):
        at = 0 if alike else row
        wanted[row, at + 1] += x[row, at]
    assert torch.equal(values(b.build(), {"acc": x}, exchange)["acc"], wanted)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_message_is_added_only_on_the_lines_that_say_so(exchange):
    b = Builder(Mesh(3, 4), "one line")
    b.buffer("acc", (4,), "fp32", "output")
    b.buffer("inbox", (4,), "fp32")
    move = b.exchange("x", "acc", "inbox", [0], [1])
    b.round(move, b.local("add", "acc", ("acc", "inbox"), Cores("x", move.recv, np.array([0])), size=4))
    x = torch.randn(3, 4, 4)
    wanted = x.clone()
    wanted[0, 1] += x[0, 0]
    assert torch.equal(values(b.build(), {"acc": x}, exchange)["acc"], wanted)


# --- errors ---


def test_an_unknown_exchange_lists_the_known():
    with pytest.raises(BackendError, match="exchange 'lazy': choose one of explicit, elided"):
        TorchExecutor(exchange="lazy")


def test_tensors_must_be_given_and_fit():
    b = Builder(Mesh(2, 3), "fit")
    b.buffer("x", (4,), "fp32", "input")
    b.round(b.local("copy", "x", "x", size=4))
    made = b.build()
    with pytest.raises(ShapeError, match="fit: no tensor given for input buffer 'x'"):
        TorchExecutor().bind(made, {})
    for shape in ((2, 3, 5), (3, 2, 4), (2, 3), (24,)):
        text = r"fit: buffer 'x' is \[4\] x 1 on 2 x 3 cores, the tensor given is \[" + ", ".join(map(str, shape))
        with pytest.raises(ShapeError, match=text):
            TorchExecutor().bind(made, {"x": torch.zeros(shape)})
