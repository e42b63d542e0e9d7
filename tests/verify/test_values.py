"""The check by values: its runs, comparisons, messages and refusals."""

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from healthy import on_mesh
from rings import ring
from schedules import ROOMY, SHAPE
from wafer_triton.algorithms import reduce
from wafer_triton.algorithms.product import recipe
from wafer_triton.decoder import block, decode
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.reference import Reference
from wafer_triton.errors import ScheduleError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Round, Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.verify import values
from wafer_triton.verify.decoder import sub_layer_intent
from wafer_triton.verify.faults import Intent, check
from wafer_triton.verify.slices import backward_slice
from wafer_triton.verify.values import draw_tiles

CUT, ROW = "(y r) (x k)", torch.tensor(1)


def summed(tiles):
    return {"x": tiles["x"].sum(1, keepdim=True).expand_as(tiles["x"])}


def a_sum(op: str = "add", role: str = "output") -> Schedule:
    b = Builder(Mesh(2, 4), "a sum")
    b.buffer("x", (3,), "fp32", role)
    reduce.all_reduce(b, "x", "x", op=op)
    return b.build()


def test_a_wrong_result_is_named_by_core_round_and_element():
    verdict = check(a_sum("maximum"), Intent({"x": CUT}, {}, reference=summed))
    (finding,) = verdict.findings
    tiles = draw_tiles(a_sum(), Intent({"x": CUT}, {}), values.MOST_RUNS, seed=0)["x"]
    run = int((tiles.amax(2) != tiles.sum(2))[:, 0, 0].nonzero()[0])
    got, want = tiles[run, 0, :, 0].max(), tiles[run, 0, :, 0].sum()
    assert (finding.verdict, finding.core, finding.round) == ("wrong-values", (0, 0), 2)
    assert finding.message.startswith(
        f"a sum, round 2 (all-reduce): core (0, 0) ends with {float(got):.7g} in element 0 of x[0], "
        f"not with {float(want):.7g}"
    )


def test_the_last_round_that_wrote_the_tile_is_named():
    schedule = a_sum()
    idle = Round((), (), "idle")
    verdict = check(replace(schedule, rounds=(*schedule.rounds, idle, idle)), Intent({"x": CUT}, {}, reference=dict))
    assert [finding.round for finding in verdict.findings] == [2]
    alone = check(replace(schedule, rounds=()), Intent({"x": CUT}, {}, reference=summed))
    assert str(alone).startswith("wrong-values (core (0, 0)): a sum: core (0, 0) ends with ")


def test_a_correct_result_and_a_result_outside_of_the_intent_raise_nothing():
    assert check(a_sum(), Intent({"x": CUT}, {"x": {"r": "y"}}, reference=summed)).ok
    for below, ok in ((float("nan"), True), (0.0, False)):
        asked = {"reference": lambda tiles, below=below: {"x": summed(tiles)["x"].index_fill(0, ROW, below)}}
        assert check(a_sum(), Intent({"x": CUT}, {}, **asked)).ok == ok
    b = Builder(Mesh(2, 4), "to one core")
    b.buffer("x", (3,), "fp32", "output")
    reduce.reduce(b, "x", "x", root=1)
    schedule, intent = b.build(), Intent({"x": CUT}, {"x": {"r": "y"}}, {"x": Cores("x", np.array([1]))}, summed)
    assert check(schedule, intent).ok
    assert check(schedule, replace(intent, result={}, on={})).names == {"wrong-values"}


def test_unwritten_memory_is_a_wrong_value():
    b = Builder(Mesh(1, 2), "half")
    b.buffer("x", (1,), "fp32", "input")
    b.buffer("out", (1,), "fp32", "output")
    b.round(b.local("copy", "out", "x", Cores("x", np.array([0])), size=1))
    (finding,) = check(b.build(), Intent({}, {}, reference=lambda tiles: {"out": tiles["x"]})).findings
    assert finding.core == (0, 1) and " ends with nan in element 0 of out[0], " in finding.message


def test_a_resident_buffer_that_the_reference_does_not_name_must_stay():
    (finding,) = check(a_sum(role="state"), Intent({"x": CUT}, {}, reference=lambda tiles: {})).findings
    assert finding.verdict == "wrong-values" and ", as it began: a state stays, unless the ref" in finding.message
    (finding,) = check(a_sum(), Intent({"x": CUT}, {}, reference=lambda tiles: {"x": 2 * tiles["x"]})).findings
    assert "as it began" not in finding.message
    assert check(a_sum(role="state"), Intent({"x": CUT}, {}, reference=summed)).ok


