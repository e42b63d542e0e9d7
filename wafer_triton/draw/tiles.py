"""Which tile is where: every tile goes by the buffer and the core where it began, and is followed round by round.

A tile begins where it is given, or where a local operation writes it; an exchange and a copy hand it on. Buffers that
change places hold the tiles of one operand in turn. A tile is shown where it was put last, in whichever buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from wafer_triton.errors import DrawError, shown
from wafer_triton.schedule.rounds import Index, Round, Slot
from wafer_triton.schedule.schedule import Schedule

Where = dict[str, Index]  # by the buffer where tiles began, [rows, cols]: the core where the tile held began, -1: none
_TEXT_CORES = 32  # a side, up to which a mesh is printed whole


class Tiles:
    """The tiles of a schedule as they lie before its first round; `step` moves them through a round."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.mesh = schedule, schedule.mesh
        self.names = list(schedule.buffers)
        cores = np.arange(self.mesh.cores)
        # of every cell, core * slots + slot: the buffer's number * cores + the core, where its tile began; -1: none
        self._tiles = {}
        self.last: Where = {}
        for number, (name, buffer) in enumerate(schedule.buffers.items()):
            self._tiles[name] = np.repeat(np.where(buffer.given, number * cores.size + cores, -1), buffer.slots)
            self.last[name] = np.where(buffer.given, cores, -1)

    def step(self, round_: Round) -> None:
        """Move and make tiles as a round does."""
        ends = [exchange.moves.ends(self.mesh) for exchange in round_.exchanges]
        sent = [self.held(exchange.src, send) for exchange, (send, _) in zip(round_.exchanges, ends, strict=True)]
        for exchange, (_, recv), tiles in zip(round_.exchanges, ends, sent, strict=True):
            self._write(exchange.dst, recv, tiles)
        for op in round_.locals:
            cores = op.cores(self.mesh)
            for slot in op.outs:
                made = self.names.index(slot.buffer) * self.mesh.cores + cores
                self._write(slot, cores, self.held(op.ins[0], cores) if op.op == "copy" else made)

    def held(self, slot: Slot, cores: Index) -> Index:
        """Return the tiles of some cores in a slot: number of the buffer * cores + core, where they began; -1: none."""
        cells = self.schedule.cells(slot, cores)
        if slot.index is None:  # its first slot stands for the whole buffer
            cells = cells[:, 0]
        return self._tiles[slot.buffer][cells]

    def where(self) -> Where:
        """Return where the tiles of every buffer lie now."""
        return {name: cores.reshape(self.mesh.shape).copy() for name, cores in self.last.items()}

    def _write(self, slot: Slot, cores: Index, tiles: Index) -> None:
        self._tiles[slot.buffer][self.schedule.cells(slot, cores).T] = tiles
        born, began = np.divmod(tiles, self.mesh.cores)
        for origin in np.unique(born[born >= 0]).tolist():
            mine = born == origin
            self.last[self.names[origin]][cores[mine]] = began[mine]


def rounds(schedule: Schedule) -> Iterator[Where]:
    """Yield where all tiles lie after each round."""
    tiles = Tiles(schedule)
    for round_ in schedule.rounds:
        tiles.step(round_)
        yield tiles.where()


def after(schedule: Schedule, round: int) -> Where:
    """Return where all tiles lie after a round, or before the first with -1; DrawError for an unknown round."""
    if not -1 <= round < len(schedule.rounds):
        raise DrawError(
            f"{schedule.name}: round {round!r} is not one of its {len(schedule.rounds)} rounds; give 0 to "
            f"{len(schedule.rounds) - 1}, or -1 for the start"
        )
    return Tiles(schedule).where() if round < 0 else next(islice(rounds(schedule), round, None))


def moving(schedule: Schedule) -> dict[str, str]:
    """Return the buffers whose tiles leave the core where they began, by name, with the axes that they move along."""
    tiles, along = Tiles(schedule), dict[str, set[str]]()
    for round_ in schedule.rounds:
        for exchange in round_.exchanges:
            born = tiles.held(exchange.src, exchange.moves.ends(tiles.mesh)[0]) // tiles.mesh.cores
            for origin in np.unique(born[born >= 0]).tolist():
                along.setdefault(tiles.names[origin], set()).add(exchange.axis)
        tiles.step(round_)
    return {name: "".join(sorted(along[name])) for name in schedule.buffers if name in along}


def inspect(schedule: Schedule, round: int = -1, buffer: str | None = None) -> str:
    """Return a mesh as text: at each core, where the tile that it holds after a round began, as row.column.

    It follows the tiles that began in `buffer` (None: in the first whose tiles move), in whatever buffer they lie now,
    so a buffer that only receives has none. `round` -1 is the start. Raises DrawError for a round or a buffer
    that is not there, and for a mesh too large to print.
    """
    rows, cols = schedule.mesh.shape
    if max(rows, cols) > _TEXT_CORES:
        raise DrawError(f"{schedule.name}: {rows} x {cols} cores are too many to print; at most {_TEXT_CORES} a side")
    name = chosen(schedule, buffer)
    held = after(schedule, round)[name]
    width = len(f"{rows - 1}.{cols - 1}")
    lines = [
        " ".join((f"{core // cols}.{core % cols}" if core >= 0 else "-").rjust(width) for core in row) for row in held
    ]
    label = f" ({schedule.rounds[round].label})" if round >= 0 else ""
    when = f"after round {round}{label}" if round >= 0 else "at the start"
    return "\n".join([f"{schedule.name}: tiles that began in {name}, {when}, by the core (row.column) where", *lines])


def chosen(schedule: Schedule, buffer: str | None) -> str:
    """Return a buffer by name, or by default the first whose tiles move; DrawError for one that is not there."""
    if buffer is None:
        return next(iter((*moving(schedule), *schedule.buffers)))
    if buffer not in schedule.buffers:
        raise DrawError(f"{schedule.name}: there is no buffer {shown(buffer)}; it has {', '.join(schedule.buffers)}")
    return buffer
