"""Mesh operations on ordinary tensors: cut, run the schedule, put together.

    >>> c = mesh_gemm(a, b, mesh=16)                  # 16 x 16 virtual cores of a WSE-2
    >>> c, record = mesh_gemm(a, b, mesh="8x12", record=True)

    >>> record.hops, record.link_bytes, record.sram_by_buffer

Operands share one dtype (fp32, bf16, fp16) and one torch device. A MeshTensor is taken as it is cut; if the first
operand is a MeshTensor, so is the result. All operations take the keywords of `How`. They raise MeshError, ShapeError,
DtypeError, SramError or BackendError before anything runs.
"""

from __future__ import annotations

import ast
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, TypedDict, TypeVar

import torch
from torch import Tensor
from typing_extensions import Unpack

from wafer_triton.cost.price import Cost, Prediction, price
from wafer_triton.count.account import Account, account
from wafer_triton.device import Device, device
from wafer_triton.device.dtype import dtype_name
from wafer_triton.device.layout import MeshTensor
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.program import POOL, Program
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import BackendError, DtypeError, MeshError, ScheduleError, ShapeError
from wafer_triton.schedule.product import Recipe, Shape, recipe
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.text import notebook
from wafer_triton.text.quantity import Legend

Operand = Tensor | MeshTensor
T = TypeVar("T")


class How(TypedDict, total=False):
    """Where and how an operation runs.

    `mesh`: a Mesh, a side or "RxC" (a MeshTensor brings its own). `exchange`: "explicit" or "elided". `backend`:
    "torch" or "triton"; by default triton for CUDA tensors. `launch`: how triton launches compute-shift rounds, "auto"
    or "rounds" (see `TritonExecutor`). `record`: return (result, Record) of the run. `executor`: runs the
    operation in place of one made of `backend`, `exchange` and `launch`, see `distributed.executor`.
    """

    mesh: Any
    exchange: str
    backend: str | None
    launch: str
    record: bool
    executor: Executor


@dataclass(frozen=True)
class Record(Account):
    """The account of a run and the predicted cost of its rounds on the wafer; `+` and `*` act on both.

    `rank_bytes` are the bytes that each round sent between ranks, where several emulate the mesh.
    """

    cost: Cost = field(default_factory=Cost)
    device: Device = field(default_factory=lambda: device("wse2"), metadata={"join": lambda own, other: own})
    rank_bytes: tuple[int, ...] = ()

    @classmethod
    def of(cls, schedule: Schedule, launches: tuple[str, ...] = (), rank_bytes: tuple[int, ...] = ()) -> Record:
        """Return the record of one run of a schedule by these kernel launches and messages between ranks."""
        counted = vars(account(schedule)) | {"launches": launches}
        return cls(**counted, cost=price(schedule), device=schedule.mesh.device, rank_bytes=rank_bytes)

    @property
    def predicted(self) -> Prediction:
        """Cycles and seconds on the wafer."""
        return Prediction.of(self.cost, self.device)

    def _repr_html_(self) -> str:
        return super()._repr_html_() + notebook.numbers(
            "Predicted on the wafer", self.predicted.as_json(), Legend(Prediction)
        )

    def __str__(self) -> str:
        sent = f"{'between ranks':<15}{sum(self.rank_bytes):,} B in {len(self.rank_bytes)} rounds\n"
        return f"{super().__str__()}\n{sent if self.rank_bytes else ''}{self.predicted}"


_KEYWORDS = tuple(How.__annotations__)


def emulation_device(emulate_on: str = "auto") -> str:
    """Return the torch device of `emulate_on`: "auto" is a GPU if torch finds one and Triton compiles for it."""
    if emulate_on != "auto":
        return emulate_on
    compiles = os.environ.get("TRITON_INTERPRET") != "1" and find_spec("triton") is not None
    return "cuda" if compiles and torch.cuda.is_available() else "cpu"


