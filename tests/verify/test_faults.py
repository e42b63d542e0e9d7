"""Planted faults: each is found, by name, at its core and in its round; the healthy schedules raise nothing."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from drafts import (
    Case,
    first,
    half_a_message,
    moving,
    on,
    relabelled,
    short,
    twice,
    with_exchange,
    with_local,
    with_operand,
    with_operation,
    without_add,
    without_exchange,
)
from healthy import on_mesh
from wafer_triton.algorithms import collectives, reduce, trees
from wafer_triton.algorithms.product import recipe
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ScheduleError
from wafer_triton.schedule import sram
from wafer_triton.schedule.builder import Builder, checked
from wafer_triton.schedule.rounds import Cores, Round, Slot
from wafer_triton.verify.faults import Intent, check
from wafer_triton.verify.specs import Tiles

ROOMY = replace(device("wse2"), name="roomy", routes=None)


def gemm(algorithm: str = "mesh") -> Case:
    made = recipe("gemm", Mesh(4, 4, ROOMY), "fp16", ((4, 4), (4, 4)), (("algorithm", algorithm),))
    return made.schedule, Intent.of(made)


def built(add: Callable[[Builder], object], intent: Intent, mesh: Mesh | None = None) -> Case:
    """Build rounds over x (given, and left as a result) and out (the tile of x, or all tiles of a mesh row)."""
    b = Builder(mesh or Mesh(2, 8, ROOMY), "planted")
    b.buffer("x", (3,), "fp32", "output")
    b.buffer("out", (3,), "fp32")
    b.buffer("line", (3,), "fp32", "scratch", b.mesh.shape[1])
    add(b)
    return b.build(), intent


TILES = {"i": "y", "j": "x"}


def summed(tiles: Tiles) -> Tiles:
    return {"x": tiles["x"].sum(1, keepdim=True).expand_as(tiles["x"])}


SUM = Intent({"x": TILES}, {"x": {"i": "y"}}, reference=summed)


def all_reduce(algorithm: str = "ktree", groups=None) -> Case:
    return built(lambda b: reduce.all_reduce(b, "x", "x", algorithm=algorithm, groups=groups), SUM)


def reduced(root: int | None = None) -> Case:
    place = trees.ktree(8, trees.default_groups(8), root)[1]
    intent = replace(SUM, on={"x": Cores("x", np.array([place]))})
    return built(lambda b: reduce.reduce(b, "x", "x", root=root), intent)


SQUARE = Mesh(4, 4, ROOMY)


def test_healthy_schedules_raise_nothing_without_an_intent():
    assert [case.name for case in on_mesh("2x3") if not check(case.schedule).ok] == []


def transposed() -> Case:
    return built(lambda b: collectives.transpose(b, "x", "out"), SUM, SQUARE)


def backwards() -> Case:
    """Move A around the ring in the wrong direction."""
    schedule, intent = gemm()
    ends = lambda one: {"send": one.moves.recv, "recv": one.moves.send}  # noqa: E731
    turn = lambda one: moving(one, **ends(one)) if one.axis == "x" else one  # noqa: E731
    rounds = [
        replace(round_, exchanges=tuple(map(turn, round_.exchanges))) if round_.label == "gemm" else round_
        for round_ in schedule.rounds
    ]
    return replace(schedule, rounds=tuple(rounds)), intent


def unaligned() -> Case:
    schedule, intent = gemm()
    rounds = [without_b(one) if one.label == "align a and b" else one for one in schedule.rounds]
    return replace(schedule, rounds=tuple(rounds)), intent


def without_b(round_: Round) -> Round:
    """Return the exchanges and local operations of a round that concern a alone."""
    exchanges = (one for one in round_.exchanges if one.src.buffer.startswith("a"))
    locals_ = (one for one in round_.locals if one.outs[0].buffer.startswith("a"))
    return replace(round_, exchanges=tuple(exchanges), locals=tuple(locals_))


def in_place(case: Case) -> Case:
    return with_exchange(case, first(case[0], "gemm"), lambda one: replace(one, dst=one.src))


def wrong_root() -> Case:
    def add(b: Builder) -> None:
        root = reduce.reduce(b, "x", "x")
        collectives.broadcast(b, "x", "x", root - 1)

    return built(add, SUM)


def wrong_groups() -> Case:
    """Join the roots of four groups at the second level, where the first level made two."""

    def add(b: Builder) -> None:
        first_level, levels = trees.ktree(8, (2,))[0][:2], trees.ktree(8, (4,))[0]
        for up, down in first_level + levels[1:]:
            steps = []
            for pairs, inbox in ((up, "up"), (down, "down")):
                if pairs:
                    exchange = b.exchange("x", "x", b.like(inbox, "x"), *np.transpose(pairs))
                    steps += [exchange, b.local("add", "x", ("x", inbox), Cores("x", exchange.moves.recv), size=3)]
            b.round(*steps)
        collectives.broadcast(b, "x", "x", trees.ktree(8, (4,))[1])

    return built(add, SUM)


def unread_norm() -> Case:
    """Build RMSNorm that scales by its row's sum before the broadcast of the sum."""
    case = norm()
    return without_exchange(case, len(case[0].rounds) - 2)


