"""MeshGEMV (WaferLLM, OSDI'25, section 6): local products, then an all-reduce, by a K-tree unless given.

The vector is cut along one axis and repeated along the other. The matrix is cut along both. The product comes out cut
along the other axis, so that consecutive products alternate axes and nothing is transposed.
"""

from __future__ import annotations

from wafer_triton.algorithms.reduce import all_reduce
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Slot


def meshgemv(
    b: Builder,
    x: str | Slot,
    w: str,
    y: str | Slot,
    axis: str,
    *,
    m: int,
    k: int,
    n: int,
    algorithm: str = "ktree",
    groups: tuple[int, ...] | None = None,
    accumulate: str = "fp32",
    transposed: bool = False,
    label: str = "gemv",
) -> None:
    """Add y [m, n] = x [m, k] @ w [k, n] for m vectors cut along `axis`, with the sum on every core along `axis`.

    m, k and n are sizes of local tiles; `algorithm` and `groups` are as in `all_reduce`. With `transposed` tiles of w
    are [n, k], and it is x @ w^T.
    """
    b.round(b.local("gemm_t" if transposed else "gemm", y, (x, w), m=m, k=k, n=n, accumulate=accumulate), label=label)
    all_reduce(b, y, axis, algorithm=algorithm, groups=groups, label=label)