def executor(
    backend: str | None = None, exchange: str = "explicit", emulate_on: str = "auto", **options: Any
) -> Executor:
    """Return the executor on a torch device or "auto", a GPU where there is one; triton on a GPU, torch on a CPU.

    `backend` chooses otherwise. Raises BackendError if the backend or the device is unknown or cannot run here.
    """
    device = emulation_device(emulate_on)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:  # torch raises all of them for a device it lacks
        reason = str(error).partition("\n")[0]
        said = f" ({reason})" if len(reason) <= 100 else ""
        raise BackendError(
            f"emulate_on {device!r}: torch has no such device here{said}; use 'auto', 'cpu', 'cuda' or 'cuda:1'"
        ) from None
    chosen = backend or ("torch" if torch.device(device).type == "cpu" else "triton")
    if chosen == "torch":
        if options.pop("launch", "auto") != "auto":
            raise BackendError("launch: backend 'torch' launches no kernels; leave it out, or use backend='triton'")
        return TorchExecutor(device=device, exchange=exchange, **options)
    if chosen == "triton":
        try:
            from wafer_triton.emulate.triton import TritonExecutor
        except ImportError as missing:
            raise BackendError(
                f"the Triton backend needs the package triton ({missing}); use backend='torch'"
            ) from None
        return TritonExecutor(device=device, exchange=exchange, **options)
    raise BackendError(f"backend {backend!r}: choose 'torch' or 'triton'")


@lru_cache(maxsize=64)
def _executor(backend: str | None, exchange: str, device: str, launch: str) -> Executor:
    """Return one executor for all calls with the same options, so that they share programs."""
    return executor(backend, exchange, device, launch=launch)


def clear_cache() -> None:
    """Let all programs and schedules go that public calls keep; their memory is free once no call runs."""
    POOL.clear()
    _executor.cache_clear()
    recipe.cache_clear()


def described(on: Executor) -> str:
    """Return where and how an executor runs, such as "on NVIDIA H200 by Triton, exchange explicit"."""
    ranks, inside = getattr(on, "ranks", 1), getattr(on, "inside", on)  # of a DistributedExecutor
    on_gpu = torch.device(inside.device).type == "cuda"
    where = torch.cuda.get_device_name(inside.device) if on_gpu else "the CPU"
    by = "torch" if isinstance(inside, TorchExecutor) else "Triton" if on_gpu else "Triton's interpreter"
    each = f"{ranks} ranks, each on " if ranks > 1 else ""
    return f"on {each}{where} by {by}, exchange {inside.exchange}"


def run(made: Recipe, operands: tuple[Operand, ...], on: Executor) -> MeshTensor:
    """Run the recipe `made` by the executor `on`; the result is cut over the schedule's mesh."""
    if not isinstance(made, Recipe):
        raise ScheduleError(
            f"run: {made!r} of type {type(made).__name__} is no recipe; wafer_triton.schedule.product.recipe makes one"
        )
    if len(operands) != len(made.inputs):
        raise ShapeError(
            f"{made.schedule.name}: {len(operands)} operands for {len(made.inputs)} inputs; give one for each"
        )
    _tensors(made.schedule.name, *operands)
    for number, (operand, shape) in enumerate(zip(operands, made.shapes, strict=False), 1):
        if tuple(operand.shape) != shape:
            given = list(operand.shape)
            raise ShapeError(f"{made.schedule.name}: operand {number} is {given}, and its recipe is for {list(shape)}")
    if not isinstance(on, Executor):
        raise BackendError(f"run: executor {on!r} is none; give a result of wafer_triton.executor")
    return _run(made, operands, on, _tiles(made))[0]


def _run(
    operation: Recipe, operands: tuple[Operand, ...], runner: Executor, take: Callable[[Program], T]
) -> tuple[T, Program]:
    """Return the result that `take` reads once the rounds have run; nothing of it is memory of the program."""
    program = runner.borrow(operation.schedule)
    for (name, _), operand in zip(operation.inputs, operands, strict=True):
        runner.agree(name, operand.tiles if isinstance(operand, MeshTensor) else operand)
    for name, (values, pattern) in operation.constants.items():
        runner.enter(program.schedule, name, program.memory[name], torch.from_numpy(values), pattern)
    for (name, pattern), operand in zip(operation.inputs, operands, strict=True):
        if isinstance(operand, MeshTensor) or not pattern:
            program.write(name, operand.tiles if isinstance(operand, MeshTensor) else operand)
        else:
            runner.enter(program.schedule, name, program.memory[name], operand, pattern)
    program.captured()
    result = take(program)
    program.give_back()
    return result, program


