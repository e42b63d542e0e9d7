"""Tiles between ranks: which of them cross, and the messages that carry them, one for each pair of ranks.

All ranks plan the whole schedule, so that each knows what it has to send and what comes. A tile that several cores of a
rank receive crosses once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from wafer_triton.emulate.partition import Share
from wafer_triton.errors import BackendError, WaferError
from wafer_triton.schedule.rounds import Index

T = TypeVar("T")
ALIGNED = 16  # bytes, to which the parts of a message are rounded up


@dataclass(frozen=True, eq=False)
class Route:
    """The ways of tiles from rows of memory to rows of memory, as one rank sees them; rows are the rank's own.

    `sent` and `got` are of tiles that stay on the rank. `out` has the rows that each other rank is sent, `into` the
    number of tiles that each sends, which of them are wanted, and where. `crossing` tiles cross between any two ranks.
    """

    sent: Index
    got: Index
    out: dict[int, Index]
    into: dict[int, tuple[int, Index, Index]]
    crossing: int


def route(share: Share, homes: Index, receivers: Index, here: Index, there: Index) -> Route:
    """The route of tiles from the cores `homes`, in rows `here` of their ranks, to the `receivers`, in rows `there`."""
    source, target = share.partition.owner[homes], share.partition.owner[receivers]
    inside = (source == share.rank) & (target == share.rank)
    across = np.flatnonzero(source != target)
    out, into, crossing = dict[int, Index](), dict[int, tuple[int, Index, Index]](), 0
    ways = source[across] * len(share.partition.owner) + target[across]
    for way in np.unique(ways):
        pairs = across[ways == way]
        first, second = divmod(int(way), len(share.partition.owner))
        rows, which = np.unique(here[pairs], return_inverse=True)
        crossing += len(rows)
        if first == share.rank:
            out[second] = rows
        if second == share.rank:
            into[first] = len(rows), which, there[pairs]
    return Route(here[inside], there[inside], out, into, crossing)


class Crossing:
    """The messages of some routes, each between two tensors [tiles, numel], packed to one for each pair of ranks."""

    def __init__(self, routes: Sequence[tuple[Route, torch.Tensor, torch.Tensor]], group: dist.ProcessGroup) -> None:
        self.bytes = sum(each.crossing * _tile_bytes(source) for each, source, _ in routes)
        self.group = group
        self._packs: list[Callable[[], object]] = []
        self._unpacks: list[Callable[[], object]] = []
        self._ops: list[dist.P2POp] = []
        self._works: list[dist.Work] = []
        for peer in sorted({peer for each, _, _ in routes for peer in each.out}):
            rows = [(each.out[peer], source) for each, source, _ in routes if peer in each.out]
            message, parts = _message([(len(index), source) for index, source in rows])
            for (index, source), part in zip(rows, parts, strict=True):
                self._packs.append(_pack(source, _on(index, source), part))
            self._ops.append(self._op(dist.isend, message, peer))
        for peer in sorted({peer for each, _, _ in routes for peer in each.into}):
            wanted = [(*each.into[peer], target) for each, _, target in routes if peer in each.into]
            message, parts = _message([(number, target) for number, _, _, target in wanted])
            for (number, which, index, target), part in zip(wanted, parts, strict=True):
                every = np.array_equal(which, np.arange(number))
                self._unpacks.append(_unpack(target, _on(index, target), part, None if every else _on(which, target)))
            self._ops.append(self._op(dist.irecv, message, peer))

    def _op(self, op: Callable[..., dist.Work | None], message: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(op, message, group=self.group, group_peer=peer)

    def start(self) -> None:
        """Pack what is sent, and post all messages."""
        if self._ops:
            for pack in self._packs:
                pack()
            with blaming(self.group, [op.group_peer for op in self._ops]):
                self._works = dist.batch_isend_irecv(self._ops)

    def finish(self) -> None:
        """Wait for all messages, and unpack what came."""
        for number, work in enumerate(self._works):
            with blaming(self.group, [op.group_peer for op in self._ops[number:]]):
                work.wait()
        for unpack in self._unpacks:
            unpack()


@contextmanager
def blaming(group: dist.ProcessGroup, peers: Sequence[int] = ()) -> Iterator[None]:
    """What torch.distributed raises, in one line that names the first of the ranks that were waited for."""
    try:
        yield
    except RuntimeError as error:
        who = f"rank {dist.get_global_rank(group, peers[0])}" if peers else "a rank"
        how = "has not answered for too long" if "imed out" in str(error) else "is gone"
        with suppress(RuntimeError):  # the store may be gone with its rank
            who, how = first("lost", "rank", f"{who}\n{how}").split("\n")
        raise BackendError(
            f"{who} of {dist.get_world_size()} {how}, so the others cannot go on; see what it said, and start all again"
        ) from None


def of_first(work: Callable[[], T], group: dist.ProcessGroup | None) -> T:
    """What `work` gives on the first rank, which alone does it, on all of them; without a group, here.

    What a user can mend (WaferError, ImportError) is raised on all ranks too.
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
    """The value that the first rank gave to a name, which is kept where the ranks met."""
    store = dist.distributed_c10d._get_default_store()
    kept: bytes = store.compare_set(f"wafer_triton/{kind}/{name}", "", value)
    return kept.decode()


def _message(parts: Sequence[tuple[int, torch.Tensor]]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A message for so many tiles of each of some tensors, and its parts [tiles, numel]."""
    sizes = [-(-number * _tile_bytes(like) // ALIGNED) * ALIGNED for number, like in parts]
    message = torch.empty(sum(sizes), dtype=torch.uint8, device=parts[0][1].device)
    return message, [
        room[: number * _tile_bytes(like)].view(like.dtype).view(number, -1)
        for room, (number, like) in zip(message.split(sizes), parts, strict=True)
    ]


def _tile_bytes(tiles: torch.Tensor) -> int:
    return tiles.shape[1] * tiles.itemsize


def _on(index: Index, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(index)).to(like.device)


def _pack(source: torch.Tensor, rows: torch.Tensor, part: torch.Tensor) -> Callable[[], object]:
    return lambda: torch.index_select(source, 0, rows, out=part)


def _unpack(
    target: torch.Tensor, rows: torch.Tensor, part: torch.Tensor, which: torch.Tensor | None
) -> Callable[[], object]:
    return lambda: target.index_copy_(0, rows, part if which is None else part.index_select(0, which))
