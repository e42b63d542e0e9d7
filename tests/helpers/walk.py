"""An independent count: every message of every round walks core by core, with nothing grouped."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, groupby, product
from math import ceil, prod
from typing import NamedTuple

import numpy as np
import pytest

from wafer_triton import local
from wafer_triton.count.account import account, link_loads, per_round
from wafer_triton.count.routes import colours, excess, routes
from wafer_triton.count.runs import RoundRun, axes, distinct_runs, runs
from wafer_triton.count.traffic import WORD_BYTES, Traffic
from wafer_triton.device.dtype import BYTES
from wafer_triton.schedule import sram
from wafer_triton.schedule.rounds import Exchange, Round, Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Loop, Rounds

Core = tuple[int, int]
Link = tuple[str, int, int]  # way, row and column of the physical core that sends
Circuit = tuple[str, Core, frozenset[Core]]  # axis, the sender's physical core, receivers
ALONG = {"east": "x", "west": "x", "south": "y", "north": "y"}


class Loads(NamedTuple):
    """Bytes, words and messages on every link, words on every link of a logical line, and the messages in all."""

    bytes: Counter[Link]
    words: Counter[Link]
    flows: Counter[Link]
    of_lines: Counter[tuple[int, Link]]
    messages: int  # a core's tiles along an axis


class Walk:
    """Counts of the rounds and runs of a schedule, its circuits, and its buffers in SRAM."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.mesh = schedule, schedule.mesh
        self.buffers, self.rounds = schedule.buffers, schedule.rounds
        for step in (self.messages, self.sent, self.between, self.round_loads, self.circuits, self.kind, self.runs):
            setattr(self, step.__name__, cache(step))  # so that what rounds share is walked once

    def home(self, core: Core) -> Core:
        """Return the physical core of a logical one."""
        return core[0] // self.mesh.fold[0], core[1] // self.mesh.fold[1]

    def hops(self, start: Core, end: Core) -> int:
        return sum(abs(a - b) for a, b in zip(self.home(start), self.home(end), strict=True))

    def messages(self, round_: Round) -> dict[tuple[str, Slot, Core], set[Core]]:
        """Return the receivers of each tile that a core sends along an axis: of all exchanges that send it."""
        found = defaultdict(set)
        for exchange in round_.exchanges:
            for sender, receivers in self.sent(exchange):
                found[exchange.axis, exchange.src, sender].update(receivers)
        return found

    def sent(self, exchange: Exchange) -> list[tuple[Core, list[Core]]]:
        """Return each logical sender with its receivers."""
        sent, moves, x = defaultdict(list), exchange.moves, exchange.axis == "x"
        lines = range(self.mesh.shape[0 if x else 1]) if moves.lines is None else moves.lines.tolist()
        pairs = list(zip(moves.send.tolist(), moves.recv.tolist(), strict=True))
        for line, (start, end) in zip(lines, pairs, strict=True) if moves.paired else product(lines, pairs):
            sent[(line, start) if x else (start, line)].append((line, end) if x else (end, line))
        return list(sent.items())

    def links(self, sender: Core, receivers: Iterable[Core]) -> set[Link]:
        """Return the links that a tile crosses, each once."""
        start = self.home(sender)
        return {link for end in receivers for link in self.between(start, self.home(end))}

    def between(self, at: Core, end: Core) -> list[Link]:
        """Return the links from one physical core to another, first along y."""
        (row, col), crossed = end, []
        while at != end:
            down, right = (row > at[0]) - (row < at[0]), (col > at[1]) - (col < at[1])
            crossed.append(({1: "south", -1: "north"}.get(down) or {1: "east", -1: "west"}[right], *at))
            at = at[0] + down, at[1] + right
        return crossed

    def loads(self, rounds: Sequence[Round]) -> Loads:
        *counters, messages = Counter(), Counter(), Counter(), Counter(), 0
        for one in map(self.round_loads, rounds):
            for total, counted in zip(counters, one[:4], strict=True):
                total.update(counted)
            messages += one.messages
        return Loads(*counters, messages)

    def round_loads(self, round_: Round) -> Loads:
        sizes, words, flows, of_lines, messages = Counter(), Counter(), Counter(), Counter(), 0
        for (axis, slot, sender), receivers in self.messages(round_).items():
            messages += 1
            for link in self.links(sender, receivers):
                flows[link] += 1
                sizes[link] += self.size(slot)
                words[link] += self.words(slot)
                of_lines[sender[axis == "y"], link] += self.words(slot)
        return Loads(sizes, words, flows, of_lines, messages)

    def busiest_words(self, run: Sequence[Round]) -> int:
        """Return the words on the busiest link of a run; of whole tiles of each round, on the line that has most."""
        whole, of_line = self.kind(run[0]) == "tiles", Counter()
        for rounds in [[one] for one in run] if whole else [list(run)]:
            most = Counter()
            for link, words in self.loads(rounds).words.items():
                line = ALONG[link[0]], link[1 if ALONG[link[0]] == "x" else 2]
                most[line] = max(most[line], words)
            of_line.update(most)
        return max(of_line.values(), default=0)

    def mean_words(self, run: Sequence[Round]) -> float:
        """Return the mean over the links in use of the fullest logical line, times the logical lines of a physical one.

        It is no more than the words on the busiest link of the axis, and no less than those of a tile that crosses one.
        """
        of_line, most, largest, loads = defaultdict(list), Counter(), Counter(), self.loads(run)
        for (line, link), words in loads.of_lines.items():
            of_line[link[0], line].append(words)
        for link, words in loads.words.items():
            most[ALONG[link[0]]] = max(most[ALONG[link[0]]], words)
        for round_ in run:
            for (axis, slot, sender), receivers in self.messages(round_).items():
                if self.links(sender, receivers):
                    largest[axis] = max(largest[axis], self.words(slot))
        fold = {"x": self.mesh.fold[0], "y": self.mesh.fold[1]}
        means = ((ALONG[way], sum(words) / len(words)) for (way, _), words in of_line.items())
        return max((min(max(mean * fold[axis], largest[axis]), most[axis]) for axis, mean in means), default=0.0)

    def size(self, slot: Slot) -> int:
        """Return the bytes of a tile."""
        buffer = self.buffers[slot.buffer]
        return prod(buffer.tile) * BYTES[buffer.dtype] * (buffer.slots if slot.index is None else 1)

    def words(self, slot: Slot) -> int:
        return ceil(self.size(slot) / WORD_BYTES)

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

    def circuits(self) -> dict[Core, dict[Circuit, int]]:
        """Return the circuits that touch each router, each with its first round."""
        touching = defaultdict(dict)
        for number, round_ in enumerate(self.rounds):
            for (axis, _, sender), receivers in self.messages(round_).items():
                start = self.home(sender)
                ends = frozenset(map(self.home, receivers)) - {start}
                crossed = ((row, col) for _, row, col in self.links(sender, receivers))
                for router in {start, *ends, *crossed} if ends else ():
                    touching[router].setdefault((axis, start, ends), number)
        return touching

    def kind(self, round_: Round) -> str:
        """Return the kind of a round, by the definition of `wafer_triton.count.runs`."""
        ends = defaultdict(lambda: (set(), set()))  # senders and receivers, by slots
        moves = defaultdict(lambda: defaultdict(set))  # of each line, by slots
        for one in round_.exchanges:
            slots = one.axis, one.src, one.dst
            for sender, receivers in self.sent(one):
                ends[slots][0].add(sender)
                ends[slots][1].update(receivers)
                line, along = sender if one.axis == "x" else sender[::-1]
                moves[slots][line].update((along, core[one.axis == "x"]) for core in receivers)
        if not round_.exchanges:
            return "local"
        if not all(local.find(op.op).elementwise for op in round_.locals):
            return "product"
        if any(senders & receivers for senders, receivers in ends.values()):
            return "tiles"
        if self.combines(round_):
            return "stream"
        differ = any(len(set(map(frozenset, of_lines.values()))) > 1 for of_lines in moves.values())
        return "tiles" if differ else "circuit"

    def apart(self, rounds: Sequence[Round]) -> bool:
        """Return whether no buffer has tiles of both axes, or data that was computed beside them."""
        of = defaultdict(set)  # the axes of each buffer
        for round_ in rounds:
            for one in round_.exchanges:
                for slot in (one.src, one.dst):
                    of[slot.buffer].add(one.axis)
            for op in round_.locals:
                together = set().union(*(of[slot.buffer] for slot in op.operands))
                for slot in op.operands:
                    of[slot.buffer] |= together
        return all(len(along) < 2 for along in of.values())

    def combines(self, round_: Round) -> bool:
        arrives = {one.dst.buffer for one in round_.exchanges}
        return any(slot.buffer in arrives for op in round_.locals for slot in op.ins)

    def cells(self, slot: Slot, core: Core) -> set[tuple[str, int, int, int]]:
        """Return the buffer, the slots and the core where a slot of a core is."""
        index, at = slot.index, core[0 if slot.axis == "y" else 1]
        numbers = (
            range(self.buffers[slot.buffer].slots) if index is None else [index if slot.is_fixed else int(index[at])]
        )
        return {(slot.buffer, number, *core) for number in numbers}

    def runs(self) -> list[RoundRun]:
        """Return the runs, by the definition of `wafer_triton.count.runs`."""
        found, sent, came = list[list[Round]](), set(), set()
        for round_ in self.rounds:
            kind, last = self.kind(round_), found[-1][-1] if found else None
            goes_on = last is not None and kind == self.kind(last) and kind not in ("local", "product")
            if goes_on and axes(last) == axes(round_) == {"x", "y"}:
                goes_on = self.apart([*found[-1], round_])
            if goes_on and kind == "tiles":
                goes_on = axes(last) == axes(round_) and self.combines(last) == self.combines(round_)
            elif goes_on:
                sends = set().union(*(self.cells(slot, core) for _, slot, core in self.messages(round_)))
                goes_on = kind == "circuit" or axes(last) == axes(round_)
                goes_on &= sends <= sent | came and not sends.isdisjoint(came)
            if goes_on:
                found[-1].append(round_)
            else:
                found.append([round_])
                sent, came = set(), set()
            if kind not in ("stream", "circuit"):
                continue
            for exchange in round_.exchanges:
                for sender, receivers in self.sent(exchange):
                    sent.update(self.cells(exchange.src, sender))
                    came.update(*(self.cells(exchange.dst, core) for core in receivers))
            for op in round_.locals:
                cores = np.arange(self.mesh.cores) if op.where is None else op.where.flat(self.mesh)
                for core in (divmod(int(number), self.mesh.shape[1]) for number in cores):
                    reads = set().union(
                        *(self.cells(slot, core) for slot in local.find(op.op).sources(op.params, op.outs, op.ins))
                    )
                    outs = set().union(*(self.cells(slot, core) for slot in op.outs))
                    for cells in (came, sent):
                        (cells.difference_update if reads.isdisjoint(cells) else cells.update)(outs)
        return [RoundRun(tuple(rounds)) for rounds in found]

    def held(self) -> list[dict[str, int]]:
        """Return the bytes of each buffer that lives on a physical core in each round, and after the last one."""
        after, used = len(self.rounds), defaultdict(list)
        for number, round_ in enumerate(self.rounds):
            for step in (*round_.exchanges, *round_.locals):
                slots = (step.src, step.dst) if isinstance(step, Exchange) else (*step.ins, *step.outs)
                for slot in slots:
                    used[slot.buffer].append(number)
        rounds = [dict[str, int]() for _ in range(after + 1)]
        for name, buffer in self.buffers.items():
            lives = {*used[name], *[0] * (buffer.role in ("input", "weight", "cache", "state"))}
            if lives and buffer.role in ("weight", "cache", "state", "output"):
                lives.add(after)
            for number in range(min(lives), max(lives) + 1) if lives else ():
                rounds[number][name] = prod((*buffer.tile, buffer.slots, *self.mesh.fold)) * BYTES[buffer.dtype]
        return rounds

    def round_name(self, number: int) -> str:
        if number == len(self.rounds):
            return "after the last round"
        label = self.rounds[number].label
        return f"round {number}" + (f" ({label})" if label else "")


