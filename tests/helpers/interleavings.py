"""A check of waiting protocols: all interleavings of their programs, before a GPU runs them.

`explore` visits every state that any order of the programs' steps can reach. An instruction is atomic, and its write is
visible to every later instruction; on a GPU the kernel must ensure this (release, acquire, no stale cache line). Faults
have the names of `verify.faults`: deadlock, overwritten, unwritten-read. Three more are stale-read (another tile than
the expected one), lost-flag (raised twice) and flags-left (not in the state that the next launch needs).
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from protocol import Instruction, Location, Protocol


class _State(NamedTuple):
    """Finished instructions of each program, raised flags, and for each location its tile and the number of its reads.

    `tiles` is a set, as states are compared.
    """

    done: tuple[int, ...]
    up: frozenset[Location]
    tiles: frozenset[tuple[Location, int, int]]


def explore(protocol: Protocol, *, resident: int | None = None) -> tuple[int, str | None]:
    """Return the number of states that interleavings reach, breadth first, and the first fault or None.

    At most `resident` unfinished programs, with the lowest numbers, run at a time; without it all do.
    """
    programs = protocol.programs
    steps = [step for program in programs for step in program]
    reads = Counter((step.location, step.tile) for step in steps if step.action == "read")
    tiles = frozenset((location, tile, 0) for location, tile in protocol.tiles.items())
    start = _State((0,) * len(programs), protocol.up, tiles)
    seen, todo = {start}, deque([start])
    while todo:
        state = todo.popleft()
        running = [number for number, done in enumerate(state.done) if done < len(programs[number])][:resident]
        able = [
            number
            for number in running
            if (step := programs[number][state.done[number]]).action != "wait" or state.up.issuperset(step.flags)
        ]
        if not running and state.up != protocol.up_at_end:
            return len(seen), "flags-left"
        if running and not able:
            return len(seen), "deadlock"
        for number in able:
            after, fault = _step(state, number, programs[number][state.done[number]], reads)
            if fault:
                return len(seen), fault
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return len(seen), None


def _step(
    state: _State, number: int, step: Instruction, reads: Counter[tuple[Location, int]]
) -> tuple[_State, str | None]:
    """Return the state after program `number` takes a step, and the name of the fault if the step makes one."""
    done = (*state.done[:number], state.done[number] + 1, *state.done[number + 1 :])
    up, tiles, location, fault = state.up, state.tiles, step.location, None
    if step.action == "wait":
        return _State(done, up.difference(step.flags), tiles), None
    if step.action == "raise":
        return _State(done, up | {location}, tiles), "lost-flag" if location in up else None
    old = next((entry for entry in tiles if entry[0] == location), None)
    same = old is not None and old[1] == step.tile
    count = old[2] if old is not None else 0
    if step.action == "write":
        if old is not None and not same and count < reads[location, old[1]]:
            fault = "overwritten"
        new = (location, step.tile, count if same else 0)
    else:
        if not same:
            fault = "unwritten-read" if old is None else "stale-read"
        new = (location, step.tile, count + 1)
    return _State(done, up, (tiles - {old} if old is not None else tiles) | {new}), fault