def test_a_reference_must_fit_its_schedule():
    with pytest.raises(ScheduleError, match="^a sum: the reference gives undeclared buffers: y, z$"):
        check(a_sum(), Intent({"x": CUT}, {}, reference=lambda tiles: {"z": tiles["x"], "y": tiles["x"]}))
    message = r"^a sum: the reference gives \[2, 4\] for x, which is \[2, 4, 3\]: rows, columns, its slots, its tile$"
    with pytest.raises(ScheduleError, match=message):
        check(a_sum(), Intent({"x": CUT}, {}, reference=lambda tiles: {"x": tiles["x"].sum(-1)}))


def test_an_intent_by_its_reference_alone_must_fit_its_schedule_too():
    for intent in (Intent({"y": CUT}, {}), Intent({}, {}, {"y": Cores("x", np.array([0]))})):
        with pytest.raises(ScheduleError, match="^a sum: the intent names undeclared buffers: y$"):
            check(a_sum(role="state"), replace(intent, reference=summed))


def weighted() -> Schedule:
    """Build out = x + w, where column 1 takes the w of column 0: right if columns have copies of it."""
    b = Builder(Mesh(1, 2), "weighted")
    for name, role in (("x", "input"), ("w", "input"), ("out", "output")):
        b.buffer(name, (1,), "fp32", role, pattern="(y k)" if name == "w" else "")
    b.round(b.exchange("x", "w", b.like("near", "w"), [0], [1]))
    b.round(b.local("add", "out", ("x", "w"), size=1))
    return b.build()


@pytest.mark.parametrize(("given", "named"), [({"x": CUT, "w": "(y k)"}, None), ({"x": CUT}, "w"), ({}, "w, x")])
def test_a_wrong_value_names_the_inputs_that_the_intent_leaves_out(given, named):
    intent = Intent(given, {}, reference=lambda tiles: {"out": tiles["x"] + tiles["w"][:, :1]})
    found = check(weighted(), intent).findings
    says = {f"`given` of the intent does not name {named}" in one.message for one in found}
    assert says == ({True} if named else set())


def test_an_output_that_is_read_first_and_not_given_is_named():
    verdict = check(a_sum(), Intent({}, {}, reference=summed))
    assert verdict.names == {"unwritten-read"} and "if x has values at the start, name it" in str(verdict)


def test_a_spec_that_cuts_a_buffer_otherwise_than_the_buffer_says_is_refused():
    for cuts in (({"w": CUT}, {}), ({"x": CUT}, {"w": "(x k)"})):
        intent = Intent(*cuts, reference=summed)
        with pytest.raises(ScheduleError, match=r"^weighted: the intent cuts w by .*, and its buffer by '\(y k\)'"):
            check(weighted(), intent)


GOOD = "(y r) (x k)"
WRONG_SPECS = [  # of a buffer `x` and of a result `x`, and the word that is wrong
    ("(Y r) (x k)", {}, "Y"),
    ("(y r) (X k)", {}, "X"),
    ("(slots s) (y r) (x k)", {}, "slots"),
    ("(r y) (x k)", {}, "y"),
    ("(y r) (x k) slot", {}, "slot"),
    ("(y x k)", {}, "x"),
    ("(y, r) (x k)", {}, "y,"),
    ("(y r) (x k) -> r k", {}, "->"),
    ({"r": "Y", "k": "x"}, {}, "Y"),
    ({"y": "r"}, {}, "r"),
    (GOOD, {"q": "x"}, "q"),
    (GOOD, {"r": "y", "q": 0}, "q"),
    (GOOD, "(y q)", "q"),
    (GOOD, "(Y r)", "Y"),
    (GOOD, {"r": "z"}, "z"),
    ({"r": "y", "k": "x"}, "(y r) (slot s)", "s"),
]


@pytest.mark.parametrize(("given", "result", "word"), WRONG_SPECS, ids=str)
def test_an_axis_or_a_letter_that_a_spec_cannot_have_is_refused_by_its_name(given, result, word):
    with pytest.raises(ScheduleError) as refused:
        Intent({"x": given}, {"x": result})
    spec = str(given if result == {} else result)
    said = str(refused.value).replace(spec, "")  # what is said of it
    assert "'x'" in said and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", said.replace("'x'", "", 1))


