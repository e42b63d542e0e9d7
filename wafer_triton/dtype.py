"""Storage types of tiles, by name, so that schedules and costs need no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wafer_triton.errors import DtypeError

if TYPE_CHECKING:
    import torch

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_TORCH = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_NAMES = {full: short for short, full in _TORCH.items()}


def dtype_name(dtype: Any) -> str:
    """Return the short name of a dtype given as "fp16", "float16" or torch.float16; DtypeError for any other type."""
    name = str(dtype).removeprefix("torch.")
    name = _NAMES.get(name, name)
    if name not in BYTES:
        raise DtypeError(f"dtype {name} is not supported; use one of fp32, bf16, fp16")
    return name


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a short name."""
    import torch

    found: torch.dtype = getattr(torch, _TORCH[name])
    return found


def accumulator(dtype: str, accumulate: str) -> str:
    """The dtype of partial sums for tiles of `dtype`; DtypeError unless accumulate is "fp32", or "fp16" with fp16."""
    if accumulate not in ("fp32", "fp16"):
        raise DtypeError(f"accumulate={accumulate!r}: partial sums are kept in 'fp32' or 'fp16'")
    if accumulate == "fp16" and dtype != "fp16":
        raise DtypeError(f"accumulate='fp16' needs fp16 tiles, not {dtype}")
    return accumulate
