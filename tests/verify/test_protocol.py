"""The waiting protocol: no fault in any interleaving; without a flag or a wait there is one."""

from dataclasses import replace

import pytest

from interleavings import explore
from protocol import Instruction, Location, compute_shift, reduce_tree
from wafer_triton.algorithms.trees import ktree
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
    assert explore(protocol)[1] is None


@pytest.mark.slow
def test_no_interleaving_of_a_2x2_torus_has_a_fault():
    states, fault = explore(compute_shift(torus(2, 2), 3, blocks=2))
    assert fault is None and states > 80_000


def waits(step: Instruction) -> bool:
    return step.action == "wait"


def raises(kind: str):
    return lambda step: step.action == "raise" and step.location.kind == kind


SHIFT, TREE = compute_shift(line(3), 3, blocks=2), reduce_tree(*tree(5, (2,)), blocks=2)
FAULTS = {
    "no-flag": (compute_shift(line(3), 2, blocks=2).without(raises("full")), "deadlock"),
    "no-credit": (SHIFT.without(raises("credit")), "deadlock"),
    "one-slot": (compute_shift(line(3), 3, slots=1), "overwritten"),
    "credit-up-at-the-start": (
        replace(SHIFT, up=SHIFT.up | {Location("credit", core, 0, 0) for core in range(3)}), "lost-flag"),
    "flag-left": (replace(SHIFT, up_at_end=SHIFT.up_at_end | {Location("full", 1, 0, 0)}), "flags-left"),
    "tree-does-not-wait": (TREE.without(waits), "unwritten-read"),
}  # fmt: skip


@pytest.mark.parametrize(("protocol", "fault"), FAULTS.values(), ids=FAULTS)
def test_each_part_of_the_protocol_is_needed(protocol, fault):
    assert explore(protocol)[1] == fault


def test_compute_shift_needs_all_cores_on_the_gpu_at_once():
    assert explore(compute_shift(line(3), 3), resident=3)[1] is None
    assert explore(compute_shift(line(3), 3), resident=2)[1] == "deadlock"


def test_a_tree_in_topological_order_needs_room_for_one_program():
    parent, order = tree(7, (3,))
    for resident in (1, 2, 7):
        assert explore(reduce_tree(parent, order), resident=resident)[1] is None
    assert explore(reduce_tree(parent, order[::-1]), resident=1)[1] == "deadlock"


def test_constants_of_the_kernel_equal_the_protocol_s():
    assert {step.location.slot for steps in SHIFT.programs for step in steps if step.location} == set(range(SLOTS))
    every = [one for steps in compute_shift(torus(2, 2), 2).programs for one in steps if one.action == "wait"]
    assert {len(one.flags) for one in every} == {FLAGS}
