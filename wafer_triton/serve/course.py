"""The result of a simulation: its requests, samples of its state, and means over intervals of its time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from wafer_triton.cost.cap import Cap, peaks
from wafer_triton.cost.price import Prediction
from wafer_triton.device import Device
from wafer_triton.serve.workload import Request
from wafer_triton.text.quantity import unit

State = tuple[int, int, int]  # requests that wait, sequences in decode, cache entries a row in use
INTERVALS = 10  # of the means of a run
SAMPLES = 2048  # of the state over time: twice as many are halved


@dataclass(slots=True)
class Served:
    """A request and the times of its steps in seconds; None for a step that it did not reach.

    `started` is the begin of its first prefill, and `first` the end, which makes the first token. `end` is the time of
    the last token. `refused` is the reason of a request that was refused.
    """

    request: Request
    started: float | None = None
    first: float | None = None
    end: float | None = None
    tokens: int = 0  # of the answer, by prefill and finished steps
    newest: float = 0.0  # time of the newest token at the end of a prefill or of decode
    preempted: int = 0
    refused: str | None = None

    @property
    def length(self) -> int:
        """Return the tokens of the prompt, and of the answer so far."""
        return self.request.input + self.tokens


@dataclass(frozen=True)
class Sample:
    """The state at a time: waiting requests, sequences in decode, and cache entries in use in each row.

    `sums` has the integrals of these three over the time since the start. Since then decode read `read` bytes and made
    `tokens` tokens, in `decode` seconds of work.
    """

    time: float
    waiting: int
    running: int
    entries: int
    sums: tuple[float, float, float]
    read: float
    tokens: int
    decode: float


class Samples:
    """Samples by time; beyond 2 `SAMPLES` every second one is dropped, and later ones are further apart."""

    def __init__(self) -> None:
        self.kept: list[Sample] = []
        self.due = 0.0  # seconds from which on the next is kept
        self._sums = (0.0, 0.0, 0.0)

    def lasts(self, seconds: float, state: State) -> None:
        """Let a state last for some seconds."""
        waiting, running, entries = self._sums
        self._sums = waiting + seconds * state[0], running + seconds * state[1], entries + seconds * state[2]

    def keep(self, time: float, state: State, read: float, tokens: int, decode: float) -> None:
        """Add a sample."""
        kept = self.kept
        kept.append(Sample(time, *state, self._sums, read, tokens, decode))
        if len(kept) > 2 * SAMPLES:
            del kept[1::2]
        self.due = time + ((time - kept[0].time) / SAMPLES if len(kept) > SAMPLES else 0.0)


@dataclass
class Run:
    """A simulation's result, times in seconds.

    `gaps` has pairs (seconds between two tokens of an answer, number of such gaps), `busy` the seconds in which each
    resource worked. `actions` are filled with `record` alone, see `actions.Actions`.
    """

    served: list[Served]
    gaps: np.ndarray
    busy: dict[str, float]
    samples: list[Sample]
    peak_waiting: int
    peak_entries: int
    end: float
    events: int
    read: float
    actions: list[tuple[Any, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class MeanInterval:
    """Means of a run from `start` to `end`, in seconds.

    `kv` is the share of the cache's entries in use. `joules_per_token` is infinite without a token, `s_mbu` is over
    the time in which decode worked, and 0 if it never did.
    """

    units_of = (Prediction, Cap)

    start: float = field(metadata=unit("s", "from"))
    end: float = field(metadata=unit("s", "to"))
    waiting: float = field(metadata=unit("requests", "waiting requests"))
    running: float = field(metadata=unit("sequences", "running sequences"))
    kv: float = field(metadata=unit("%", "cache in use"))
    tokens_per_second: float = field(metadata=unit("tokens/s", "tokens/s"))
    joules_per_token: float
    s_mbu: float


def course(run: Run, pool: int, device: Device, dtype: str) -> list[MeanInterval]:
    """Return the means of a run in `INTERVALS` intervals of equal length; the caches hold `pool` entries a row.

    Energy is the power of the device by time, as in all estimates.
    """
    times = [sample.time for sample in run.samples]
    edges = np.linspace(times[0], times[-1], INTERVALS + 1)
    length = (times[-1] - times[0]) / INTERVALS or 1.0

    sums = zip(*((*one.sums, one.tokens, one.read, one.decode) for one in run.samples), strict=True)
    changes = [(np.diff(np.interp(edges, times, own)) / length).tolist() for own in sums]  # a second, in each interval
    peak, _ = peaks(device, dtype)
    return [
        MeanInterval(
            start=start,
            end=end,
            waiting=waiting,
            running=running,
            kv=entries / pool,
            tokens_per_second=tokens,
            joules_per_token=device.power_watts / tokens if tokens > 0 else math.inf,
            s_mbu=read / decode / peak if decode > 0 else 0.0,
        )
        for (start, end), waiting, running, entries, tokens, read, decode in zip(
            pairwise(edges.tolist()), *changes, strict=True
        )
    ]
