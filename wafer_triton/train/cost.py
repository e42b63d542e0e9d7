"""The cost of schedules on a wafer of dies: seconds and joules, from the counts of every round.

A round takes the longer of its transfers and its products, if the products read no tile that arrives in the round;
otherwise the sum of both. Products run at the die's rate. Other local operations take no time but for the HBM bytes of
their operands and results. HBM is read and written during the rounds (slices are double-buffered). So a schedule takes
the longer of its rounds and its HBM bytes.

`sliced` is the closed form of the passes of a streamed product, which run slice by slice: `tests/train/test_price.py`
compares it with the schedules.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wafer_triton.count.account import multiply_adds, per_round
from wafer_triton.count.runs import combines
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.train.dies import Wafer
from wafer_triton.train.product import PRODUCTS, RESULTS, slotted

Numbers = NDArray[Any]
CUTS = 8  # of a size: in 1, 2, 4 to 128


@dataclass(frozen=True)
class DieCost:
    """Seconds of the slowest die, joules and bytes of the whole mesh."""

    seconds: float
    compute: float  # seconds in products
    link: float  # seconds of transfers, hidden or not
    hbm: float  # seconds of HBM traffic, hidden or not
    joules: float
    link_bytes: float  # bytes times links
    hbm_bytes: float
    flops: float


def die_cost(schedule: Schedule, on: Wafer) -> DieCost:
    """Return the cost of one run of a schedule on a mesh of dies.

    Inputs are read from HBM; outputs, and the sums that a role of "state" takes over in SRAM, are written to it.
    """
    seconds = compute = link = flops = link_bytes = 0.0
    for round_, counts in zip(schedule.rounds, per_round(schedule), strict=True):
        macs = np.zeros(schedule.mesh.cores)  # of every die; some may run other operations than others
        for op in round_.locals:
            macs[op.cores(schedule.mesh)] += multiply_adds(op)
        products = 2 * float(macs.max()) / on.flops
        transfer = on.transfer_seconds(counts.hops, counts.busiest_link_bytes)
        seconds += products + transfer if combines(round_) else max(products, transfer)
        compute += products
        link += transfer
        flops += 2 * float(macs.sum())
        link_bytes += counts.link_bytes
    moved = sum(buffer.bytes for buffer in schedule.buffers.values() if buffer.role in ("input", "output", "state"))
    hbm = moved / on.hbm_bytes_per_second
    hbm_bytes = moved * schedule.mesh.cores
    return DieCost(
        max(seconds, hbm), compute, link, hbm, on.joules(flops, link_bytes, hbm_bytes), link_bytes, hbm_bytes, flops
    )


class SlicedPass(NamedTuple):
    """A pass of streamed products in slices, as columns [streams]: m, k and n are each cut in `cuts` [3, streams].

    Seconds, and bytes of a die: those of its HBM, and what it sends, `copies` forwards and `sums` backwards.
    """

    cuts: Numbers
    compute: Numbers
    exposed: Numbers
    late: Numbers  # that slices wait for HBM
    hbm_bytes: Numbers
    copies: Numbers
    sums: Numbers


def sliced(
    on: Wafer, streams: Numbers, moving: str, which: str, tiles: Numbers, element: int, sums: int,
    weights: tuple[float, float],
) -> SlicedPass:  # fmt: skip
    """Return a pass with tiles [m, k], [k, n] and [m, n] in its best slices, for every stream with its column of tiles.

    A column of `streams` has the dies of a group, the buffers of a block beside the die's own, the links that a block
    crosses on average, and of each kind of transfers its most hops, then the most blocks over a link, then its number.

    The best have the least sum of seconds and of the wafer's joules by their `weights`. Slices are equal, the last ones
    padded; the sums of slices that add up stay in SRAM. Where no slices fit a die's SRAM, it takes forever.
    """
    several, results = slotted(moving), RESULTS[which]
    reads = {name[-1] for result in results for name in PRODUCTS[result][:2]}
    added = {result[-1]: "mkn".index(PRODUCTS[result][2]) for result in results}  # by the cut over which they add up
    reduces = moving in added

    size, lanes, links, *transfers = streams[..., None]
    whole = tiles[..., None]

    def slices(*cuts: Any) -> tuple[Numbers, ...]:
        """Return a slice's multiply-adds, and bytes: that move, are read, are written, stay for the next, and SRAM."""
        m, k, n = (np.ceil(own / cut) for own, cut in zip(whole, cuts, strict=True))
        slots: dict[str, Any] = {"x": m * k, "w": k * n, "y": m * n}
        block, copy = slots[moving] * (sums if reduces else element), slots["x"] * element * ("w" in added)
        slots[several] = slots[several] * size
        read = element * sum(slots[name] for name in reads)
        written = sums * sum(slots[name] for name in added)
        stays = sums * sum(slots[name] * (cuts[axis] > 1) for name, axis in added.items())
        sram = read + written + copy + lanes * block + stays * reduces
        return m * k * n, block, read, written, stays, sram

    powers = 1 << np.arange(CUTS)
    a, b = np.repeat(powers, CUTS), np.tile(powers, CUTS)
    # more cuts of n are never better than the fewest that fit; SRAM grows in step with the elements of n
    all_of_n, none, one = (slices(a, b, cut)[-1] for cut in (1, np.inf, np.maximum(2, whole[2])))
    most = np.maximum(1, (on.sram_bytes - none) // (one - none))
    c = np.where(all_of_n <= on.sram_bytes, 1, powers[np.searchsorted(powers[:-1], whole[2] / most)])
    cuts = np.array(np.broadcast_arrays(a, b, c))
    macs, block, read, written, stays, sram = slices(*cuts)
    fits = (sram <= on.sram_bytes) & (cuts <= whole).all(0)  # more cuts than elements would add nothing
    if len(added) > 1:
        fits &= (a == 1) | (c == 1)  # of both gradients, sums of one alone stay
    number = cuts.prod(0)
    parts: Any = prod(cuts[axis] for axis in added.values())  # slices that add up to one result
    flops = 2 * macs * len(added)
    wait = np.zeros_like(flops)
    for hops, load, count in np.reshape(transfers, (3, -1, len(size), 1)).swapaxes(0, 1):
        taken = on.transfer_seconds(hops, block * load)
        wait += count * np.maximum(0.0, taken - flops / on.flops)
    rounds, rate = size * flops / on.flops + wait, on.hbm_bytes_per_second
    seconds = (number // parts) * (
        (parts - 1) * np.maximum(rounds, (read + written - stays) / rate) + np.maximum(rounds, (read + written) / rate)
    )
    hbm = number * (read + written - stays) + (number // parts) * stays
    sent = (size - 1) * number * block
    joules = on.dies * on.joules(flops * size * number, sent * links, hbm)
    best = np.where(fits, weights[0] * seconds + weights[1] * joules, np.inf).argmin(1)

    def column(table: Numbers) -> Numbers:
        return table[..., np.arange(len(best)), best]

    compute = np.where(fits, number * size * flops / on.flops, np.inf)
    waits = seconds - number * rounds
    return SlicedPass(
        column(cuts),
        *map(column, (compute, number * wait, waits, hbm, sent * (not reduces), sent * reduces)),
    )