def check(schedules: dict[str, Schedule], flat: dict[str, Schedule] | None = None) -> None:
    """Fail with every difference of named schedules, those of the smallest schedule first."""
    wrong = {name: lines for name, one in schedules.items() if (lines := differences(one, flat and flat[name]))}
    lines = []
    for name in sorted(wrong, key=lambda name: (schedules[name].mesh.cores, len(schedules[name].rounds))):
        lines += [f"{name}: {schedules[name].name}, mesh {schedules[name].mesh}: {line}" for line in wrong[name]]
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)  # which prints all of it


def differences(schedule: Schedule, flat: Schedule | None = None) -> list[str]:
    """Return a line for each difference between the counts and the walk, with the function that counted.

    With `flat` the counts of the steps of a schedule are compared with the walk over the rounds of `flat`.
    """
    walk = Walk(flat or schedule)
    parts = (_loads, of_routes, _sram) if flat else (_rounds, _runs, _loads, of_routes, _sram)
    return [line for part in parts for line in part(schedule, walk)]


def _against(
    where: str, by: Callable[..., object], counted: dict[str, float], walked: dict[str, float], most: Link | None = None
) -> Iterator[str]:
    for name, number in walked.items():
        if abs(counted[name] - number) > 1e-9 * number:
            at = f", most {_named(most)}" if most and "hops" not in name else ""
            yield f"{where}: {name}: counted {counted[name]:,} by {by.__name__}, walked {number:,}{at}"


