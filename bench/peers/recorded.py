"""wafer_triton: `mesh_gemm` of torch tensors with explicit exchange and a record."""

from collections.abc import Callable

import numpy as np
import torch

from wafer_triton import mesh_gemm

PACKAGES = ("wafer-triton", "torch")


def prepare(side: int, a: np.ndarray, b: np.ndarray) -> Callable[[], torch.Tensor]:
    torch.set_num_threads(1)
    left, right = torch.from_numpy(a), torch.from_numpy(b)
    return lambda: mesh_gemm(left, right, mesh=side, record=True)[0]
