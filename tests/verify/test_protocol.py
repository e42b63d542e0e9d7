"""The protocol of trees: no order of programs and stores has a fault; without each of its parts one has."""

import pytest

from protocol import EMPTY, Instruction, Program, explore, reduce_tree
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


@pytest.mark.parametrize(("size", "groups", "blocks"), [(2, (), 2), (3, (), 1), (4, (), 1), (4, (2,), 1)])
def test_no_order_of_a_small_tree_has_a_fault(size, groups, blocks):
    states, fault = explore(*reduce_tree(*tree(size, groups), blocks=blocks))
    assert fault is None and states > 100


def without(programs: list[Program], wrong) -> list[Program]:
    return [tuple(step for step in program if not wrong(step)) for program in programs]


def test_each_part_of_the_protocol_is_needed():
    programs, after = reduce_tree(*tree(3, ()))
    assert explore(without(programs, lambda step: step.action == "receive"), after)[1] == "wrong in the end"
    emptied = Instruction("store", programs[-1][1].place, EMPTY)
    assert explore(without(programs, emptied.__eq__), after)[1] == "wrong in the end", "the next launch reads old mail"


def test_a_root_may_not_send_where_programs_of_the_launch_store():
    """Nothing orders a core's own store and the one of its root: no fence, and no message to the core."""
    assert explore(*reduce_tree(*tree(2, ()), sums="part"))[1] == "wrong in the end"


def test_a_tree_in_topological_order_needs_room_for_one_program():
    parent, order = tree(3, ())
    for resident in (1, 2, 3):
        assert explore(*reduce_tree(parent, order), resident=resident)[1] is None
    assert explore(*reduce_tree(parent, order[::-1]), resident=1)[1] == "deadlock"
