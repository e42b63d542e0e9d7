"""A BLAS whose order of sums hangs on the address of the result, in another way than any real one.

oneMKL on processors of AMD is such a one. `pytest -p odd_blas` finds tests, and steps of an executor, that hang on it.
"""

import warnings

import numpy as np
import torch


def _product(a: torch.Tensor, b: torch.Tensor, at: int = 0) -> torch.Tensor:
    """Return a @ b for a [..., m, k], b [..., k, n]; by its address a result takes its k terms from the last one on.

    The first result lies at address `at`, the others follow it.
    """
    left, right = (x.detach().float() if x.dtype.itemsize == 2 else x.detach() for x in (a, b))
    shape = (*a.shape[:-1], b.shape[-1])
    x, y = (each.flatten(0, -3).numpy() if each.dim() > 2 else each.numpy()[None] for each in (left, right))
    out = np.empty((len(x), *shape[-2:]), x.dtype)
    places = (at + np.arange(len(x)) * out[:1].nbytes) // 4 % 16  # words in a cache line
    turned = places * 7 // 4 % 2 > 0
    out[~turned] = x[~turned] @ y[~turned]
    out[turned] = x[turned][:, :, ::-1].copy() @ y[turned][:, ::-1].copy()
    return torch.from_numpy(out).view(shape).to(a.dtype)


def _added(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    """Return beta * c + alpha * a @ b; a beta of 0 hides NaN in c."""
    product = _product(a, b, c.data_ptr()) * alpha
    return c * beta + product if beta else product


def pytest_configure() -> None:
    """Put these in the place of torch's products on a CPU, for this process."""
    library = torch.library.Library("aten", "IMPL")
    pytest_configure.library = library  # else they would go when it does
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, product in (("mm", _product), ("bmm", _product), ("addmm", _added), ("baddbmm", _added)):
            library.impl(name, product, "CPU")
        library.impl("baddbmm_", lambda c, *operands, **factors: c.copy_(_added(c, *operands, **factors)), "CPU")