def chunk_astray() -> Case:
    """Build a ring all-reduce whose last chunk goes into the wrong slot."""
    move = lambda one: replace(one, dst=replace(one.dst, index=(one.dst.index - 1) % 8))  # noqa: E731
    case = all_reduce("ring")
    return with_exchange(case, len(case[0].rounds) - 2, move)


def norm(kind: str = "rms_norm") -> Case:
    made = recipe(kind, Mesh(1, 4, ROOMY), "fp32", {"rms_norm": ((2, 8), (8,)), "softmax": ((2, 8),)}[kind], ())
    return made.schedule, Intent.of(made)


def turned_chunks() -> Case:
    """Build a ring all-reduce whose chunks are put together in another order."""
    schedule, intent = all_reduce("ring")
    last = len(schedule.rounds) - 1

    def add(b: Builder) -> None:
        reduce.all_reduce(b, "x", "x", algorithm="ring")
        chunks = b.like("x.turned", "x.chunks")
        copies = (b.local("copy", Slot(chunks, slot), Slot("x.chunks", (slot + 1) % 8), size=1) for slot in range(8))
        b.steps = [*b.rounds[:last], Round((), tuple(copies)), *b.rounds[last:]]
        (copy,) = b.rounds[-1].locals
        b.steps[-1] = Round((), (replace(copy, ins=(Slot(chunks, None),)),))

    return built(add, intent)


MESH, CANNON, SUM_OF_8 = gemm(), gemm("cannon"), all_reduce()  # the last: root 6, in rounds 0 to 2, then a broadcast
SHIFT = first(MESH[0], "gemm")
RING = all_reduce("ring")
HELD = sram.account(MESH[0])
UNDECLARED = with_exchange(MESH, 1, lambda one: replace(one, src=Slot("z")))

