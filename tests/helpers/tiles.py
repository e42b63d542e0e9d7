"""Tiles in memory that is NaN around them, as tests of kernels lay them out."""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from wafer_triton.algorithms.ring import ring
from wafer_triton.kernels import Operand
from wafer_triton.kernels.elided import Labels

DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"
CORES = 5


def memory(values: Tensor, index: Sequence[int] | None = None) -> Operand:
    """Lay out tiles [cores, numel] in NaN with gaps between them; core i's tile is row index[i]."""
    cores, numel = values.shape
    stride, offset = numel + 3, 5
    flat = torch.full((offset + cores * stride + 7,), float("nan"), dtype=values.dtype)
    rows = torch.arange(cores) if index is None else torch.tensor(index)
    flat[offset + rows[:, None] * stride + torch.arange(numel)] = values
    return Operand(flat.to(DEVICE), offset, stride, None if index is None else table(index))


def table(entries: Sequence[int]) -> Tensor:
    return torch.tensor(entries, dtype=torch.int32, device=DEVICE)


def ring_labels(side: int, shared: bool = True) -> tuple[Tensor, Tensor, Labels, Labels]:
    """Return the rings of rows and of columns and the labels of a and b that elided MeshGEMM takes.

    One table of labels serves all positions if it is `shared`, else each position has its own.
    """
    order = torch.tensor(ring(side).tolist(), dtype=torch.int32)
    rows = order * side
    if shared:
        return order, order, Labels(rows, order, 0), Labels(order, rows, 0)
    none, along, down = torch.zeros_like(order), rows[:, None] + order, rows[None, :] + order[:, None]
    return order, order, Labels(none, along.flatten(), side), Labels(none, down.flatten(), side)


def tiles(operand: Operand, numel: int, cores: int = CORES) -> Tensor:
    """Return the tiles [cores, numel] of an operand."""
    rows = torch.arange(cores) if operand.index is None else operand.index.cpu().long()
    return operand.tensor.cpu()[operand.offset + rows[:, None] * operand.stride + torch.arange(numel)]


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(*(one.contiguous().view(torch.uint8) for one in (a, b)))
