"""The table of Triton kernels: one launcher for each local operation, under the name of its torch definition."""

from __future__ import annotations

from collections.abc import Callable

from wafer_triton.errors import BackendError
from wafer_triton.kernels import dispatch, elementwise, experts, gemm, norm, softmax  # noqa: F401  they register
from wafer_triton.kernels.fused import KERNELS


def find(name: str) -> Callable[..., None]:
    """Return the launcher of local operation `name`; BackendError with the known names otherwise."""
    if name not in KERNELS:
        raise BackendError(
            f"local operation {name!r} has no Triton kernel; known: {', '.join(sorted(KERNELS))}. Add your own with "
            f"wafer_triton.kernels.KERNELS[{name!r}] = elementwise(fn), or any launcher, or run on the torch backend"
        )
    return KERNELS[name]
