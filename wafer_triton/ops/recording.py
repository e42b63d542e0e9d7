"""What ran, counted and priced: of one call by `record=True`, of all within a block by `recording`.

Torch runs backward passes of GPU tensors on threads of its own, and carries over to them what it keeps for a thread;
so the open recordings of a thread are kept there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache

import torch

from wafer_triton.cost.price import Cost, Prediction, price
from wafer_triton.count.account import Account, account
from wafer_triton.device import Device, device
from wafer_triton.place.transfers import ScheduleRuns
from wafer_triton.schedule.rounds import once
from wafer_triton.schedule.schedule import Schedule


@dataclass(frozen=True, repr=False)
class Record(Account):
    """The account of a run and the predicted cost of its rounds on the wafer; `+` and `*` act on both.

    `rank_bytes` are the bytes that each round sent between ranks, where several emulate the mesh.
    """

    cost: Cost = field(default_factory=Cost)
    device: Device = field(default_factory=lambda: device("wse2"), metadata={"join": lambda own, other: own})
    rank_bytes: tuple[int, ...] = ()

    @staticmethod
    def of(schedule: Schedule, launches: tuple[str, ...] = (), rank_bytes: tuple[int, ...] = ()) -> Record:
        """Return the record of one run of a schedule by these kernel launches and messages between ranks."""
        return replace(_counted(schedule), launches=launches, rank_bytes=rank_bytes)

    @property
    def predicted(self) -> Prediction:
        """Cycles and seconds on the wafer."""
        return Prediction.of(self.cost, self.device)

    def _repr_html_(self) -> str:
        return super()._repr_html_() + self.predicted._repr_html_()

    def __str__(self) -> str:
        sent = f"{'between ranks':<15}{sum(self.rank_bytes):,} B in {len(self.rank_bytes)} rounds\n"
        return f"{super().__str__()}\n{sent if self.rank_bytes else ''}{self.predicted}"


@once  # counting takes several times as long as a small run
def _counted(schedule: Schedule) -> Record:
    return Record(**vars(account(schedule)), cost=price(schedule), device=schedule.mesh.device)


Due = Callable[[], Iterable[ScheduleRuns]]  # returns the schedules that ran, each with its number of runs
MOST = 64  # schedules that a ledger keeps


class Ledger:
    """The Record of all that ran, worked out when it is read, so that no step waits."""

    def __init__(self) -> None:
        self._record: Record | None = None
        self._ran, self._due = Counter[tuple[Schedule, tuple[str, ...], tuple[int, ...]]](), list[Due]()

    def add(self, schedule: Schedule, launches: tuple[str, ...] = (), rank_bytes: tuple[int, ...] = ()) -> None:
        """Add a run of a schedule by these kernel launches and messages between ranks."""
        self._ran[schedule, launches, rank_bytes] += 1
        if len(self._ran) > MOST:
            self._settle()

    def enter(self, due: Due) -> None:
        """Add the schedules that `due` will return."""
        self._due.append(due)

    def _settle(self) -> None:
        runs = [(counted(*one), times) for one, times in self._ran.items()]
        runs += [(counted(schedule), times) for due in self._due for schedule, times in due()]
        for one, times in runs:
            self._record = one * times if self._record is None else self._record + one * times
        self._ran.clear()
        self._due.clear()

    @property
    def record(self) -> Record:
        """The counts and the predicted cost of all runs; of none they are 0."""
        self._settle()
        record = self._record or Record()
        return replace(record, sram_by_buffer=dict(record.sram_by_buffer))  # the caller may change it

    @property
    def account(self) -> Account:
        """The counts alone."""
        record = self.record
        return Account(**{each.name: getattr(record, each.name) for each in fields(Account)})


counted = lru_cache(maxsize=512)(Record.of)  # of equal schedules, as a decoder makes them for each token
_OPEN = "wafer_triton.recording"  # the key of this thread's open recordings in torch's memory of a thread


def open_recordings() -> tuple[Ledger, ...]:
    """Return those of this thread, to which runs are added."""
    found: tuple[Ledger, ...] = torch._C._get_obj_in_tls(_OPEN) if torch._C._is_key_in_tls(_OPEN) else ()
    return found


@contextmanager
def recording() -> Iterator[Record]:
    """Count and price what runs within a `with` block: operations, backward passes, converted layers and decoders.

    The Record that it yields is filled at the end of the block. A recording within another counts for both. Runs of
    programs by hand, and by threads that start within the block, are not recorded.

        >>> with recording() as record:
        ...     loss(mesh_gemm(a, b, mesh=16)).backward()
        >>> record.hops, record.predicted
    """
    record, ledger, outer = Record(), Ledger(), open_recordings()
    torch._C._stash_obj_in_tls(_OPEN, (*outer, ledger))
    try:
        yield record
    finally:
        torch._C._stash_obj_in_tls(_OPEN, outer)
        vars(record).update(vars(ledger.record))
