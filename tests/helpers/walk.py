"""An independent count: every message of every round walks core by core, with nothing grouped and nothing kept."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, product
from operator import itemgetter

import numpy as np

from wafer_triton.count.account import account, link_loads, round_account
from wafer_triton.count.routes import colours, routes
from wafer_triton.count.runs import RoundRun, axes, distinct_runs, runs
from wafer_triton.count.traffic import Traffic
from wafer_triton.device.mesh import as_mesh
from wafer_triton.schedule.rounds import Exchange, Round
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Loop, Rounds

Core = tuple[int, int]
Link = tuple[str, int, int]  # way, row and column of the physical core that sends


class Walk:
    """Counts of the rounds and runs of a schedule, and its circuits."""

    def __init__(self, schedule: Schedule) -> None:
        self.mesh, self.buffers = schedule.mesh, schedule.buffers

    def home(self, core: Core) -> Core:
        """Return the physical core of a logical one."""
        return core[0] // self.mesh.fold[0], core[1] // self.mesh.fold[1]

    def hops(self, start: Core, end: Core) -> int:
        return sum(abs(a - b) for a, b in zip(self.home(start), self.home(end), strict=True))

    def sent(self, exchange: Exchange) -> list[tuple[Core, list[Core]]]:
        """Return each logical sender with its receivers."""
        sent, moves, x = defaultdict(list), exchange.moves, exchange.axis == "x"
        lines = range(self.mesh.shape[0 if x else 1]) if moves.lines is None else moves.lines.tolist()
        pairs = list(zip(moves.send.tolist(), moves.recv.tolist(), strict=True))
        for line, (start, end) in zip(lines, pairs, strict=True) if moves.paired else product(lines, pairs):
            sent[(line, start) if x else (start, line)].append((line, end) if x else (end, line))
        return list(sent.items())

    def links(self, sender: Core, receivers: list[Core]) -> set[Link]:
        """Return the links that a tile crosses, each once."""
        crossed = set()
        for row, col in map(self.home, receivers):
            at = self.home(sender)
            while at != (row, col):
                down, right = (row > at[0]) - (row < at[0]), (col > at[1]) - (col < at[1])
                crossed.add(({1: "south", -1: "north"}.get(down) or {1: "east", -1: "west"}[right], *at))
                at = at[0] + down, at[1] + right
        return crossed

    def loads(self, rounds: RoundRun) -> tuple[Counter[Link], Counter[Link], int]:
        """Return the bytes and the messages on every link, and the messages in all: a core's tiles along an axis."""
        sizes, flows, messages = Counter(), Counter(), set()
        for number, exchange in ((number, one) for number, round_ in enumerate(rounds) for one in round_.exchanges):
            for sender, receivers in self.sent(exchange):
                crossed = self.links(sender, receivers)
                messages.add((number, exchange.axis, exchange.src, sender))
                flows.update(crossed)
                for link in crossed:
                    sizes[link] += self.buffers[exchange.src.buffer].slot_bytes(exchange.src)
        return sizes, flows, len(messages)

    def path(self, run: RoundRun) -> int:
        """Return the hops of a run: where it turns to another axis, the longest path so far goes on."""
        hops = 0
        for together, rounds in groupby(run, axes):
            come = {axis: Counter() for axis in together}  # hops of the data that has come to a core along an axis
            for round_ in rounds:
                before = {axis: Counter(arrived) for axis, arrived in come.items()}
                for exchange in round_.exchanges:
                    here = come[exchange.axis]
                    for sender, receivers in self.sent(exchange):
                        for end in receivers:
                            here[end] = max(here[end], before[exchange.axis][sender] + self.hops(sender, end))
            hops += max((far for arrived in come.values() for far in arrived.values()), default=0)
        return hops

    def circuits(self, rounds: RoundRun) -> dict[Core, set[tuple[str, Core, frozenset[Core]]]]:
        """Return the circuits (axis, sender's physical core, receivers) that touch each router."""
        touching = defaultdict(set)
        for exchange in (one for round_ in rounds for one in round_.exchanges):
            for sender, receivers in self.sent(exchange):
                start = self.home(sender)
                ends = frozenset(map(self.home, receivers)) - {start}
                for router in (
                    {start, *ends, *((row, col) for _, row, col in self.links(sender, receivers))} if ends else ()
                ):
                    touching[router].add((exchange.axis, start, ends))
        return touching


MOST = 3  # differences of a schedule that are listed


