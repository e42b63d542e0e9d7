"""The rules of the machine: each schedule breaks one; the message names the rule, the place and the fault."""

import numpy as np
import pytest
import torch

from refusals import builder, refused
from wafer_triton import executor
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import DtypeError, ScheduleError, ShapeError, WaferError
from wafer_triton.schedule.access import overlaps
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Buffer, Cores, Moves, Round, Slot

ALL = [0, 1, 2]
RING = [2, 0, 1]

EXCHANGES = {
    "undeclared-source": (
        ("x", "z", "a", [0], [1]), "buffer 'z' is not declared; declared: a, b, c, two, half, long"),
    "undeclared-target": (
        ("x", "a", "z", [0], [1]), "buffer 'z' is not declared; declared: a, b, c, two, half, long"),
    "slot-too-high": (("x", Slot("two", 2), "a", [0], [1]), "slot 2..2 of 'two' does not exist; it has 2"),
    "slot-negative": (("x", "a", Slot("two", -1), [0], [1]), "slot -1..-1 of 'two' does not exist; it has 2"),
    "slots-of-positions": (
        ("x", "a", Slot("two", np.array([0, 1, 2])), [0], [1]), "slot 0..2 of 'two' does not exist; it has 2"),
    "slots-for-other-axis": (
        ("x", "a", Slot("two", np.array([0, 1]), "x"), [0], [1]), "'two' names 2 slots for 3 positions"),
    "dtypes": (("x", "a", "half", [0], [1]), "a [4] fp32 does not fit half [4] fp16"),
    "sizes": (("x", "a", "long", [0], [1]), "a [4] fp32 does not fit long [5] fp32"),
    "send-off": (("x", "a", "b", [3], [1]), "send off the mesh: position 3 along x of 3 (a[0] to b[0])"),
    "send-negative": (("x", "a", "b", [-2], [1]), "send off the mesh: position -2 along x of 3 (a[0] to b[0])"),
    "receive-off": (("y", "a", "b", [0], [2]), "receive off the mesh: position 2 along y of 2 (a[0] to b[0])"),
    "line-off": (("x", "a", "b", [0], [1], [2]), "line 2 is off the mesh of 2 lines (a[0] to b[0])"),
    "half-a-message": (
        ("x", "a", "b", [[0, -1], [0, 1]], [[1, 2], [1, 2]]),
        "a message a[0] to b[0] has a sender or a receiver, not both"),
    "two-senders": (("x", "a", "b", [0, 2], [1, 1]), "core (0, 1) receives two tiles in b[0]"),
    "two-senders-on-one-line": (
        ("x", "a", "b", [[0, 1], [0, 2]], [[2, 0], [1, 1]]), "core (1, 1) receives two tiles in b[0]"),
    "receives-what-it-sends": (("x", "a", "a", [0, 1], [1, 2]), "core (0, 1) receives into a[0], which it sends"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "message"), EXCHANGES.values(), ids=EXCHANGES)
def test_exchanges_that_break_a_rule_are_refused(given, message):
    b = builder()
    refused(b, b.exchange(*given), message=message)


def test_exchanges_of_one_round_do_not_meet():
    b = builder()
    both = b.exchange("x", "a", "c", [0], [1], [1]), b.exchange("y", "b", "c", [0], [1])
    refused(b, *both, message="core (1, 1) receives two tiles in c[0]")
    b = builder()
    both = b.exchange("x", "a", Slot("two", 0), [0], [1]), b.exchange("x", "b", Slot("two", None), [0], [1])
    with pytest.raises(ScheduleError, match=r"does not fit|receives two tiles"):
        b.round(*both)
        b.build()
    b = builder()
    both = b.exchange("x", "a", "b", [0], [1]), b.exchange("y", "b", "c", [0], [1])
    refused(b, *both, message="core (0, 1) receives into b[0], which it sends")
    b = builder()  # they meet in the last core of both alone
    both = (
        b.exchange("x", "a", "c", [[0], [0]], [[1], [2]]),
        b.exchange("y", "b", "c", [[0], [-1], [0]], [[1], [-1], [1]]),
    )
    refused(b, *both, message="core (1, 2) receives two tiles in c[0]")


def test_one_core_may_receive_in_several_slots_lines_or_buffers():
    b = builder()
    b.round(
        b.exchange("x", "a", Slot("two", 0), [0], [1]),
        b.exchange("x", "a", Slot("two", 1), [2], [1]),
        b.exchange("x", "a", "b", [0], [1], [0]),
        b.exchange("x", "a", "b", [0], [1], [1]),
        b.exchange("y", "a", "c", [0], [1]),
    )
    assert len(b.build().rounds) == 1


def test_per_core_slots_keep_arrivals_apart():
    def two(first, second):
        b = builder()
        b.round(
            b.exchange("x", "a", Slot("two", np.array(first)), [0], [2]),
            b.exchange("x", "b", Slot("two", np.array(second)), [1], [2]),
        )
        return b.build()

    assert two([0, 0, 0], [0, 0, 1])
    with pytest.raises(ScheduleError, match=r"core \(0, 2\) receives two tiles in two\[1\]"):
        two([0, 0, 1], [1, 0, 1])


