"""Triton kernels: what one core computes, one program instance per core.

`KERNELS` has a launcher for each local operation; the moves between cores are `exchange`, the compute-shift rounds
(`one_round`, `several_rounds`) and `tree`.
Kernels see pointers, index tables and constexpr sizes, never a schedule.
"""

from wafer_triton.kernels._common import Launcher, Operand
from wafer_triton.kernels.compute_shift import one_round, residency, several_rounds
from wafer_triton.kernels.elementwise import elementwise
from wafer_triton.kernels.exchange import Moves, exchange
from wafer_triton.kernels.table import KERNELS, find
from wafer_triton.kernels.tree import tree

__all__ = [
    "KERNELS",
    "Launcher",
    "Moves",
    "Operand",
    "elementwise",
    "exchange",
    "find",
    "one_round",
    "residency",
    "several_rounds",
    "tree",
]