def _tiles(operation: Recipe) -> Callable[[Program], MeshTensor]:
    name, pattern, shape = operation.output
    return lambda program: MeshTensor(operation.schedule.mesh, program.read(name), pattern, shape, {})


def _whole(operation: Recipe) -> Callable[[Program], Tensor]:
    name, pattern, shape = operation.output
    if not pattern:
        return lambda program: program.read(name).reshape(shape)
    return lambda program: program.gather(name, pattern, shape)


# A torch operator takes text, not a Mesh; torch.compile can trace how `_text` builds it.
_DEVICE = tuple(entry.name for entry in fields(Device) if entry.compare)


def _text(mesh: Mesh, options: tuple[tuple[str, Any], ...]) -> str:
    return repr((mesh.rows, mesh.cols, tuple(getattr(mesh.device, name) for name in _DEVICE), options))


@lru_cache(maxsize=64)
def _parsed(text: str) -> tuple[Mesh, tuple[tuple[str, Any], ...]]:
    rows, cols, device, options = ast.literal_eval(text)
    return Mesh(rows, cols, Device(*device)), options


@torch.library.custom_op("wafer_triton::apply", mutates_args=())
def _apply(name: str, operands: list[Tensor], spec: str, backend: str, exchange: str, launch: str) -> Tensor:
    """Return one opaque operator for all operations, which torch.compile and fake tensors do not enter."""
    mesh, options = _parsed(spec)
    operation = recipe(
        name, mesh, dtype_name(operands[0].dtype), tuple(tuple(operand.shape) for operand in operands), options
    )
    runner = _executor(backend or None, exchange, str(operands[0].device), launch)
    return _run(operation, tuple(operands), runner, _whole(operation))[0]


@_apply.register_fake
def _(name: str, operands: list[Tensor], spec: str, backend: str, exchange: str, launch: str) -> Tensor:
    shape: Shape = tuple(operands[0].shape)
    if name in ("gemm", "gemv"):
        shape = (shape[0], operands[1].shape[0 if ("transposed", True) in _parsed(spec)[1] else 1])
    return operands[0].new_empty(shape)


def _call(name: str, operands: tuple[Operand, ...], how: How, **options: Any) -> Any:
    for key in how:
        if key not in _KEYWORDS:
            raise TypeError(f"{name}: unknown keyword {key!r}; choose from {', '.join(_KEYWORDS)}")
    first, backend, exchange = operands[0], how.get("backend"), how.get("exchange", "explicit")
    launch = how.get("launch", "auto")
    for key, text in (("backend", backend), ("exchange", exchange), ("launch", launch)):
        if not isinstance(text, str) and (text is not None or key != "backend"):
            raise BackendError(f"{name}: {key} = {text!r} must be a name in quotes")
    if type(how.get("record", False)) is not bool:
        raise BackendError(f"{name}: record = {how['record']!r} must be true or false")
    mesh = as_mesh(first.mesh if "mesh" not in how and isinstance(first, MeshTensor) else how.get("mesh"))
    tensors = [operand.tiles if isinstance(operand, MeshTensor) else operand for operand in operands]
    _agree(name, tensors)
    chosen = tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in options.items())
    own = how.get("executor")
    if not isinstance(own, Executor | None):
        raise BackendError(f"{name}: executor = {own!r} is none; give a result of wafer_triton.executor")
    if own is not None and (both := [key for key in ("backend", "exchange", "launch") if key in how]):
        raise BackendError(f"{name}: executor and {both[0]} are given, and an executor has its own; give one of them")
    plain = own is None and not how.get("record")
    if plain and not any(isinstance(operand, MeshTensor) for operand in operands):
        return _apply(name, tensors, _text(mesh, chosen), backend or "", exchange, launch)
    operation = recipe(
        name, mesh, dtype_name(tensors[0].dtype), tuple(tuple(operand.shape) for operand in operands), chosen
    )
    _cut_alike(operation, operands)
    runner = _executor(backend, exchange, str(tensors[0].device), launch) if own is None else own
    take: Callable[[Program], Any] = _tiles(operation) if isinstance(first, MeshTensor) else _whole(operation)
    value, program = _run(operation, operands, runner, take)
    record = (operation.schedule, program.launches, program.rank_bytes)
    return (value, Record.of(*record)) if how.get("record") else value


