"""The waiting protocol of kernels whose programs wait for each other: its constants, and its programs as data.

A slot has two flags. "full" says that its tile is there: the writer raises it after its payload. "credit" says that
it may be written: its reader raises it after its last read. Who waits for a flag takes it down in the same atomic step
(compare and swap of UP by DOWN), so that all flags are as they were when the launch ends.

- Compute-shift (a persistent kernel, double-buffered): in round t a core holds its tiles in slot t % SLOTS, sends them
  to its neighbours' slot (t + 1) % SLOTS, multiplies, and hands its slot back.
- A reduce tree: a core takes its children's messages in order, and leaves the sum in its parent's mailbox.

The kernels take their constants from here. A program is data: a list of steps, each atomic, in the order of the kernel;
`wafer_triton.interleavings` runs such programs in every order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from wafer_triton.mesh import Mesh
    from wafer_triton.schedule.rounds import Round

DOWN, UP = 0, 1  # a flag's values; memory of flags begins zeroed, but for the credits
SLOTS = 2  # of a compute-shift operand
FIRST_SLOT = 0  # where its tile lies at the start; credit is up for all others


class Place(NamedTuple):
    """A flag ("full", "credit") or one block of payload ("tile") of a core's slot."""

    kind: str
    core: int
    operand: int
    slot: int
    block: int = 0

    def __str__(self) -> str:
        return f"{self.kind}[operand {self.operand}, slot {self.slot}] of core {self.core}"


class Step(NamedTuple):
    """One atomic step of a core: "wait" for a flag and take it down, "raise" one, "write" or "read" payload.

    `tile` tells payloads of one place apart: what is written, or what the reader means to read.
    """

    action: str
    place: Place
    core: int
    round: int
    tile: int = 0


@dataclass(frozen=True)
class Protocol:
    """Programs in the order in which a GPU starts them, what is there at the start, and the flags up at the end."""

    programs: tuple[tuple[Step, ...], ...]
    tiles: dict[Place, int]
    up: frozenset[Place]
    up_at_end: frozenset[Place]

    def without(self, wrong: Callable[[Step], bool]) -> Protocol:
        """The protocol with some steps left out, to see that they are needed."""
        return replace(self, programs=tuple(tuple(one for one in steps if not wrong(one)) for steps in self.programs))


def neighbours(round_: Round, mesh: Mesh) -> list[list[int]]:
    """For each exchange of a round in which every core takes part: the core that each core sends to."""
    found = []
    for exchange in round_.exchanges:
        pairs = zip(exchange.senders.flat(mesh).tolist(), exchange.receivers.flat(mesh).tolist(), strict=True)
        to = dict(pairs)
        if len(to) == mesh.cores:
            found.append([to[core] for core in range(mesh.cores)])
    return found


def compute_shift(to: Sequence[Sequence[int]], rounds: int, *, slots: int = SLOTS, blocks: int = 1) -> Protocol:
    """The programs of a persistent compute-shift kernel; `to[operand][core]` is the neighbour that it sends to."""
    cores, operands = range(len(to[0])), range(len(to))
    programs = [_shifting(core, [one[core] for one in to], rounds, slots, blocks) for core in cores]
    every = [(core, one, slot) for core in cores for one in operands for slot in range(slots)]
    tiles = [
        Place("tile", core, one, FIRST_SLOT, block) for core in cores for one in operands for block in range(blocks)
    ]
    return Protocol(
        tuple(programs),
        dict.fromkeys(tiles, 0),
        frozenset(Place("credit", *at) for at in every if at[2] != FIRST_SLOT),
        frozenset(Place("credit", *at) for at in every if at[2] != rounds % slots),
    )


def _shifting(core: int, to: Sequence[int], rounds: int, slots: int, blocks: int) -> tuple[Step, ...]:
    """One core's program; `to[operand]` is its neighbour."""
    steps: list[Step] = []
    number = 0

    def add(action: str, kind: str, at: int, operand: int, slot: int, tile: int = 0) -> None:
        many = range(blocks if kind == "tile" else 1)
        steps.extend(Step(action, Place(kind, at, operand, slot, block), core, number, tile) for block in many)

    for number in range(rounds):
        here, there = number % slots, (number + 1) % slots
        for one in range(len(to) if number else 0):
            add("wait", "full", core, one, here)
        for one, at in enumerate(to):
            add("wait", "credit", at, one, there)
            add("read", "tile", core, one, here, number)
            add("write", "tile", at, one, there, number + 1)
            add("raise", "full", at, one, there)
        for one in range(len(to)):  # the product
            add("read", "tile", core, one, here, number)
        for one in range(len(to)):
            add("raise", "credit", core, one, here)
    number = rounds
    for one in range(len(to)):  # the last tile must have come before the launch may end
        add("wait", "full", core, one, rounds % slots)
    return tuple(steps)


def reduce_tree(parent: Sequence[int], order: Sequence[int], *, blocks: int = 1) -> Protocol:
    """The programs of a reduce tree's single launch: `parent[core]` (-1: the root), started in `order`."""
    children: dict[int, list[int]] = {core: [] for core in order}
    for core in order:
        if parent[core] >= 0:
            children[parent[core]].append(core)
    height: dict[int, int] = {}
    programs = []
    for core in order:
        number = height[core] = 1 + max((height.get(child, -1) for child in children[core]), default=-1)
        steps = []
        for block in range(blocks):
            for slot in range(len(children[core])):
                if block == 0:
                    steps.append(Step("wait", Place("full", core, 0, slot), core, number))
                steps.append(Step("read", Place("tile", core, 0, slot, block), core, number, 1))
            if parent[core] >= 0:
                slot = children[parent[core]].index(core)
                steps.append(Step("write", Place("tile", parent[core], 0, slot, block), core, number, 1))
        if parent[core] >= 0:
            steps.append(Step("raise", Place("full", parent[core], 0, slot), core, number))
        programs.append(tuple(steps))
    return Protocol(tuple(programs), {}, frozenset(), frozenset())
