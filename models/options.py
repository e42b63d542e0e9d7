"""The options of a model on a wafer: of its placement, and of its runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from wafer_triton.cost.placement import ExpertPlacement
from wafer_triton.emulate.executor import Executor
from wafer_triton.errors import BackendError, shown
from wafer_triton.ops import described
from wafer_triton.ops import executor as executor_of
from wafer_triton.place.regions import Placement
from wafer_triton.text.progress import Progress, silent

Groups = Sequence[int] | int | None


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """The placement of a model on a wafer.

    `mesh` is a Mesh, or a value for `as_mesh`, on `device` (default: a WSE-2). `prefill_mesh` is the mesh of prefill if
    it differs. `groups` and `prefill_groups` are the numbers of groups in each level of a K-tree but the last (default:
    about the root of a line's cores). Without a mesh, the fastest plan that holds the model gives `mesh`. It also gives
    `prefill_mesh`, `groups` and `prefill_groups` where these are None.

    The columns hold the heads in `head_groups` groups; prefill has `prefill_head_groups` if given (default: in each
    phase the fastest that fits, by the cost model). In prefill the `experts` of a mixture are "spread", each over the
    whole mesh, or in "regions", given ones or the best. The default is, of the placements that fit, the faster by the
    cost model.

    Tiles have `dtype`, and `accumulate` is the dtype of sums. With "int8" or "fp8" the matrices are stored in this
    format, one scale each, and tiles are fp16. The KV cache of each of `batch` sequences holds `max_length` tokens,
    prompt and new. Prefill takes a prompt of up to `max_prompt` tokens at once if its activations fit the cores, else
    in chunks.
    """

    mesh: Any = None
    device: Any = None
    dtype: str = "fp32"
    accumulate: str = "fp32"
    max_length: int = 512
    max_prompt: int = 64
    batch: int = 1
    prefill_mesh: Any = None
    groups: Groups = None
    prefill_groups: Groups = None
    head_groups: int | None = None
    prefill_head_groups: int | None = None
    experts: ExpertPlacement = None


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a model's runs on this machine.

    `emulate_on` is the torch device that emulates the cores with explicit exchange ("auto": a GPU if there is one). An
    `executor` in its place chooses backend and exchange, too, see `ops.executor`. `progress` reports
    the meshes of a search, and compiled kernels. `placed` is called with the placement, before weights are read.

    Raises BackendError for an `executor` of another type, or beside `emulate_on`.
    """

    emulate_on: str | torch.device = "auto"
    executor: Executor | None = None
    progress: Progress = silent
    placed: Callable[[Placement], None] | None = None

    def __post_init__(self) -> None:
        executor = self.executor
        if not isinstance(executor, Executor | None):
            raise BackendError(
                f"executor {shown(executor)}: give a result of wafer_triton.ops.executor, or leave it out"
            )
        if executor is not None and self.emulate_on != "auto":
            raise BackendError(
                f"emulate_on {self.emulate_on!r} beside an executor {described(executor)}: give one of the two"
            )

    def chosen(self) -> Executor:
        """Return the executor that runs the model; BackendError for a missing torch device."""
        return executor_of(emulate_on=self.emulate_on) if self.executor is None else self.executor


def split(options: dict[str, Any]) -> tuple[PlaceOptions, RunOptions]:
    """Return options by name as both kinds; TypeError for a name that neither has."""
    place, run = ({one.name for one in fields(kind)} for kind in (PlaceOptions, RunOptions))
    if unknown := [name for name in options if name not in place | run]:
        raise TypeError(f"a model has no option {unknown[0]!r}; its options are {', '.join(sorted(place | run))}")
    return (
        PlaceOptions(**{name: value for name, value in options.items() if name in place}),
        RunOptions(**{name: value for name, value in options.items() if name in run}),
    )
