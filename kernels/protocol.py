"""The waiting protocol of kernels whose programs wait for each other: its constants, and its programs as data.

A slot has two flags. "full" says that its tile is there: the writer raises it after its payload. "credit" says that
it may be written: its reader raises it after its last read. Who waits takes down what it waited for in the same
instruction, so that no flag is up between launches.

- Compute-shift (several rounds in one launch, double-buffered): in round t a core waits until the tiles are in its
  slots t % SLOTS and room is in its neighbours' slots (t + 1) % SLOTS, copies the tiles there on their way to the
  multipliers, and hands its own slots back. It waits for all these flags at once, so the kernel keeps them as one
  counter per core and slot number, which `ARRIVALS` neighbours add to. Nobody waits in the first round of a launch,
  before which all is in place, and so nobody raises a flag in the last.
- A reduce tree: a core takes its children's messages in order, and leaves the sum in its parent's mailbox. In a chain
  of trees a root then writes its sum to all cores of its tree and raises their "told", and their next stretch begins.
- With elided exchange nobody waits: programs of a line count those that are done, and the last one goes on.

A wait has a bound: once nothing it waits for comes, a core gives up, says so, and all others go on as well (see
`kernels.waiting`).

The kernels take their constants from here. A program is data: a list of atomic instructions in the order of the kernel;
`wafer_triton.verify.interleavings` runs such programs in every order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from wafer_triton.mesh import Mesh
    from wafer_triton.schedule.rounds import Index, Round

DOWN, UP = 0, 1  # a flag's values
SLOTS = 2  # of a compute-shift operand
FIRST_SLOT = 0  # where its tile lies at the start
ARRIVALS = 4  # flags that a compute-shift round waits for: two operands, a tile and a credit each


class Location(NamedTuple):
    """A flag ("full", "credit", "told"), a counter ("arrived") or one block of payload ("tile") of a core's slot."""

    kind: str
    core: int
    operand: int
    slot: int
    block: int = 0

    def __str__(self) -> str:
        return f"{self.kind}[operand {self.operand}, slot {self.slot}] of core {self.core}"


class Instruction(NamedTuple):
    """What a core does atomically: "wait" for flags and take them down, "raise" one, "write" or "read" payload.

    `tile` tells payloads of one location apart: what is written, or what the reader means to read. A wait is for
    `location` and for all of `also`, at once. Of those that "arrive" the last, number `tile`, goes on alone.
    """

    action: str
    location: Location
    core: int
    round: int
    tile: int = 0
    also: tuple[Location, ...] = ()

    @property
    def flags(self) -> tuple[Location, ...]:
        """What a wait waits for."""
        return (self.location, *self.also)


@dataclass(frozen=True)
class Protocol:
    """Programs in the order in which a GPU starts them, what is there at the start, and the flags up at the end."""

    programs: tuple[tuple[Instruction, ...], ...]
    tiles: dict[Location, int]
    up: frozenset[Location]
    up_at_end: frozenset[Location]

    def without(self, wrong: Callable[[Instruction], bool]) -> Protocol:
        """The protocol with some instructions left out, to see that they are needed."""
        kept = (tuple(step for step in program if not wrong(step)) for program in self.programs)
        return replace(self, programs=tuple(kept))


def neighbours(round_: Round, mesh: Mesh) -> list[list[int]]:
    """For each exchange of a round in which every core takes part: the core that each core sends to."""
    tables = []
    for exchange in round_.exchanges:
        pairs = zip(exchange.senders.flat(mesh).tolist(), exchange.receivers.flat(mesh).tolist(), strict=True)
        to = dict(pairs)
        if len(to) == mesh.cores:
            tables.append([to[core] for core in range(mesh.cores)])
    return tables


def compute_shift(to: Sequence[Sequence[int]], rounds: int, *, slots: int = SLOTS, blocks: int = 1) -> Protocol:
    """The programs of a persistent compute-shift kernel; `to[operand][core]` is the neighbour that it sends to."""
    cores, operands = range(len(to[0])), range(len(to))
    programs = [_shifting(core, [neighbour[core] for neighbour in to], rounds, slots, blocks) for core in cores]
    tiles = [
        Location("tile", core, operand, FIRST_SLOT, block)
        for core in cores
        for operand in operands
        for block in range(blocks)
    ]
    return Protocol(tuple(programs), dict.fromkeys(tiles, 0), frozenset(), frozenset())


def rounds_at_once(to: Sequence[Index], order: Index, resident: int) -> int:
    """How many compute-shift rounds one launch may run when a GPU holds `resident` programs, begun in `order`.

    In its round t a program waits for its neighbours' round t - 1, so for nobody further away in the order than t
    times the `reach` of a neighbour. The first `resident` programs that have not ended are all begun, hence the first
    of them always gets through where reach * (rounds - 1) < resident. With all there at once any number is safe.
    """
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    if resident >= len(order):
        return sys.maxsize
    reach = max(int(np.abs(rank[neighbour] - rank).max()) for neighbour in to)
    return 1 + (resident - 1) // max(reach, 1)


# In units of a round of all programs that a GPU holds. A launch takes some 5 us, a round 1.7 us, and a program that
# reads and writes its sums (fp32) moves about as much as in a round of 16-bit tiles. Estimates, not measured.
LAUNCH_STEPS = 3.0
SUMS_STEPS = 1.0


def window(to: Sequence[Index], order: Index, resident: int, number: int) -> int:
    """How many of `number` compute-shift rounds a launch had best run, of those that are safe (see `rounds_at_once`).

    Many rounds a launch save launches, and reads and writes of sums. But near the safe limit nearly all programs that
    are there wait for one that is not there yet, and the mesh is worked off core by core.
    """
    safe = min(rounds_at_once(to, order, resident), number)
    if safe == number:
        return number
    return min(range(1, safe + 1), key=lambda rounds: launch_steps(to, order, resident, rounds, number))