def _named(link: Link) -> str:
    way, *core = link
    return f"along {ALONG[way]}, on the link {way} of core {tuple(core)}"


def of_round(loads: Loads, hops: int) -> dict[str, int]:
    """Return the walk's counts of one round alone, named as in `Account`."""
    most = max(loads.bytes.values(), default=0)
    return {
        "messages": loads.messages, "link_bytes": loads.bytes.total(), "busiest_link_bytes": most,
        "flows": max(loads.flows.values(), default=0), "serial_words": max(loads.words.values(), default=0),
        "hops": hops,
    }  # fmt: skip


def _rounds(schedule: Schedule, walk: Walk) -> Iterator[str]:
    each = per_round(schedule)
    for round_, last in {round_: number for number, round_ in enumerate(schedule.rounds)}.items():
        loads, counted = walk.loads([round_]), vars(each[last])
        most = max(loads.bytes, key=lambda link: loads.bytes[link], default=None)
        yield from _against(walk.round_name(last), per_round, counted, of_round(loads, walk.path([round_])), most)


def _runs(schedule: Schedule, walk: Walk) -> Iterator[str]:
    traffic, first, rounds = Traffic(schedule), 0, {"rounds": len(schedule.rounds)}
    for by, each in ((runs, [(run, 1) for run in runs(schedule)]), (distinct_runs, distinct_runs(schedule))):
        yield from _against("all runs", by, {"rounds": sum(len(run) * times for run, times in each)}, rounds)
    lengths, defined = list(map(len, runs(schedule))), list(map(len, walk.runs()))
    if lengths != defined:
        yield f"rounds of runs: cut into {lengths} by runs, into {defined} by their definition"
    for run in walk.runs():
        loads, where = walk.loads(run), f"run of {len(run)} from {walk.round_name(first)}"
        walked = {
            "hops": walk.path(run), "link_bytes": loads.bytes.total(), "mean_words": walk.mean_words(run),
            "busiest_words": walk.busiest_words(run.rounds),
        }  # fmt: skip
        most = max(loads.words, key=lambda link: loads.words[link], default=None)
        yield from _against(where, traffic.run, vars(traffic.run(run)), walked, most)
        first += len(run)