def test_a_tile_being_sent_must_not_be_overwritten():
    b = builder()
    shift = b.exchange("x", "a", "b", RING, ALL)
    message = "core (0, 0) overwrites a[0] by copy while it is being sent"
    refused(b, shift, b.local("copy", "a", "c", size=4), message=message, label="step")
    b = builder()
    b.round(b.exchange("x", "a", "b", [0], [1]), b.local("copy", "a", "c", Cores("x", np.array([1])), size=4))
    assert b.build(), "another core's tile may be written"
    b = builder()
    some = Cores("x", np.array([[-1], [0]]))
    message = "core (1, 0) overwrites a[0] by copy while it is being sent"
    refused(b, b.exchange("x", "a", "b", [0], [1]), b.local("copy", "a", "c", some, size=4), message=message)


def test_an_operation_does_not_write_two_outputs_into_one_slot():
    def written(*outs):
        b, sizes = builder(), {"heads": 1, "m": 4, "n": 1, "scale": 1.0}
        return b, b.local("exp_sum", outs, ("a", "b", "c"), Cores("x", [1]), **sizes)

    refused(*written("c", "c"), message="core (0, 1) writes two outputs of exp_sum into c[0]")
    every_row, other = Slot("two", [0, 1, 1]), Slot("two", [1, 1, 0])
    refused(*written(every_row, other), message="core (0, 1) writes two outputs of exp_sum into two[1]")
    b, op = written(every_row, Slot("two", [0, 0, 1]))
    assert b.round(op) and b.build()


def test_the_round_that_breaks_a_rule_is_numbered():
    b = builder()
    b.round(b.local("copy", "a", "b", size=4))
    b.steps *= 2
    b.round(b.exchange("x", "a", "b", [0], [7]), label="far")
    with pytest.raises(ScheduleError, match=r"^demo, round 2 \(far\): receive off the mesh: position 7"):
        b.build()


def test_a_buffer_is_declared_once():
    b = builder()
    assert b.buffer("a", (4,), "fp32", "input") == "a"
    with pytest.raises(ScheduleError, match="demo: buffer 'a' is declared twice, with dtype 'fp32' and 'fp16'; give"):
        b.buffer("a", (4,), "fp16", "input")
    with pytest.raises(
        ScheduleError, match="demo: buffer 'z' has role 'out'; choose one of input, weight, cache, state, output"
    ):
        b.buffer("z", (4,), "fp16", "out")


@pytest.mark.parametrize("dtype", ["fp99", torch.float16])
def test_a_buffer_has_a_known_dtype(dtype):
    with pytest.raises(DtypeError, match="buffer 'x': dtype .*: choose one of fp32, bf16, fp16, int8, fp8"):
        Buffer("x", (3,), dtype)


def test_like_copies_tile_dtype_and_slots():
    b = builder()
    made = b.buffers[b.like("two.next", "two")]
    assert (made.tile, made.dtype, made.slots, made.role) == ((4,), "fp32", 2, "scratch")
    assert (made.numel, made.tile_bytes, made.bytes) == (4, 16, 32)


def test_an_empty_round_is_not_added():
    b = builder()
    assert b.round(b.exchange("x", "a", "b", [], [])) is None
    assert b.round(b.exchange("x", "a", "b", [0], [1], lines=[])) is None, "no message is on no line"
    assert b.build().rounds == ()


def test_receivers_are_put_in_order_with_their_senders():
    exchange = builder().exchange("x", "a", "b", [1, 2, 0], [2, 0, 1])
    assert (exchange.moves.recv.tolist(), exchange.moves.send.tolist()) == ([0, 1, 2], [2, 0, 1])
    multicast = builder().exchange("x", "a", "b", 1, [2, 0])
    assert (multicast.moves.recv.tolist(), multicast.moves.send.tolist()) == ([0, 2], [1, 1])


def test_moves_of_other_lines_for_senders_than_for_receivers_are_refused():
    with pytest.raises(ScheduleError, match="Moves: 2 and 3 rows of positions; give senders and receivers a row for"):
        Moves("x", np.array([[0], [1]]), np.array([[1], [2], [0]]))


def test_rounds_have_the_buffers_touched_and_whether_they_overlap():
    b = builder()
    shift = b.exchange("x", "a", "b", RING, ALL)
    beside, after = b.local("copy", "c", "a", size=4), b.local("copy", "c", "b", size=4)
    assert Round((shift,), (beside,)).uses.keys() == {"a", "b", "c"}
    assert overlaps(Round((shift,), (beside,)))
    assert not overlaps(Round((shift,), (after,)))


