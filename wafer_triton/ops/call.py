"""One call of a recipe: operands are cut into an executor's program, its schedule runs, the result is put together.

Where torch traces, a call is one opaque operator, `wafer_triton::apply`, so that torch.compile, torch.export and fake
tensors accept it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, Required, TypedDict, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from wafer_triton.algorithms.product import Recipe, Shape, clear_recipes, recipe
from wafer_triton.algorithms.trees import as_groups
from wafer_triton.device.dtype import dtype_name, storage_name
from wafer_triton.device.layout import MeshTensor, lettered
from wafer_triton.device.mesh import Mesh, MeshLike, as_mesh
from wafer_triton.device.modes import check_eager, eager, transforming, untraced, untransformed
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.pool import POOL
from wafer_triton.errors import (
    ArgumentError,
    BackendError,
    DtypeError,
    MeshError,
    ScheduleError,
    ShapeError,
    nearest,
    shown,
)
from wafer_triton.ops.executors import executor
from wafer_triton.ops.gradients import gradients, to_save
from wafer_triton.ops.recording import counted, open_recordings, recording

Operand = Tensor | MeshTensor


class How(TypedDict, total=False):
    """Where and how an operation runs.

    `mesh` is a side, "8x12", a pair or a Mesh; only a MeshTensor needs none, as it brings its own. With `exchange`
    "explicit" (the default) tiles move round by round, with "elided" a core reads a tile from where it lies:
    operations, their order and the bits are the same. `backend` "torch" computes all cores in a batch; "triton" runs a
    program a core on a GPU, or on a CPU under TRITON_INTERPRET=1, and is the default for CUDA tensors. An `executor`
    takes the place of both, see `distributed.executor`. With `record` the call returns (result, Record).
    """

    mesh: MeshLike
    exchange: Literal["explicit", "elided"]
    backend: Literal["torch", "triton"] | None
    executor: Executor


class HowGemm(How, total=False):
    """The keywords of a product of two matrices."""

    algorithm: Literal["mesh", "cannon", "summa", "allgather"]
    accumulate: Literal["fp32", "fp16"] | torch.dtype


class _HowTree(How, total=False):
    algorithm: Literal["ktree", "pipeline", "ring", "two-phase", "star"]
    groups: Sequence[int] | int | None


class HowGemv(_HowTree, total=False):
    """The keywords of a product of a vector and a matrix."""

    axis: Literal["x", "y"]
    accumulate: Literal["fp32", "fp16"] | torch.dtype


class HowReduce(_HowTree, total=False):
    """The keywords of an all-reduce."""

    axis: Required[Literal["x", "y"]]
    op: Literal["add", "maximum"]


class HowNorm(How, total=False):
    """The keywords of an RMSNorm."""

    eps: float


class HowSoftmax(How, total=False):
    """The keywords of a softmax."""

    scale: float


F = TypeVar("F", bound=Callable[..., Any])


def spelled(operation: F) -> F:
    """Return an operation whose signature and docstring list the keywords of `How`, so that `help` shows them."""
    defaults = {"exchange": "explicit"}  # of others None: a MeshTensor brings its mesh
    kind, signature = inspect.Parameter, inspect.signature(operation)
    own = [each for each in signature.parameters.values() if each.kind is not kind.VAR_KEYWORD]
    rest = [
        kind(key, kind.KEYWORD_ONLY, default=defaults.get(key), annotation=hint.__forward_arg__)
        for key, hint in How.__annotations__.items()
    ]
    operation.__signature__ = signature.replace(parameters=[*own, *rest])  # type: ignore[attr-defined]
    operation.__doc__ = f"{(operation.__doc__ or '').rstrip()}{(How.__doc__ or '').partition('.')[2]}"
    return operation


_KEYWORDS = ("record", *How.__annotations__)


@lru_cache(maxsize=64)
def shared_executor(backend: str | None, exchange: str, device: str | torch.device) -> Executor:
    """Return one executor for all calls with the same options, so that they share programs."""
    return executor(backend, exchange, device)


def clear_cache() -> None:
    """Let all programs and schedules go that public calls keep; their memory is free once no call runs."""
    POOL.clear()
    shared_executor.cache_clear()
    clear_recipes()
    counted.cache_clear()


def run(made: Recipe, operands: tuple[Operand, ...], on: Executor) -> MeshTensor:
    """Run the recipe `made` by the executor `on`; the result is cut over the schedule's mesh."""
    if not isinstance(made, Recipe):
        raise ScheduleError(
            f"run: {shown(made)} of type {type(made).__name__} is no recipe; wafer_triton.algorithms.product.recipe "
            f"makes one"
        )
    check_eager(made.schedule.name)
    if len(operands) != len(made.inputs):
        raise ShapeError(
            f"{made.schedule.name}: {len(operands)} operands for {len(made.inputs)} inputs; give one for each"
        )
    check_tensors(made.schedule.name, *operands)
    for number, (operand, shape) in enumerate(zip(operands, made.shapes, strict=False), 1):
        if tuple(operand.shape) != shape:
            given = list(operand.shape)
            raise ShapeError(f"{made.schedule.name}: operand {number} is {given}, and its recipe is for {list(shape)}")
    if not isinstance(on, Executor):
        raise BackendError(f"run: executor {shown(on)} is none; give a result of wafer_triton.executor")
    _check_plain(made.schedule.name, operands, "run")
    result: MeshTensor = _run(made, operands, on, tiles=True)
    return result


