"""The waiting protocol of kernels whose programs wait for each other: its programs as data.

A slot has two flags. "full" means that the tile is in the slot; the writer raises it after its payload. "credit" means
that the slot may be written; its reader raises it after its last read. A core that waits for a flag lowers it in the
same instruction, so that no flag is up between launches.

- Compute-shift (several rounds in one launch, double-buffered): in round t a core waits for the tiles in its slots
  t % SLOTS, and for the credits of its neighbours' slots (t + 1) % SLOTS. It copies the tiles there while it multiplies
  them, and then gives the credits of its own slots. It waits for all these flags at once. So the kernel keeps one
  counter per core and slot number, which neighbours raise `FLAGS` times. No core waits in the first round of a launch,
  since all tiles are in place; so no core raises a flag in the last.
- A reduce tree: a core waits for the messages of all its children, which one counter counts. It adds them in order, and
  leaves the sum in its parent's mailbox. A root may then write its sum into the memory of all cores of its tree.

A wait has a bound: a core whose flags never come gives up and raises an alarm, and all other cores go on (see
`kernels.waiting`).

The kernels fix the numbers of slots and of flags. A program is data: a list of atomic instructions in the order of
the kernel; `interleavings` runs such programs in every order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from wafer_triton.kernels import SLOTS

FIRST_SLOT = 0  # where its tile lies at the start


class Location(NamedTuple):
    """A flag ("full", "credit") or one block of payload ("tile") of a core's slot."""

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


def compute_shift(to: Sequence[Sequence[int]], rounds: int, *, slots: int = SLOTS, blocks: int = 1) -> Protocol:
    """Return the programs of a persistent compute-shift kernel; `to[operand][core]` is a core's receiver."""
    cores, operands = range(len(to[0])), range(len(to))
    programs = [_shifting(core, [neighbour[core] for neighbour in to], rounds, slots, blocks) for core in cores]
    tiles = [
        Location("tile", core, operand, FIRST_SLOT, block)
        for core in cores
        for operand in operands
        for block in range(blocks)
    ]
    return Protocol(tuple(programs), dict.fromkeys(tiles, 0), frozenset(), frozenset())


def _shifting(core: int, to: Sequence[int], rounds: int, slots: int, blocks: int) -> tuple[Instruction, ...]:
    """Return one core's program; `to[operand]` is its neighbour."""
    program: list[Instruction] = []
    operands = range(len(to))
    for number in range(rounds):
        here, there = number % slots, (number + 1) % slots
        tiles = [Location("full", core, operand, here) for operand in operands]
        room = [Location("credit", to[operand], operand, there) for operand in operands]
        if number > 0:
            program.append(Instruction("wait", None, flags=(*tiles, *room)))
        for block in range(blocks):
            for operand in operands:
                program.append(Instruction("read", Location("tile", core, operand, here, block), number))
                program.append(Instruction("write", Location("tile", to[operand], operand, there, block), number + 1))
        if number < rounds - 1:
            passed = [Location("full", to[operand], operand, there) for operand in operands]
            freed = [Location("credit", core, operand, here) for operand in operands]
            program += [Instruction("raise", flag) for flag in (*passed, *freed)]
    return tuple(program)


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
