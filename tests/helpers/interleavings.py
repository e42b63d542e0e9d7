"""A check of waiting protocols: all interleavings of their programs, before a GPU runs them.

`explore` visits every state that any order of the programs' steps can reach. `run` follows one order: a random one, or
an adversary, which is an order as unfair as possible. An instruction is atomic, and its write is visible to every later
instruction; on a GPU the kernel must ensure this (release, acquire, no stale cache line). Faults have the names of
`verify.faults`: deadlock, overwritten, unwritten-read. Three more are stale-read (another tile than the expected one),
lost-flag (raised twice) and flags-left (not in the state that the next launch needs).

With `bounded` waits a program gives up once no program can take a step. After that no program waits any more, so every
order ends, and a deadlock becomes gave-up, with its core and round. No later step counts as a fault.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from protocol import Instruction, Location, Protocol
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.rounds import Round
from wafer_triton.schedule.rules import Finding


@dataclass(frozen=True)
class Outcome:
    """The result of an exploration or a run.

    `states` is the number of visited states, `finding` the first fault or None, and `trace` the instructions that lead
    to it.
    """

    states: int
    finding: Finding | None
    trace: tuple[Instruction, ...]


class _State(NamedTuple):
    """The state of all programs.

    `done` has the number of finished instructions of each program, and `up` the raised flags. `tiles` has, for each
    location, its tile and the number of its reads. `given_up` is the first wait that was given up, or None.
    """

    done: tuple[int, ...]
    up: frozenset[Location]
    tiles: frozenset[tuple[Location, int, int]]
    given_up: Instruction | None = None


class _Machine:
    """The programs of a protocol; at most `resident` unfinished ones, with the lowest numbers, run at a time."""

    def __init__(self, protocol: Protocol, resident: int | None, bounded: bool) -> None:
        self.protocol, self.bounded = protocol, bounded
        self.resident = len(protocol.programs) if resident is None else resident
        self.reads: dict[tuple[Location, int], int] = {}
        for step in (step for steps in protocol.programs for step in steps if step.action == "read"):
            self.reads[step.location, step.tile] = self.reads.get((step.location, step.tile), 0) + 1
        tiles = frozenset((location, tile, 0) for location, tile in protocol.tiles.items())
        self.start = _State((0,) * len(protocol.programs), protocol.up, tiles)

    def able(self, state: _State) -> list[int]:
        """Return the programs that can take a step."""
        return [
            program
            for program in self.running(state)
            if state.given_up
            or (step := _next(self.protocol, state, program)).action != "wait"
            or state.up.issuperset(step.flags)
        ]

    def running(self, state: _State) -> list[int]:
        """Return the programs that have been started and have not ended."""
        programs = self.protocol.programs
        return [number for number, done in enumerate(state.done) if done < len(programs[number])][: self.resident]

    def step(self, state: _State, program: int) -> tuple[_State, Finding | None]:
        """Return the state after the program's next step, and the fault of the step."""
        step = _next(self.protocol, state, program)
        done = (*state.done[:program], state.done[program] + 1, *state.done[program + 1 :])
        up, tiles, location = state.up, state.tiles, step.location
        fault = None
        if step.action == "wait":
            up = up.difference(step.flags)
        elif step.action == "raise":
            if location in up:
                fault = self.fault("lost-flag", step, f"raises {location}, which is up already")
            up = up | {location}
        else:
            old = next((entry for entry in tiles if entry[0] == location), None)
            if step.action == "write":
                again = old is not None and old[1] == step.tile
                if old is not None and not again and old[2] < self.reads.get((location, old[1]), 0):
                    fault = self.fault("overwritten", step, f"writes {location} before its tile was read")
                new = (location, step.tile, old[2] if old is not None and again else 0)
            else:
                if old is None or old[1] != step.tile:
                    verdict, content = (
                        ("unwritten-read", "nothing") if old is None else ("stale-read", f"tile {old[1]}")
                    )
                    fault = self.fault(verdict, step, f"reads {content} in {location}, not tile {step.tile}")
                new = (location, step.tile, 0 if old is None else old[2] + 1)
            tiles = (tiles - {old} if old is not None else tiles) | {new}
        return _State(done, up, tiles, state.given_up), None if state.given_up else fault

    def late(self, state: _State) -> Iterator[tuple[_State, int]]:
        """Yield, for each running program, the state after it has given up, and its number; none unless `bounded`."""
        for program in self.running(state) if self.bounded and not state.given_up else ():
            yield state._replace(given_up=_next(self.protocol, state, program)), program

    def stop(self, state: _State) -> Finding | None:
        """Return the fault of a state in which no program can go on."""
        programs = self.protocol.programs
        running = self.running(state)
        if state.given_up:
            wait = state.given_up
            return self.fault("gave-up", wait, f"gave up waiting for {wait.location}")
        if not running:
            left = sorted(state.up ^ self.protocol.up_at_end)
            if not left:
                return None
            last = max((steps[-1] for steps in programs if steps), key=lambda step: step.round)
            return Finding("flags-left", f"{left[0]} is not as the next launch needs it", last.round, left[0].core)
        raisers = {step.location: step.core for steps in programs for step in steps if step.action == "raise"}
        waits = []
        for program in running:
            step = _next(self.protocol, state, program)
            missing = next(flag for flag in step.flags if flag not in state.up)
            by = f"core {raisers[missing]}" if missing in raisers else "no one"
            waits.append(f"core {step.core} waits in round {step.round} for {missing}, which {by} raises")
        step = _next(self.protocol, state, running[0])
        return Finding("deadlock", "; ".join(waits), step.round, step.core)

    def fault(self, verdict: str, step: Instruction, message: str) -> Finding:
        return Finding(verdict, f"core {step.core} in round {step.round} {message}", step.round, step.core)


