"""The PLMR verdict of a schedule, letter by letter (WaferLLM, OSDI'25, section 3).

- P: at least half of the cores hold elements of the operands, not padding alone.
- L: the critical path takes at most twice the cycles of a reference. It has hops, routing stages, and the words that
  pass the busiest link of each run one by one, each in the cycles of its price. The reference is the best algorithm
  beside it. An operation that stands alone has a message across the mesh, with a stage on every core of a line, and its
  own words.
- M: a core's buffers fit its SRAM.
- R: the routes fit the router.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from wafer_triton.count.account import Account
from wafer_triton.device.mesh import Mesh

LATENCY_RATIO = 2.0
BUSY_SHARE = 0.5
PLMR = (
    "P: half of the cores or more take part; L: the critical path takes at most twice the best algorithm's, or twice a "
    "message across the mesh; M: buffers fit a core's SRAM; R: routes fit a router; - in place of a letter not kept"
)


class Latencies(Protocol):
    """Cycles of a hop, of a routing stage and of a word on a link, which `wafer_triton.cost.constants` has."""

    @property
    def hop_cycles(self) -> float: ...
    @property
    def stage_cycles(self) -> float: ...
    @property
    def word_cycles(self) -> float: ...


def verdict(
    count: Account, mesh: Mesh, c: Latencies, routes: int, busy_share: float, reference_cycles: float | None = None
) -> dict[str, bool]:
    """Return whether each letter is kept on the mesh's device by a schedule with this account and number of routes.

    `busy_share` of the cores hold more than padding; `reference_cycles` is the best rival's `latency` (None: there is
    no rival).
    """
    device = mesh.device
    alone = replace(count, hops=mesh.rows + mesh.cols, stages=max(mesh.rows, mesh.cols))
    reference = latency(alone, c) if reference_cycles is None else reference_cycles
    return {
        "P": busy_share >= BUSY_SHARE,
        "L": latency(count, c) <= LATENCY_RATIO * reference,
        "M": count.sram_peak_bytes <= device.sram_bytes,
        "R": device.routes is None or routes <= device.routes,
    }


def latency(count: Account, c: Latencies) -> float:
    """Return cycles of the critical path but for compute: hops, routing stages and serialised words."""
    return count.hops * c.hop_cycles + count.stages * c.stage_cycles + count.serial_words * c.word_cycles


def busy_share(size: int, cores: int) -> float:
    """Return the share of a line's cores that hold some of a dimension which is cut into whole tiles."""
    return -(-size // -(-size // cores)) / cores