def differences(schedule: Schedule) -> list[str]:
    """Return a line for each difference between the counts and the walk, with the function that counted.

    The first level that differs is listed, and which others agree: a count of all steps, say, that differs where every
    run agrees loses some runs.
    """
    walk, agree = Walk(schedule), list[str]()
    for level in (_exchanges, _rounds, _runs, _steps, _whole, _routes):
        if found := [*level(schedule, walk)]:
            before = f"{', '.join(agree)} agree; " if agree else ""
            return [f"{before}{line}" for line in found]
        agree.append(level.__name__.strip("_"))
    return []


def tally(found: Mapping[tuple[str, str], list[str]]) -> str:
    """Return how many schedules (kind, on which mesh) differ from the walk, and how the first of each kind does.

    "" if all agree.
    """
    wrong = {name: own for name, own in found.items() if own}
    if not wrong:
        return ""

    def share(of: Callable[[tuple[str, str]], str]) -> str:
        """Return how many of each sort differ, but for those that all agree."""
        bad = Counter(map(of, wrong))
        return ", ".join(f"{bad[sort]} of {many} {sort}" for sort, many in Counter(map(of, found)).items() if bad[sort])

    lines = [f"{len(wrong)} of {len(found)} schedules differ from the walk: {share(_sort)}; {share(itemgetter(0))}"]
    for kind in dict.fromkeys(kind for kind, _ in wrong):
        (first, own), *others = [(on, own) for (each, on), own in wrong.items() if each == kind]
        lines += [f"{kind} on {first}: {line}" for line in own[:MOST]]
        lines += [f"{kind} on {first}: and {len(own) - MOST} more"] * (len(own) > MOST)
        lines += [f"{kind} differs on {'; '.join(on for on, _ in others)} as well"] * bool(others)
    return "\n".join(lines)


def _sort(name: tuple[str, str]) -> str:
    """Return whether a schedule's mesh is square or oblong, on which logical and physical cores differ."""
    mesh = as_mesh(name[1].partition(",")[0])
    return "square" if mesh.rows == mesh.cols else "oblong"


def _against(where: str, by: Callable[..., object], counted: dict[str, int], walked: dict[str, int]) -> Iterator[str]:
    for name, number in walked.items():
        if counted[name] != number:
            yield f"{where}: {name}: counted {counted[name]:,} by {by.__name__}, walked {number:,}"


def _links(where: str, schedule: Schedule, sizes: Counter[Link]) -> Iterator[str]:
    """Yield the links whose bytes differ from the walk's, with their mesh lines."""
    counted = Counter[Link]()
    for way, load in link_loads(schedule).items():
        counted.update({(way, int(row), int(col)): int(load[row, col]) for row, col in np.argwhere(load)})
    lines, ats = defaultdict(list), defaultdict(list)  # of links that differ by the same numbers
    for way, row, col in sorted(sizes.keys() | counted.keys()):
        numbers = counted[way, row, col], sizes[way, row, col]
        if numbers[0] != numbers[1]:
            line, at = (row, col) if way in ("east", "west") else (col, row)
            lines[way, at, *numbers].append(line)
    for (way, at, *numbers), on in lines.items():
        ats[way, tuple(on), *numbers].append(at)
    for (way, on, count, walked), at in ats.items():
        along, across = ("row", "column") if way in ("east", "west") else ("column", "row")
        place = f"{_several(along, on)}, {way} of {_several(across, at)}"
        yield f"{where}: {place}: counted {count:,} B by link_loads, walked {walked:,} B"


def _several(noun: str, numbers: Sequence[int]) -> str:
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def of_round(walk: Walk, round_: Round) -> dict[str, int]:
    """Return the walk's counts of one round alone, named as in `Account`."""
    sizes, flows, messages = walk.loads([round_])
    most = max(sizes.values(), default=0)
    return {
        "messages": messages, "link_bytes": sizes.total(), "busiest_link_bytes": most, "serial_bytes": most,
        "flows": max(flows.values(), default=0), "hops": walk.path([round_]),
    }  # fmt: skip


def _numbered(schedule: Schedule) -> Iterator[tuple[str, Round]]:
    """Yield the different rounds with their numbers and labels."""
    seen = set()
    for number, round_ in enumerate(schedule.rounds):
        if round_ not in seen:
            seen.add(round_)
            yield f"round {number}{_named(round_)}", round_


def _named(round_: Round) -> str:
    return f" ({round_.label})" if round_.label else ""


