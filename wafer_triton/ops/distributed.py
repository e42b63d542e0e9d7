"""A mesh over several GPUs or machines: its cores are cut into rectangles, one for each rank of torch.distributed.

    $ torchrun --nproc-per-node 4 script.py

    >>> ranks = wafer_triton.distributed.executor()
    >>> c, record = mesh_gemm(a, b, mesh=64, executor=ranks, record=True)
    >>> record.rank_bytes                             # that crossed ranks, of each round

Every rank runs the same script with the same values, and gets the same results. Without torchrun the script runs in one
process.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from wafer_triton.device.mesh import MeshLike, as_mesh
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.ranks.executor import DistributedExecutor
from wafer_triton.errors import BackendError, MeshError, nearest, shown
from wafer_triton.ops import executors

__all__ = ["executor"]

MOST_TIMEOUT = 1e7  # seconds, some months
TIMEOUT = 600.0  # seconds for which a rank waits for another that is there but does not answer


def executor(
    backend: str | None = None,
    exchange: str = "explicit",
    *,
    shards: MeshLike | None = None,
    timeout: float = TIMEOUT,
    emulate_on: str | torch.device = "auto",
    **options: Any,
) -> Executor:
    """Return the executor of a mesh over all ranks that torchrun started, or of one process where there are no others.

    `shards` is "RxC", the rectangles that a mesh is cut into; by default as few cores as can be lie at the cuts.
    `emulate_on` is "cuda" for one GPU to a rank, with NCCL, or "cpu", with gloo; "auto" takes the GPUs if there are
    any. The other arguments are as in `ops.executor`, for each rank. A rank that waits `timeout` seconds for another
    gives up.

    Raises BackendError if ranks do not agree on all this, and for a node with fewer GPUs than ranks. It is raised, too,
    unless `shards` has one rectangle for each rank. Raises MeshError for `shards` of another form.
    """
    for name in options:
        if hint := nearest(name, ("shards", "timeout")):
            raise BackendError(f"distributed.executor: no option {name!r}{hint}")
    if not 0 < timeout <= MOST_TIMEOUT:
        raise BackendError(
            f"timeout = {shown(timeout)} must be a number of seconds above 0, at most {MOST_TIMEOUT:,.0f}"
        )
    try:
        sides = None if shards is None else as_mesh(shards)
    except MeshError as error:
        raise MeshError(f"shards {shown(shards)}: {error}") from None
    if int(os.environ.get("WORLD_SIZE") or 1) == 1 and not dist.is_initialized():
        if sides is not None and sides.rows * sides.cols > 1:
            raise BackendError(
                f"shards {sides} are for {sides.rows * sides.cols} ranks, and there is one; use torchrun"
            )
        return executors.executor(backend, exchange, emulate_on, **options)
    chosen = executors.emulation_device(emulate_on)
    if not dist.is_initialized():
        join(chosen, timeout)
    if torch.device(chosen).type == "cuda":
        local, present = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= present:
            raise BackendError(
                f"rank {dist.get_rank()}: this node has {present} GPUs; start no more ranks than GPUs on it"
            )
        torch.cuda.set_device(local)
        chosen = f"cuda:{local}"
    inside = executors.executor(backend, exchange, chosen, **options)
    return DistributedExecutor(inside, shards=None if sides is None else (sides.rows, sides.cols))


def join(device: str = "cpu", timeout: float = TIMEOUT) -> None:
    """Join the process group that torchrun describes, over NCCL between GPUs, else over gloo."""
    kind = "nccl" if torch.device(device).type == "cuda" else "gloo"
    try:
        dist.init_process_group(kind, timeout=timedelta(seconds=float(timeout)))
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BackendError(f"the ranks cannot join over {kind} ({reason}); start them by torchrun") from None
