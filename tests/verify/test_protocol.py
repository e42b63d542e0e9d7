"""The waiting protocol: no fault in any interleaving, and every part of it is needed."""

import itertools
from dataclasses import replace

import pytest

from interleavings import adversaries, at_random, explore, neighbours, run
from protocol import (
    UP,
    Instruction,
    Location,
    Protocol,
    compute_shift,
    reduce_tree,
)
from wafer_triton.algorithms.product import recipe
from wafer_triton.algorithms.trees import ktree
from wafer_triton.device.mesh import Mesh
from wafer_triton.kernels import FLAGS, SLOTS

pytestmark = pytest.mark.slow


def line(size: int) -> list[list[int]]:
    return [[(core + 1) % size for core in range(size)]]


def torus(rows: int, cols: int) -> list[list[int]]:
    cores = [divmod(core, cols) for core in range(rows * cols)]
    return [[r * cols + (c + 1) % cols for r, c in cores], [(r + 1) % rows * cols + c for r, c in cores]]


def tree(size: int, groups: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return the parents and a topological order of a K-tree."""
    stages, _ = ktree(size, groups)
    parent, order = [-1] * size, []
    for up, down in stages:
        for sender, receiver in up + down:
            parent[sender] = receiver
            order.append(sender)
    return parent, order + [core for core in range(size) if core not in order]


SMALL = {
    "one-core": compute_shift(line(1), 3),
    "pair": compute_shift(line(2), 4),
    "ring-of-3": compute_shift(line(3), 4),
    "ring-of-3-two-blocks": compute_shift(line(3), 3, blocks=2),
    "ring-of-4": compute_shift(line(4), 2),
    "2x1-two-operands": compute_shift(torus(2, 1), 3),
    "chain": reduce_tree(*tree(5, ())),
    "tree": reduce_tree(*tree(7, (3,)), blocks=2),
}


@pytest.mark.parametrize("protocol", SMALL.values(), ids=SMALL)
def test_no_interleaving_of_a_small_mesh_has_a_fault(protocol):
    found = explore(protocol)
    assert found.finding is None, found.finding


@pytest.mark.slow
def test_no_interleaving_of_a_2x2_torus_has_a_fault():
    found = explore(compute_shift(torus(2, 2), 3, blocks=2))
    assert found.finding is None and found.states > 80_000


LARGE = {
    "ring-of-9": compute_shift(line(9), 9),
    "torus-4x4": compute_shift(torus(4, 4), 4, blocks=2),
    "tree-of-30": reduce_tree(*tree(30, (5,)), blocks=3),
}


@pytest.mark.parametrize("protocol", LARGE.values(), ids=LARGE)
def test_random_and_unfair_orders_of_larger_meshes_have_no_fault(protocol):
    orders = [(f"seed {seed}", at_random(seed)) for seed in range(20)] + list(adversaries(len(protocol.programs)))
    for name, order in orders:
        found = run(protocol, order)
        assert found.finding is None, (name, found.finding)
        assert len(found.trace) == sum(map(len, protocol.programs)), "every program ran to its end"


def test_meshgemms_own_shifts_have_no_fault():
    made = recipe("gemm", Mesh(3, 3), "fp32", ((3, 3), (3, 3)), ()).schedule
    shift = next(round_ for round_ in made.rounds if any(op.op == "gemm" for op in round_.locals))
    to = neighbours(shift, made.mesh)
    assert to == [[2, 0, 1, 5, 3, 4, 8, 6, 7], [6, 7, 8, 0, 1, 2, 3, 4, 5]], "0 to 2 to 1 and back to 0, along x and y"
    for seed in range(30):
        assert run(compute_shift(to, 3), at_random(seed)).finding is None


def swapped(protocol: Protocol, wrong) -> Protocol:
    """Exchange neighbouring steps for which `wrong(first, second)` is true."""
    programs = []
    for steps in protocol.programs:
        changed = list(steps)
        for at, (first, second) in enumerate(itertools.pairwise(steps)):
            if wrong(first, second):
                changed[at : at + 2] = [second, first]
        programs.append(tuple(changed))
    return replace(protocol, programs=tuple(programs))


def awaiting(protocol: Protocol, change) -> Protocol:
    """Replace each flag that a step waits for by `change(flag)`; None drops the flag."""

    def changed(step: Instruction) -> Instruction:
        if step.action != "wait":
            return step
        location, *also = [flag for flag in map(change, step.flags) if flag is not None]
        return step._replace(location=location, also=tuple(also))

    return replace(protocol, programs=tuple(tuple(map(changed, steps)) for steps in protocol.programs))


def not_for(kind: str):
    return lambda flag: None if flag.kind == kind else flag


def is_wait(kind: str):
    return lambda step: step.action == "wait" and step.location.kind == kind


def is_raise(kind: str):
    return lambda step: step.action == "raise" and step.location.kind == kind


def is_read(step):
    return step.action == "read"


def moved_up(protocol: Protocol, which, past) -> Protocol:
    """Move each step that `which` picks before the last earlier step that `past` picks."""
    programs = []
    for steps in protocol.programs:
        moved: list[Instruction] = []
        for step in steps:
            earlier = [number for number, other in enumerate(moved) if past(other)] if which(step) else []
            moved.insert(max(earlier, default=len(moved)), step)
        programs.append(tuple(moved))
    return replace(protocol, programs=tuple(programs))


SHIFT, TREE = compute_shift(line(3), 3, blocks=2), reduce_tree(*tree(5, (2,)), blocks=2)
SHORT = compute_shift(line(3), 2, blocks=2)
FLAG_FIRST = lambda first, second: first.action == "write" and second.action == "raise"  # noqa: E731

FAULTS = {
    "writer-takes-no-credit": (awaiting(SHIFT, not_for("credit")), "overwritten"),
    "reader-returns-no-credit": (SHIFT.without(is_raise("credit")), "deadlock"),
    "credit-before-the-tile-is-read": (moved_up(SHIFT, is_raise("credit"), past=is_read), "overwritten"),
    "reader-does-not-wait": (awaiting(SHIFT, not_for("full")), "unwritten-read"),
    "flag-before-payload": (swapped(SHIFT, FLAG_FIRST), "unwritten-read"),
    "no-flag": (SHORT.without(is_raise("full")), "deadlock"),
    "one-slot": (compute_shift(line(3), 3, slots=1), "overwritten"),
    "waits-for-the-other-slot": (
        awaiting(SHORT, lambda flag: flag._replace(slot=1 - flag.slot) if flag.kind == "full" else flag), "deadlock"),
    "waits-for-its-own-credit": (
        awaiting(SHIFT, lambda flag: flag._replace(core=(flag.core - 1) % 3) if flag.kind == "credit" else flag),
        "overwritten"),
    "credit-up-at-the-start": (
        replace(SHIFT, up=SHIFT.up | {Location("credit", core, 0, 0) for core in range(3)}), "lost-flag"),
    "tree-does-not-wait": (TREE.without(is_wait("full")), "unwritten-read"),
    "tree-flag-before-payload": (swapped(TREE, FLAG_FIRST), "unwritten-read"),
    "tree-no-flag": (TREE.without(is_raise("full")), "deadlock"),
}  # fmt: skip


@pytest.mark.parametrize(("protocol", "verdict"), FAULTS.values(), ids=FAULTS)
def test_each_part_of_the_protocol_is_needed(protocol, verdict):
    found = explore(protocol)
    assert found.finding is not None
    assert found.finding.verdict == verdict
    assert f"core {found.finding.core} " in found.finding.message
    assert f"in round {found.finding.round} " in found.finding.message


def test_a_tile_of_an_earlier_round_is_a_stale_read():
    early = awaiting(SHIFT, not_for("full")).programs
    late = replace(SHIFT, programs=tuple(
        tuple(no if one.round == 2 else one for one, no in zip(*both, strict=True))
        for both in zip(SHIFT.programs, early, strict=True)
    ))  # fmt: skip
    orders = [at_random(seed) for seed in range(200)]
    assert "stale-read" in {found.verdict for found in (run(late, order).finding for order in orders) if found}


def test_compute_shift_needs_all_cores_on_the_gpu_at_once():
    assert explore(compute_shift(line(3), 3), resident=3).finding is None
    found = explore(compute_shift(line(3), 3), resident=2).finding
    assert found is not None and found.verdict == "deadlock"


def test_a_tree_in_topological_order_needs_room_for_one_program():
    parent, order = tree(7, (3,))
    for resident in (1, 2, 7):
        assert explore(reduce_tree(parent, order), resident=resident).finding is None
    found = explore(reduce_tree(parent, order[::-1]), resident=1).finding
    assert found is not None and found.verdict == "deadlock" and found.core == order[-1]


def test_no_flag_is_up_between_launches():
    for rounds in (1, 3, 4):
        shift = compute_shift(line(3), rounds)
        assert not shift.up and not shift.up_at_end
    left = replace(SHIFT, up_at_end=SHIFT.up_at_end | {Location("full", 1, 0, 0)})
    found = explore(left).finding
    assert (found.verdict, found.core) == ("flags-left", 1)


@pytest.mark.parametrize("name", [name for name, (_, verdict) in FAULTS.items() if verdict == "deadlock"])
@pytest.mark.slow
def test_in_a_deadlock_one_program_gives_up_and_is_named(name):
    protocol, _ = FAULTS[name]
    stuck, found = explore(protocol).finding, explore(protocol, bounded=True)
    assert found.finding.verdict == "gave-up"
    waiting = f"core {found.finding.core} waits in round {found.finding.round} for"
    assert waiting in stuck.message, "one of the cores that wait in the deadlock"
    assert f"core {found.finding.core} in round {found.finding.round} gave up waiting for" in found.finding.message
    every = sum(map(len, protocol.programs))
    assert len(found.trace) == every + 1, "all programs ended; the abandoned wait is in the trace twice"


@pytest.mark.parametrize("name", ["ring-of-3", "2x1-two-operands", "tree", "chain"])
def test_no_core_gives_up_in_a_correct_protocol(name):
    found = explore(SMALL[name], bounded=True)
    assert found.finding is None and found.states == explore(SMALL[name]).states


def test_a_flag_that_is_raised_twice_is_lost():
    twice = tuple(
        tuple(one for step in steps for one in ([step, step] if is_raise("full")(step) else [step]))
        for steps in SHIFT.programs
    )
    assert explore(replace(SHIFT, programs=twice)).finding.verdict == "lost-flag"


def test_constants_of_the_kernel_equal_the_protocol_s():
    assert {step.location.slot for steps in SHIFT.programs for step in steps} == set(range(SLOTS))
    assert UP == 1
    waits = [one for steps in compute_shift(torus(2, 2), 2).programs for one in steps if one.action == "wait"]
    assert {len(one.flags) for one in waits} == {FLAGS}
