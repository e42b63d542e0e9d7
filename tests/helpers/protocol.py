"""The protocol of reduce trees in one launch, and all orders in which a GPU may run it.

A program is a core's list of instructions in the order of the kernel: "store" a value, or "receive" a message (wait
until the place holds one). A GPU starts programs in order. A store of a program is
visible at any later time, stores to one place in their order: there is no fence. Between launches all are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

EMPTY = 0  # what a mailbox holds before a message and after it, as `kernels.waiting.EMPTY`


class Place(NamedTuple):
    """One block of memory of a core: its "part" of the sum, the "sum" that a root sends, or a slot of its "mail"."""

    kind: str
    core: int
    slot: int
    block: int


class Instruction(NamedTuple):
    """A step of a program; `value` is what it stores or must receive."""

    action: str
    place: Place
    value: int = EMPTY


Program = tuple[Instruction, ...]


def reduce_tree(
    parent: Sequence[int], order: Sequence[int], *, blocks: int = 1, sums: str = "sum"
) -> tuple[list[Program], dict[Place, int]]:
    """Return the programs of a tree, `parent[core]` (-1: a root), in the `order` of their starts, and what must be.

    A core's part of a block has value 1, and a sum the number of its parts. Roots send to places of kind `sums`.
    """
    weight, trees = [1] * len(parent), {core: [core] for core in order}
    children: dict[int, list[int]] = {core: [] for core in order}
    for core in sorted(order, key=lambda one: _depth(parent, one), reverse=True):
        if parent[core] >= 0:
            weight[parent[core]] += weight[core]
            children[parent[core]].append(core)
            trees[parent[core]] += trees[core]
    programs, after = [], dict[Place, int]()
    for core in order:
        program = [Instruction("store", Place("part", core, 0, block), 1) for block in range(blocks)]
        for block in range(blocks):
            mail = [Place("mail", core, slot, block) for slot in range(len(children[core]))]
            program += [
                Instruction("receive", place, weight[child])
                for place, child in zip(mail, children[core], strict=True)
            ]  # fmt: skip
            if parent[core] >= 0:
                slot = children[parent[core]].index(core)
                program.append(Instruction("store", Place("mail", parent[core], slot, block), weight[core]))
            program += [Instruction("store", place, EMPTY) for place in mail]
            after |= dict.fromkeys(mail, EMPTY)
        if parent[core] < 0:
            sent = [Place(sums, one, 0, block) for block in range(blocks) for one in trees[core]]
            program += [Instruction("store", place, weight[core]) for place in sent]
            after |= dict.fromkeys(sent, weight[core])
        programs.append(tuple(program))
    return programs, after


def _depth(parent: Sequence[int], core: int) -> int:
    return 0 if parent[core] < 0 else 1 + _depth(parent, parent[core])


class _State(NamedTuple):
    """Finished instructions of each program, its stores that are not visible yet, and memory where it is not empty."""

    done: tuple[int, ...]
    pending: tuple[tuple[tuple[Place, int], ...], ...]
    memory: frozenset[tuple[Place, int]]


def explore(
    programs: Sequence[Program], after: dict[Place, int], *, resident: int | None = None
) -> tuple[int, str | None]:
    """Return the number of states that a launch can reach, breadth first, and the first fault or None.

    At most `resident` unfinished programs, with the lowest numbers, run at a time; without it all do. A fault is
    "deadlock", a "wrong message", or that memory is not as it must be `after` the launch, "wrong in the end".
    """
    start = _State((0,) * len(programs), ((),) * len(programs), frozenset())
    seen, todo = {start}, deque([start])
    while todo:
        state = todo.popleft()
        memory = dict(state.memory)
        running = [number for number, done in enumerate(state.done) if done < len(programs[number])][:resident]
        following = [_visible(state, number, at) for number, stores in enumerate(state.pending)
                     for at, (place, _) in enumerate(stores) if place not in dict(stores[:at])]  # fmt: skip
        for number in running:
            action, place, value = programs[number][state.done[number]]
            held = memory.get(place, EMPTY)
            if action == "receive" and held != EMPTY and held != value:
                return len(seen), "wrong message"
            if action == "store" or held != EMPTY:
                done = tuple(count + (at == number) for at, count in enumerate(state.done))
                stored = ((place, value),) if action == "store" else ()
                pending = tuple(one + stored * (at == number) for at, one in enumerate(state.pending))
                following.append(_State(done, pending, state.memory))
        if not following:
            if running:
                return len(seen), "deadlock"
            if any(memory.get(place, EMPTY) != value for place, value in after.items()):
                return len(seen), "wrong in the end"
        for one in following:
            if one not in seen:
                seen.add(one)
                todo.append(one)
    return len(seen), None


def _visible(state: _State, number: int, at: int) -> _State:
    """Return the state after a pending store of a program, number `at`, is visible."""
    place, value = state.pending[number][at]
    memory = {**dict(state.memory), place: value}
    kept = frozenset((one, held) for one, held in memory.items() if held != EMPTY)
    rest = (*state.pending[number][:at], *state.pending[number][at + 1 :])
    return _State(state.done, (*state.pending[:number], rest, *state.pending[number + 1 :]), kept)
