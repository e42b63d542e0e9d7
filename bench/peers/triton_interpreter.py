"""The Triton interpreter: docs/examples/one_file.py, a program instance a core and a launch a round."""

import os
import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np

os.environ["TRITON_INTERPRET"] = "1"
import torch

PACKAGES = ("triton", "torch")
ONE_FILE = Path(__file__).resolve().parents[2] / "docs/examples/one_file.py"


def prepare(side: int, a: np.ndarray, b: np.ndarray) -> Callable[[], torch.Tensor]:
    torch.set_num_threads(1)
    product = runpy.run_path(str(ONE_FILE))["mesh_gemm"]
    return lambda: product(torch.from_numpy(a), torch.from_numpy(b), side)
