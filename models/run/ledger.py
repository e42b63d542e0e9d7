"""The counts and the predicted cost of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from wafer_triton.cost.price import Cost, price
from wafer_triton.count.account import Account, account
from wafer_triton.place.transfers import ScheduleRuns
from wafer_triton.schedule.schedule import Schedule

Due = Callable[[], Iterable[ScheduleRuns]]  # returns the schedules that ran, each with its number of runs


class Ledger:
    """Counts and cost of schedules that ran; entries are evaluated when a sum is read, so that no step waits."""

    def __init__(self) -> None:
        self._account, self._cost, self._due = Account(), Cost(), list[Due]()

    def enter(self, due: Due) -> None:
        """Add the schedules that `due` will return."""
        self._due.append(due)

    def add(self, runs: Iterable[ScheduleRuns]) -> None:
        """Add schedules at once."""
        self._account, self._cost = self._with(runs)

    def _with(self, runs: Iterable[ScheduleRuns]) -> tuple[Account, Cost]:
        counted, cost = self._account, self._cost
        for schedule, times in runs:
            own, price = _known(schedule)
            counted, cost = counted + own * times, cost + price * times
        return counted, cost

    def _settle(self) -> None:
        while self._due:
            self.add(self._due[0]())
            self._due.pop(0)

    @property
    def account(self) -> Account:
        """The counts of all entries."""
        self._settle()
        return self._account

    @property
    def cost(self) -> Cost:
        """The predicted cost of all entries."""
        self._settle()
        return self._cost


def cycles_of(runs: Iterable[ScheduleRuns]) -> float:
    """Add up the predicted cycles of schedules; equal ones are priced once."""
    return sum(_known(schedule)[1].cycles * times for schedule, times in runs)


@lru_cache(maxsize=512)
def _known(schedule: Schedule) -> tuple[Account, Cost]:
    return account(schedule), price(schedule)