def _loads(schedule: Schedule, walk: Walk) -> Iterator[str]:
    """Yield where the loads of links or the counts of all rounds are not the walk's."""
    loads, counted = walk.loads(walk.rounds), _counted_loads(schedule)
    for link in sorted(loads.bytes.keys() | counted.keys()):
        if counted[link] != loads.bytes[link]:
            where = f"{_rounds_of(link, schedule, walk)}: {_named(link)}"
            yield f"{where}: counted {counted[link]:,} B by link_loads, walked {loads.bytes[link]:,} B"
    each = [of_round(walk.loads([round_]), 0) for round_ in walk.rounds]
    cut = walk.runs()
    words = [walk.busiest_words(run.rounds) for run in cut]
    set_ups = [{"local": 0, "circuit": 1}.get(walk.kind(run.ends[0]), len(run)) for run in cut]
    walked = {
        "rounds": len(walk.rounds), "hops": sum(map(walk.path, cut)), "messages": loads.messages,
        "stages": sum(set_ups),
        "link_bytes": loads.bytes.total(), "busiest_link_bytes": max(loads.bytes.values(), default=0),
        "flows": max((one["flows"] for one in each), default=0),
    }  # fmt: skip
    loops = any(isinstance(step, Loop) for step in schedule.rounds.steps)
    if walk.mesh.fold[0] == 1 or not loops:  # else the first time of a loop stands for all
        walked["serial_words"] = sum(words)
    yield from _against("all rounds", account, vars(account(schedule)), walked)
    times = {"rounds": sum(one.times for one in schedule.rounds.distinct())}
    yield from _against("all rounds", schedule.rounds.distinct, times, {"rounds": len(walk.rounds)})


def _counted_loads(schedule: Schedule) -> Counter[Link]:
    return Counter(
        {
            (way, row, col): int(load[row, col])
            for way, load in link_loads(schedule).items()
            for row, col in np.argwhere(load).tolist()
        }
    )


def _rounds_of(link: Link, schedule: Schedule, walk: Walk) -> str:
    """Return the first round whose load of a link differs by itself, else the first and the last that cross it."""
    crossing = list[int]()
    for number, round_ in enumerate(walk.rounds):
        counted = _counted_loads(replace(schedule, rounds=Rounds([round_])))[link]
        walked = walk.loads([round_]).bytes[link]
        if counted != walked:
            return f"{walk.round_name(number)}, alone counted {counted:,} B and walked {walked:,} B"
        crossing += [number] * (walked > 0)
    return " to ".join(walk.round_name(number) for number in sorted({*crossing[:1], *crossing[-1:]})) or "no round"