def _run(operation: Recipe, operands: tuple[Operand, ...], runner: Executor, tiles: bool) -> Any:
    """Return the result, whole or as `tiles`; nothing of it is memory of the program."""
    program = runner.borrow(operation.schedule)
    for name, (values, pattern) in operation.constants.items():
        program.scatter_cut(name, (pattern, values.shape), torch.from_numpy(values))
    for (name, pattern), operand in zip(operation.inputs, operands, strict=True):
        tensor = operand.tiles if isinstance(operand, MeshTensor) else operand
        runner.agree_on_operand(name, tensor)
        if tensor is not operand or not pattern:
            program.write(name, tensor)
        else:
            program.scatter_cut(name, (pattern, tensor.shape), tensor)
    program.captured()
    name, pattern, shape = operation.output
    result: Tensor | MeshTensor
    if tiles:
        result = MeshTensor(operation.schedule.mesh, program.read(name), pattern, shape, {})
    else:
        result = program.gather_cut(name, (pattern, shape)) if pattern else program.read(name).reshape(shape)
    for ledger in open_recordings():
        ledger.add(operation.schedule, program.launches, program.rank_bytes)
    POOL.give(program)
    return result


@lru_cache(maxsize=64)
def _parsed(mesh: str, options: str) -> tuple[Mesh, tuple[tuple[str, Any], ...]]:
    """Return what the operator takes as texts, as a torch operator takes no Mesh."""
    return Mesh.from_text(mesh), ast.literal_eval(options)


_NUMBERS = {"softmax": "scale", "rms_norm": "eps"}  # operations whose one option is a number
_NUMBERS |= {"softmax_dx": "scale", "rms_norm_dx": "eps", "rms_norm_dw": "eps"}
# By hand: `torch.library.custom_op` does the same, and imports torch._dynamo at the first call.
_LIBRARY = torch.library.Library("wafer_triton", "DEF")
_LIBRARY.define(
    "apply(str name, Tensor[] operands, str mesh, str options, float number, str backend, str exchange) -> Tensor",
    tags=(torch.Tag.cudagraph_unsafe, torch.Tag.pt2_compliant_tag),
)


def _apply(name: str, operands: list[Tensor], options: Mapping[str, Any], mesh: str, *how: str) -> Tensor:
    """Call the one opaque operator for all operations, which torch.compile and fake tensors do not enter."""
    number = options.get(_NUMBERS.get(name, ""), 0.0)  # may be symbolic
    texts = "()" if name in _NUMBERS else repr(tuple(options.items()))
    result: Tensor = torch.ops.wafer_triton.apply(name, operands, mesh, texts, number, *how)
    return result


