"""Matrices of one byte an element: int8 or fp8 with one scale a matrix, converted to fp16 by cores.

The scale takes the largest magnitude of a matrix to the largest number of the format, 127 or 448 (fp8 is e4m3). A byte
q stands for q times the scale, rounded to fp16. One scale a matrix adds no byte to an element, and the counts have
none. A scale for each column would add two bytes to the few elements of a column that a core holds.
"""

from __future__ import annotations

import torch

LARGEST = {"int8": 127, "fp8": 448}


def magnitude(values: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude of some numbers, in fp32; 0 if there are none."""
    return values.abs().amax().float() if values.numel() else torch.zeros(())


def converted(values: torch.Tensor, stored: str, largest: torch.Tensor) -> torch.Tensor:
    """Return numbers of a matrix rounded to a format of `dtype.STORED` and converted to fp16.

    `largest` is the magnitude of the whole matrix.
    """
    scale = (largest / LARGEST[stored]).to(values.device)
    shares = values.float() / scale.where(scale > 0, 1)
    rounded = shares.round() if stored == "int8" else shares.to(torch.float8_e4m3fn).float()
    return (rounded * scale).half()