# name: the schedule, the verdict, the core and the round
FAULTS = {
    "short-receive": (short(MESH, 0, "recv"), "deadlock", (2, 1), 0),
    "short-send": (short(CANNON, SHIFT, "send"), "deadlock", (0, 3), SHIFT),
    "half-a-message": (half_a_message(transposed(), 1, 1), "deadlock", (0, 1), 1),
    "off-by-one-wrap": (relabelled(CANNON, SHIFT, 4), "off-mesh", (0, 3), SHIFT),
    "wrap-to-one": (relabelled(CANNON, SHIFT, 1), "two-writers", (0, 1), SHIFT),
    "swapped-ring-direction": (backwards(), "wrong-values", (0, 0), 7),
    "in-place-exchange": (in_place(MESH), "overwritten", (0, 0), SHIFT),
    "in-place-exchange-waits-in-a-circle": (in_place(MESH), "deadlock", (0, 0), SHIFT),
    "wrong-root": (wrong_root(), "wrong-values", (0, 0), 3),
    "missing-broadcast-leg": (without_exchange(SUM_OF_8, 3), "wrong-values", (0, 0), 3),
    "double-send": (twice(SUM_OF_8, 0), "wrong-values", (0, 0), 4),
    "one-byte-over": (on(MESH, sram_bytes=HELD.peak_bytes - 1), "sram", (0, 0), HELD.peak_round),
    "one-route-too-many": (on(MESH, routes=11), "routes", (2, 2), SHIFT),
    "unaligned-operand": (unaligned(), "wrong-values", (0, 1), 7),
    "wrong-group-size": (wrong_groups(), "wrong-values", (0, 0), 4),
    "stale-slot": (without_exchange(SUM_OF_8, 2), "wrong-values", (0, 0), 3),
    "never-arrived": (without_exchange(SUM_OF_8, 0), "unwritten-read", (0, 1), 0),
    "overwritten-unread": (without_add(SUM_OF_8, 1), "overwritten", (0, 6), 2),
    "used-before-whole": (unread_norm(), "wrong-values", (0, 0), 4),
    "chunk-in-the-wrong-slot": (chunk_astray(), "wrong-values", (0, 0), 15),
    "chunk-not-passed-on": (without_exchange(RING, 10), "wrong-values", (0, 0), 15),
    "maximum-among-sums": (with_local(SUM_OF_8, 2, op="maximum"), "wrong-values", (0, 0), 3),
    "unnormed": (with_operand(norm("softmax"), 8, 1, "p.max"), "wrong-values", (0, 0), 8),
    "maxima-for-sums": (with_operation(norm(), "add", "maximum"), "wrong-values", (0, 0), 4),
    "chunks-turned": (turned_chunks(), "wrong-values", (0, 0), 16),
    "undeclared": (UNDECLARED, "malformed", None, 1),
}


@pytest.mark.parametrize(("case", "verdict", "core", "number"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_found_at_its_core_and_round(case, verdict, core, number):
    found = check(*case)
    assert verdict in found.names, str(found)
    (finding,) = [one for one in found.findings if one.verdict == verdict][:1]
    assert (finding.core, finding.round) == (core, number), str(found)
    assert f"round {number}" in str(found) and (core is None or f"core {core}" in str(found))
    with pytest.raises(ScheduleError) as caught:
        found.demand()
    said = str(caught.value)
    assert said.startswith(str(found.findings[0])) and "\n" not in said
    assert (f"; {len(found.findings) - 1} more finding" in said) is (len(found.findings) > 1)


def test_a_result_may_be_limited_to_some_cores():
    schedule, intent = reduced(3)
    assert check(schedule, intent).ok
    everywhere = check(schedule, replace(intent, on={}))
    assert everywhere.names == {"wrong-values"}


def test_a_verdict_is_sorted_and_records_whether_an_intent_was_given():
    case = in_place(with_exchange(gemm(), 0, lambda one: moving(one, recv=one.moves.recv[:-1])))
    found = check(*case)
    assert [one.round for one in found.findings] == sorted(one.round for one in found.findings)
    assert found.intended and not check(case[0]).intended
    assert str(check(*gemm())) == "mesh gemm [4, 4] x [4, 4]: nothing found"


def test_a_draft_is_checked_without_being_validated():
    b = Builder(Mesh(1, 3), "draft")
    b.buffer("a", (1,), "fp32", "input")
    b.buffer("b", (1,), "fp32")
    b.round(b.exchange("x", "a", "b", [0], [3]))
    assert check(b.build(draft=True)).names == {"off-mesh"}
    with pytest.raises(ScheduleError, match="off the mesh"):
        b.build()
    with pytest.raises(ScheduleError, match="off the mesh"):
        checked(b.build(draft=True))