@pytest.mark.parametrize(
    ("cores", "flat"),
    [
        (Cores("x", np.array([2, 0])), [0, 2, 3, 5]),
        (Cores("y", np.array([1])), [3, 4, 5]),
        (Cores("x", np.array([1]), np.array([1])), [4]),
        (Cores("x", np.array([[0, -1], [2, 1]])), [0, 4, 5]),
        (Cores("y", np.array([[1]]), np.array([2])), [5]),
    ],
    ids=["all-rows", "all-columns", "one-line", "per-line", "one-column"],
)
def test_cores_are_numbered_row_by_row(cores, flat):
    assert cores.flat(Mesh(2, 3)).tolist() == flat


BUILT = {
    "a-list-of-steps": (lambda b: b.round([b.exchange("x", "a", "b", [0], [1])]), "is neither an exchange nor a local"),
    "a-string": (lambda b: b.round("hello"), "demo: step 'hello' of a round is neither an exchange nor a local op"),
    "axis": (lambda b: b.exchange("z", "a", "b", [0], [1]), "axis 'z' is neither 'x' nor 'y'"),
    "rows-for-lines": (
        lambda b: b.exchange("x", "a", "b", [[0], [1], [2]], [[1], [2], [0]]), "demo: 3 rows of positions for 2 lines"),
    "rows-for-given-lines": (
        lambda b: b.exchange("x", "a", "b", [[0]], [[1]], [0, 1]), "1 rows of positions for 2 lines"),
    "fractions": (lambda b: b.exchange("x", "a", "b", 0.7, 1), "demo: send = 0.7 must be whole numbers, positions"),
    "fractional-lines": (lambda b: b.exchange("x", "a", "b", 0, 1, [0.5]), r"demo: lines = \[0.5\] must be whole"),
    "unequal": (
        lambda b: b.exchange("x", "a", "b", [0, 1], [0, 1, 2]), "2. senders for .3. receivers; give one sender for"),
    "where": (lambda b: b.local("copy", "a", "b", [0, 1], size=4), r"demo: copy where \[0, 1\]: give Cores, such as"),
    "like": (lambda b: b.like("d", "nope"), "demo: buffer 'nope' is not declared; declared: a, b, c, two, half, long"),
    "negative-tile": (lambda b: b.buffer("d", (-4,), "fp32"), r"buffer 'd' has tile \(-4,\) and slots 1; give a tuple"),
    "empty-tile": (lambda b: b.buffer("d", (0,), "fp32"), r"buffer 'd' has tile \(0,\) and slots 1; give a tuple of"),
    "fractional-tile": (lambda b: b.buffer("d", (4.5,), "fp32"), r"buffer 'd' has tile \(4.5,\) and slots 1"),
    "number-for-a-tile": (lambda b: b.buffer("d", 4, "fp32"), "buffer 'd' has tile 4 and slots 1; give a tuple"),
    "no-slots": (lambda b: b.buffer("d", (4,), "fp32", slots=0), "has tile .* and slots 0"),
    "dtype": (lambda b: b.buffer("d", (4,), "int4"), "dtype int4 is not supported; use one of fp32, bf16, fp16"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), BUILT.values(), ids=BUILT)
def test_a_builder_refuses_a_mistake_at_once(make, message):
    with pytest.raises(WaferError, match=message):
        make(builder())


def test_positions_may_be_a_list():
    where = builder().local("copy", "a", "b", Cores("x", [0, 2], [1]), size=4).where
    assert (where.rows.tolist(), where.cols.tolist(), where.paired) == ([1], [0, 2], False)


def test_dtypes_may_have_torchs_names():
    b = Builder(Mesh(1, 1), "names")
    for name, dtype in (("a", "float32"), ("b", torch.float16), ("c", "bf16")):
        b.buffer(name, (1,), dtype)
    assert [buffer.dtype for buffer in b.buffers.values()] == ["fp32", "fp16", "bf16"]


def test_a_mesh_line_named_twice_is_refused():
    b = builder()
    refused(b, b.exchange("x", "a", "b", [0], [1], [1, 1]), message="lines [1, 1] name a line twice (a[0] to b[0])")


@pytest.mark.parametrize("given", [np.zeros((2, 3, 4), np.float32), None, [1, 2], torch.zeros(2, 3, 4).to_sparse()])
def test_values_other_than_dense_tensors_are_not_bound(given):
    b = Builder(Mesh(2, 3), "bound")
    b.buffer("a", (4,), "fp32", "state")
    with pytest.raises(ShapeError, match="bound: buffer 'a' is given a .*; give a dense torch tensor"):
        TorchExecutor().bind(b.build(), {"a": given})


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_a_draft_that_breaks_a_rule_does_not_run(backend):
    b = builder()
    b.round(b.local("gemm", "a", ("b", "c"), m=1, k=4, n=40))
    with pytest.raises(ScheduleError, match="gemm: operand c is a.0. with 4 elements"):
        executor(backend).bind(b.build(draft=True), {name: torch.zeros(2, 3, 4) for name in "abc"})
