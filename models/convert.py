"""Any torch model with its linear layers and RMSNorms on a mesh: for architectures that the decoder lacks.

Weights are cut into tiles once; activations are cut and put together around every layer, so nothing else of the model
changes: its state_dict, its forward, its generate.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.parameter import is_lazy

from wafer_triton.algorithms.product import recipe
from wafer_triton.cost.price import Cost, Prediction
from wafer_triton.count.account import Account
from wafer_triton.device import DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.device.dtype import STORED, accumulator, storage_name, tile_dtype, torch_dtype
from wafer_triton.device.layout import MeshTensor, scatter
from wafer_triton.device.mesh import Mesh, MeshLike, as_mesh
from wafer_triton.device.modes import WITHOUT_VALUES, check_eager, untraced
from wafer_triton.emulate.executor import Executor
from wafer_triton.errors import CheckpointError, DtypeError, ShapeError
from wafer_triton.models.checkpoint.weights import is_finite
from wafer_triton.models.place.storage import converted, magnitude
from wafer_triton.ops import check_tensors, executor, run
from wafer_triton.ops.call import shared_executor
from wafer_triton.ops.gradients import gradients, to_save
from wafer_triton.ops.recording import Ledger
from wafer_triton.text.quantity import digits

Model = TypeVar("Model", bound=nn.Module)


def convert(
    model: Model, *, mesh: MeshLike, device: DeviceLike | None = None, dtype: Any = None, accumulate: str = "fp32",
    exchange: str = "explicit", backend: str | None = None, emulate_on: str | torch.device = "auto",
) -> Model:  # fmt: skip
    """Return `model` itself, with Linear layers, GPT-2's Conv1D and RMSNorms on the mesh, forward and backward.

    One vector is multiplied by MeshGEMV, several by MeshGEMM. `dtype` is the dtype of tiles (None: the weight's own).
    With "int8" or "fp8" the matrices of linear layers are stored in this format, one scale each, and tiles are fp16.
    `emulate_on` is the torch device that computes the layers, on any device of the model ("auto": the GPU of their
    input, else a GPU if there is one). Under autocast products are in its dtype. A norm other than x / rms(x) * weight
    is not converted, nor is a layer with hooks, parametrizations or a forward of its own. Warns (`UserWarning`) of
    parameters off the mesh, except embeddings; `account` and `predicted` warn of layers that never ran on the mesh, as
    their parent may read their weights and not call them, or replace them. torch.compile breaks its graph at each
    layer. Raises ShapeError if there is nothing to convert, or for a lazy layer before its first run; a layer that does
    not fit the mesh raises SramError when it first runs. Gradients have the shapes, dtypes and places of the weights;
    through weights stored as int8 or fp8 none passes: DtypeError. New weights, and changes in place, as by an
    optimizer, count from the next run on. Changes through `weight.data` or numpy do not, as torch counts none,
    until `weight.add_(0)` under `torch.no_grad()`.
    A weight without values, on the meta device, raises CheckpointError at a run.
    """
    for name, weight in model.named_parameters():
        if is_lazy(weight):
            layer = model.get_submodule(name.rpartition(".")[0])
            raise ShapeError(
                f"convert: {name} of a {type(layer).__name__} has no shape before its first run; run the model once on "
                f"an input, then convert it"
            )
    grid = as_mesh(mesh, device)
    executor(backend, exchange, emulate_on)  # raises for a kind that it lacks
    sums = accumulator("fp16", accumulate)
    how = {"accumulate": sums, "exchange": exchange, "backend": backend, "emulate_on": emulate_on}
    # a layer that stands in several places is converted once, and then stands in all of them
    made = {
        layer: _converted(layer, grid, dtype, how | {"name": name}) for name, layer in model.named_modules() if name
    }
    layers = [(parent, name, layer) for parent in model.modules() for name, child in parent._modules.items()
              if child is not None and (layer := made.get(child)) is not None]  # fmt: skip
    if not layers:
        raise ShapeError(
            f"{type(model).__name__} has no Linear, Conv1D or RMSNorm to convert within it; give a model that holds "
            f"some, such as torch.nn.Sequential(layer) of one layer; a model is converted once, layers with hooks, "
            f"parametrizations or a forward of their own are not, nor a norm but x / rms(x) * weight over the last "
            f"dimension"
        )
    for _, name, layer in layers:
        if not layer.weight.is_meta and not is_finite(layer.weight):
            raise CheckpointError(f"convert: the weight of {name} holds NaN or infinity; give the model other weights")
    for parent, name, layer in layers:
        setattr(parent, name, layer)
    if off := {kind: size for kind, size in off_mesh(model).items() if kind != "Embedding"}:
        share = sum(off.values()) / sum(weight.numel() for weight in model.parameters())
        named = ", ".join(f"{kind} ({size:,} parameters)" for kind, size in off.items())
        warnings.warn(
            f"convert: {digits(100 * share)} % of the parameters of {type(model).__name__} stay off the mesh, and "
            f"torch computes with them as before: {named}; no account or prediction has them",
            stacklevel=2,
        )
    return model


def off_mesh(model: nn.Module) -> dict[str, int]:
    """Return the number of a converted model's parameters that are not on the mesh, by the kind of their layer."""
    sizes: dict[str, int] = {}
    counted = set[nn.Parameter]()
    for layer in model.modules():
        held = set(layer.parameters(recurse=False)) - counted  # layers may share one
        own = sum(weight.numel() for weight in held)
        counted |= held
        if own and not isinstance(layer, _OnMesh):
            kind = "Embedding" if isinstance(layer, nn.Embedding) else type(layer).__name__
            sizes[kind] = sizes.get(kind, 0) + own
    return sizes


def account(model: nn.Module) -> Account:
    """Return rounds, hops and bytes of all runs of a converted model's layers."""
    return sum((ledger.account for ledger in _ledgers(model)), Account())


def predicted(model: nn.Module, device: DeviceLike) -> Prediction:
    """Return the predicted time and energy on a device of all runs of a converted model's layers."""
    return Prediction.of(sum((ledger.record.cost for ledger in _ledgers(model)), Cost()), find_device(device))


def _ledgers(model: nn.Module) -> list[Ledger]:
    """Return the ledgers of a converted model's layers; warns of linear layers and norms that never ran on the mesh."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, _OnMesh | nn.Linear)}
    ledgers = {name: layer.ledger for name, layer in layers.items() if isinstance(layer, _OnMesh)}
    idle = [name for name in layers if name not in ledgers or not ledgers[name].account.rounds]
    if 0 < len(idle) < len(layers):
        warnings.warn(
            f"{type(model).__name__}: {len(idle)} of {len(layers)} layers never ran on the mesh, "
            f"{', '.join(idle[:4])}{', ...' * (len(idle) > 4)}: no account or prediction has them, though torch may "
            f"have computed with their weights; convert the model again if a layer was replaced",
            stacklevel=3,
        )
    return list(ledgers.values())


class _Run(torch.autograd.Function):
    """A layer's operation on rows [m, n] in the dtype of tiles; its gradients are operations on the mesh as well."""

    @staticmethod
    def forward(ctx: Any, layer: _OnMesh, on: Executor, dtype: str, x: Tensor, weight: nn.Parameter) -> Tensor:
        name, options = layer.operation(len(x))
        y = layer.run(name, [x, weight], options, weight, on, dtype)
        ctx.of = layer, on, dtype
        ctx.save_for_backward(*to_save(name, (x, weight), y))
        return y.detach()  # no view, so that what follows may write into it

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        (layer, on, dtype), saved = ctx.of, ctx.saved_tensors
        if dtype in STORED:
            raise DtypeError(
                f"{layer.name}: no gradient passes a weight that is stored as {dtype}; convert a model that trains "
                f"with another dtype, or call it under torch.no_grad()"
            )
        x, weight = saved[:2]
        name, options = layer.operation(len(x))
        found = gradients(name, saved, dy, options, ctx.needs_input_grad[3:])
        dx, dw = (None if one is None else layer.run(*one, weight, on, dtype) for one in found)
        if dw is None:
            return None, None, None, dx, None
        layer.drop_tiles()
        return None, None, None, dx, layer.turned(dw).to(weight.device, weight.dtype)


class _OnMesh(nn.Module):
    """A layer with its own parameters and their tiles; `ledger` adds up its runs."""

    compute: Callable[[Tensor], Tensor]
    operation: Callable[[int], tuple[str, dict[str, Any]]]  # its name and its options, for a number of rows

    def __init__(self, weight: nn.Parameter, mesh: Mesh, dtype: Any, how: dict[str, Any]) -> None:
        nn.Module.__init__(self)
        self.weight, self.mesh, self.how = weight, mesh, how
        self.name = f"{type(self).__name__} {how['name']}"
        try:
            self.dtype = storage_name(weight.dtype if dtype is None else dtype)
        except DtypeError as error:
            raise DtypeError(f"convert: {how['name']}: {error}") from None
        self.ledger = Ledger()
        self._cut: dict[tuple[tuple[int, int], str, str], MeshTensor] = {}
        self._cut_from: tuple[Any, ...] = (None,)  # the weight that was cut, its address and its count of writes

    def forward(self, x: Tensor) -> Any:
        """Return the result for x [..., in]."""
        if torch.compiler.is_dynamo_compiling():
            return untraced(self.forward, x)
        check_eager(self.name)
        return self.compute(x)

    def turned(self, weight: Tensor) -> Tensor:
        """Return a weight as the mesh has it, or one of the mesh as the layer has it."""
        return weight

    def placed(self, weight: Tensor, mesh: Mesh, pattern: str, device: str, dtype: str) -> MeshTensor:
        """Return the weight's tiles on a mesh and a torch device, cut on first use and after each change."""
        self._follow(weight)
        tiles = self._cut.get((mesh.shape, device, dtype))
        if tiles is None:
            cut = self.turned(weight.detach()).to(device, torch_dtype(dtype))
            if dtype in STORED and cut.ndim == 2:
                cut = converted(cut, dtype, magnitude(cut))
            tiles = self._cut[mesh.shape, device, dtype] = scatter(cut, mesh, pattern)
        return tiles

    def drop_tiles(self) -> None:
        """Cut the weight anew at the next run: torch does not count the writes of a fused optimizer."""
        self._cut, self._cut_from = {}, (None,)

    def _follow(self, weight: Tensor) -> None:
        """Drop the tiles if they are of another weight, or were cut before it changed."""
        if weight.is_meta:
            raise CheckpointError(
                "convert: a weight is on the meta device, without values; give the model its weights first, as by "
                "load_state_dict(..., assign=True)"
            )
        state = weight.data_ptr(), None if weight.is_inference() else weight._version
        if self._cut_from[0] is not weight or self._cut_from[1:] != state:
            self._cut, self._cut_from = {}, (weight, *state)
        # writes are not counted, or an optimizer may write
        if weight.is_inference() or (weight.is_leaf and weight.grad is not None):
            self.drop_tiles()

    def rows(self, x: Tensor, width: int) -> Tensor:
        """Return the rows [m, width] of x [..., width]; raises an error for an input that no run takes."""
        check_tensors(self.name, x)
        if x.is_meta:
            raise DtypeError(f"{self.name}: x is {WITHOUT_VALUES}")
        if x.shape[-1:] != (width,) or not x.is_floating_point():
            raise ShapeError(f"{self.name}: x {list(x.shape)} of {x.dtype} must be [..., {width}] of a floating dtype")
        return x.reshape(-1, width)

    def result(self, rows: Tensor, dtype: str) -> Tensor:
        """Return the result for rows [m, k] with tiles of `dtype`, with the dtype and the device of the rows."""
        device = self.how["emulate_on"]
        if device == "auto" and rows.is_cuda:
            device = rows.device
        on = shared_executor(self.how["backend"], self.how["exchange"], device)
        y: Tensor = _Run.apply(self, on, dtype, rows.to(on.device, torch_dtype(tile_dtype(dtype))), self.weight)
        return y.to(rows.device, rows.dtype)

    def run(
        self, name: str, operands: list[Tensor], options: dict[str, Any], weight: Tensor, on: Executor, dtype: str
    ) -> Tensor:
        """Return the whole result of an operation, with the tiles of `weight` where it is an operand."""
        shapes = tuple(tuple((self.turned(one) if one is weight else one).shape) for one in operands)
        made = recipe(name, self.mesh, dtype, shapes, tuple(options.items()))
        tiles = [self.placed(weight, made.schedule.mesh, pattern, on.device, dtype) if one is weight else one
                 for one, (_, pattern) in zip(operands, made.inputs, strict=True)]  # fmt: skip
        with torch.autocast(torch.device(on.device).type, enabled=False):  # it would cast the tiles of each core
            result = run(made, tuple(tiles), on).gather()
        self.ledger.add(made.schedule)
        return result


class _MeshProduct(_OnMesh):
    """A product with a weight on the mesh, and the bias beside it."""

    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None, mesh: Mesh, dtype: Any, how: dict[str, Any]
    ) -> None:
        super().__init__(weight, mesh, dtype, how)
        self.bias = bias
        self.in_features, self.out_features = self.turned(weight).shape

    def operation(self, rows: int) -> tuple[str, dict[str, Any]]:
        sums = {"accumulate": self.how["accumulate"]}
        return ("gemv", {"axis": "y", **sums}) if rows == 1 else ("gemm", sums)

    def compute(self, x: Tensor) -> Tensor:
        """Return y [..., out] of x [..., in]; under autocast x, weight and bias have its dtype, as torch has it."""
        rows, dtype = self.rows(x, self.in_features), self.dtype
        bias: Tensor | None = self.bias
        if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
            cast = torch.get_autocast_dtype(x.device.type)
            if dtype == storage_name(self.weight.dtype):  # else the user chose the dtype of tiles
                dtype = storage_name(cast)
            rows, bias = rows.to(cast), None if bias is None else bias.to(cast)
        elif x.dtype not in (self.weight.dtype, torch_dtype(tile_dtype(dtype))):  # torch refuses it as well
            raise DtypeError(
                f"{self.name}: x is {x.dtype} and the weight {self.weight.dtype}; give x.to({self.weight.dtype})"
            )
        y = self.result(rows, dtype) if len(rows) else rows @ self.turned(self.weight).to(rows.dtype)
        y = y.reshape(*x.shape[:-1], self.out_features)
        return y if bias is None else y + bias


