"""Mesh operations on ordinary tensors: cut, run the schedule, put together.

    >>> c = mesh_gemm(a, b, mesh=16)                  # 16 x 16 virtual cores of a WSE-2
    >>> c, record = mesh_gemm(a, b, mesh="8x12", record=True)

    >>> record.hops, record.link_bytes, record.sram_by_buffer

Operands share one dtype (fp32, bf16, fp16) and one torch device. A MeshTensor is taken as it is cut; if the first
operand is a MeshTensor, so is the result. All operations take the keywords of `How`, and with `record=True` return
(result, Record) of the run. They raise MeshError, ShapeError, DtypeError, SramError or BackendError before anything
runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, overload

import lazy_loader
import torch
from torch import Tensor
from typing_extensions import Unpack

from wafer_triton.device.layout import MeshTensor
from wafer_triton.device.mesh import as_mesh
from wafer_triton.errors import MeshError, ShapeError, shown
from wafer_triton.ops.call import (
    How,
    HowGemm,
    HowGemv,
    HowNorm,
    HowReduce,
    HowSoftmax,
    Operand,
    call,
    check_tensors,
    clear_cache,
    run,
    spelled,
)
from wafer_triton.ops.executors import described, emulation_device, executor
from wafer_triton.ops.recording import Record, recording

__all__ = [
    "How", "Operand", "Record", "all_reduce", "clear_cache", "described", "emulation_device", "executor",
    "mesh_gemm", "mesh_gemm_t", "mesh_gemm_tn", "mesh_gemv", "recording", "rms_norm", "run", "softmax",
]  # fmt: skip

__getattr__ = lazy_loader.attach(__name__, ["distributed"])[0]
T = TypeVar("T", Tensor, MeshTensor)


@overload
def mesh_gemm(a: T, b: Operand, *, record: Literal[False] = False, **how: Unpack[HowGemm]) -> T: ...


@overload
def mesh_gemm(a: T, b: Operand, *, record: Literal[True], **how: Unpack[HowGemm]) -> tuple[T, Record]: ...


@spelled
def mesh_gemm(
    a: Operand,
    b: Operand,
    *,
    algorithm: str = "mesh",
    accumulate: str | torch.dtype = "fp32",
    record: bool = False,
    **how: Unpack[How],
) -> Any:
    """Return a [m, k] @ b [k, n] -> [m, n] by MeshGEMM, or by algorithm "cannon", "summa" or "allgather".

    A rectangular mesh is folded to its lcm grid. Source: WaferLLM (OSDI'25), section 5.
    """
    _matrices("mesh_gemm", a, b)
    if a.shape[1] != b.shape[0]:
        raise ShapeError(f"mesh_gemm: a {list(a.shape)} has {a.shape[1]} columns, b {list(b.shape)} {b.shape[0]} rows")
    return call("gemm", (a, b), how, record, algorithm=algorithm, accumulate=accumulate)


@overload
def mesh_gemm_t(a: T, b: Operand, *, record: Literal[False] = False, **how: Unpack[HowGemm]) -> T: ...


@overload
def mesh_gemm_t(a: T, b: Operand, *, record: Literal[True], **how: Unpack[HowGemm]) -> tuple[T, Record]: ...


@spelled
def mesh_gemm_t(
    a: Operand,
    b: Operand,
    *,
    algorithm: str = "mesh",
    accumulate: str | torch.dtype = "fp32",
    record: bool = False,
    **how: Unpack[How],
) -> Any:
    """Return a [m, k] @ b [n, k]^T -> [m, n] by GEMM-T: b circles along y, partial products are summed along x.

    The algorithms "cannon", "summa" and "allgather" transpose b on the mesh first. Source: WaferLLM (OSDI'25),
    section 5.
    """
    _matrices("mesh_gemm_t", a, b)
    if a.shape[1] != b.shape[1]:
        raise ShapeError(f"mesh_gemm_t: a {list(a.shape)} and b {list(b.shape)} differ in columns")
    return call("gemm", (a, b), how, record, algorithm=algorithm, transposed="b", accumulate=accumulate)


@overload
def mesh_gemm_tn(a: T, b: Operand, *, record: Literal[False] = False, **how: Unpack[HowGemm]) -> T: ...


@overload
def mesh_gemm_tn(a: T, b: Operand, *, record: Literal[True], **how: Unpack[HowGemm]) -> tuple[T, Record]: ...


@spelled
def mesh_gemm_tn(
    a: Operand,
    b: Operand,
    *,
    algorithm: str = "mesh",
    accumulate: str | torch.dtype = "fp32",
    record: bool = False,
    **how: Unpack[How],
) -> Any:
    """Return a [k, m]^T @ b [k, n] -> [m, n] by the mirror of GEMM-T: a circles along x, products are summed along y.

    The algorithms "cannon", "summa" and "allgather" transpose a on the mesh first.
    """
    _matrices("mesh_gemm_tn", a, b)
    if a.shape[0] != b.shape[0]:
        raise ShapeError(f"mesh_gemm_tn: a {list(a.shape)} and b {list(b.shape)} differ in rows")
    return call("gemm", (a, b), how, record, algorithm=algorithm, transposed="a", accumulate=accumulate)


@overload
def mesh_gemv(x: T, w: Operand, *, record: Literal[False] = False, **how: Unpack[HowGemv]) -> T: ...


@overload
def mesh_gemv(x: T, w: Operand, *, record: Literal[True], **how: Unpack[HowGemv]) -> tuple[T, Record]: ...


@spelled
def mesh_gemv(
    x: Operand,
    w: Operand,
    *,
    axis: str = "y",
    algorithm: str = "ktree",
    groups: Sequence[int] | int | None = None,
    accumulate: str | torch.dtype = "fp32",
    record: bool = False,
    **how: Unpack[How],
) -> Any:
    """x [k] or [m, k] @ w [k, n] -> [n] or [m, n] by MeshGEMV: k is cut along `axis`, a K-tree adds the partial sums.

    `groups` are the tree's numbers of groups on each level but the last. `algorithm` may be another all-reduce:
    "pipeline", "ring", "two-phase" or "star". Source: WaferLLM (OSDI'25), section 6.
    """
    _axis("mesh_gemv", axis)
    check_tensors("mesh_gemv", x, w)
    vector = isinstance(x, Tensor) and x.dim() == 1
    x = x[None] if isinstance(x, Tensor) and vector else x
    _matrices("mesh_gemv", x, w)
    if x.shape[1] != w.shape[0]:
        raise ShapeError(f"mesh_gemv: x has {x.shape[1]} elements, w {list(w.shape)} {w.shape[0]} rows")
    result = call("gemv", (x, w), how, record, axis=axis, algorithm=algorithm, groups=groups, accumulate=accumulate)
    if not vector:
        return result
    return (result[0][0], result[1]) if record else result[0]


@overload
def all_reduce(x: Tensor, *, record: Literal[False] = False, **how: Unpack[HowReduce]) -> Tensor: ...


@overload
def all_reduce(x: Tensor, *, record: Literal[True], **how: Unpack[HowReduce]) -> tuple[Tensor, Record]: ...


@spelled
def all_reduce(
    x: Tensor,
    *,
    axis: str,
    op: str = "add",
    algorithm: str = "ktree",
    groups: Sequence[int] | int | None = None,
    record: bool = False,
    **how: Unpack[How],
) -> Any:
    """x [rows, cols, ...], one tile per core: every core gets the sum (or op="maximum") over its line of `axis`.

    `algorithm` is "ktree" (with `groups`), "pipeline", "ring", "two-phase" or "star". Source: WaferLLM (OSDI'25),
    section 6.
    """
    _axis("all_reduce", axis)
    if op not in ("add", "maximum"):
        raise ShapeError(f"all_reduce: op {shown(op)} is neither 'add' nor 'maximum'")
    check_tensors("all_reduce", x)
    shape = as_mesh(how.get("mesh")).shape
    if tuple(x.shape[:2]) != shape:
        raise ShapeError(f"all_reduce: x {list(x.shape)} must begin with the mesh's {list(shape)}")
    return call("all_reduce", (x,), how, record, axis=axis, op=op, algorithm=algorithm, groups=groups)


@overload
def rms_norm(x: T, weight: Operand, *, record: Literal[False] = False, **how: Unpack[HowNorm]) -> T: ...


@overload
def rms_norm(x: T, weight: Operand, *, record: Literal[True], **how: Unpack[HowNorm]) -> tuple[T, Record]: ...


@spelled
def rms_norm(x: Operand, weight: Operand, *, eps: float = 1e-6, record: bool = False, **how: Unpack[How]) -> Any:
    """x [m, n] / sqrt(mean over n of x^2 + eps) * weight [n] -> [m, n]; rows are cut along x."""
    check_tensors("rms_norm", x, weight)
    number = _number("rms_norm", "eps", eps)
    if number < 0:
        raise ShapeError(f"rms_norm: eps = {number} must be 0 or a positive number")
    if len(x.shape) != 2 or tuple(weight.shape) != (x.shape[1],):
        raise ShapeError(f"rms_norm: x {list(x.shape)} must be [m, n] and weight {list(weight.shape)} [n]")
    return call("rms_norm", (x, weight), how, record, eps=number)


@overload
def softmax(x: T, *, record: Literal[False] = False, **how: Unpack[HowSoftmax]) -> T: ...


@overload
def softmax(x: T, *, record: Literal[True], **how: Unpack[HowSoftmax]) -> tuple[T, Record]: ...


@spelled
def softmax(x: Operand, *, scale: float = 1.0, record: bool = False, **how: Unpack[How]) -> Any:
    """Softmax of scale * x [m, n] over n -> [m, n]; rows are cut along x."""
    check_tensors("softmax", x)
    number = _number("softmax", "scale", scale)
    if len(x.shape) != 2 or x.shape[1] == 0:
        raise ShapeError(f"softmax: x {list(x.shape)} must be [m, n]")
    return call("softmax", (x,), how, record, scale=number)


def _number(name: str, key: str, value: Any) -> float:
    """Return a value as a finite number; ShapeError if it is none."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not abs(number) < math.inf:  # math.isfinite takes no symbolic number of torch's
        raise ShapeError(f"{name}: {key} = {shown(value)} must be a finite number")
    return number


def _matrices(name: str, a: Operand, b: Operand) -> None:
    check_tensors(name, a, b)
    for label, operand in (("first", a), ("second", b)):
        if len(operand.shape) != 2 or 0 in operand.shape:
            raise ShapeError(
                f"{name}: the {label} operand is {list(operand.shape)}; it must be a matrix that is not empty"
            )


def _axis(name: str, axis: str) -> None:
    if axis not in ("x", "y"):
        raise MeshError(f"{name}: axis {shown(axis)} is neither 'x' (across the columns) nor 'y' (down the rows)")