def of_routes(schedule: Schedule, walk: Walk) -> Iterator[str]:
    """Yield where the circuits of a router are not the walk's, two of them have one colour, or `excess` errs.

    With a colour of its own at every router, a word of a circuit comes to its receivers and to no other core.
    """
    needed, touching = routes(schedule), walk.circuits()
    found: dict[Core, dict] = {core: {} for core in np.ndindex(*needed.per_core.shape)}  # circuits and their colours
    for axis, lines in (("x", needed.x), ("y", needed.y)):
        for line in range(needed.per_core.shape[0 if axis == "x" else 1]):
            core = (lambda at, line=line: (line, at)) if axis == "x" else (lambda at, line=line: (at, line))
            for (start, to), colour in zip(lines.circuits, lines.colour[:, line].tolist(), strict=True):
                for at in range(min(start, *to), max(start, *to) + 1) if colour >= 0 else ():
                    circuit = axis, core(start), frozenset(map(core, to))
                    found[core(at)][circuit] = colour

    def said(circuit: Circuit, router: Core) -> str:
        axis, start, ends = circuit
        number = touching[router].get(circuit)
        where = "no round" if number is None else walk.round_name(number)
        return f"along {axis} from {start} to {', '.join(map(str, sorted(ends)))} ({where})"

    for router, colour_of in found.items():
        for circuit in sorted(colour_of.keys() ^ touching[router].keys(), key=str):
            by = "counted by routes, not walked" if circuit in colour_of else "walked, not counted by routes"
            yield f"router {router}: the circuit {said(circuit, router)}: {by}"
        if needed.per_core[router] != len(touching[router]):
            yield f"router {router}: counted {needed.per_core[router]} by routes, walked {len(touching[router])}"
        for one, two in combinations(colour_of, 2):
            if colour_of[one] == colour_of[two]:
                both = f"{said(one, router)} and {said(two, router)}"
                yield f"router {router}: the circuits {both} have colour {colour_of[one]} by routes"
        if not {*colour_of.values()} <= {*range(needed.colours)}:
            yield f"router {router}: colours {sorted(colour_of.values())} by routes, of {needed.colours}"
    if not needed.colours == colours(schedule) >= needed.maximum:
        yield f"colours: {needed.colours} by routes, {colours(schedule)} by colours, {needed.maximum} at a router"
    yield from _excess(schedule, walk, touching, needed.colours)


def _excess(schedule: Schedule, walk: Walk, touching: dict[Core, dict[Circuit, int]], needed: int) -> Iterator[str]:
    """Yield where the core or the round of the first route over a limit is not the walk's."""
    fullest = min(touching, key=lambda core: (-len(touching[core]), core), default=(0, 0))
    begun = sorted(touching[fullest].values())
    for limit in sorted({len(begun) // 2, needed - 1} - {-1, 0}):
        device = replace(schedule.mesh.device, name="limited", routes=limit)
        finding = excess(replace(schedule, mesh=replace(schedule.mesh, device=device)))
        counted = None if finding is None else (finding.core, finding.round)
        walked = (fullest, begun[min(limit, len(begun) - 1)]) if limit < needed else None
        if counted != walked:
            yield f"{limit} routes: counted {counted} (core, round) by excess, walked {walked}"


def _sram(schedule: Schedule, walk: Walk) -> Iterator[str]:
    """Yield where the bytes of a buffer in a round, or the fullest round, are not the walk's."""
    spans, held, account_ = sram.spans(schedule), walk.held(), sram.account(schedule)
    for name in schedule.buffers:
        span = spans.get(name)
        for number, live in enumerate(held):
            counted = span.bytes if span is not None and span.start <= number <= span.end else 0
            if counted != live.get(name, 0):
                where = f"{walk.round_name(number)}: buffer {name}"
                yield f"{where}: counted {counted:,} B by sram.spans, walked {live.get(name, 0):,} B"
                break
    totals = [sum(live.values()) for live in held]
    fullest = totals.index(max(totals))
    walked = max(totals), fullest if max(totals) else 0, held[fullest]
    counted = account_.peak_bytes, account_.peak_round, account_.by_buffer
    if counted != walked:
        yield f"{walk.round_name(fullest)}: counted {counted} (bytes, round, buffers) by sram.account, walked {walked}"
