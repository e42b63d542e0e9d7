"""The rules of patterns: a round must be a piece of the algorithm that its `Pattern` names.

Executors run rounds with one pattern in fewer steps, so a pattern that is untrue would change results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.rounds import PATTERNS, Cores, Pattern, Round, Slot

COMBINING = ("add", "maximum")  # the operations of a tree
Core = tuple[int, int]
Lie = tuple[str, Core | None]


class _Untrue(Exception):
    def __init__(self, message: str, core: Core | None = None) -> None:
        self.lie: Lie = message, core


def untrue(round_: Round, mesh: Mesh) -> Lie | None:
    """Return the claim of a round's pattern that does not hold, and the first core for which it does not.

    None for a round without a pattern, or whose pattern is true.
    """
    pattern = round_.pattern
    if pattern is None:
        return None
    try:
        if pattern.kind not in PATTERNS:
            raise _Untrue(f"pattern {pattern.kind!r}: choose one of {', '.join(PATTERNS)}, or none")
        _buffers(round_, pattern, mesh)
        _RULES[pattern.kind](round_, pattern, mesh)
    except _Untrue as found:
        return found.lie
    return None


def _buffers(round_: Round, pattern: Pattern, mesh: Mesh) -> None:
    for exchange in round_.exchanges:
        moved = {exchange.src.buffer} if pattern.kind == "tree" else {exchange.src.buffer, exchange.dst.buffer}
        if not moved <= set(pattern.buffers):
            names = ", ".join(pattern.buffers)
            core = _first(exchange.moves.receivers, mesh)
            raise _Untrue(
                f"pattern {pattern.kind} of {names}: core {core} receives {exchange.src} in {exchange.dst}", core
            )


def _ring(round_: Round, pattern: Pattern, mesh: Mesh) -> None:
    if len(round_.locals) != 1 or round_.locals[0].where is not None or not round_.overlaps:
        raise _Untrue("pattern ring: the round must be one product on all cores, which takes no tile that arrives")
    inputs, sent = set(round_.locals[0].ins), set[Slot]()
    for exchange in round_.exchanges:
        core = _first(exchange.moves.receivers, mesh)
        if not exchange.src.is_fixed or not exchange.dst.is_fixed or exchange.src == exchange.dst:
            raise _Untrue(f"pattern ring: core {core} must receive in one other slot, as all cores do", core)
        if exchange.src not in inputs - sent:
            raise _Untrue(f"pattern ring: core {core} receives {exchange.src}, no input of the product, or twice", core)
        sent.add(exchange.src)
        moves, length = exchange.moves, mesh.length(exchange.axis)
        times = np.bincount(moves.send, minlength=length) if moves.lines is None else np.zeros(1, int)
        if (times != 1).any():
            core = _first(Cores(exchange.axis, np.flatnonzero(times != 1)[:1]), mesh)
            raise _Untrue(f"pattern ring: core {core} must send {exchange.src} once", core)


def _tree(round_: Round, pattern: Pattern, mesh: Mesh) -> None:
    if pattern.op not in COMBINING:
        raise _Untrue(f"pattern tree: combine by one of {', '.join(COMBINING)}, not {pattern.op!r}")
    waiting = list(round_.exchanges)
    for op in round_.locals:
        arrival = next((each for each in waiting if each.dst == op.ins[-1]), None)
        if arrival is None or op.where is None:
            raise _Untrue(f"pattern tree: {op.op} on {op.ins[-1]} combines no message of the round")
        waiting.remove(arrival)
        ends = {*op.ins[:-1], *op.outs}
        if op.op != pattern.op or ends != {arrival.src} or not _same(op.where, arrival.moves.receivers, mesh):
            core = _first(arrival.moves.receivers, mesh)
            raise _Untrue(
                f"pattern tree by {pattern.op}: core {core} must combine {arrival.dst} with its {arrival.src}", core
            )
        if arrival.dst.buffer in pattern.buffers:
            core = _first(arrival.moves.receivers, mesh)
            raise _Untrue(f"pattern tree: core {core} receives in {arrival.dst}, which is no mailbox", core)
    if waiting:
        core = _first(waiting[0].moves.receivers, mesh)
        raise _Untrue(f"pattern tree: core {core} receives {waiting[0].dst}, but does not combine it", core)
    _one_way(round_, pattern, mesh)


def _moves(round_: Round, pattern: Pattern, mesh: Mesh) -> None:
    if round_.locals:
        op = round_.locals[0]
        core = _first(Cores("x", np.array([0])) if op.where is None else op.where, mesh)
        raise _Untrue(f"pattern {pattern.kind}: core {core} runs {op.op}, where tiles only move", core)


def _broadcast(round_: Round, pattern: Pattern, mesh: Mesh) -> None:
    _moves(round_, pattern, mesh)
    for name in pattern.buffers:
        for exchange in (one for one in round_.exchanges if one.src.buffer == name):
            if exchange.src != exchange.dst or not exchange.src.is_fixed:
                core = _first(exchange.moves.receivers, mesh)
                raise _Untrue(f"pattern broadcast: core {core} must receive {exchange.src} in the same slot", core)


def _one_way(round_: Round, pattern: Pattern, mesh: Mesh) -> None:
    """Demand that no core sends a buffer and receives a message for it in the same round."""
    for name in pattern.buffers:
        each = [exchange.moves for exchange in round_.exchanges if exchange.src.buffer == name]
        if all(one.lines is None and one.axis == each[0].axis for one in each):  # as on one line
            each = [replace(one, lines=np.zeros(1, np.int64)) for one in each]
        ends, sends = [one.ends(mesh) for one in each], np.zeros(mesh.cores, bool)
        for send, _ in ends:
            sends[send] = True
        both = [int(recv[sends[recv]].min()) for _, recv in ends if sends[recv].any()]
        if both:
            row, col = divmod(min(both), mesh.shape[1])
            raise _Untrue(f"pattern {pattern.kind}: core {(row, col)} both sends {name} and receives it", (row, col))


_RULES: dict[str, Callable[[Round, Pattern, Mesh], None]] = {
    "ring": _ring, "tree": _tree, "broadcast": _broadcast, "relay": _moves,
}  # fmt: skip


def _same(one: Cores, other: Cores, mesh: Mesh) -> bool:
    """Return whether both are the same cores of a mesh."""
    return one == other or np.array_equal(one.flat(mesh), other.flat(mesh))


def _first(cores: Cores, mesh: Mesh) -> Core:
    row, col = divmod(int(cores.flat(mesh)[0]), mesh.shape[1])
    return row, col
