"""The waiting protocol: no fault in any interleaving; without a flag or a wait there is one."""

from dataclasses import replace

import pytest

from interleavings import explore
from protocol import Instruction, Location, reduce_tree
from wafer_triton.algorithms.trees import ktree

pytestmark = pytest.mark.slow


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
    "chain": reduce_tree(*tree(5, ())),
    "tree": reduce_tree(*tree(7, (3,)), blocks=2),
}


@pytest.mark.parametrize("protocol", SMALL.values(), ids=SMALL)
def test_no_interleaving_of_a_small_mesh_has_a_fault(protocol):
    assert explore(protocol)[1] is None


def waits(step: Instruction) -> bool:
    return step.action == "wait"


def raises(kind: str):
    return lambda step: step.action == "raise" and step.location.kind == kind


TREE = reduce_tree(*tree(5, (2,)), blocks=2)
FAULTS = {
    "no-flag": (TREE.without(raises("full")), "deadlock"),
    "flag-left": (replace(TREE, up_at_end=TREE.up_at_end | {Location("full", 1, 0, 0)}), "flags-left"),
    "does-not-wait": (TREE.without(waits), "unwritten-read"),
}


@pytest.mark.parametrize(("protocol", "fault"), FAULTS.values(), ids=FAULTS)
def test_each_part_of_the_protocol_is_needed(protocol, fault):
    assert explore(protocol)[1] == fault


def test_a_tree_in_topological_order_needs_room_for_one_program():
    parent, order = tree(7, (3,))
    for resident in (1, 2, 7):
        assert explore(reduce_tree(parent, order), resident=resident)[1] is None
    assert explore(reduce_tree(parent, order[::-1]), resident=1)[1] == "deadlock"