@pytest.mark.parametrize("kind", ["wrong", "skipped", "lost", "twice", "late"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_text_with_slots_finds_what_a_mapping_finds(kind, number):
    texts, mapped = (
        ("(y r) (x k) (slot s)", "(y r) (slot s)"),
        ({"r": "y", "k": "x", "s": "slot"}, {"r": "y", "s": "slot"}),
    )
    if kind in ("lost", "twice") and number == 4:
        number = 0  # where tiles are added
    for given, result in (texts, mapped):
        intent = Intent({"x": given}, {"x": result}, reference=summed)
        healthy = check(ring(Mesh(2, 4)), intent)
        assert healthy.ok and healthy.copied == {}
        assert check(ring(Mesh(2, 4), (kind, (number, (1, 1)))), intent).names == {"wrong-values"}


def test_slots_that_a_spec_draws_equal_are_said():
    intent = Intent({"x": CUT}, {"x": "(y r)"}, reference=summed)
    for mistakes in ((), (("wrong", (0, (1, 1))),)):  # which hides a wrong slot
        verdict = check(ring(Mesh(2, 4), *mistakes), intent)
        assert verdict.ok and verdict.equal_slots == {"x": 4} and "all 4 slots of a core equal" in str(verdict)
    one = check(a_sum(), Intent({"x": "(y r)"}, {}, reference=lambda tiles: {"x": 4 * tiles["x"]}))
    assert one.copied == {"x": (8, 2)} and one.equal_slots == {}


def test_a_result_s_array_must_fit_the_mesh():
    with pytest.raises(ScheduleError, match="of 'x' on mesh 2x4: k is neither"):
        check(a_sum(), Intent({"x": CUT}, {"x": {"r": "y", "k": np.arange(3)}}, reference=summed))


def test_an_output_that_no_core_writes_is_named():
    b = Builder(Mesh(1, 2), "nothing")
    b.buffer("out", (1,), "fp32", "output")
    b.buffer("huge", (2**30,), "fp32", "scratch")
    number = torch.zeros(1, 2, 1, dtype=torch.float64)
    for intent in (None, Intent({}, {}, reference=lambda tiles: {"out": number})):
        verdict = check(b.build(), intent)
        assert verdict.names == {"unwritten-output", "sram"}
        assert "nothing: no core writes the output out; write it, or drop it" in str(verdict)
        assert "no round uses huge, and its 4,294,967,296 B are more than the 49,152 B of SRAM on wse2" in str(verdict)
    b.buffers["out"] = replace(b.buffers["out"], tile=(2**30,))
    assert "(and every other) needs 4,294,967,296 B in round 0" in str(check(b.build(draft=True)))


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        (None, "the intent has no reference; give it one"),
        (lambda tiles: {}, "the reference makes nothing; let it make the results"),
        (lambda tiles: {"x": tiles["x"] * float("nan")}, "the reference makes NaN alone; let it make the results"),
    ],
)
def test_an_intent_that_compares_nothing_is_a_fault(reference, why):
    (finding,) = check(a_sum(), Intent({"x": CUT}, {}, reference=reference)).findings
    assert finding.verdict == "nothing-compared" and f"a sum: nothing was compared, as {why}" in finding.message


@pytest.mark.parametrize(
    ("made_of", "made"),
    [
        (lambda x, w: {"sum": x + w}, "nothing of twice"),
        (lambda x, w: {"sum": x + w, "twice": x * float("nan")}, "NaN alone of twice"),
        (lambda x, w: {"sum": x * float("nan")}, "nothing of twice"),
    ],
)
def test_a_result_that_the_reference_does_not_make_is_a_fault(made_of, made):
    b = Builder(Mesh(1, 2), "two results")
    for name, role in (("x", "input"), ("w", "weight"), ("sum", "output"), ("twice", "output")):
        b.buffer(name, (1,), "fp32", role)
    b.round(b.local("add", "sum", ("x", "w"), size=1), b.local("add", "twice", ("x", "x"), size=1))

    given, made_here = {"x": CUT, "w": CUT}, {"sum": CUT, "twice": CUT}
    (finding,) = check(b.build(), Intent(given, made_here, reference=lambda tiles: made_of(**tiles))).findings
    assert finding.verdict == "nothing-compared" and f"the reference makes {made}; let it" in finding.message


def test_a_reference_may_use_numpy_and_overwrite_its_inputs():
    def in_place(tiles):
        tiles["x"] += 0
        tiles["x"][:] = tiles["x"].sum(1, keepdim=True)
        return {"x": tiles["x"].numpy()}

    assert check(a_sum(), Intent({"x": CUT}, {}, reference=in_place)).ok