def _agree(name: str, tensors: list[Tensor]) -> None:
    for tensor in tensors:
        dtype_name(tensor.dtype)
        if tensor.dtype != tensors[0].dtype:
            mixed = f"{dtype_name(tensors[0].dtype)} and {dtype_name(tensor.dtype)}"
            raise DtypeError(f"{name}: operands mix {mixed}; convert them to one dtype")
        if tensor.device != tensors[0].device:
            raise DtypeError(
                f"{name}: operands lie on {tensors[0].device} and {tensor.device}; move them to one device"
            )


def _cut_alike(operation: Recipe, operands: tuple[Operand, ...]) -> None:
    for (buffer, pattern), operand in zip(operation.inputs, operands, strict=True):
        if isinstance(operand, MeshTensor) and operand.pattern != pattern:
            raise ShapeError(f"{operation.schedule.name}: {buffer} must be cut as {pattern!r}, not {operand.pattern!r}")
        if isinstance(operand, MeshTensor) and operand.mesh != operation.schedule.mesh:
            unfolded = replace(operation.schedule.mesh, fold=(1, 1))
            hint = "; scatter it on mesh.square()" if operand.mesh == unfolded else ""
            meshes = f"{operand.mesh}, not {operation.schedule.mesh}{hint}"
            raise MeshError(f"{operation.schedule.name}: {buffer} lies on mesh {meshes}")


def mesh_gemm(a: Operand, b: Operand, *, algorithm: str = "mesh", accumulate: str = "fp32", **how: Unpack[How]) -> Any:
    """Return a [m, k] @ b [k, n] -> [m, n] by MeshGEMM, or by algorithm "cannon", "summa" or "allgather".

    A rectangular mesh is folded to its lcm grid. Source: WaferLLM (OSDI'25), section 5.
    """
    _matrices("mesh_gemm", a, b)
    if a.shape[1] != b.shape[0]:
        raise ShapeError(f"mesh_gemm: a {list(a.shape)} has {a.shape[1]} columns, b {list(b.shape)} {b.shape[0]} rows")
    return _call("gemm", (a, b), how, algorithm=algorithm, accumulate=accumulate)


def mesh_gemm_t(
    a: Operand, b: Operand, *, algorithm: str = "mesh", accumulate: str = "fp32", **how: Unpack[How]
) -> Any:
    """Return a [m, k] @ b [n, k]^T -> [m, n] by GEMM-T: b circles along y, partial products are summed along x.

    The algorithms "cannon", "summa" and "allgather" transpose b on the mesh first. Source: WaferLLM (OSDI'25),
    section 5.
    """
    _matrices("mesh_gemm_t", a, b)
    if a.shape[1] != b.shape[1]:
        raise ShapeError(f"mesh_gemm_t: a {list(a.shape)} and b {list(b.shape)} differ in columns")
    return _call("gemm", (a, b), how, algorithm=algorithm, transposed=True, accumulate=accumulate)


def mesh_gemv(
    x: Operand,
    w: Operand,
    *,
    axis: str = "y",
    algorithm: str = "ktree",
    groups: tuple[int, ...] | None = None,
    accumulate: str = "fp32",
    **how: Unpack[How],
) -> Any:
    """x [k] or [m, k] @ w [k, n] -> [n] or [m, n] by MeshGEMV: k is cut along `axis`, a K-tree adds the partial sums.

    `groups` are the tree's numbers of groups on each level but the last. `algorithm` may be another all-reduce:
    "pipeline", "ring", "two-phase" or "star". Source: WaferLLM (OSDI'25), section 6.
    """
    _axis("mesh_gemv", axis)
    _tensors("mesh_gemv", x, w)
    if isinstance(x, Tensor) and x.dim() == 1:
        result = mesh_gemv(x[None], w, axis=axis, algorithm=algorithm, groups=groups, accumulate=accumulate, **how)
        return (result[0][0], result[1]) if how.get("record") else result[0]
    _matrices("mesh_gemv", x, w)
    if x.shape[1] != w.shape[0]:
        raise ShapeError(f"mesh_gemv: x has {x.shape[1]} elements, w {list(w.shape)} {w.shape[0]} rows")
    return _call("gemv", (x, w), how, axis=axis, algorithm=algorithm, groups=groups, accumulate=accumulate)


