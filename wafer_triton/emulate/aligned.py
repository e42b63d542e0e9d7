"""Where MeshGEMM's alignment leaves tiles: its schedule, run on core numbers."""

from __future__ import annotations

from functools import lru_cache

import torch

from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.gemm import align


@lru_cache(maxsize=8)
def aligned(mesh: Mesh, region: int | None = None) -> torch.Tensor:
    """[cores], int64: the core that the tile of every core comes from, of weights aligned along y on a square mesh.

    With `region` they are aligned in every square of so many cores a side by itself.

    Raises MeshError on a mesh that is not square.
    """
    b = Builder(mesh, "skew")
    align(b, b.buffer("w", (1,), "fp32", "weight"), "y", region=region)
    cores = torch.arange(mesh.cores, dtype=torch.float32).view(*mesh.shape, 1)
    program = TorchExecutor().bind(b.build(), {"w": cores})
    program.run()
    return program.read("w").flatten().long()
