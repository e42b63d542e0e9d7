"""An independent count: every message of every round walks core by core, with nothing grouped and nothing kept."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import groupby, product

import numpy as np

from wafer_triton.count.account import account, link_loads, round_account
from wafer_triton.count.routes import colours, routes
from wafer_triton.count.runs import RoundRun, axes, distinct_runs, runs
from wafer_triton.count.traffic import Traffic
from wafer_triton.schedule.rounds import Exchange, Round
from wafer_triton.schedule.schedule import Schedule

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


def differences(schedule: Schedule) -> list[str]:
    """Return a line for each difference between the counts and the walk, with the function that counted."""
    walk = Walk(schedule)
    found = [*_rounds(schedule, walk), *_runs(schedule, walk), *of_loops(schedule, schedule, walk)]
    return [*found, *_routes(schedule, walk)]


def _against(where: str, by: Callable[..., object], counted: dict[str, int], walked: dict[str, int]) -> Iterator[str]:
    for name, number in walked.items():
        if counted[name] != number:
            yield f"{where}: {name}: counted {counted[name]:,} by {by.__name__}, walked {number:,}"


def of_round(walk: Walk, round_: Round) -> dict[str, int]:
    """Return the walk's counts of one round alone, named as in `Account`."""
    sizes, flows, messages = walk.loads([round_])
    most = max(sizes.values(), default=0)
    return {
        "messages": messages, "link_bytes": sizes.total(), "busiest_link_bytes": most, "serial_bytes": most,
        "flows": max(flows.values(), default=0), "hops": walk.path([round_]),
    }  # fmt: skip


def _rounds(schedule: Schedule, walk: Walk) -> Iterator[str]:
    for round_, last in {round_: number for number, round_ in enumerate(schedule.rounds)}.items():
        where = f"round {last} ({round_.label})"
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
        yield from _against(f"run of {len(run)} from round {first} ({run[0].label})", traffic.run, counted, walked)
        first += len(run)


def of_loops(schedule: Schedule, flat: Schedule, walk: Walk) -> Iterator[str]:
    """Yield where counts of a schedule differ from the walk over the rounds of `flat`."""
    (sizes, _, messages), counted = walk.loads(flat.rounds), Counter[Link]()
    for way, load in link_loads(schedule).items():
        counted.update({(way, int(row), int(col)): int(load[row, col]) for row, col in np.argwhere(load)})
    for link in sorted(sizes.keys() | counted.keys()):
        if counted[link] != sizes[link]:
            yield f"link {link}: counted {counted[link]:,} B by link_loads, walked {sizes[link]:,} B"
    each = [of_round(walk, round_) for round_ in flat.rounds]
    walked = {
        "rounds": len(flat.rounds), "hops": sum(map(walk.path, runs(flat))), "messages": messages,
        "link_bytes": sizes.total(), "busiest_link_bytes": max(sizes.values(), default=0),
        "serial_bytes": sum(one["serial_bytes"] for one in each),
        "flows": max((one["flows"] for one in each), default=0),
    }  # fmt: skip
    yield from _against("all rounds", account, vars(account(schedule)), walked)


def _routes(schedule: Schedule, walk: Walk) -> Iterator[str]:
    """Yield where the circuits of a router are not the walk's, or two of them have one colour.

    With a colour of its own at every router, a word of a circuit comes to its receivers and to no other core.
    """
    needed, touching = routes(schedule), walk.circuits(schedule.rounds)
    found: dict[Core, dict] = {core: {} for core in np.ndindex(*needed.per_core.shape)}  # circuits and their colours
    for axis, lines in (("x", needed.x), ("y", needed.y)):
        for line in range(needed.per_core.shape[0 if axis == "x" else 1]):
            core = (lambda at, line=line: (line, at)) if axis == "x" else (lambda at, line=line: (at, line))
            for (start, to), colour in zip(lines.circuits, lines.colour[:, line].tolist(), strict=True):
                for at in range(min(start, *to), max(start, *to) + 1) if colour >= 0 else ():
                    circuit = axis, core(start), frozenset(map(core, to))
                    found[core(at)][circuit] = colour if axis == "x" else needed.colours - 1 - colour
    for router, own in found.items():
        if own.keys() != touching[router]:
            yield f"router {router}: circuits: counted {sorted(own)}, walked {sorted(touching[router])}"
        if needed.per_core[router] != len(touching[router]):
            yield f"router {router}: routes: counted {needed.per_core[router]}, walked {len(touching[router])}"
        if len({*own.values()} & {*range(needed.colours)}) < len(own):
            yield f"router {router}: its circuits have the colours {sorted(own.values())} of {needed.colours}"
    if not needed.colours == colours(schedule) >= needed.maximum:
        yield f"colours: {needed.colours} in the assignment, {colours(schedule)} counted, {needed.maximum} at a router"
