"""The rules of patterns: a claim that does not hold is refused with its rule, round and core."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from drafts import moving
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ScheduleError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.collectives import broadcast, shift
from wafer_triton.schedule.gemm import meshgemm
from wafer_triton.schedule.reduce import reduce
from wafer_triton.schedule.rounds import Cores, Exchange, Pattern, Round, Slot


def ring(b: Builder) -> None:
    meshgemm(b, "a", "w", "c", m=2, k=2, n=2)


def tree(b: Builder) -> None:
    reduce(b, "a", "x")


def sends(b: Builder) -> None:
    broadcast(b, "a", "x", 1)


def relay(b: Builder) -> None:
    shift(b, "a", "w", "x")


def claims(kind: str, *buffers: str, op: str = "") -> Callable[[Round], Round]:
    return lambda round_: replace(round_, pattern=Pattern(kind, buffers, op))


def of_the_first(**changes: object) -> Callable[[Round], Round]:
    """Return a function that changes the first exchange of a round."""
    return lambda round_: replace(round_, exchanges=(moving(round_.exchanges[0], **changes), *round_.exchanges[1:]))


def with_product(round_: Round, **changes: object) -> Round:
    return replace(round_, locals=(replace(round_.locals[0], **changes),))


LIES: dict[str, tuple[Callable[[Builder], object], Callable[[Round], Round], str]] = {
    "an unknown kind": (ring, claims("spiral", "a"), "pattern 'spiral': choose one of ring, tree, broadcast, relay"),
    "a ring of other buffers": (ring, claims("ring", "c"), r"pattern ring of c: core \(0, 0\) receives a\[0\]"),
    "a ring that skips a core": (
        ring, of_the_first(send=np.array([1, 1, 0])), r"pattern ring: core \(0, 1\) must send a\[0\] once",
    ),
    "a ring on one mesh row": (
        ring, of_the_first(lines=np.array([0])), r"pattern ring: core \(0, 0\) must send a\[0\] once",
    ),
    "a ring without a product on all cores": (
        ring, lambda one: with_product(one, where=Cores("x", np.array([0]))), "must be one product on all cores",
    ),
    "a ring of no input": (
        ring, lambda one: with_product(one, ins=(Slot("w"), Slot("w"))), r"receives a\[0\], no input of the product",
    ),
    "a tree of a ring": (ring, claims("tree", "a", "w", op="add"), "gemm on w.* combines no message"),
    "a tree by another operation": (
        tree, claims("tree", "a", op="maximum"), r"by maximum: core \(0, 1\) must combine a.up\[0\] with its a\[0\]",
    ),
    "a tree by no operation": (tree, claims("tree", "a"), "combine by one of add, maximum, not ''"),
    "a tree that drops a message": (
        tree, lambda one: replace(one, locals=one.locals[1:]), r"core \(0, 1\) receives a.up\[0\], but does not",
    ),
    "a tree that combines elsewhere": (
        tree,
        lambda one: replace(
            one, locals=(replace(one.locals[0], where=Cores("x", np.array([1]), np.array([0, 1]))), *one.locals[1:])
        ),
        r"core \(0, 1\) must combine a.up\[0\]",
    ),
    "a core of a tree that sends and receives": (
        tree, of_the_first(send=np.array([0, 1]), recv=np.array([1, 2])), r"core \(0, 1\)",
    ),
    "a broadcast to another slot": (
        sends, lambda one: replace(one, exchanges=(replace(one.exchanges[0], dst=Slot("w")), *one.exchanges[1:])),
        r"pattern broadcast of a: core \(0, 0\) receives a\[0\] in w\[0\]",
    ),
    "a relay that computes": (
        relay,
        lambda one: replace(one, locals=(Builder(Mesh(3, 3), "op").local("add", "c", ("w", "w"), size=4),)),
        r"pattern relay: core \(0, 0\) runs add, where tiles only move",
    ),
}  # fmt: skip


def drawn(make: Callable[[Builder], object]) -> Builder:
    b = Builder(Mesh(3, 3), "draft")
    for name in ("a", "w"):
        b.buffer(name, (2, 2), "fp32", "state")
    b.buffer("c", (2, 2), "fp32", "output")
    make(b)
    return b


@pytest.mark.parametrize("lie", LIES)
def test_an_untrue_pattern_names_rule_round_and_core(lie):
    make, change, message = LIES[lie]
    b = drawn(make)
    b.build()
    b.steps = [change(b.rounds[0]), *b.rounds[1:]]
    with pytest.raises(ScheduleError, match=rf"draft, round 0.*: .*{message}"):
        b.build()


def test_an_own_round_may_claim_a_pattern():
    b = Builder(Mesh(1, 3), "own")
    b.buffer("x", (4,), "fp32", "state")
    b.buffer("mail", (4,), "fp32")
    move: Exchange = b.exchange("x", "x", "mail", [0], [1])
    add = b.local("add", "x", ("x", "mail"), Cores("x", np.array([1])), size=4)
    made = b.round(move, add, pattern=Pattern("tree", ("x",), "add"))
    assert made is not None and b.build().rounds[0].pattern is made.pattern
