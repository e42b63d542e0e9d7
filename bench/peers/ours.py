"""wafer_triton: `mesh_gemm` of torch tensors, with the options of a peer's name."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

PEERS: dict[str, dict[str, Any]] = {
    "elided": {"exchange": "elided"},
    "explicit": {},
    "recorded": {},  # with a record
    "interpreted": {"backend": "triton"},  # its kernels in the Triton interpreter
}
PACKAGES = ("wafer-triton", "torch", "triton")


def prepare(side: int, a: np.ndarray, b: np.ndarray, peer: str) -> Callable[[], Any]:
    os.environ["TRITON_INTERPRET"] = "1"
    import torch

    from wafer_triton import mesh_gemm

    torch.set_num_threads(1)
    left, right = torch.from_numpy(a), torch.from_numpy(b)
    if peer == "recorded":
        return lambda: mesh_gemm(left, right, mesh=side, record=True)[0]
    return lambda: mesh_gemm(left, right, mesh=side, **PEERS[peer])
