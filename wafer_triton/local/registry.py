"""The table of local operations: of each its torch definition and its work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wafer_triton.errors import ScheduleError

if TYPE_CHECKING:
    from torch import Tensor

Work = Callable[..., tuple[int, int]]


@dataclass(frozen=True)
class LocalOp:
    """One local operation: its torch definition `run(*outs, *ins, **params)` (writes `outs` in place) and its work.

    `work(**params)` gives (multiply-adds, vector elements) of one core; `outs` is the number of outputs. An
    `elementwise` operation may write the slot that it reads. One that `picks` reads no more of its first input than it
    writes.
    """

    name: str
    run: Callable[..., None]
    work: Work
    outs: int = 1
    elementwise: bool = False
    picks: bool = False

    def updates(self, params: Mapping[str, Any]) -> bool:
        """Whether the outputs are also read, as accumulators."""
        return bool(params.get("add", False))


LOCAL_OPS: dict[str, LocalOp] = {}


def local_op(
    *, work: Work, outs: int = 1, elementwise: bool = False, picks: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the decorated torch function as the local operation of its name (without the suffix `_torch`)."""

    def register(run: Callable[..., None]) -> Callable[..., None]:
        name = run.__name__.removesuffix("_torch")
        LOCAL_OPS[name] = LocalOp(name, run, work, outs, elementwise, picks)
        return run

    return register


def find(name: str) -> LocalOp:
    """The registered local operation `name`; ScheduleError with the known names otherwise."""
    if name not in LOCAL_OPS:
        raise ScheduleError(f"local operation {name!r} is not registered; known: {', '.join(sorted(LOCAL_OPS))}")
    return LOCAL_OPS[name]


def cut(tile: Tensor, *dims: int) -> Tensor:
    """A view of a flat tile [..., numel] as [..., *dims]."""
    return tile.unflatten(-1, dims)