def test_a_check_beyond_the_memory_limit_is_refused(monkeypatch):
    monkeypatch.setattr(values, "MOST_ELEMENTS", 10)
    message = "^a sum: .* elements are too many to compute; check smaller tiles$"
    with pytest.raises(ScheduleError, match=message):
        check(a_sum(), Intent({"x": CUT}, {}, reference=summed))


def test_tiles_with_equal_indices_are_equal():
    b = Builder(Mesh(2, 3), "given")
    b.buffer("x", (2,), "fp32", "input", 2)
    b.buffer("y", (8,), "fp32", "input")
    b.round(b.local("copy", "y", "y", size=8))
    tiles = draw_tiles(b.build(draft=True), Intent({"x": "(x k)"}, {}), 2, seed=1)
    x = tiles["x"]
    assert x.shape == (2, 2, 3, 2, 2) and tiles["y"].shape == (2, 2, 3, 8) and x.dtype == torch.float64
    assert torch.equal(x[:, 0], x[:, 1]) and torch.equal(x[:, :, :, 0], x[:, :, :, 1])
    assert len(x[0, 0, :, 0].unique(dim=0)) == 3 and len(tiles["y"][0].flatten(0, 1).unique(dim=0)) == 6
    assert all(set((4 * run).abs().unique().tolist()) <= set(range(1, 8)) for run in (x[0], x[1] / 8))


@pytest.mark.parametrize("name", ["scale", "width", "eps"])
def test_a_changed_parameter_is_found(name):
    kind, shapes = ("softmax", ((4, 6),)) if name == "scale" else ("rms_norm", ((4, 6), (6,)))
    product = recipe(kind, Mesh(2, 2, ROOMY), "fp32", shapes, ())
    assert check(product.schedule, Intent.of(product)).ok
    rounds = [
        replace(round_, locals=tuple(
            replace(op, params={**op.params, name: op.params[name] * 2}) if name in op.params else op
            for op in round_.locals
        ))
        for round_ in product.schedule.rounds
    ]  # fmt: skip
    assert check(replace(product.schedule, rounds=tuple(rounds)), Intent.of(product)).names == {"wrong-values"}


def test_accumulation_in_fp16_is_no_wrong_value():
    product = recipe("gemm", Mesh(2, 2, ROOMY), "fp16", ((64, 640), (640, 64)), (("accumulate", "fp16"),))
    assert check(product.schedule, Intent.of(product)).ok


def test_large_products_are_checked_by_samples(monkeypatch):
    """Check that a wrong tile is found where sampled rows and columns cross it, and only there."""
    product = recipe("gemm", Mesh(6, 6, device("wse2")), "fp32", ((12, 12), (12, 12)), ())
    intent = replace(Intent.of(product), result={})  # so that only the values show it
    last = product.schedule.rounds[-1]
    drafts = [
        replace(product.schedule, rounds=(*product.schedule.rounds, doubled(last, row, col)))
        for row, col in ((0, 0), (1, 1))
    ]
    assert [check(draft, intent).names for draft in drafts] == [{"wrong-values"}] * 2
    monkeypatch.setattr(values, "MOST_WORK", values._work(product.schedule) / 3)
    assert check(product.schedule, intent).ok
    assert [check(draft, intent).names for draft in drafts] == [{"wrong-values"}, frozenset()]


def doubled(last: Round, row: int, col: int) -> Round:
    """Build a round that doubles the last round's result on one core."""
    (op,) = last.locals
    where = Cores("x", np.array([[col]]), np.array([row]))
    return replace(last, locals=(replace(op, op="add", ins=(op.outs[0], op.outs[0]), where=where),))


@pytest.mark.slow
def test_a_slice_computes_the_same_with_less():
    for number, case in enumerate(on_mesh("2x3")):
        place = -(number % 2)  # the first core or the last
        schedule, kept = case.schedule, [n for n, b in case.schedule.buffers.items() if b.role != "scratch"]
        wanted = {name: np.zeros((*schedule.mesh.shape, schedule.buffers[name].slots), np.bool_) for name in kept}
        for each in wanted.values():
            each[place, place] = True
        part, tiles = backward_slice(schedule, wanted), draw_tiles(schedule, case.intent, 1, seed=3)
        whole, less = (Reference(each, tiles, exact=True, runs=1) for each in (schedule, part))
        for machine in (whole, less):
            machine.run()
        for name in kept:
            got, want = (machine.read(name)[0, place, place] for machine in (less, whole))
            close = torch.isclose(got, want, rtol=1e-12, atol=1e-12 * want.nan_to_num(0).abs().max(), equal_nan=True)
            assert close.all(), f"{case.name}: {name}"  # fewer products at once, so BLAS may sum in another order
        assert messages(part) <= messages(schedule), case.name