def neighbours(round_: Round, mesh: Mesh) -> list[list[int]]:
    """Return for each exchange the receiver of each core; every core must take part in all exchanges of the round."""
    tables = []
    for exchange in round_.exchanges:
        pairs = zip(*(ends.tolist() for ends in exchange.moves.ends(mesh)), strict=True)
        to = dict(pairs)
        if len(to) == mesh.cores:
            tables.append([to[core] for core in range(mesh.cores)])
    return tables


def explore(protocol: Protocol, *, resident: int | None = None, bounded: bool = False) -> Outcome:
    """Visit every state that any interleaving reaches, breadth first, up to the first fault."""
    machine = _Machine(protocol, resident, bounded)
    before: dict[_State, tuple[_State, int] | None] = {machine.start: None}
    todo = deque([machine.start])
    while todo:
        state = todo.popleft()
        able = machine.able(state)
        late = [] if able else list(machine.late(state))
        for after, program in late:
            before[after] = (state, program)
            todo.append(after)
        finding = None if able or late else machine.stop(state)
        for program in able:
            after, finding = machine.step(state, program)
            if finding is not None:
                trace = (*_trace(protocol, before, state), _next(protocol, state, program))
                return Outcome(len(before), finding, trace)
            if after not in before:
                before[after] = (state, program)
                todo.append(after)
        if finding is not None:
            return Outcome(len(before), finding, _trace(protocol, before, state))
    return Outcome(len(before), None, ())


Choice = Callable[[list[int]], int]  # returns, given the programs that can take a step, the one that does


def run(protocol: Protocol, choose: Choice, *, resident: int | None = None) -> Outcome:
    """Run one interleaving from start to end, or to its first fault."""
    machine = _Machine(protocol, resident, bounded=False)
    state, trace = machine.start, list[Instruction]()
    while able := machine.able(state):
        program = choose(able)
        trace.append(_next(protocol, state, program))
        state, finding = machine.step(state, program)
        if finding is not None:
            return Outcome(len(trace), finding, tuple(trace))
    return Outcome(len(trace) + 1, machine.stop(state), tuple(trace))


def at_random(seed: int) -> Choice:
    """Return a random order: each step is by any program that can take one, all equally likely."""
    return random.Random(seed).choice


def adversaries(programs: int) -> Iterator[tuple[str, Choice]]:
    """Yield the most unfair orders by name, as choices among the programs that can take a step.

    "first" and "last" always choose the lowest and the highest number. "ahead i" runs program i whenever it can, and
    "late i" only when no other program can.
    """
    yield "first", min
    yield "last", max
    for program in range(programs):
        yield f"ahead {program}", partial(_ahead, program)
        yield f"late {program}", partial(_late, program)


def _ahead(program: int, able: list[int]) -> int:
    return program if program in able else able[0]


def _late(program: int, able: list[int]) -> int:
    return next((choice for choice in able if choice != program), program)


def _next(protocol: Protocol, state: _State, program: int) -> Instruction:
    return protocol.programs[program][state.done[program]]


def _trace(
    protocol: Protocol, before: dict[_State, tuple[_State, int] | None], state: _State
) -> tuple[Instruction, ...]:
    steps = []
    while (came := before[state]) is not None:
        state, program = came
        steps.append(_next(protocol, state, program))
    return tuple(reversed(steps))
