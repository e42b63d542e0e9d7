"""The record of a timed row: bytes and operations of its schedule, and the fraction of the limits that it reaches."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import limits
from wafer_triton.compare.timing import RunTimes
from wafer_triton.device.dtype import torch_dtype
from wafer_triton.schedule.rounds import Exchange, Round
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Ring, in_order

Row = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """Bytes that a run must move: every exchanged tile read once and written once; other operands once."""

    exchanged: int
    footprint: int  # of the buffers that exchanges touch
    others: int


def work(schedule: Schedule, moves: Schedule | None, launches: int = 1) -> Work:
    """Return the work of a schedule: with its exchanged tiles, or, if `moves` is None, of inputs and outputs alone.

    Between two of the `launches` that multiply in turn, sums are stored and loaded.
    """
    cores, buffers = schedule.mesh.cores, schedule.buffers.values()
    fixed = sum(buffer.bytes for buffer in buffers if buffer.role != "scratch") * cores
    sums = sum(schedule.buffers[ring.product.outs[0].buffer].bytes for ring in rings(schedule))
    fixed += 2 * (launches - 1) * sums * cores
    if moves is None:
        return Work(0, 0, fixed)
    touched = {
        slot.buffer
        for round_ in schedule.rounds
        for exchange in round_.exchanges
        for slot in (exchange.src, exchange.dst)
    }
    footprint = sum(schedule.buffers[name].bytes for name in touched) * cores
    others = (
        fixed
        - sum(schedule.buffers[name].bytes for name in touched if schedule.buffers[name].role != "scratch") * cores
    )
    return Work(exchanged_bytes(schedule), footprint, others)


def rings(schedule: Schedule) -> list[Ring]:
    """Return the rings of products of a schedule."""
    return [step for step in in_order(schedule.rounds.steps) if isinstance(step, Ring)]


def exchanged_bytes(schedule: Schedule) -> int:
    """Return the bytes of tiles that senders read and receivers write, in all rounds; a multicast is read once."""
    known: dict[Round, int] = {}
    for round_ in schedule.rounds:
        if round_ not in known:
            known[round_] = sum(
                _tiles(schedule, exchange) * schedule.buffers[exchange.src.buffer].tile_bytes
                for exchange in round_.exchanges
            )
    return sum(known[round_] for round_ in schedule.rounds)


def _tiles(schedule: Schedule, exchange: Exchange) -> int:
    send, recv = exchange.moves.ends(schedule.mesh)
    return len(np.unique(send)) + len(recv)


def shares(seconds: float, device: str, dtype: str, flops: int, must: Work, rotated: int) -> Row:
    """Return bytes, operations, and the fraction of the measured limits that a run of `seconds` reaches."""
    far = limits.bandwidth(device, rotated)
    near = limits.bandwidth(device, must.footprint) if must.exchanged else far
    facts = {
        "exchanged_bytes": must.exchanged, "other_bytes": must.others, "flops": flops, "footprint": must.footprint,
        "limit_copy_bytes_per_second": far,
        "fraction_of_bandwidth": (must.exchanged / near + must.others / far) / seconds,
    }  # fmt: skip
    if must.exchanged:
        facts["limit_exchange_bytes_per_second"] = near
        facts["fraction_of_exchange_limit"] = must.exchanged / near / seconds
    if flops:
        facts["limit_flops_per_second"] = limits.matrix_rate(device, torch_dtype(dtype))
        facts["fraction_of_matrix_rate"] = flops / facts["limit_flops_per_second"] / seconds
    return facts


def record(shape: Any, row: str, times: RunTimes, facts: Row) -> Row:
    """Return the record of a row of a shape, in the form of pytest-benchmark's results."""
    return {
        "group": str(shape), "name": f"{shape.slug}-{row}",
        "stats": {"median": times.seconds, "min": times.least, "rounds": times.rounds},
        "extra_info": {**facts, "exchange": row, "timed": times.how},
    }  # fmt: skip
