"""Mutants of healthy schedules: one random change each, judged by values and then held against what the checker finds.

A mutant has wrong values if its outputs differ from the healthy schedule's on random tiles, or if it cannot run at all.
Run as a program, it makes many mutants and prints a table by schedule and by kind of change.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from healthy import Case, cases
from wafer_triton.emulate.reference import Reference
from wafer_triton.schedule.rounds import Cores, Exchange, Local, Round, Schedule, Slot
from wafer_triton.verify.faults import check
from wafer_triton.verify.values import drawn, expected

RUNS = 6  # on values of their own
Change = Callable[[Schedule, Generator], Schedule | None]  # None where a schedule has nothing to change


# --- changes of rounds ---


def edited(schedule: Schedule, number: int, *rounds: Round) -> Schedule:
    """A draft with `rounds` in place of round `number`."""
    return replace(schedule, rounds=(*schedule.rounds[:number], *rounds, *schedule.rounds[number + 1 :]))


def drop_round(schedule: Schedule, rng: Generator) -> Schedule:
    return edited(schedule, pick(rng, schedule.rounds))


def duplicate_round(schedule: Schedule, rng: Generator) -> Schedule:
    number = pick(rng, schedule.rounds)
    return edited(schedule, number, *[schedule.rounds[number]] * 2)


def swap_rounds(schedule: Schedule, rng: Generator) -> Schedule | None:
    if len(schedule.rounds) < 2:
        return None
    rounds = list(schedule.rounds)
    first, second = rng.choice(len(rounds), 2, replace=False)
    rounds[first], rounds[second] = rounds[second], rounds[first]
    return replace(schedule, rounds=tuple(rounds))


def pick(rng: Generator, items: Iterable[object]) -> int:
    return int(rng.integers(len(list(items))))


# --- changes of exchanges ---


def of_an_exchange(change: Callable[[Exchange, Schedule, Generator], tuple[Exchange, ...] | None]) -> Change:
    """The change of one random exchange that moves anything."""
    return of_a_step(
        "exchanges", lambda exchange, *rest: change(exchange, *rest) if (exchange.recv >= 0).any() else None
    )


def of_a_step(name: str, change: Callable[..., tuple[Exchange | Local, ...] | None]) -> Change:
    """The change of one random step of a round to others; of those for which `change` returns None, none is taken."""

    def changed(schedule: Schedule, rng: Generator) -> Schedule | None:
        places = [(n, i) for n, round_ in enumerate(schedule.rounds) for i in range(len(getattr(round_, name)))]
        for number, which in rng.permutation(places).tolist() if places else ():
            steps = list(getattr(schedule.rounds[number], name))
            new = change(steps[which], schedule, rng)
            if new is not None:
                steps[which : which + 1] = new
                return edited(schedule, number, replace(schedule.rounds[number], **{name: tuple(steps)}))
        return None

    return changed


def line_by_line(exchange: Exchange, schedule: Schedule) -> Exchange:
    """The same with positions of each line apart, [lines, n]."""
    across = schedule.mesh.length("y" if exchange.axis == "x" else "x")
    lines = np.arange(across) if exchange.lines is None else exchange.lines
    send, recv = (np.broadcast_to(at, (len(lines), at.shape[-1])).copy() for at in (exchange.send, exchange.recv))
    return replace(exchange, send=send, recv=recv, lines=lines)


def drop_message(exchange: Exchange, schedule: Schedule, rng: Generator) -> tuple[Exchange, ...]:
    """One message of one line, or of every line."""
    if exchange.send.ndim == 1 and len(exchange.recv) > 1 and rng.integers(2):
        gone = pick(rng, exchange.recv)
        return (replace(exchange, send=np.delete(exchange.send, gone), recv=np.delete(exchange.recv, gone)),)
    apart = line_by_line(exchange, schedule)
    place = tuple(rng.choice(np.argwhere(apart.recv >= 0)))
    apart.send[place] = apart.recv[place] = -1
    return (apart,)


def drop_line(exchange: Exchange, schedule: Schedule, rng: Generator) -> tuple[Exchange, ...]:
    lines = line_by_line(exchange, schedule).lines
    gone = pick(rng, lines)
    send, recv = (at if at.ndim == 1 else np.delete(at, gone, 0) for at in (exchange.send, exchange.recv))
    return (replace(exchange, send=send, recv=recv, lines=np.delete(lines, gone)),) if len(lines) > 1 else ()


def drop_exchange(exchange: Exchange, schedule: Schedule, rng: Generator) -> tuple[Exchange, ...]:
    return ()


def change_end(name: str) -> Callable[[Exchange, Schedule, Generator], tuple[Exchange, ...]]:
    """Another sender, or another receiver, on one line or on all; now and then off the mesh."""

    def change(exchange: Exchange, schedule: Schedule, rng: Generator) -> tuple[Exchange, ...]:
        if rng.integers(2):
            exchange = line_by_line(exchange, schedule)
        at = getattr(exchange, name).copy()
        place = tuple(rng.choice(np.argwhere(at >= 0)))
        length = schedule.mesh.length(exchange.axis)
        at[place] = (at[place] + rng.integers(1, length)) % length if rng.integers(8) else length
        return (replace(exchange, **{name: at}),)

    return change


def flip_axis(exchange: Exchange, schedule: Schedule, rng: Generator) -> tuple[Exchange, ...]:
    return (replace(exchange, axis="yx"["xy".index(exchange.axis)]),)


Other = Callable[[Slot, Schedule, Generator], Slot | None]


def change_ends_slot(other: Other) -> Callable[[Exchange, Schedule, Generator], tuple[Exchange, ...] | None]:
    """Another slot that is sent, or that a tile arrives in."""

    def change(exchange: Exchange, schedule: Schedule, rng: Generator) -> tuple[Exchange, ...] | None:
        name = ("src", "dst")[rng.integers(2)]
        slot = other(getattr(exchange, name), schedule, rng)
        return None if slot is None else (replace(exchange, **{name: slot}),)

    return change


def other_slot(slot: Slot, schedule: Schedule, rng: Generator) -> Slot | None:
    """Another slot of the same buffer, on every core or on those of one position; None where it has one alone."""
    slots = schedule.buffers[slot.buffer].slots
    if slot.index is None or slots == 1:
        return None
    if slot.is_fixed:
        return replace(slot, index=int((slot.index + rng.integers(1, slots)) % slots))
    index = slot.index.copy()
    place = slice(None) if rng.integers(2) else pick(rng, index)
    index[place] = (index[place] + rng.integers(1, slots)) % slots
    return replace(slot, index=index)


def other_buffer(slot: Slot, schedule: Schedule, rng: Generator) -> Slot | None:
    """The same slot of another buffer as large; None where there is none."""
    here = schedule.buffers[slot.buffer]
    alike = [b.name for b in schedule.buffers.values() if (b.numel, b.slots) == (here.numel, here.slots)]
    names = [name for name in alike if name != slot.buffer]
    return replace(slot, buffer=names[pick(rng, names)]) if names else None


# --- changes of local operations ---


def of_a_local(change: Callable[[Local, Schedule, Generator], tuple[Local, ...] | None]) -> Change:
    return of_a_step("locals", change)


def drop_local(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...]:
    return ()


def duplicate_local(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...]:
    return (op, op)


def change_where(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...]:
    """One core less, one position less, all cores, or cores moved on by one."""
    kind = rng.integers(4 if op.where else 2)
    axis = op.where.axis if op.where else "xy"[rng.integers(2)]
    length, across = (schedule.mesh.length(way) for way in (axis, "y" if axis == "x" else "x"))
    here = op.where or Cores(axis, np.arange(length))
    if kind == 1:
        return (replace(op, where=replace(here, at=here.at[..., :-1])),) if here.at.shape[-1] > 1 else ()
    if kind == 2:
        return (replace(op, where=None),)
    if kind == 3:
        return (replace(op, where=replace(here, at=np.where(here.at < 0, -1, (here.at + 1) % length))),)
    lines = np.arange(across) if here.lines is None else here.lines
    at = np.broadcast_to(here.at, (len(lines), here.at.shape[-1])).copy()
    at[tuple(rng.choice(np.argwhere(at >= 0)))] = -1
    return (replace(op, where=Cores(axis, at, lines)),)


def flip_where(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...] | None:
    return None if op.where is None else (replace(op, where=replace(op.where, axis="yx"["xy".index(op.where.axis)])),)


OTHER_OP = {"add": "maximum", "maximum": "add", "gemm": "gemm_t", "gemm_t": "gemm"}


def change_op(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...] | None:
    return (replace(op, op=OTHER_OP[op.op]),) if op.op in OTHER_OP else None


def flip_add(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...] | None:
    if op.op not in ("gemm", "gemm_t"):
        return None
    return (replace(op, params={**op.params, "add": not op.params.get("add", False)}),)


def change_parameter(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...] | None:
    """Another scale, width or eps."""
    names = [name for name in ("scale", "width", "eps") if name in op.params]
    if not names:
        return None
    name = names[pick(rng, names)]
    return (replace(op, params={**op.params, name: op.params[name] * (2, 10)[rng.integers(2)]}),)


def change_operand(other: Other) -> Callable[[Local, Schedule, Generator], tuple[Local, ...] | None]:
    """Another input or output."""

    def change(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...] | None:
        slots = [*op.outs, *op.ins]
        place = pick(rng, slots)
        slot = other(slots[place], schedule, rng)
        if slot is None:
            return None
        slots[place] = slot
        return (replace(op, outs=tuple(slots[: len(op.outs)]), ins=tuple(slots[len(op.outs) :])),)

    return change


def swap_operands(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...] | None:
    """The inputs in another order, where they are as large as each other."""
    sizes = {schedule.buffers[slot.buffer].bytes for slot in op.ins}
    return (replace(op, ins=op.ins[::-1]),) if len(op.ins) > 1 and len(sizes) == 1 else None


CHANGES: dict[str, Change] = {
    "drop a round": drop_round,
    "duplicate a round": duplicate_round,
    "swap two rounds": swap_rounds,
    "drop a message": of_an_exchange(drop_message),
    "drop a line": of_an_exchange(drop_line),
    "drop an exchange": of_an_exchange(drop_exchange),
    "another sender": of_an_exchange(change_end("send")),
    "another receiver": of_an_exchange(change_end("recv")),
    "another axis": of_an_exchange(flip_axis),
    "another slot sent": of_an_exchange(change_ends_slot(other_slot)),
    "another buffer sent": of_an_exchange(change_ends_slot(other_buffer)),
    "drop an operation": of_a_local(drop_local),
    "duplicate an operation": of_a_local(duplicate_local),
    "other cores": of_a_local(change_where),
    "another axis of cores": of_a_local(flip_where),
    "another operation": of_a_local(change_op),
    "another add flag": of_a_local(flip_add),
    "another parameter": of_a_local(change_parameter),
    "another slot": of_a_local(change_operand(other_slot)),
    "another operand": of_a_local(change_operand(other_buffer)),
    "operands swapped": of_a_local(swap_operands),
}


# --- mutants and how they are judged ---


@dataclass(frozen=True)
class Healthy:
    """A healthy schedule and its outputs on random tiles."""

    case: Case

    @cached_property
    def tiles(self) -> dict[str, Tensor]:
        return drawn(self.case.schedule, self.case.intent, RUNS, seed=2026)

    @cached_property
    def free(self) -> dict[str, Tensor]:
        """Where nothing is asked of the outputs, by name."""
        wanted = expected(self.case.schedule, self.case.intent, self.tiles)
        free = {name: want.isnan() for name, want in wanted.items()}
        for name, cores in self.case.intent.on.items():
            asked = torch.zeros(self.case.schedule.mesh.cores, dtype=torch.bool)
            asked[cores.flat(self.case.schedule.mesh)] = True
            free[name][:, ~asked.view(self.case.schedule.mesh.shape)] = True
        return free

    def run(self, schedule: Schedule) -> dict[str, Tensor]:
        """The outputs of a schedule over the same buffers, with noughts where nothing is asked."""
        machine = Reference(schedule, self.tiles, exact=True, runs=RUNS)
        machine.run()
        return {name: machine.read(name).masked_fill(free, 0) for name, free in self.free.items()}

    @cached_property
    def outputs(self) -> dict[str, Tensor]:
        return self.run(self.case.schedule)

    def is_wrong(self, mutant: Schedule) -> bool:
        """Whether a mutant cannot run, or its outputs differ by more than fp64 rounds."""
        try:
            got = self.run(mutant)
        except (RuntimeError, IndexError, ValueError):
            return True
        return not all(
            torch.allclose(got[name][run], want[run], rtol=0, atol=1e-9 * float(want[run].abs().max()))
            for name, want in self.outputs.items()
            for run in range(RUNS)
        )


@dataclass(frozen=True)
class Mutant:
    """A changed schedule, whether its values are wrong, and the names of what the checker finds."""

    schedule: str
    change: str
    number: int
    wrong: bool
    found: frozenset[str]

    def __str__(self) -> str:
        return f"mutant {self.number}: {self.schedule}, {self.change}: {', '.join(sorted(self.found)) or 'nothing'}"


def mutants(seed: int, count: int, healthy: list[Healthy] | None = None) -> Iterable[Mutant]:
    """Random mutants, each of a random schedule by a random change; the same for the same seed."""
    healthy = [Healthy(case) for case in cases()] if healthy is None else healthy
    for number in range(count):
        yield mutant(seed, number, healthy)


def mutant(seed: int, number: int, healthy: list[Healthy]) -> Mutant:
    rng = np.random.default_rng((seed, number))
    changed = None
    while changed is None:
        base = healthy[pick(rng, healthy)]
        name = list(CHANGES)[pick(rng, CHANGES)]
        changed = CHANGES[name](base.case.schedule, rng)
    return Mutant(base.case.name, name, number, base.is_wrong(changed), check(changed, base.case.intent).names)


def table(made: list[Mutant], key: str) -> str:
    """Mutants, those with wrong values, those of them that are found, false alarms: by schedule or by change."""
    lines = [f"{key:40} mutants  wrong  found  false alarms"]
    counts = {
        "": Counter(getattr(each, key) for each in made),
        "wrong": Counter(getattr(each, key) for each in made if each.wrong),
        "found": Counter(getattr(each, key) for each in made if each.wrong and each.found),
        "false": Counter(getattr(each, key) for each in made if not each.wrong and each.found),
    }
    lines += [
        f"{name:40} {counts[''][name]:7} {counts['wrong'][name]:6} {counts['found'][name]:6} {counts['false'][name]:13}"
        for name in sorted(counts[""])
    ]
    totals = [counts[kind].total() for kind in counts]
    return "\n".join([*lines, f"{'all':40} {totals[0]:7} {totals[1]:6} {totals[2]:6} {totals[3]:13}"])


def main(count: int, seeds: list[int]) -> int:
    """Print tables of `count` mutants over the seeds; 1 if some with wrong values are not found."""
    healthy = [Healthy(case) for case in cases()]
    made = []
    for place, seed in enumerate(seeds):
        share = len(range(place, count, len(seeds)))
        for each in mutants(seed, share, healthy):
            made.append(each)
            if each.wrong and not each.found:
                print(f"missed: seed {seed}, {each}", flush=True)
    print(table(made, "schedule"), table(made, "change"), sep="\n\n")
    alarms = Counter((name, each.change) for each in made if not each.wrong for name in each.found)
    print(
        "\nfalse alarms:",
        *(f"{number:6} {name}: {change}" for (name, change), number in alarms.most_common()),
        sep="\n",
    )
    return int(any(each.wrong and not each.found for each in made))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), [int(seed) for seed in sys.argv[2:]]))
