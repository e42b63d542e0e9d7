"""An independent count: every message of every round walks core by core, with nothing grouped and nothing kept."""

from collections import Counter, defaultdict
from itertools import groupby

from wafer_triton.count.runs import RoundRun, axes
from wafer_triton.schedule.rounds import Exchange
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
        sent, x = defaultdict(list), exchange.axis == "x"
        lines = range(self.mesh.shape[0 if x else 1]) if exchange.lines is None else exchange.lines.tolist()
        for number, line in enumerate(lines):
            ends = (end if end.ndim == 1 else end[number] for end in (exchange.send, exchange.recv))
            for start, end in zip(*(each.tolist() for each in ends), strict=True):
                if start >= 0:
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