def _exchanges(schedule: Schedule, walk: Walk) -> Iterator[str]:
    for where, round_ in _numbered(schedule):
        for number, one in enumerate(round_.exchanges):
            here = f"{where}, exchange {number} along {one.axis} of {one.src} to {one.dst}"
            alone = replace(schedule, rounds=Rounds([Round((one,))]))
            yield from _links(here, alone, walk.loads(alone.rounds)[0])
            counted = vars(round_account(schedule, alone.rounds[0]))
            yield from _against(here, round_account, counted, of_round(walk, alone.rounds[0]))


def _rounds(schedule: Schedule, walk: Walk) -> Iterator[str]:
    for where, round_ in _numbered(schedule):
        yield from _against(where, round_account, vars(round_account(schedule, round_)), of_round(walk, round_))


def _runs(schedule: Schedule, walk: Walk) -> Iterator[str]:
    traffic, first, rounds = Traffic(schedule), 0, {"rounds": len(schedule.rounds)}
    for by, each in ((runs, [(run, 1) for run in runs(schedule)]), (distinct_runs, distinct_runs(schedule))):
        yield from _against("all runs", by, {"rounds": sum(len(run) * times for run, times in each)}, rounds)
    for run in runs(schedule):
        found, sizes = traffic.run(run), walk.loads(run)[0]
        counted, walked = vars(found), {"hops": walk.path(run), "link_bytes": sizes.total()}
        if all(schedule.buffers[one.src.buffer].dtype == "fp32" for round_ in run for one in round_.exchanges):
            walked["busiest_words"] = max(sizes.values(), default=0) // 4
        yield from _against(f"run of {len(run)} from round {first}{_named(run[0])}", traffic.run, counted, walked)
        first += len(run)


def _steps(schedule: Schedule, walk: Walk) -> Iterator[str]:
    for number, step in enumerate(schedule.rounds.steps):
        alone = replace(schedule, rounds=Rounds([step]))
        each = f"{step.times} x {step.each}" if isinstance(step, Loop) else len(alone.rounds)
        where = f"step {number}, a {type(step).__name__} of {each} rounds"
        yield from _links(where, alone, walk.loads(alone.rounds)[0])
        yield from _against(where, account, vars(account(alone)), of_all(alone, walk))


def of_all(schedule: Schedule, walk: Walk) -> dict[str, int]:
    """Return the walk's counts of a schedule, named as in `Account`."""
    sizes, _, messages = walk.loads(schedule.rounds)
    each = [of_round(walk, round_) for round_ in schedule.rounds]
    return {
        "rounds": len(schedule.rounds), "hops": sum(map(walk.path, runs(schedule))), "messages": messages,
        "link_bytes": sizes.total(), "busiest_link_bytes": max(sizes.values(), default=0),
        "serial_bytes": sum(one["serial_bytes"] for one in each),
        "flows": max((one["flows"] for one in each), default=0),
    }  # fmt: skip


def _whole(schedule: Schedule, walk: Walk) -> Iterator[str]:
    yield from of_loops(schedule, schedule, walk)


def of_loops(schedule: Schedule, flat: Schedule, walk: Walk) -> Iterator[str]:
    """Yield where counts of a schedule differ from the walk over the rounds of `flat`."""
    yield from _links("all rounds", schedule, walk.loads(flat.rounds)[0])
    yield from _against("all rounds", account, vars(account(schedule)), of_all(flat, walk))


def _routes(schedule: Schedule, walk: Walk) -> Iterator[str]:
    needed, touching = routes(schedule), walk.circuits(schedule.rounds)
    found: dict[Core, set] = {core: set() for core in np.ndindex(*needed.per_core.shape)}
    for axis, lines in (("x", needed.x), ("y", needed.y)):
        for line in range(needed.per_core.shape[0 if axis == "x" else 1]):
            core = (lambda at, line=line: (line, at)) if axis == "x" else (lambda at, line=line: (at, line))
            for (start, to), colour in zip(lines.circuits, lines.colour[:, line], strict=True):
                for at in range(min(start, *to), max(start, *to) + 1) if colour >= 0 else ():
                    found[core(at)].add((axis, core(start), frozenset(map(core, to))))
    for router, own in found.items():
        for circuits, says in ((own - touching[router], "counted"), (touching[router] - own, "walked")):
            for axis, start, to in circuits:
                yield f"router {router}: only {says}: a circuit along {axis} from {start} to {sorted(to)}"
        if needed.per_core[router] != len(touching[router]):
            yield f"router {router}: routes: counted {needed.per_core[router]}, walked {len(touching[router])}"
    if not needed.colours == colours(schedule) >= needed.maximum:
        yield f"colours: {needed.colours} in the assignment, {colours(schedule)} counted, {needed.maximum} at a router"
