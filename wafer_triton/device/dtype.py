"""Storage types of tiles, by name, so that schedules and costs need no torch.

Tiles are fp32, bf16 or fp16. The matrices of a model may also be stored in int8 or fp8, of one byte a number: a core
then converts a number as it reads it, and activations, keys, values, norms, biases and routers stay in fp16. SRAM, link
bytes and reads of SRAM count one byte. An executor keeps the converted numbers, in fp16 (`models/place/storage.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from wafer_triton.errors import DtypeError

if TYPE_CHECKING:
    import numpy as np
    import torch

DtypeLike: TypeAlias = "str | torch.dtype | np.dtype[Any] | type[np.generic]"

_TORCH = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_NAMES = {full: short for short, full in _TORCH.items()}
_NAMES |= {"float8_e4m3fn": "fp8"}
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "fp8": 1}
TILES = tuple(_TORCH)  # that run
STORED = ("int8", "fp8")  # of a model's matrices
WEIGHTS = ("fp16", "bf16", *STORED)  # of a model that is priced


def dtype_name(dtype: Any) -> str:
    """Return the short name of a dtype of tiles, as "fp16", "float16" or torch.float16; DtypeError for another."""
    name = storage_name(dtype, TILES)
    if name in STORED:
        raise DtypeError(f"dtype {name} is a storage of a model's weights; give tiles in one of {', '.join(TILES)}")
    return name


def storage_name(dtype: Any, named: Iterable[str] = BYTES) -> str:
    """Return the short name of a dtype of tiles or of stored weights; DtypeError, with the `named`, for any other."""
    name = str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")  # a type of numpy has a name
    name = _NAMES.get(name, name)
    if name not in named and name not in STORED:
        raise DtypeError(f"dtype {name!s:.80} is not supported; use one of {', '.join(named)}")
    return name


def tile_dtype(stored: str) -> str:
    """Return the dtype of the activations beside weights that are stored so."""
    return "fp16" if stored in STORED else stored


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of an executor's memory: of tiles their own, of stored weights fp16.

    Raises DtypeError for any other name.
    """
    import torch

    found: torch.dtype = getattr(torch, _TORCH[tile_dtype(storage_name(name))])
    return found


def accumulator(dtype: str, accumulate: str) -> str:
    """Return the dtype of partial sums for tiles of `dtype`; DtypeError unless it is "fp32", or "fp16" with fp16."""
    accumulate = storage_name(accumulate, ("fp32", "fp16"))
    if accumulate not in ("fp32", "fp16"):
        raise DtypeError(f"accumulate={accumulate!r}: partial sums are kept in 'fp32' or 'fp16'")
    if accumulate == "fp16" and dtype != "fp16":
        raise DtypeError(f"accumulate='fp16' needs fp16 tiles, not {dtype}")
    return accumulate