@torch.library.impl(_LIBRARY, "apply", "CompositeExplicitAutograd")
def _applied(
    name: str, operands: list[Tensor], mesh: str, options: str, number: float, backend: str, exchange: str
) -> Tensor:
    on, chosen = _parsed(mesh, options)
    if name in _NUMBERS:
        chosen = ((_NUMBERS[name], number),)
    shapes = tuple([operand.shape for operand in operands])
    operation = recipe(name, on, dtype_name(operands[0].dtype), shapes, chosen)
    runner = shared_executor(backend or None, exchange, operands[0].device)
    whole: Tensor = _run(operation, tuple(operands), runner, tiles=False)
    return whole.detach()  # no view, so that what follows may write into it


@torch.library.register_fake("wafer_triton::apply", lib=_LIBRARY)
def _shaped(name: str, operands: list[Tensor], mesh: str, options: str, *rest: Any) -> Tensor:
    shape: Shape = tuple(operands[0].shape)
    if name in ("gemm", "gemv"):
        turned = dict(_parsed(mesh, options)[1]).get("transposed")
        shape = (shape[1 if turned == "a" else 0], operands[1].shape[0 if turned == "b" else 1])
    elif name == "outer":
        shape = (shape[1], operands[1].shape[1])
    elif name == "rms_norm_dw":
        shape = shape[1:]
    return operands[0].new_empty(shape)


