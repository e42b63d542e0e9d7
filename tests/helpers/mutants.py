"""Mutants of healthy schedules, one random change each, whose values are compared with the checker's findings.

A mutant has wrong values if its outputs differ from the healthy schedule's on random tiles, or if it cannot run at all.
Run as a program, it makes many mutants and prints a table by schedule and by kind of change.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from changes import CHANGES, pick
from healthy import Case, cases, on_mesh
from wafer_triton.emulate.reference import Reference
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.verify.faults import check
from wafer_triton.verify.values import draw_tiles, expected_results

RUNS = 6  # on values of their own
# Values that are right though something is found: every kind is a rule that the mutant breaks all the same.
EXPLAINED = {
    "malformed": "sizes that do not fit the tiles, so that the executor reads other memory",
    "off-mesh": "a message leaves the mesh, and the executor takes it to a core where it does no harm",
    "deadlock": "cores wait for each other in a circle, which an executor does not",
    "two-writers": "two tiles arrive in a slot, and the executor keeps the right one by chance",
    "overwritten": "a tile arrives before the last one was read: if cores ran in another order it would be lost",
    "unwritten-read": "unwritten memory is read, and no result depends on it",
    "wrong-values": "a result is off by so little that only the checker's tighter bound separates it from rounding",
}


@dataclass(frozen=True)
class Healthy:
    """A healthy schedule and its outputs on random tiles."""

    case: Case

    @cached_property
    def tiles(self) -> dict[str, Tensor]:
        return draw_tiles(self.case.schedule, self.case.intent, RUNS, seed=2026)

    @cached_property
    def free(self) -> dict[str, Tensor]:
        """The elements of each output that the reference leaves free, by name."""
        wanted = expected_results(self.case.schedule, self.case.intent, self.tiles, RUNS)
        free = {name: want.isnan() for name, want in wanted.items()}
        for name, cores in self.case.intent.on.items():
            asked = torch.zeros(self.case.schedule.mesh.cores, dtype=torch.bool)
            asked[cores.flat(self.case.schedule.mesh)] = True
            free[name][:, ~asked.view(self.case.schedule.mesh.shape)] = True
        return free

    def run(self, schedule: Schedule) -> dict[str, Tensor]:
        """Return the outputs of a schedule over the same buffers, with zeros in free elements."""
        machine = Reference(schedule, self.tiles, exact=True, runs=RUNS)
        machine.run()
        return {name: machine.read(name).masked_fill(free, 0) for name, free in self.free.items()}

    @cached_property
    def outputs(self) -> dict[str, Tensor]:
        return self.run(self.case.schedule)

    def is_wrong(self, mutant: Schedule) -> bool:
        """Return whether a mutant cannot run, or its outputs differ by more than the rounding of fp64."""
        try:
            got = self.run(mutant)
        except (RuntimeError, IndexError, ValueError, ArithmeticError):
            return True
        return not all(
            torch.allclose(got[name][run], want[run], rtol=0, atol=1e-9 * float(want[run].abs().max()))
            for name, want in self.outputs.items()
            for run in range(RUNS)
        )


@dataclass(frozen=True)
class Mutant:
    """A changed schedule, whether its values are wrong, and the names of the checker's findings."""

    schedule: str
    change: str
    number: int
    wrong: bool
    verdicts: frozenset[str]

    def __str__(self) -> str:
        return f"mutant {self.number}: {self.schedule}, {self.change}: {', '.join(sorted(self.verdicts)) or 'nothing'}"


def mutants(seed: int, count: int, healthy: list[Healthy]) -> Iterable[Mutant]:
    """Yield random mutants, each of a random schedule by a random change; a seed fixes them."""
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


def table(tested: list[Mutant], key: str) -> str:
    """Return a table by schedule or by change: mutants, those with wrong values, found ones, and false alarms."""
    lines = [f"{key:40} mutants  wrong  found  false alarms"]
    counts = {
        "": Counter(getattr(each, key) for each in tested),
        "wrong": Counter(getattr(each, key) for each in tested if each.wrong),
        "found": Counter(getattr(each, key) for each in tested if each.wrong and each.verdicts),
        "false": Counter(getattr(each, key) for each in tested if not each.wrong and each.verdicts),
    }
    lines += [
        f"{name:40} {counts[''][name]:7} {counts['wrong'][name]:6} {counts['found'][name]:6} {counts['false'][name]:13}"
        for name in sorted(counts[""])
    ]
    totals = [counts[kind].total() for kind in counts]
    return "\n".join([*lines, f"{'all':40} {totals[0]:7} {totals[1]:6} {totals[2]:6} {totals[3]:13}"])


def alarms_of(mesh: str) -> list[str]:
    """Return the checker's false alarms at healthy schedules of every kind on a mesh."""
    verdicts = {case.name: check(case.schedule, case.intent) for case in on_mesh(mesh)}
    return [f"alarm: {name} on {mesh}: {verdict}" for name, verdict in verdicts.items() if not verdict.ok]


def main(count: int, seeds: list[int], meshes: Iterable[str] = ()) -> int:
    """Print tables of `count` mutants over the seeds; 1 if one with wrong values is missed, or an alarm unexplained.

    A finding in a healthy schedule, on any of the meshes, is a failure too.
    """
    healthy = [Healthy(case) for case in cases()]
    alarms = [alarm for mesh in meshes for alarm in alarms_of(mesh)]
    print("\n".join(alarms), end="\n" * bool(alarms))
    tested, failures = [], len(alarms)
    for place, seed in enumerate(seeds):
        for each in mutants(seed, len(range(place, count, len(seeds))), healthy):
            tested.append(each)
            if not each.verdicts if each.wrong else not each.verdicts <= EXPLAINED.keys():
                failures += 1
                print(f"{'missed' if each.wrong else 'not explained'}: seed {seed}, {each}", flush=True)
    false = Counter((name, each.change) for each in tested if not each.wrong for name in each.verdicts)
    lines = (f"{number:6} {name}: {change}" for (name, change), number in false.most_common())
    print(table(tested, "schedule"), table(tested, "change"), "\n".join(["false alarms", *lines]), sep="\n\n")
    return int(failures > 0)


if __name__ == "__main__":
    every = [f"{rows}x{cols}" for rows in range(1, 8) for cols in range(1, 6)]
    sys.exit(main(int(sys.argv[1]), [int(seed) for seed in sys.argv[2:]], every))
