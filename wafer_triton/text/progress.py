"""Reports of a long run's progress to a caller."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # of the thing that is counted, its number done, and its total


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


def reported(what: str, items: Iterable[T], progress: Progress) -> Iterator[T]:
    """Yield the items, and report after each that it is done."""
    every = list(items)
    for number, item in enumerate(every, 1):
        yield item
        progress(what, number, len(every))
