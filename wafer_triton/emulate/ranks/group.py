"""What ranks tell each other besides tiles: that their options agree, and which rank is lost."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import torch
import torch.distributed as dist

from wafer_triton.errors import BackendError
from wafer_triton.schedule.rounds import Value, once
from wafer_triton.schedule.schedule import Schedule

OPERAND = "operand "  # prefix of the options that are hashes of operands, for another error message
CONTENT = "content"  # name of the option that is the hash of a schedule


def agree(options: dict[str, object], group: dist.ProcessGroup) -> None:
    """Raise BackendError on all ranks if their options differ; it names the first that does."""
    every: list[dict[str, object]] = [{}] * group.size()
    with naming_lost_rank(group):
        dist.all_gather_object(every, options, group=group)
    for rank, theirs in enumerate(every):
        for name, value in theirs.items():
            if value != every[0].get(name):
                ranks = [dist.get_global_rank(group, number) for number in (0, rank)]
                words = f"{name} = {value!r}, rank {ranks[0]} {every[0].get(name)!r}; give all ranks the same options"
                if name.startswith(OPERAND):
                    words = f"other values of {name} than rank {ranks[0]}; give all ranks the same values"
                    words += ", if random by the same torch.manual_seed"
                if name == CONTENT:
                    words = f"other moves, operations or parameters of {theirs['schedule']} than rank {ranks[0]}"
                    words += "; give all ranks the same options"
                raise BackendError(f"the ranks do not agree: rank {ranks[1]} has {words}")


def digest(values: torch.Tensor) -> str:
    """Return a hash of a tensor's shape, dtype and bits."""
    held = values.detach().cpu().contiguous()
    bits = held.flatten().view(torch.uint8).numpy()
    return f"{held.dtype} {list(held.shape)} {hashlib.blake2b(bits.data, digest_size=16).hexdigest()}"


@once
def fingerprint(schedule: Schedule) -> str:
    """Return a hash of what a schedule does, the same in each process."""
    hashed = hashlib.blake2b(digest_size=16)

    def add(part: object) -> None:
        if isinstance(part, np.ndarray):
            hashed.update(part.tobytes())
        elif isinstance(part, Mapping):
            add(tuple(sorted(part.items())))
        elif isinstance(part, tuple):
            hashed.update(f"{len(part)} of ".encode())
            for each in part:
                add(each)
        elif isinstance(part, Value):
            add((type(part).__name__, *(vars(part)[name] for name in part.__match_args__)))
        else:
            hashed.update(f"{part!r} ".encode())

    buffers = tuple(
        (name, buffer.tile, buffer.dtype, buffer.role, buffer.slots) for name, buffer in schedule.buffers.items()
    )
    add((schedule.rounds.steps, buffers))
    return hashed.hexdigest()


@contextmanager
def naming_lost_rank(group: dist.ProcessGroup, peers: Sequence[int] = ()) -> Iterator[None]:
    """Turn an error of torch.distributed into a BackendError that names the first lost rank, or one of `peers`."""
    try:
        yield
    except RuntimeError as error:
        who = f"rank {dist.get_global_rank(group, peers[0])}" if peers else "a rank"
        how = "has not answered for too long" if "imed out" in str(error) else "is gone"
        with suppress(RuntimeError):  # the store may be gone with its rank
            who, how = set_once("lost", "rank", f"{who}\n{how}").split("\n")
        raise BackendError(
            f"{who} of {dist.get_world_size()} {how}, so the others cannot go on; see its output, and start all again"
        ) from None


def set_once(kind: str, name: str, value: str) -> str:
    """Set a name in the process group's store unless another rank has, and return its value there."""
    store = dist.distributed_c10d._get_default_store()
    kept: bytes = store.compare_set(f"wafer_triton/{kind}/{name}", "", value)
    return kept.decode()
