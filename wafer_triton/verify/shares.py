"""Where a wrong result began: the shares that given tiles have in it, followed through the rounds.

Every given tile is raised by one in a run of its own, side by side with a run on the tiles as they are. What a value
then grows by is the tile's share in it: 1 in a sum, 0 where the tile never came, 2 where it was added twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wafer_triton.schedule.access import Access, acts
from wafer_triton.schedule.rounds import Index
from wafer_triton.schedule.schedule import Schedule

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[np.float64]
Masks = Mapping[str, NDArray[np.bool_]]  # of buffers' slots, [rows, cols, slots]
NAMED = 4  # tiles that a message names


class _Unused(NamedTuple):
    """A value that no one read: in which slot it lay, the round that wrote it (-1: given) or that overwrote it."""

    buffer: str
    cell: int
    written: int
    overwritten: int | None
    tiles: NDArray[np.bool_]  # whether each tile has a share in it


@np.errstate(invalid="ignore")  # where memory is infinite
def explanation(
    schedule: Schedule, tiles: Mapping[str, Tensor], wanted: Mapping[str, Tensor], compared: Masks,
    names: Sequence[str], wrong: tuple[str, int, int],
) -> str:  # fmt: skip
    """Return whose shares in a wrong element are not as `wanted`, and where that began; "" if neither can be told.

    `wrong` is a buffer, one of its cells (see `Schedule.cells`), and the element in that.
    `tiles` and `wanted` are [2 + T, rows, cols, ...]: as they are, with each of the T given tiles of these `names`
    raised by one, and with all of them raised by two.
    """
    (name, cell, element), trace = wrong, _Trace(schedule, tiles, wanted)
    trace.run()
    got, want = (_growth(values[name])[:, cell, element] for values in (trace.memory, trace.wanted))
    has, should = ~np.isclose(got, 0), ~np.isclose(want, 0)
    kinds = {
        "it lacks": should & ~has,
        "it has twice": should & np.isclose(got, 2 * want),
        "it should not have": has & ~should,
    }
    said = [f"{kind} {_listed([*compress(names, of)])}" for kind, of in kinds.items() if of.any()]
    began = trace.mixed or trace.lost(kinds["it lacks"], compared) or trace.first_wrong(compared)
    return "; ".join([*said, began] if began else said)


class _Trace:
    """A run of a schedule, in which each slot is known to be read or not since it was written."""

    def __init__(self, schedule: Schedule, tiles: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
        from wafer_triton.emulate.reference import Reference

        self.schedule = schedule
        self.machine = Reference(schedule, tiles, exact=True, runs=len(next(iter(tiles.values()))))
        # [2 + T, cells, elements]; the machine writes to this memory
        self.memory = {name: memory.numpy() for name, memory in self.machine.memory.items()}
        self.wanted = {name: want.numpy().reshape(self.memory[name].shape) for name, want in wanted.items()}
        self.read = {name: np.zeros(memory.shape[1], np.bool_) for name, memory in self.memory.items()}
        self.written = {name: np.full(memory.shape[1], -1) for name, memory in self.memory.items()}
        self.unused: list[_Unused] = []
        self.mixed = ""
        sums = [_sums(want)[1] for want in self.wanted.values()]
        self.sums = np.unique(np.concatenate(sums, 1), axis=1).T

    def run(self) -> None:
        for number, round_ in enumerate(self.schedule.rounds):
            for act in acts(round_):
                for access in act.reads:
                    self.reads(access)
                for access in act.writes:
                    if access.keeps(self.schedule):
                        self.reads(access)
                    self.writes(access, number)
            self.machine.run(number + 1)
            self.mixed = self.mixed or self.mix(number)

    def reads(self, access: Access) -> None:
        self.read[access.slot.buffer][access.cells(self.schedule)] = True

    def writes(self, access: Access, number: int) -> None:
        name, cells = access.slot.buffer, access.cells(self.schedule).ravel()
        # the machine has yet to run this round, so it has no value that the round itself wrote
        self.drop(name, cells[~self.read[name][cells] & (self.written[name][cells] < number)], number)
        self.read[name][cells], self.written[name][cells] = False, number

    def drop(self, name: str, cells: Index, number: int | None) -> None:
        """Note values of the machine's memory that no one reads any more."""
        has = (_growth(self.memory[name][:, cells]) != 0).any(2)
        for cell, of in zip(cells.tolist(), has.T, strict=True):
            if of.any():
                self.unused.append(_Unused(name, cell, int(self.written[name][cell]), number, of))

    def mix(self, number: int) -> str:
        """Return where a sum was first written that is part of no result; "" if there is none."""
        for name, memory in self.memory.items() if len(self.sums) else ():
            cells = np.flatnonzero(self.written[name] == number)
            even, shares = _sums(memory[:, cells])
            for cell, share in zip(cells[even].tolist(), shares.T, strict=True):
                if not _is_part(share, self.sums):
                    came = self.arrivals(cell, name, number)
                    return f"from round {number} on {at(self.schedule, name, cell)} cannot become right{came}"
        return ""

    def arrivals(self, cell: int, name: str, number: int) -> str:
        """Return what came to the core of a slot in a round, and from where."""
        core, came = cell // self.schedule.buffers[name].slots, []
        for exchange in self.schedule.rounds[number].exchanges:
            senders, receivers = exchange.moves.ends(self.schedule.mesh)
            sent = self.schedule.cells(exchange.src, senders)
            # of a whole buffer the first slot is named
            came += [at(self.schedule, exchange.src.buffer, int(cell)) for cell in sent[receivers == core].ravel()[:1]]
        return f", where {' and '.join(came)} came" if came else ""

    def lost(self, missing: NDArray[np.bool_], compared: Masks) -> str:
        """Return where the shares of `missing` tiles were last, in a value that no one read; "" if nowhere."""
        for name, read in self.read.items():
            left = ~read & ~compared[name].ravel() if name in self.wanted else ~read
            self.drop(name, np.flatnonzero(left), None)
        lost = [value for value in self.unused if missing.any() and value.tiles[missing].all()]
        if not lost:
            return ""
        value = min(lost, key=lambda value: (value.tiles.sum(), value.written))
        last = f"last seen in {at(self.schedule, value.buffer, value.cell)}, which"
        if value.written >= 0:
            return f"{last} round {value.written} writes and nothing reads"
        if value.overwritten is None:
            return f"{last} nothing reads"
        return f"{last} round {value.overwritten} overwrites before anything reads it"

    def first_wrong(self, compared: Masks) -> str:
        """Return the wrong result that was the first to be written for the last time."""
        places = []
        for name, (want, *_) in self.wanted.items():
            wrong = compared[name].ravel() & ~(np.isclose(self.memory[name][0], want) | np.isnan(want)).all(1)
            places += [(int(self.written[name][cell]), name, int(cell)) for cell in np.flatnonzero(wrong)]
        if not places:
            return ""
        number, name, cell = min(places)
        if number < 0:
            return f"{at(self.schedule, name, cell)} is never written"
        last = f"the first wrong one is {at(self.schedule, name, cell)}, last written in round {number}"
        return last + self.arrivals(cell, name, number)


