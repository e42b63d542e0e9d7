"""Rounds that only move tiles, as one launch: which message waits for which, by the tiles that they read and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wafer_triton.emulate.chains import Address, Move
from wafer_triton.kernels.exchange import FIELDS
from wafer_triton.schedule.rounds import Index


@dataclass(frozen=True, eq=False)
class Relay:
    """The kinds of messages, each a move, and all messages [n, FIELDS] in order (see `kernels.exchange.relay`)."""

    kinds: tuple[Move, ...]
    messages: Index


def relayed(rounds: Sequence[tuple[Move, ...]], cores: int) -> Relay | None:
    """The messages of rounds as one launch.

    None where one tile goes to several cores, where slots differ by core or overlap, and where no message waits for
    another.
    """
    sizes: dict[Address, set[int]] = {}
    for move in (move for moves in rounds for move in moves):
        for memory in (move.source, move.target):
            sizes.setdefault(memory, set()).add(move.numel)
    if any(len(one) > 1 for one in sizes.values()):
        return None
    kinds: dict[tuple[Address, int, Address, int, int], tuple[int, Move]] = {}
    writers: dict[tuple[Address, int], Index] = {}  # of each slot: the last message that wrote each core's tile
    readers: dict[tuple[Address, int], Index] = {}  # ... and the one that read it since
    tables: list[Index] = []
    begun = 0
    for number, moves in enumerate(rounds):
        fresh = []
        for move in moves:
            dst, src = move.moves.dst, move.moves.src
            if dst.index is not None or src.index is not None or len(np.unique(move.senders)) < len(move.senders):
                return None
            here, there = (move.source, src.offset), (move.target, dst.offset)
            kind, _ = kinds.setdefault((*there, *here, move.numel), (len(kinds), move))
            message = np.full((len(move.receivers), FIELDS.value), -1)
            message[:, 0], message[:, 1], message[:, 2], message[:, 4] = move.receivers, move.senders, kind, number
            fresh.append((move, here, there, begun + np.arange(len(message)), message))
            begun += len(message)
        tables += [message for *_, message in fresh]
        every = np.concatenate(tables)
        for move, here, there, own, _ in fresh:  # a round reads and writes different slots
            wrote = _last(writers, here, cores)[move.senders]
            read = _last(readers, there, cores)[move.receivers]
            unread = np.where(read < 0, _last(writers, there, cores)[move.receivers], -1)
            every[own, 3] = (np.stack([wrote, read, unread]) >= 0).sum(0)
            for awaited, field in ((wrote, 6), (unread, 6), (read, 7)):
                every[awaited[awaited >= 0], field] = own[awaited >= 0]
        tables = [every]
        for move, here, _, own, _ in fresh:
            if (_last(readers, here, cores)[move.senders] >= 0).any():
                return None  # two would wait for one writer
            _last(readers, here, cores)[move.senders] = own
        for move, _, there, own, _ in fresh:
            _last(writers, there, cores)[move.receivers] = own
            _last(readers, there, cores)[move.receivers] = -1
    (every,) = tables
    return Relay(tuple(move for _, move in kinds.values()), every) if (every[:, 3] > 0).any() else None


def _last(table: dict[tuple[Address, int], Index], slot: tuple[Address, int], cores: int) -> Index:
    return table.setdefault(slot, np.full(cores, -1))
