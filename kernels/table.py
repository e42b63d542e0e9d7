"""The table of Triton kernels: one launcher for each local operation, under the name of its torch definition."""

from __future__ import annotations

from wafer_triton.errors import BackendError
from wafer_triton.kernels._common import Launcher
from wafer_triton.kernels.dispatch import combine, dispatch, enqueue, permute, scale_rows, unpermute
from wafer_triton.kernels.elementwise import add, clip, copy, maximum, silu_mul, swap
from wafer_triton.kernels.experts import expert_gemm, expert_sum, top_k
from wafer_triton.kernels.gemm import gemm, gemm_t
from wafer_triton.kernels.lookup import lookup
from wafer_triton.kernels.norm import mean_squares, rms_scale, sum_squares
from wafer_triton.kernels.rope import rope
from wafer_triton.kernels.softmax import exp_sum, normalize, row_max

KERNELS: dict[str, Launcher] = {
    "gemm": gemm,
    "gemm_t": gemm_t,
    "add": add,
    "maximum": maximum,
    "copy": copy,
    "sum_squares": sum_squares,
    "rms_scale": rms_scale,
    "rope": rope,
    "row_max": row_max,
    "exp_sum": exp_sum,
    "normalize": normalize,
    "silu_mul": silu_mul,
    "lookup": lookup,
    "clip": clip,
    "swap": swap,
    "mean_squares": mean_squares,
    "top_k": top_k,
    "expert_gemm": expert_gemm,
    "expert_sum": expert_sum,
    "enqueue": enqueue,
    "dispatch": dispatch,
    "permute": permute,
    "unpermute": unpermute,
    "combine": combine,
    "scale_rows": scale_rows,
}


def find(name: str) -> Launcher:
    """The launcher of local operation `name`; BackendError with the known names otherwise."""
    if name not in KERNELS:
        raise BackendError(
            f"local operation {name!r} has no Triton kernel; known: {', '.join(sorted(KERNELS))}. Add your own with "
            f"wafer_triton.kernels.KERNELS[{name!r}] = elementwise(fn), or any launcher, or run on the torch backend"
        )
    return KERNELS[name]
