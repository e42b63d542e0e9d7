"""Looking rows up in a core's share of a table, by numbers that the core is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wafer_triton.local.registry import MATRIX, cut, local_op

if TYPE_CHECKING:
    from torch import Tensor


# 16 bits hold few whole numbers
@local_op(
    tiles=lambda *, m, d, v: ((m, d), (d, v), (m,)), work=lambda *, m, d, v: (0, m * d),
    reads={"table": lambda *, m, d, v: m * d}, dtypes={"ids": ("fp32",), "table": MATRIX},
)  # fmt: skip
def lookup_torch(out: Tensor, table: Tensor, ids: Tensor, *, m: int, d: int, v: int) -> None:
    """out [m, d] = the columns ids [m] of table [d, v]; zeros for an id outside it, whose column another core has."""
    ids = cut(ids, m, 1)
    inside = (ids >= 0) & (ids < v)
    columns = cut(table, d, v).gather(-1, ids.where(inside, 0).long().mT.expand(*ids.shape[:-2], d, m))
    cut(out, m, d).copy_(columns.mT.where(inside, 0))
