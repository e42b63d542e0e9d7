"""Triton kernels: what one core computes, one program instance per core.

`KERNELS` has a launcher for each local operation; `exchange`, `compute_shift` and `tree` are the moves between cores.
Kernels see pointers, index tables and constexpr sizes, never a schedule.
"""

from wafer_triton.kernels._common import Launcher, Operand
from wafer_triton.kernels.elementwise import elementwise
from wafer_triton.kernels.exchange import exchange
from wafer_triton.kernels.gemm import compute_shift
from wafer_triton.kernels.table import KERNELS, find
from wafer_triton.kernels.tree import tree

__all__ = ["KERNELS", "Launcher", "Operand", "compute_shift", "elementwise", "exchange", "find", "tree"]