def launch_steps(to: Sequence[Index], order: Index, resident: int, rounds: int, number: int) -> float:
    """What `number` compute-shift rounds take with `rounds` a launch, in steps in which every program may do one round.

    Of the programs, begun in `order`, a GPU holds `resident` at once; one that has ended makes room for the next.
    """
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    # by rank: whom a program waits for, those that send to it and those that it sends to
    awaited = np.stack([rank[table[order]] for neighbour in to for table in (neighbour, np.argsort(neighbour))])
    done, begun, steps = np.zeros(len(order), np.int64), min(resident, len(order)), 0
    while begun < len(order) or (done < rounds).any():
        live = np.flatnonzero(done[:begun] < rounds)
        done[live[(done[awaited[:, live]] >= done[live]).all(0)]] += 1
        begun = min(len(order), resident + int((done[:begun] >= rounds).sum()))
        steps += 1
    waves = len(order) / resident
    return -(-number // rounds) * (steps + LAUNCH_STEPS + SUMS_STEPS * waves)


def _shifting(core: int, to: Sequence[int], rounds: int, slots: int, blocks: int) -> tuple[Instruction, ...]:
    """One core's program; `to[operand]` is its neighbour."""
    program: list[Instruction] = []
    operands = range(len(to))
    for number in range(rounds):
        here, there = number % slots, (number + 1) % slots
        tiles = [Location("full", core, operand, here) for operand in operands]
        room = [Location("credit", to[operand], operand, there) for operand in operands]
        if number > 0:
            program.append(Instruction("wait", tiles[0], core, number, also=(*tiles[1:], *room)))
        for block in range(blocks):
            for operand in operands:
                program.append(Instruction("read", Location("tile", core, operand, here, block), core, number, number))
                program.append(
                    Instruction("write", Location("tile", to[operand], operand, there, block), core, number, number + 1)
                )
        if number < rounds - 1:
            passed = [Location("full", to[operand], operand, there) for operand in operands]
            freed = [Location("credit", core, operand, here) for operand in operands]
            program += [Instruction("raise", flag, core, number) for flag in (*passed, *freed)]
    return tuple(program)


def reduce_tree(parent: Sequence[int], order: Sequence[int], *, blocks: int = 1) -> Protocol:
    """The programs of a reduce tree's single launch: `parent[core]` (-1: a root), started in `order`."""
    return chain([(parent, order)], blocks=blocks)


def lines(cores: int, slices: int) -> Protocol:
    """The programs of one line in slices: a sum that all of them compute, then slices of another, of which one tells.

    Operand 0 holds the parts of the first sum, operand 1 the sum. Slot s of operand 2 holds what slice s makes of it.
    """
    programs = []
    for number in range(slices):
        step, total = partial(Instruction, core=number, round=0), Location("tile", 0, 1, 0)
        parts, mine = [Location("tile", core, 0, 0) for core in range(cores)], Location("tile", 0, 2, number)
        program = [step("write", part, tile=1) for part in parts] + [step("read", part, tile=1) for part in parts]
        program += [step("write", total, tile=1), step("read", total, tile=1), step("write", mine, tile=1)]
        program.append(step("arrive", Location("arrived", 0, 2, 0), tile=slices))
        program += [step("read", Location("tile", 0, 2, one), tile=1) for one in range(slices)]
        programs.append(tuple(program))
    return Protocol(tuple(programs), {}, frozenset(), frozenset())


def chain(stretches: Sequence[tuple[Sequence[int], Sequence[int]]], *, blocks: int = 1) -> Protocol:
    """The programs of reduce trees, each (parent, order), one behind the other in a launch.

    Operand 2 s holds the messages of stretch s, operand 2 s + 1 what its roots send to all of their tree.
    """
    programs = []
    for number, (parent, order) in enumerate(stretches):
        children: dict[int, list[int]] = {core: [] for core in order}
        trees = {core: [core] for core in order}
        height: dict[int, int] = {}
        for core in order:
            if parent[core] >= 0:
                children[parent[core]].append(core)
                trees[parent[core]] += trees[core]
        for core in order:
            height[core] = 1 + max((height.get(child, -1) for child in children[core]), default=-1)
            round_ = sum(len(one[1]) for one in stretches[:number]) + height[core]
            step = partial(Instruction, core=core, round=round_)
            program = []
            if number > 0:
                program.append(step("wait", Location("told", core, 2 * number - 1, 0)))
                program.append(step("read", Location("tile", core, 2 * number - 1, 0), tile=1))
            for block in range(blocks):
                for slot in range(len(children[core])):
                    if block == 0:
                        program.append(step("wait", Location("full", core, 2 * number, slot)))
                    program.append(step("read", Location("tile", core, 2 * number, slot, block), tile=1))
                if parent[core] >= 0:
                    slot = children[parent[core]].index(core)
                    program.append(step("write", Location("tile", parent[core], 2 * number, slot, block), tile=1))
            if parent[core] >= 0:
                program.append(step("raise", Location("full", parent[core], 2 * number, slot)))
            elif number + 1 < len(stretches):
                program += [step("write", Location("tile", one, 2 * number + 1, 0), tile=1) for one in trees[core]]
                program += [step("raise", Location("told", one, 2 * number + 1, 0)) for one in trees[core]]
            programs.append(tuple(program))
    return Protocol(tuple(programs), {}, frozenset(), frozenset())