def messages(schedule: Schedule) -> int:
    return sum(len(each.moves.ends(schedule.mesh)[1]) for round_ in schedule.rounds for each in round_.exchanges)


def test_a_slice_of_a_product_is_a_row_and_a_column():
    product = recipe("gemm", Mesh(5, 5, ROOMY), "fp32", ((5, 5), (5, 5)), (("algorithm", "summa"),))
    wanted = np.zeros((5, 5, 1), np.bool_)
    wanted[1, 3] = True
    part = backward_slice(product.schedule, {"out": wanted})
    assert messages(part) == 8  # a row of A but for its own tile, and a column of B
    assert sum(len(op.where.flat(part.mesh)) for round_ in part.rounds for op in round_.locals if op.op == "gemm") == 5


def test_checking_without_an_intent_loads_no_torch():
    code = (
        "import sys; from wafer_triton import Builder, Mesh, check; b = Builder(Mesh(1, 2), 'x');"
        "b.buffer('x', (1,), 'fp32', 'input'); b.round(b.local('copy', 'x', 'x', size=1));"
        "check(b.build(draft=True)); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


@pytest.mark.parametrize("cut", ["(((y", "(y m", "y m)", "((y m))"])
def test_unmatched_brackets_of_a_partition_spec_are_named(cut):
    with pytest.raises(
        ScheduleError, match=r"the brackets of .*, the partition spec of 'x', do not match; write a pattern such"
    ):
        Intent({"x": cut}, {})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"runs": "many"}, "Intent: runs = 'many' must be a whole number of at least 1"),
        ({"draw": lambda tiles, run: 1 / 0}, "a sum: the draw raises ZeroDivisionError: division by zero .*mend it"),
        ({"draw": lambda tiles, run: [1]}, "a sum: the draw must give tensors by the names of buffers"),
        ({"draw": lambda tiles, run: {"z": tiles["x"]}}, r"a sum: the intent draws \[2, 4, 3\] for z; draw tiles that"),
        ({"draw": lambda tiles, run: {"x": tiles["x"][0]}}, r"a sum: the intent draws \[4, 3\] for x; draw tiles that"),
    ],
)
def test_an_intent_s_drawn_inputs_must_fit(more, message):
    with pytest.raises(ScheduleError, match=message):
        check(a_sum(), Intent({"x": CUT}, {}, reference=summed, **more))


@pytest.mark.parametrize("batch", [1, 2])
def test_attention_of_a_sequence_is_checked_alone_and_in_a_batch(batch):
    on = block.Block(SHAPE, Mesh(2, 2, ROOMY), "fp32", entries=2, batch=batch)
    made = block.schedule(decode.attend, on, batch - 1)
    intent = sub_layer_intent(decode.attend, on, batch - 1)
    assert check(made, intent).ok
    doubled = replace(
        intent, reference=lambda tiles: {name: 2 * each for name, each in intent.reference(tiles).items()}
    )
    assert [finding.verdict for finding in check(made, doubled).findings] == ["wrong-values"]


def test_another_sequence_s_query_is_found():
    on = block.Block(SHAPE, Mesh(2, 2, ROOMY), "fp32", entries=2, batch=2)
    made, intent = block.schedule(decode.attend, on, 1), sub_layer_intent(decode.attend, on, 1)
    scores, *rest = made.rounds
    (product,) = scores.locals
    assert product.ins[0] == Slot("q", 1)
    other = replace(scores, locals=(replace(product, ins=(Slot("q", 0), product.ins[1])),))
    (finding,) = check(replace(made, rounds=(other, *rest)), intent).findings
    assert finding.verdict == "wrong-values" and "att[1]" in finding.message


def test_a_verdict_says_of_how_many_tiles_some_are_copies():
    halves = {"x": {"r": "y", "k": np.array([[0, 0, 1, 1]] * 2)}}
    verdict = check(a_sum(), Intent(halves, {}, reference=summed))
    assert verdict.ok and verdict.copied == {"x": (8, 4)} and "x: 8 tiles, 4 different" in str(verdict)
    assert check(a_sum(), Intent({"x": CUT}, {}, reference=summed)).copied == {}
