"""Whether two rounds do the same, however they are written."""

from __future__ import annotations

import numpy as np

from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Round, Slot


def same(one: Round, other: Round, mesh: Mesh) -> bool:
    """Return whether both rounds send the same tiles, and then run the same operations in the same order."""
    if len(one.exchanges) != len(other.exchanges) or len(one.locals) != len(other.locals):
        return False
    exchanges = zip(one.exchanges, other.exchanges, strict=True)
    locals_ = zip(one.locals, other.locals, strict=True)
    return all(_sends(*both, mesh) for both in exchanges) and all(_computes(*both, mesh) for both in locals_)


def _sends(one: Exchange, other: Exchange, mesh: Mesh) -> bool:
    if one.axis != other.axis or not _slots((one.src, one.dst), (other.src, other.dst)):
        return False
    arrays = zip((one.send, one.recv), (other.send, other.recv), strict=True)
    if one.lines is None is other.lines and all(np.array_equal(*both) for both in arrays):
        return True
    return np.array_equal(np.sort(_pairs(one, mesh)), np.sort(_pairs(other, mesh)))


def _pairs(exchange: Exchange, mesh: Mesh) -> Index:
    """Return the sender and the receiver of each message as one number."""
    return exchange.senders.flat(mesh) * mesh.cores + exchange.receivers.flat(mesh)


def _computes(one: Local, other: Local, mesh: Mesh) -> bool:
    alike = one.op == other.op and one.params == other.params
    return alike and _slots((*one.outs, *one.ins), (*other.outs, *other.ins)) and _cores(one.where, other.where, mesh)


def _cores(one: Cores | None, other: Cores | None, mesh: Mesh) -> bool:
    if one is None or other is None:
        return one is other
    return one is other or np.array_equal(np.sort(one.flat(mesh)), np.sort(other.flat(mesh)))


def _slots(some: tuple[Slot, ...], others: tuple[Slot, ...]) -> bool:
    return len(some) == len(others) and all(
        one.buffer == other.buffer and one.axis == other.axis and np.array_equal(one.index, other.index)  # type: ignore[arg-type]
        for one, other in zip(some, others, strict=True)
    )
