"""The waiting protocol of kernels whose programs wait for each other: its programs as data.

A slot has a flag, "full": the tile is in the slot. The writer raises it after its payload. A core that waits for a flag
lowers it in the same instruction, so that no flag is up between launches. In a reduce tree a core waits for the
messages of all its children, which one counter counts. It adds them in order, and leaves the sum in its parent's
mailbox. A root may then write its sum into the memory of all cores of its tree.

A wait has a bound: a core whose flags never come gives up and raises an alarm, and all other cores go on (see
`kernels.waiting`). No other kernel waits: `tests/kernels/test_compute_shift.py` shows that programs of an exchange
share nothing.

A program is data: a list of atomic instructions in the order of the kernel; `interleavings` runs such programs in every
order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple


class Location(NamedTuple):
    """A flag ("full") or one block of payload ("tile") of a core's slot."""

    kind: str
    core: int
    operand: int
    slot: int
    block: int = 0


class Instruction(NamedTuple):
    """One atomic step of a core: "wait" for flags and lower them, "raise" one, "write" or "read" payload.

    `tile` distinguishes payloads of one location: the payload written, or the payload that is expected. A wait is for
    all of its `flags` at once.
    """

    action: str
    location: Location | None
    tile: int = 0
    flags: tuple[Location, ...] = ()


@dataclass(frozen=True)
class Protocol:
    """Programs in the order in which a GPU starts them, tiles and flags at the start, and flags at the end."""

    programs: tuple[tuple[Instruction, ...], ...]
    tiles: dict[Location, int]
    up: frozenset[Location]
    up_at_end: frozenset[Location]

    def without(self, wrong: Callable[[Instruction], bool]) -> Protocol:
        """Return the protocol with some instructions left out, to see that they are needed."""
        kept = (tuple(step for step in program if not wrong(step)) for program in self.programs)
        return replace(self, programs=tuple(kept))


def reduce_tree(parent: Sequence[int], order: Sequence[int], *, blocks: int = 1) -> Protocol:
    """Return the programs of a reduce tree's single launch: `parent[core]` (-1: a root), started in `order`.

    Operand 0 holds the messages, operand 1 the sum that a root broadcasts to its tree.
    """
    children: dict[int, list[int]] = {core: [] for core in order}
    trees = {core: [core] for core in order}
    programs = []
    for core in order:
        if parent[core] >= 0:
            children[parent[core]].append(core)
            trees[parent[core]] += trees[core]
    for core in order:
        full = tuple(Location("full", core, 0, slot) for slot in range(len(children[core])))
        program = [Instruction("wait", None, flags=full)] if full else []
        for block in range(blocks):
            program += [Instruction("read", Location("tile", core, 0, slot, block), 1) for slot in range(len(full))]
            if parent[core] >= 0:
                slot = children[parent[core]].index(core)
                program.append(Instruction("write", Location("tile", parent[core], 0, slot, block), 1))
        if parent[core] >= 0:
            program.append(Instruction("raise", Location("full", parent[core], 0, slot)))
        else:
            program += [Instruction("write", Location("tile", one, 1, 0), 1) for one in trees[core]]
        programs.append(tuple(program))
    return Protocol(tuple(programs), {}, frozenset(), frozenset())