def all_reduce(
    x: Tensor,
    *,
    axis: str,
    op: str = "add",
    algorithm: str = "ktree",
    groups: tuple[int, ...] | None = None,
    **how: Unpack[How],
) -> Any:
    """x [rows, cols, ...], one tile per core: every core gets the sum (or op="maximum") over its line of `axis`.

    `algorithm` is "ktree" (with `groups`), "pipeline", "ring", "two-phase" or "star". Source: WaferLLM (OSDI'25),
    section 6.
    """
    _axis("all_reduce", axis)
    if op not in ("add", "maximum"):
        raise ShapeError(f"all_reduce: op {op!r} is neither 'add' nor 'maximum'")
    _tensors("all_reduce", x)
    shape = as_mesh(how.get("mesh")).shape
    if tuple(x.shape[:2]) != shape:
        raise ShapeError(f"all_reduce: x {list(x.shape)} must begin with the mesh's {list(shape)}")
    return _call("all_reduce", (x,), how, axis=axis, op=op, algorithm=algorithm, groups=groups)


def rms_norm(x: Operand, weight: Operand, *, eps: float = 1e-6, **how: Unpack[How]) -> Any:
    """x [m, n] / sqrt(mean over n of x^2 + eps) * weight [n] -> [m, n]; rows are cut along x."""
    _tensors("rms_norm", x, weight)
    number = _number("rms_norm", "eps", eps)
    if number < 0:
        raise ShapeError(f"rms_norm: eps = {number} must be 0 or a positive number")
    if len(x.shape) != 2 or tuple(weight.shape) != (x.shape[1],):
        raise ShapeError(f"rms_norm: x {list(x.shape)} must be [m, n] and weight {list(weight.shape)} [n]")
    return _call("rms_norm", (x, weight), how, eps=number)


def softmax(x: Operand, *, scale: float = 1.0, **how: Unpack[How]) -> Any:
    """Softmax of scale * x [m, n] over n -> [m, n]; rows are cut along x."""
    _tensors("softmax", x)
    number = _number("softmax", "scale", scale)
    if len(x.shape) != 2 or x.shape[1] == 0:
        raise ShapeError(f"softmax: x {list(x.shape)} must be [m, n]")
    return _call("softmax", (x,), how, scale=number)


def _tensors(name: str, *operands: Any) -> None:
    """Raise DtypeError unless all operands are dense tensors, or are cut into them."""
    for number, operand in enumerate(operands, 1):
        tensor = operand.tiles if isinstance(operand, MeshTensor) else operand
        if not isinstance(tensor, Tensor):
            kind = f"{type(operand).__module__}.{type(operand).__name__}".removeprefix("builtins.")
            raise DtypeError(
                f"{name}: operand {number} is of type {kind}; give a torch tensor (torch.as_tensor makes one)"
            )
        if tensor.is_nested:
            raise DtypeError(f"{name}: operand {number} is nested; give a dense tensor, by to_padded_tensor or unbind")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise DtypeError(
                f"{name}: operand {number} requires a gradient, which is not computed here; give operand.detach(), or "
                f"call it under torch.no_grad()"
            )
        if tensor.layout is not torch.strided:
            raise DtypeError(f"{name}: operand {number} is sparse ({tensor.layout}); give operand.to_dense()")


def _number(name: str, key: str, value: Any) -> float:
    """Return a value as a finite number; ShapeError if it is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ShapeError(f"{name}: {key} = {value!r} must be a finite number")
    return number


def _matrices(name: str, a: Operand, b: Operand) -> None:
    _tensors(name, a, b)
    for label, operand in (("first", a), ("second", b)):
        if len(operand.shape) != 2 or 0 in operand.shape:
            raise ShapeError(
                f"{name}: the {label} operand is {list(operand.shape)}; it must be a matrix that is not empty"
            )


def _axis(name: str, axis: str) -> None:
    if axis not in ("x", "y"):
        raise MeshError(f"{name}: axis {axis!r} is neither 'x' (across the columns) nor 'y' (down the rows)")