class MeshLinear(_MeshProduct, nn.Linear):  # type: ignore[misc]  # torch types its weight and bias otherwise
    """y = x W^T + bias for W [out, in]."""

    def turned(self, weight: Tensor) -> Tensor:
        return weight.mT


class MeshConv1D(_MeshProduct):
    """y = x W + bias for GPT-2's W [in, out]."""


class MeshRMSNorm(_OnMesh):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""

    def __init__(self, weight: nn.Parameter, eps: float, mesh: Mesh, dtype: Any, how: dict[str, Any]) -> None:
        super().__init__(weight, mesh, dtype, how)
        self.eps = eps

    def operation(self, rows: int) -> tuple[str, dict[str, Any]]:
        return "rms_norm", {"eps": self.eps}

    def compute(self, x: Tensor) -> Tensor:
        """Return the normed x [..., n]."""
        rows = self.rows(x, len(self.weight))
        if not len(rows):
            return (x * self.weight).to(x.dtype)
        return self.result(rows, tile_dtype(self.dtype)).reshape(x.shape)


def _converted(layer: nn.Module, mesh: Mesh, dtype: Any, how: dict[str, Any]) -> _OnMesh | None:
    kind = type(layer).__name__
    weight = layer._parameters.get("weight")
    others = {*layer._parameters, *layer._buffers, *layer._modules} - {"weight", "bias"}  # as of parametrizations
    if weight is None or not weight.numel() or others:
        return None
    if layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer):  # which may change its results
        return None
    if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward:
        return MeshLinear(weight, layer.bias, mesh, dtype, how)
    if kind == "Conv1D" and weight.dim() == 2:  # transformers' own, of GPT-2
        return MeshConv1D(weight, getattr(layer, "bias", None), mesh, dtype, how)
    if kind.endswith("RMSNorm") and weight.dim() == 1:
        eps = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
        if _is_plain(layer, weight, eps):
            return MeshRMSNorm(weight, float(eps), mesh, dtype, how)  # type: ignore[arg-type]
    return None


def _is_plain(layer: Callable[[Tensor], Tensor], weight: Tensor, eps: float | None) -> bool:
    """Return whether a norm is x / rms(x) * weight; some families' add 1 to the weight, or have a bias."""
    if eps is None:
        return False
    source = torch.Generator().manual_seed(0)
    x = torch.randn(2, len(weight), generator=source, device=source.device).to(weight.device, weight.dtype)
    with torch.no_grad():
        wide = x.float()
        wanted = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
        bound = 4 * torch.finfo(weight.dtype).eps * float(wanted.abs().max())
        return bool(((layer(x).float() - wanted).abs() <= bound).all())
