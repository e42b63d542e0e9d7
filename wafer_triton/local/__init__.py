"""Local operations: the computation of one core between exchanges, each defined by a few plain lines of torch.

The definition of an operation judges its fast form (`wafer_triton.emulate.torch_local`) and its Triton kernel
(`wafer_triton.kernels`). A tile is flat memory; an operation's parameters say how it is cut into
dimensions. Operands carry any leading core dimensions (`...`), so one call computes a whole batch of cores. All
arithmetic is fp32: an executor widens operands and rounds results to the buffer's dtype, as a core does.
With `accumulate="fp16"` every multiply-add rounds to fp16 as well, as WSE-2 software does.

A function `gemm_torch(c, a, b, *, m, k, n, add=False, ...)` defines the operation "gemm" with one output. A schedule
calls it as `b.local("gemm", "c", ("a", "b"), m=4, k=2, n=3, add=True)`; `add` keeps what c holds and adds the product.

Importing this package imports no torch: schedules are checked and priced where there is none.
"""

from wafer_triton.local.dispatch import (
    combine_torch,
    dispatch_torch,
    enqueue_torch,
    permute_torch,
    scale_rows_torch,
    unpermute_torch,
)
from wafer_triton.local.elementwise import add_torch, clip_torch, copy_torch, maximum_torch, silu_mul_torch, swap_torch
from wafer_triton.local.experts import expert_gemm_torch, expert_sum_torch, top_k_torch
from wafer_triton.local.gemm import gemm_t_torch, gemm_tn_torch, gemm_torch
from wafer_triton.local.lookup import lookup_torch
from wafer_triton.local.norm import (
    mean_squares_torch,
    rms_dw_torch,
    rms_dx_torch,
    rms_scale_torch,
    sum_products_torch,
    sum_squares_torch,
)
from wafer_triton.local.registry import LOCAL_OPS, LocalOp, SlotOperand, cut, definitions, find, local_op
from wafer_triton.local.rope import rope_torch
from wafer_triton.local.softmax import exp_sum_torch, normalize_torch, row_max_torch, softmax_dx_torch

__all__ = [
    "LOCAL_OPS",
    "LocalOp",
    "SlotOperand",
    "add_torch",
    "clip_torch",
    "combine_torch",
    "copy_torch",
    "cut",
    "definitions",
    "dispatch_torch",
    "enqueue_torch",
    "exp_sum_torch",
    "expert_gemm_torch",
    "expert_sum_torch",
    "find",
    "gemm_t_torch",
    "gemm_tn_torch",
    "gemm_torch",
    "local_op",
    "lookup_torch",
    "maximum_torch",
    "mean_squares_torch",
    "normalize_torch",
    "permute_torch",
    "rms_dw_torch",
    "rms_dx_torch",
    "rms_scale_torch",
    "rope_torch",
    "row_max_torch",
    "scale_rows_torch",
    "silu_mul_torch",
    "softmax_dx_torch",
    "sum_products_torch",
    "sum_squares_torch",
    "swap_torch",
    "top_k_torch",
    "unpermute_torch",
]