def _saved(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    name, operands, mesh, options, number, *how = inputs
    chosen = {_NUMBERS[name]: number} if name in _NUMBERS else dict(_parsed(mesh, options)[1])
    ctx.call = name, chosen, (mesh, *how)
    ctx.save_for_backward(*to_save(name, operands, output))


def _backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    name, options, how = ctx.call
    found = gradients(name, ctx.saved_tensors, dy, options, ctx.needs_input_grad[1])
    return None, [None if one is None else _apply(*one, *how) for one in found], None, None, None, None, None


torch.library.register_autograd("wafer_triton::apply", _backward, setup_context=_saved, lib=_LIBRARY)


def call(name: str, operands: tuple[Operand, ...], how: How, record: bool, **options: Any) -> Any:
    """Return the result of the product `name` with its `options` on operands, and with `record` also its Record.

    Raises TypeError for a keyword that is not of `How`, and the errors that `wafer_triton.ops` names.
    """
    for key in how:
        if key not in _KEYWORDS:
            known = [*(option for option in options if option != "transposed"), *_KEYWORDS]
            raise ArgumentError(f"{name}: unknown keyword {key!r}{nearest(key, known)}; choose from {', '.join(known)}")
    first, backend, exchange = operands[0], how.get("backend"), how.get("exchange", "explicit")
    for key, text in (("backend", backend), ("exchange", exchange)):
        named = isinstance(text, str) and text.isascii()  # as torch passes it on
        if not named and (text is not None or key != "backend"):
            raise BackendError(f"{name}: {key} = {shown(text)} must be a name in quotes")
    if record not in (True, False):
        raise BackendError(f"{name}: record = {shown(record)} must be true or false")
    if record:
        if torch.compiler.is_dynamo_compiling():
            return untraced(call, name, operands, how, record, **options)
        check_eager(name)
        with recording() as recorded:
            value = call(name, operands, how, False, **options)
        return value, recorded
    mesh = first.mesh if "mesh" not in how and isinstance(first, MeshTensor) else how.get("mesh")
    tensors = [operand.tiles if isinstance(operand, MeshTensor) else operand for operand in operands]
    dtype = _agree(name, tensors)
    chosen = tuple([(key, _option(name, key, value)) for key, value in options.items()])
    own = how.get("executor")
    if own is not None and not isinstance(own, Executor):
        raise BackendError(f"{name}: executor = {shown(own)} is none; give a result of wafer_triton.executor")
    if own is not None and (both := [key for key in ("backend", "exchange") if key in how]):
        raise BackendError(f"{name}: executor and {both[0]} are given, and an executor has its own; give one of them")
    cut = MeshTensor in [type(operand) for operand in operands]
    if own is not None or cut:
        if torch.compiler.is_dynamo_compiling():
            return untraced(call, name, operands, how, record, **options)
        check_eager(name)
        _check_plain(name, operands, "a MeshTensor" if cut else "an executor of one's own")
    elif (True in [tensor.requires_grad for tensor in tensors] and torch.is_grad_enabled()) or not (
        eager() and {Tensor, Parameter}.issuperset(map(type, tensors))
    ):
        return _apply(name, tensors, dict(chosen), as_mesh(mesh).text, backend or "", exchange)
    operation = recipe(name, mesh, dtype, tuple([operand.shape for operand in operands]), chosen)
    if cut:
        _cut_alike(operation, operands)
    runner = shared_executor(backend, exchange, tensors[0].device) if own is None else own
    return _run(operation, operands, runner, tiles=isinstance(first, MeshTensor))


def _check_plain(name: str, operands: Sequence[Operand], by: str) -> None:
    """Raise DtypeError for an operand that requires a gradient, as none is computed of what is called `by` this."""
    for number, operand in enumerate(operands, 1):
        tensor = operand.tiles if isinstance(operand, MeshTensor) else operand
        if tensor.requires_grad and torch.is_grad_enabled():
            raise DtypeError(
                f"{name}: operand {number} requires a gradient, which is not computed of {by}; give operand.detach(), "
                f"or tensors alone, without an executor"
            )


def _option(name: str, key: str, value: Any) -> Any:
    """Return the value of an option as a recipe takes it; ArgumentError for a name that is no text."""
    if key == "groups":
        return as_groups(value)
    if key == "accumulate":
        return storage_name(value)
    if key in ("transposed", "eps", "scale"):
        return value
    if not isinstance(value, str):  # which the text of a traced call could not hold
        raise ArgumentError(f"{name}: {key} is of type {type(value).__name__}; give a str")
    return str(value)


def _agree(name: str, tensors: list[Tensor]) -> str:
    """Return the one dtype of tensors on one device."""
    for number, tensor in enumerate(tensors, 1):
        try:
            dtype = dtype_name(tensor.dtype)
        except DtypeError as error:
            raise DtypeError(f"{name}: operand {number}: {error}; operand.float() is in fp32") from None
        if tensor.dtype != tensors[0].dtype:
            mixed = f"{dtype_name(tensors[0].dtype)} and {dtype}"
            raise DtypeError(f"{name}: operands mix {mixed}; convert them to one dtype")
        if tensor.device != tensors[0].device:
            raise DtypeError(
                f"{name}: operands lie on {tensors[0].device} and {tensor.device}; move them to one device"
            )
    return dtype


def _cut_alike(operation: Recipe, operands: tuple[Operand, ...]) -> None:
    for (buffer, pattern), operand in zip(operation.inputs, operands, strict=True):
        if isinstance(operand, MeshTensor) and lettered(operand.pattern) != lettered(pattern):
            raise ShapeError(
                f"{operation.schedule.name}: {buffer} must be cut as {pattern!r}, not {operand.pattern!r}; gather it, "
                f"and give the tensor, or scatter it anew by that pattern"
            )
        if isinstance(operand, MeshTensor) and operand.mesh != operation.schedule.mesh:
            unfolded = replace(operation.schedule.mesh, fold=(1, 1))
            hint = "; scatter it on mesh.square()" if operand.mesh == unfolded else ""
            meshes = f"{operand.mesh}, not {operation.schedule.mesh}{hint}"
            raise MeshError(f"{operation.schedule.name}: {buffer} lies on mesh {meshes}")


def check_tensors(name: str, *operands: Any) -> None:
    """Raise DtypeError unless all operands are dense tensors, or are cut into them."""
    inside = transforming()
    for number, operand in enumerate(operands, 1):
        tensor = operand.tiles if isinstance(operand, MeshTensor) else operand
        if not isinstance(tensor, Tensor):
            kind = f"{type(operand).__module__}.{type(operand).__name__}".removeprefix("builtins.")
            raise DtypeError(
                f"{name}: operand {number} is of type {kind}; give a torch tensor (torch.as_tensor makes one)"
            )
        if tensor.is_nested:
            raise DtypeError(f"{name}: operand {number} is nested; give a dense tensor, by to_padded_tensor or unbind")
        if tensor.layout is not torch.strided:
            raise DtypeError(f"{name}: operand {number} is sparse ({tensor.layout}); give operand.to_dense()")
        if inside and (reason := untransformed(tensor)):
            raise DtypeError(f"{name}: operand {number} {reason}")