def at(schedule: Schedule, name: str, cell: int) -> str:
    """Return the words for one of the cells of a buffer."""
    slot, core = schedule.place(name, cell)
    return f"{slot} of core {core}"


def _growth(memory: Array) -> Array:
    """Return the growth of values [2 + T, cells, elements] by each of T tiles, 0 of unwritten memory."""
    return np.nan_to_num(memory[1:-1] - memory[0])


def _sums(memory: Array) -> tuple[NDArray[np.bool_], Array]:
    """Return which slots [cells] hold sums of T tiles, and the tiles' shares in those [T, sums].

    In other slots elements differ in their shares, or do not grow evenly.
    """
    grown = _growth(memory)
    even = np.isclose(np.nan_to_num(memory[-1] - memory[0]), 2 * grown.sum(0)).all(1)
    even &= np.isclose(grown, grown[..., :1]).all((0, 2)) & ~np.isnan(memory[0]).any(1)
    return even, grown[:, even, 0]


def _is_part(share: Array, sums: Array) -> bool:
    """Return whether shares [T] are part of one of the sums [sums, T], or of a multiple of it."""
    there = share != 0
    sums = sums[(sums[:, there] != 0).all(1)][:, there]
    ratios = share[there] / sums
    return bool(np.isclose(ratios, ratios[:, :1]).all(1).any())


def _listed(names: Sequence[str]) -> str:
    """Return names as a list, the first `NAMED` of them."""
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join([*names[:NAMED], *more])
