"""The account of a schedule: counts of its rounds on links, routers, SRAM and multipliers, without any value.

All is counted on lines, see `wafer_triton.count.spans`, and rounds that come often are counted once, so a 720 x 720
mesh takes a second and megabytes. On a rectangular mesh folded to its lcm grid, hops and links are counted between
physical cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import product
from operator import itemgetter
from typing import Self

import numpy as np

from wafer_triton import local
from wafer_triton.count.counts import Counts
from wafer_triton.count.runs import RoundRun, axes, distinct_runs, stages
from wafer_triton.count.spans import Sides, busiest, by_cores, line_loads, sends
from wafer_triton.count.times import Turn, Turns, all_times, along, occurrences
from wafer_triton.count.traffic import Traffic
from wafer_triton.errors import MOST, ShapeError, check_counts, shown
from wafer_triton.schedule import rules, sram
from wafer_triton.schedule.rounds import Index, Local, Moves, Round
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.text.quantity import Legend, numbered, unit
from wafer_triton.text.table import Table

Loads = dict[str, Index]
WAYS = {"x": ("east", "west"), "y": ("south", "north")}
_BUFFERS = 6  # the text of an account names six buffers and sums the others


@dataclass(frozen=True, repr=False)
class Account(Counts):
    """The counts of a schedule and of its single links; they add up as `Additive` says.

    `hops` and `serial_words` are of the critical path: the links of the longest paths, and the words on the busiest
    link of each run, of whole tiles of each round (`wafer_triton.count.runs`). `link_bytes` are of the whole mesh:
    bytes times links crossed. `flows` are the most messages on one link in a round. `sram_peak_bytes` are of one
    physical core, and so are `macs`, of the core that has most in each round. `launches` are the kernel launches of an
    emulation on a GPU (of a schedule alone there are none).
    """

    # tiles sent; a tile that a core sends along one axis in one round counts once, to however many receivers
    messages: int = field(default=0, metadata=unit("messages"))
    # on the directed link that carries most; accounts added up add theirs
    busiest_link_bytes: int = field(default=0, metadata=unit("B", "busiest link"))
    # critical path: the words of 32 bits on the busiest link of each run, which pass one by one
    serial_words: int = field(default=0, metadata=unit("words"))
    # contention: the most messages on one directed link in one round
    flows: int = field(default=0, metadata=unit("flows", join=max))
    # in the fullest round of the schedule that needs most SRAM; a region holds several blocks
    sram_by_buffer: dict[str, int] = field(
        default_factory=dict, metadata=unit("B", "SRAM", join=lambda *held: sram.fullest(held))
    )
    launches: tuple[str, ...] = ()  # kernel launches of an emulation on a GPU, see `Program.launches`

    def __str__(self) -> str:
        """Return figures of the critical path, of the whole mesh, of its busiest link and of a core, a line each."""
        buffers = sorted(self.sram_by_buffer.items(), key=itemgetter(1), reverse=True)
        held = [f"{name} {size:,} B" for name, size in buffers[:_BUFFERS]]
        if buffers[_BUFFERS:]:
            rest = sum(size for _, size in buffers[_BUFFERS:])
            held.append(f"{numbered(len(buffers) - _BUFFERS, 'smaller buffers')} {rest:,} B")
        lines = {
            "critical path": f"{numbered(self.rounds, 'rounds')}, {numbered(self.stages, 'routing stages')}, "
            f"{numbered(self.hops, 'hops')}, {numbered(self.serial_words, 'words')} over the busiest link of each run",
            "whole mesh": f"{numbered(self.messages, 'messages')}, {self.link_bytes:,} B summed over all links",
            "busiest link": f"{self.busiest_link_bytes:,} B, at most {numbered(self.flows, 'messages')} in a round",
            "busiest core": f"{numbered(self.macs, 'multiply-adds')}, SRAM peak {self.sram_peak_bytes:,} B"
            + (f": {', '.join(held)}" if held else ""),
        }
        if self.launches:
            lines["emulation"] = f"launches: {', '.join(self.launches)}"
        return "\n".join(f"{name:<15}{figures}" for name, figures in lines.items())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        values = {number.name: getattr(self, number.name) for number in fields(Account)}
        return Table([values], Legend(Account), title="Account", upright=True)._repr_html_()

    def __mul__(self, times: float) -> Self:
        if type(times) is not int or not 0 <= times <= MOST:
            raise ShapeError(f"an account {shown(times)} times: give a whole number from 0 to {MOST:,}")
        return super().__mul__(times)


def account(schedule: Schedule) -> Account:
    """Return the counts of a schedule: rounds, stages, hops, messages, bytes over links, multiply-adds and SRAM."""
    with rules.reading(schedule):
        held = sram.account(schedule)
        counts = _Reader(schedule).counts(occurrences(schedule), distinct_runs(schedule))
        return replace(counts, sram_peak_bytes=held.peak_bytes, sram_by_buffer=held.by_buffer)


def per_round(schedule: Schedule) -> tuple[Account, ...]:
    """Return the counts of every round alone, in order, without its SRAM; its hops are the links of its longest move.

    Equal rounds share them.
    """
    counts = cache(_Reader(schedule).alone)
    return tuple(map(counts, schedule.rounds))


def link_loads(schedule: Schedule, block: int = 1) -> Loads:
    """Return the bytes over each directed link in the whole run.

    The arrays are [rows, cols] for "east", "west", "south" and "north", by sending core. Rows and columns are physical,
    and bytes of all rounds are added up, in loops as well. With `block` the counts of `block` x `block` cores are added
    up, [rows / block, cols / block] rounded up.

        >>> loads = link_loads(schedule)
        >>> middle = schedule.mesh.cols // 2  # bytes from the left half to the right one, and back
        >>> loads["east"][:, middle - 1].sum(), loads["west"][:, middle].sum()
    """
    (block,) = check_counts(block=block)
    loads = _Reader(schedule).loads(occurrences(schedule))
    return {way: _blocks(load, block) for way, load in loads.items()}


class _Reader:
    """Counts of rounds and runs; what is read of moves is kept while it lives."""

    def __init__(self, schedule: Schedule) -> None:
        self.buffers, self.mesh = schedule.buffers, schedule.mesh
        self.traffic = Traffic(schedule)
        self.crossed = self.traffic.crossed
        self.times = cache(Turn.all)

    def alone(self, round_: Round) -> Account:
        """Return the counts of a schedule of this round alone."""
        return self.counts({(round_, ()): 1}, [(RoundRun((round_,)), 1)])

    def counts(self, rounds: Mapping[tuple[Round, Turns], int], runs: Iterable[tuple[RoundRun, int]]) -> Account:
        """Return the counts of rounds that come so often in every turn, and of the runs that they are cut into."""
        each = (self.round(round_, turns) * (times * all_times(turns)) for (round_, turns), times in rounds.items())
        added = sum((self.run(run) * times for run, times in runs), sum(each, Account()))
        return replace(added, busiest_link_bytes=max(int(load.max()) for load in self.loads(rounds).values()))

    def run(self, run: RoundRun) -> Account:
        """Return the counts of a run on its critical path, and its bytes over links."""
        traffic = self.traffic.run(run)
        return Account(
            stages=stages(run), hops=traffic.hops, serial_words=traffic.busiest_words, link_bytes=traffic.link_bytes
        )

    def round(self, round_: Round, turns: Turns) -> Account:
        """Return messages, multiply-adds and flows of a round; of flows the most at any time of its turns."""
        sent = [moves for moves, _ in sends(round_, self.mesh)]
        products = by_cores(self.mesh, list(filter(multiply_adds, round_.locals)))
        return Account(
            rounds=1,
            messages=sum(np.broadcast(*each.senders.grid(self.mesh)).size for each in sent),
            flows=max((self.flows(axis, sent, turns) for axis in axes(round_)), default=0),
            macs=max(sum(map(multiply_adds, ops)) for ops in products) * self.mesh.per_core,
        )

    def loads(self, rounds: Mapping[tuple[Round, Turns], int]) -> Loads:
        """Return the bytes over each directed link in rounds that come so often in every turn."""
        loads, moved = Loads(), [
            (moves, turns, self.buffers[slot.buffer].slot_bytes(slot) * times)
            for (round_, turns), times in rounds.items()
            for moves, slot in sends(round_, self.mesh)
        ]  # fmt: skip
        for axis, ways in WAYS.items():
            sides = Sides.of(self.mesh, axis)
            sums, kind = line_loads(self.crossed, axis, moved)
            physical = sums[:, :-1, kind].reshape(2, sides.along, -1, sides.fold_across).sum(3)
            loads.update(zip(ways, physical.transpose(0, 2, 1) if axis == "x" else physical, strict=True))
        return loads

    def flows(self, axis: str, moved: Iterable[Moves], turns: Turns) -> int:
        """Return the most messages on a link at any time of their turns."""
        fold = Sides.of(self.mesh, axis).fold_across
        sums, kind = line_loads(self.crossed, axis, ((moves, (), 1) for moves in moved))
        # which lines share a physical one hangs on the time
        first, *others = [self.times(turn) for turn in along(axis, turns)[0] if fold > 1] or [np.arange(len(kind))]
        most = 0
        for each in product(*others):
            lines = first  # for every time of the innermost turn those that did the same in the first, [times, lines]
            for own in each:
                lines = lines[..., own]
            most = max(most, int(busiest(sums, kind[lines], fold).max()))
        return most


def multiply_adds(op: Local) -> int:
    """Return the multiply-adds of the products of a local operation."""
    return int(local.find(op.op).work(**op.params)[0])


def _blocks(counts: Index, block: int) -> Index:
    """Return the counts, added up over `block` neighbours along every axis."""
    for axis, size in enumerate(counts.shape):
        counts = np.add.reduceat(counts, np.arange(0, size, block), axis)
    return counts
