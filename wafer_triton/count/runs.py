"""The runs of a schedule: rounds that follow one another in the same way, which are counted and priced together.

Every round is of one kind:

- "local": no exchange.
- "product": tiles move while (or before) cores multiply. Each such round waits for all its tiles, so it is its own run.
- "tiles": whole tiles move on and nobody multiplies (alignment, the second half of a ring all-reduce).
- "stream": what arrives is combined element by element and sent on, so that the payload of all stages is on the links
  at once.
- "circuit": routers alone carry the data, as in a multicast. A round that forwards what the round before brought (2-D
  broadcast) goes on in the same circuit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wafer_triton import local
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Exchange, Round, Schedule


def kind(round_: Round) -> str:
    """The kind of a round: "local", "product", "tiles", "stream" or "circuit"."""
    kept = vars(round_)  # where a cached property would be; what a round is, needs the table of local operations
    if "kind" not in kept:
        kept["kind"] = _kind(round_)
    known: str = kept["kind"]
    return known


def runs(schedule: Schedule | Builder) -> list[list[Round]]:
    """The rounds of a schedule, built or not, cut into runs."""
    cut: list[list[Round]] = []
    before = ""
    for round_ in schedule.rounds:
        own = kind(round_)
        if own == before and _follows(own, cut[-1][-1], round_):
            cut[-1].append(round_)
        else:
            cut.append([round_])
        before = own
    return cut


def distinct_runs(schedule: Schedule | Builder) -> list[tuple[list[Round], int]]:
    """The runs of a schedule and how often each comes; runs of the same round objects are one."""
    times: dict[tuple[int, ...], tuple[list[Round], int]] = {}
    for run in runs(schedule):
        key = tuple(map(id, run))
        times[key] = run, times.get(key, (run, 0))[1] + 1
    return list(times.values())


def stages(run: Sequence[Round]) -> int:
    """Count how often a run sets up an exchange, one after the other: once a round, or once for a whole circuit."""
    own = kind(run[0])
    return 0 if own == "local" else 1 if own == "circuit" else len(run)


def axes(round_: Round) -> set[str]:
    """The axes along which a round moves tiles; moves along both go at the same time, over different links."""
    return {exchange.axis for exchange in round_.exchanges}


def sources(round_: Round) -> set[str]:
    """The buffers that a round sends from."""
    return {exchange.src.buffer for exchange in round_.exchanges}


def _kind(round_: Round) -> str:
    if not round_.exchanges:
        return "local"
    if not all(local.find(op.op).elementwise for op in round_.locals):
        return "product"
    arriving = {exchange.dst.buffer for exchange in round_.exchanges}
    if any(slot.buffer in arriving for op in round_.locals for slot in op.ins):
        return "stream"
    return "tiles" if any(_passes_on(exchange) for exchange in round_.exchanges) else "circuit"


def _follows(common: str, before: Round, after: Round) -> bool:
    """Whether two successive rounds of one kind belong to one run."""
    if common in ("local", "product") or before.label != after.label:
        return False
    if common == "circuit":
        return sources(after) <= {exchange.dst.buffer for exchange in before.exchanges}
    if axes(before) != axes(after):
        return False
    return common == "tiles" or (len(axes(after)) == 1 and sources(before) == sources(after))


def _passes_on(exchange: Exchange) -> bool:
    """Whether a core of some line may both send and receive, so that whole tiles move from core to core."""
    send, recv = exchange.send, exchange.recv
    if send.ndim == 2:
        return True
    sends = np.zeros(max(send.max(initial=0), recv.max(initial=0)) + 1, bool)
    sends[send] = True
    return bool(sends[recv].any())
