"""The runs of a schedule: successive rounds of one kind that go on, which are counted and priced together.

Every round is of one kind:

- "local": no exchange.
- "product": tiles move while (or before) cores multiply. Each such round waits for all its tiles, so it is its own run.
- "tiles": cores both send and receive, and none multiplies (alignment, a ring all-reduce). Each sets an exchange of
  whole tiles up and waits for it, as measured in MeshGEMM, whether it then combines the tile or not.
- "stream": no core does both, and arriving elements are combined (a tree). A round that sends on what the round before
  combined continues the stream: elements go on one by one, so the payload of all stages is on the links at once.
- "circuit": routers alone carry the data, as in a multicast. A round that forwards the tiles of the round before (2-D
  broadcast) continues the same circuit.

So elementwise work on what arrives never makes a round cheaper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from wafer_triton import local
from wafer_triton.schedule.repeat import Repeat, Section
from wafer_triton.schedule.rounds import Exchange, Round
from wafer_triton.schedule.schedule import Schedule

if TYPE_CHECKING:
    from wafer_triton.schedule.repeat import Step


def kind(round_: Round) -> str:
    """Return the kind of a round: "local", "product", "tiles", "stream" or "circuit"."""
    kept = vars(round_)  # kept as by a cached property, which `Round` cannot have: it imports no local operations
    if "kind" not in kept:
        kept["kind"] = _kind(round_)
    known: str = kept["kind"]
    return known


Run = Sequence[Round] | Section


def runs(schedule: Schedule) -> list[Run]:
    """Return the rounds of a schedule cut into runs, in order of time."""
    return [run for run, _ in _joined(((round_,), 1) for round_ in schedule.rounds)]


def counted_runs(schedule: Schedule) -> list[tuple[Run, int]]:
    """Return the runs of a schedule in order, each with its number of repetitions.

    Of a repetition only the first, the second and the last are listed, and the second is counted for all between. All
    are listed if one run may span them.
    """
    return _joined(_pieces(schedule.rounds.steps))


def distinct_runs(schedule: Schedule) -> list[tuple[Run, int]]:
    """Return the different runs of a schedule, each with its number of repetitions."""
    found: dict[tuple[Round, ...], tuple[Run, int]] = {}
    for run, count in counted_runs(schedule):
        key = tuple(run)
        found[key] = run, found.get(key, (run, 0))[1] + count
    return list(found.values())


def _pieces(steps: Iterable[Step]) -> Iterator[tuple[Run, int]]:
    """Yield the runs of each step, not joined with other steps', with their number of repetitions."""
    for step in steps:
        if isinstance(step, Section):
            yield step, 1
        elif isinstance(step, Repeat):
            once = _joined(_pieces(step.steps))
            spans = _goes_on(once[-1][0][-1], once[0][0][0])  # one run may span the repetitions
            if spans and step.rows is not None:  # whose data does not go on along the same rows
                yield from (((round_,), 1) for round_ in step.flat)
            elif step.times <= 3 or spans:
                for _ in range(step.times):
                    yield from once
            else:
                yield from once
                yield from ((run, repeats * (step.times - 2)) for run, repeats in once)
                yield from once
        else:
            yield (step,), 1


def _joined(pieces: Iterable[tuple[Run, int]]) -> list[tuple[Run, int]]:
    """Return runs, each joined with the runs that continue it."""
    cut: list[tuple[Run, int]] = []
    own: list[Round] | None = None  # the last run, if it was joined here
    for run, repeats in pieces:
        if cut and cut[-1][1] == repeats and _goes_on(cut[-1][0][-1], run[0]):
            if own is None:
                own = [*cut[-1][0]]
                cut[-1] = own, repeats
            own += run
        else:
            cut.append((run, repeats))
            own = None
    return cut


def _goes_on(before: Round, after: Round) -> bool:
    """Return whether two successive rounds belong to one run."""
    own = kind(before)
    return own == kind(after) and _follows(own, before, after)


def stages(run: Run) -> int:
    """Return the number of exchanges that a run sets up in turn: one a round, or one for a whole circuit."""
    own = kind(run[0])
    return 0 if own == "local" else 1 if own == "circuit" else len(run)


def axes(round_: Round) -> set[str]:
    """Return the axes along which a round moves tiles; both directions move at the same time, over different links."""
    return {exchange.axis for exchange in round_.exchanges}


def sources(round_: Round) -> set[str]:
    """Return the buffers that a round sends from."""
    return {exchange.src.buffer for exchange in round_.exchanges}


def combines(round_: Round) -> bool:
    """Return whether a local operation reads what arrives in its round."""
    arriving = {exchange.dst.buffer for exchange in round_.exchanges}
    return any(slot.buffer in arriving for op in round_.locals for slot in op.ins)


def _kind(round_: Round) -> str:
    if not round_.exchanges:
        return "local"
    if not all(local.find(op.op).elementwise for op in round_.locals):
        return "product"
    if any(_passes_on(exchange) for exchange in round_.exchanges):
        return "tiles"
    if combines(round_):
        return "stream"
    # a circuit as well; priced as tiles if messages have lines of their own, as in `collectives.transpose`
    return "tiles" if any(exchange.moves.paired for exchange in round_.exchanges) else "circuit"


def _follows(common: str, before: Round, after: Round) -> bool:
    """Return whether two successive rounds of one kind belong to one run, whatever they are called."""
    if common in ("local", "product"):
        return False
    if common == "tiles":
        return axes(before) == axes(after) and combines(before) == combines(after)
    if common == "stream" and len(axes(before) | axes(after)) > 1:
        return False
    return sources(after) <= _brought(before)


def _brought(round_: Round) -> set[str]:
    """Return the buffers that have an arrival of a round after it, or a result of one."""
    brought = {exchange.dst.buffer for exchange in round_.exchanges}
    for op in round_.locals:
        if any(slot.buffer in brought for slot in op.ins):
            brought |= {slot.buffer for slot in op.outs}
    return brought


def _passes_on(exchange: Exchange) -> bool:
    """Return whether a core both sends and receives, so that whole tiles move from core to core."""
    send, recv = np.atleast_2d(exchange.send, exchange.recv)
    sends = np.zeros((len(send), max(send.max(initial=0), recv.max(initial=0)) + 2), bool)
    lines = np.arange(len(send))[:, None]
    sends[lines, send] = True
    sends[:, -1] = False  # -1: none
    return bool(sends[lines, recv].any())
