"""Triton kernels: what one core computes, with one program instance per core.

`KERNELS` has a launcher for each local operation; moves between cores are in `exchange`, `compute_shift` and `tree`.
Names load on first use. Kernels take pointers, index tables and constexpr sizes, never a schedule.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "KERNELS": "table", "find": "table", "Operand": "_common", "Copies": "exchange",
    "each": "fused", "load": "_common", "store": "_common", "tile_ptr": "_common",
}  # fmt: skip

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'wafer_triton.kernels' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"wafer_triton.kernels.{_HOME[name]}"), name)
