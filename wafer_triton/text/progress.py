"""Reports of a long run's progress to a caller."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # of the thing that is counted, its number done, and its total


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""
