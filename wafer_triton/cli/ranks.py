"""The command line on the ranks that torchrun started: rank 0 prints, and an error is printed once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TypeVar

from wafer_triton.errors import WaferError

T = TypeVar("T")


def count() -> int:
    """Return the number of ranks; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def number() -> int:
    """Return the number of this rank."""
    return int(os.environ.get("RANK") or 0) if count() > 1 else 0


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing is printed but by rank 0."""
    if number() == 0:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def of_first(work: Callable[[], T]) -> T:
    """Return the result of `work`, which rank 0 alone does; the ranks have joined.

    An error that a user can mend (WaferError, ImportError) is raised on all ranks, too.
    """
    if count() == 1:
        return work()
    import torch.distributed as dist

    from wafer_triton.emulate.ranks.group import naming_lost_rank

    everyone = dist.group.WORLD
    assert everyone is not None
    answer: list[Any] = [None, None]
    if number() == 0:
        try:
            answer[0] = work()
        except (WaferError, ImportError) as error:
            answer[1] = error
    with naming_lost_rank(everyone, [0]):
        dist.broadcast_object_list(answer, group=everyone, group_src=0)
    if answer[1] is not None:
        raise answer[1]
    result: T = answer[0]
    return result


def joined() -> bool:
    """Return whether this rank is in a process group, for which torch must have been loaded."""
    distributed = sys.modules.get("torch.distributed")
    return count() > 1 and distributed is not None and distributed.is_initialized()


def first_to_say(message: str) -> bool:
    """Return whether no other rank has printed this already; before the ranks have joined, rank 0 alone prints."""
    if not joined():
        return number() == 0
    with suppress(RuntimeError):  # the store may be gone with its rank
        from wafer_triton.emulate.ranks.group import set_once

        return set_once("said", message, str(number())) == str(number())
    return True


def leave() -> None:
    """Leave the process group, if this rank is in one, once all have done their work."""
    if joined():
        sys.modules["torch.distributed"].destroy_process_group()
