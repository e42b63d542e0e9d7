"""Messages between ranks besides tiles: agreement on options, broadcasts of one rank, and lost ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from wafer_triton.errors import BackendError, WaferError

T = TypeVar("T")
OPERAND = "operand "  # names of options that stand for values begin so


def agree(options: dict[str, object], group: dist.ProcessGroup) -> None:
    """Raise BackendError on all ranks if their options differ; it names the first option that differs."""
    every: list[dict[str, object] | None] = [None] * group.size()
    with blaming(group):
        dist.all_gather_object(every, options, group=group)
    for rank, theirs in enumerate(every):
        assert theirs is not None and every[0] is not None
        for name, value in theirs.items():
            if value != every[0].get(name):
                ranks = [dist.get_global_rank(group, number) for number in (0, rank)]
                if name.startswith(OPERAND):
                    raise BackendError(
                        f"the ranks do not agree: rank {ranks[1]} has other values of {name} than rank {ranks[0]}; "
                        f"give all ranks the same values, if random by the same torch.manual_seed"
                    )
                raise BackendError(
                    f"the ranks do not agree: rank {ranks[1]} has {name} = {value!r}, rank {ranks[0]} "
                    f"{every[0].get(name)!r}; give all ranks the same options"
                )


def digest(values: torch.Tensor) -> str:
    """Return a hash of a tensor's shape, dtype and bits."""
    held = values.detach().cpu().contiguous()
    bits = held.flatten().view(torch.uint8).numpy()
    return f"{held.dtype} {list(held.shape)} {hashlib.blake2b(bits.data, digest_size=16).hexdigest()}"


@contextmanager
def blaming(group: dist.ProcessGroup, peers: Sequence[int] = ()) -> Iterator[None]:
    """Turn an error of torch.distributed into one line that names the first lost rank."""
    try:
        yield
    except RuntimeError as error:
        who = f"rank {dist.get_global_rank(group, peers[0])}" if peers else "a rank"
        how = "has not answered for too long" if "imed out" in str(error) else "is gone"
        with suppress(RuntimeError):  # the store may be gone with its rank
            who, how = first("lost", "rank", f"{who}\n{how}").split("\n")
        raise BackendError(
            f"{who} of {dist.get_world_size()} {how}, so the others cannot go on; see its output, and start all again"
        ) from None


def of_first(work: Callable[[], T], group: dist.ProcessGroup | None) -> T:
    """Return on all ranks the result of `work`, which runs on the first rank alone; without a group, it runs here.

    An error that a user can mend (WaferError, ImportError) is raised on all ranks, too.
    """
    if group is None:
        return work()
    answer: list[Any] = [None, None]
    if group.rank() == 0:
        try:
            answer[0] = work()
        except (WaferError, ImportError) as error:
            answer[1] = error
    with blaming(group, [0]):
        dist.broadcast_object_list(answer, group=group, group_src=0)
    if answer[1] is not None:
        raise answer[1]
    result: T = answer[0]
    return result


def first(kind: str, name: str, value: str) -> str:
    """Return the value that the first rank gave to a name, from the store of the process group."""
    store = dist.distributed_c10d._get_default_store()
    kept: bytes = store.compare_set(f"wafer_triton/{kind}/{name}", "", value)
    return kept.decode()
