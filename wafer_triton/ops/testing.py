"""How values are judged: against an fp64 reference, with a tolerance that follows from the dtype and is never tuned.

A result in a dtype may have twice the error of plain torch in that dtype, and one rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wafer_triton.device.dtype import dtype_name, torch_dtype


def assert_close(actual: Tensor, reference: Tensor, dtype: Any, plain: Tensor | None = None, name: str = "") -> None:
    """AssertionError, naming the worst coordinates, unless `actual` is as near to `reference` as `dtype` lets it be.

    `reference` is fp64, `plain` the result of torch in `dtype` (None: as if it were exact). The bound on every element
    is 2 max|plain - reference| + eps max|reference|. NaN or infinity is wrong unless the reference has it there.
    """
    assert reference.dtype == torch.float64, f"the reference must be fp64, not {reference.dtype}"
    label = f"{name}: " if name else ""
    assert actual.shape == reference.shape, f"{label}shape {list(actual.shape)}, not {list(reference.shape)}"
    reference = reference.cpu()
    finite = reference.isfinite()
    scale = reference[finite].abs().max().item() if finite.any() else 0.0
    bound = torch.finfo(torch_dtype(dtype_name(dtype))).eps * scale
    if plain is not None:
        bound += 2 * _error(plain, reference).max().item() if plain.numel() else 0.0
    error = _error(actual, reference)
    if not (error > bound).any():
        return
    worst = error.flatten().argsort(descending=True)[:3]
    shown = "; ".join(
        f"{_at(error, int(i))} is {actual.flatten()[int(i)].item():.9g}, not {reference.flatten()[int(i)].item():.9g}"
        for i in worst
    )
    raise AssertionError(
        f"{label}{int((error > bound).sum())} of {error.numel()} elements off by up to {error.max().item():.3g}, "
        f"{bound:.3g} allowed in {dtype_name(dtype)}; worst: {shown}"
    )


def _error(actual: Tensor, reference: Tensor) -> Tensor:
    actual = actual.detach().cpu().double()
    same = (actual == reference) | (actual.isnan() & reference.isnan())
    return torch.where(same, 0.0, (actual - reference).abs().nan_to_num(nan=torch.inf, posinf=torch.inf))


def _at(error: Tensor, flat: int) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), error.shape))
