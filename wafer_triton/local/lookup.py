"""Looking rows up in a core's share of a table, by their numbers in the whole table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wafer_triton.local.registry import MATRIX, cut, local_op

if TYPE_CHECKING:
    from torch import Tensor


# 16 bits hold few whole numbers
@local_op(
    tiles=lambda *, m, d, v, add=False: ((m, d), (d, v), (m,), (1,)), work=lambda *, m, d, v, add=False: (0, m * d),
    reads={"table": lambda *, m, d, v, add=False: m * d},
    dtypes={"ids": ("fp32",), "first": ("fp32",), "table": MATRIX},
)  # fmt: skip
def lookup_torch(
    out: Tensor, table: Tensor, ids: Tensor, first: Tensor, *, m: int, d: int, v: int, add: bool = False
) -> None:
    """out [m, d] = the columns ids [m] - first [1] of table [d, v].

    For an id outside of the table, whose column another core has, zeros; with `add` what was there.
    """
    ids = cut(ids, m, 1) - cut(first, 1, 1)
    inside = (ids >= 0) & (ids < v)
    columns = cut(table, d, v).gather(-1, ids.where(inside, 0).long().mT.expand(*ids.shape[:-2], d, m))
    out = cut(out, m, d)
    out.copy_(columns.mT.where(inside, out if add else 0))
