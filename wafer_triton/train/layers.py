"""Linear layers of a torch model as streamed products on a group of dies: forward and both gradients, with values.

    >>> dies = wafer("wafer-32")
    >>> model, streams = streamed(model, Team(dies.mesh(2, 4), "cycle", 2, 4), "w")  # weights move
    >>> loss(model(x)).backward()
    >>> seconds = sum(die_cost(schedule, dies).seconds * times for schedule, times in streams.ran.items())

All else of the model, attention and its optimizer among it, stays torch's.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.pool import POOL
from wafer_triton.errors import MeshError, ScheduleError, ShapeError
from wafer_triton.ops.executors import executor
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.train.product import PASSES, Team, product

Model = TypeVar("Model", bound=nn.Module)
# Of an operand: the dimension that is cut over the dies, and the one whose blocks are the slots of a die.
CUTS: dict[str, dict[str, tuple[int, int | None]]] = {
    "w": {"x": (0, None), "w": (1, None), "y": (0, 1)},
    "x": {"x": (0, None), "w": (1, None), "y": (1, 0)},
    "y": {"x": (1, 0), "w": (0, None), "y": (0, None)},
}


class StreamedProducts:
    """Products Y = X W with an operand moving over the dies of one group; `ran` counts the schedules that ran."""

    def __init__(self, team: Team, moving: str, on: Executor) -> None:
        if len(team.groups) != 1:
            raise MeshError(f"{len(team.groups)} groups of {team.size} dies; give a team of one group")
        if moving not in PASSES:
            raise ScheduleError(f"moving {moving!r}: choose one of {', '.join(PASSES)}")
        self.team, self.moving, self.on = team, moving, on
        self.ran = Counter[Schedule]()
        self._product = lru_cache(maxsize=64)(partial(product, team, moving))  # half of a step's time, if built anew
        cols = team.mesh.shape[1]
        self._dies = torch.tensor([row * cols + col for row, col in team.groups[0]])
        self._order = torch.tensor(team.moves.order)  # [positions, slots]

    def run(self, which: str, sizes: tuple[int, int, int], **operands: Tensor) -> list[Tensor]:
        """Return the results of a pass, whole, for whole operands x [m, k], w [k, n] and dy [m, n]."""
        m, k, n = tiles = tuple(self._tile(size, name) for size, name in zip(sizes, "mkn", strict=True))
        schedule = self._product(which, m, k, n)
        program = self.on.borrow(schedule)
        for name, whole in operands.items():
            program.write(name, self._cut(name[-1], whole, tiles))
        program.captured()
        self.ran[schedule] += 1
        found = [self._whole(name[-1], program.read(name), sizes, tiles)
                 for name, buffer in schedule.buffers.items() if buffer.role == "output"]  # fmt: skip
        POOL.give(program)
        return found

    def _tile(self, size: int, name: str) -> int:
        """Return the size of a tile along m, k or n."""
        cut = any({"x": "mk", "w": "kn", "y": "mn"}[operand][dim] == name
                  for operand, dims in CUTS[self.moving].items() for dim in dims if dim is not None)  # fmt: skip
        return -(-size // self.team.size) if cut else size

    def _cut(self, operand: str, whole: Tensor, tiles: tuple[int, ...]) -> Tensor:
        """Return the tiles [rows, cols, elements] of an operand, by slots in the order in which the die computes."""
        (over, slots), shape, dies = CUTS[self.moving][operand], _shape(operand, tiles), self.team.size
        counts = [dies if dim in (over, slots) else 1 for dim in (0, 1)]
        padded = whole.new_zeros([count * size for count, size in zip(counts, shape, strict=True)])
        padded[: whole.shape[0], : whole.shape[1]] = whole
        blocks = padded.view(counts[0], shape[0], counts[1], shape[1]).permute(over * 2, 2 - over * 2, 1, 3)
        if slots is not None:
            blocks = blocks[torch.arange(dies)[:, None], self._order]
        cut = torch.empty(dies, blocks[0].numel(), dtype=whole.dtype)
        cut[self._dies] = blocks.reshape(dies, -1)
        return cut.view(*self.team.mesh.shape, -1)

    def _whole(self, operand: str, cut: Tensor, sizes: tuple[int, ...], tiles: tuple[int, ...]) -> Tensor:
        """Return the inverse of `_cut`."""
        (over, slots), shape, dies = CUTS[self.moving][operand], _shape(operand, tiles), self.team.size
        blocks = cut.reshape(dies, -1, *shape)[self._dies]
        if slots is not None:
            blocks = blocks[torch.arange(dies)[:, None], self._order.argsort(1)]
        whole = blocks.permute(0, 2, 1, 3) if over == 0 else blocks.permute(1, 2, 0, 3)
        rows, cols = _shape(operand, sizes)
        return whole.reshape(whole.shape[0] * shape[0], -1)[:rows, :cols]


def _shape(operand: str, sizes: tuple[int, ...]) -> tuple[int, int]:
    m, k, n = sizes
    return {"x": (m, k), "w": (k, n), "y": (m, n)}[operand]


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams: StreamedProducts, x: Tensor, w: Tensor) -> Tensor:
        ctx.streams, ctx.sizes = streams, (*x.shape, w.shape[1])
        ctx.save_for_backward(x, w)
        return streams.run("forward", ctx.sizes, x=x, w=w)[0].detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        (x, w), run, sizes = ctx.saved_tensors, ctx.streams.run, ctx.sizes
        if ctx.streams.moving == "y":
            return None, *run("backward", sizes, x=x, w=w, dy=dy)
        _, x_needed, w_needed = ctx.needs_input_grad
        (dx,) = run("dx", sizes, dy=dy, w=w) if x_needed else (None,)
        (dw,) = run("dw", sizes, x=x, dy=dy) if w_needed else (None,)
        return None, dx, dw


class StreamedLinear(nn.Module):
    """y = x W^T + bias for W [out, in] in fp32, by streamed products."""

    def __init__(self, layer: nn.Linear, streams: StreamedProducts) -> None:
        super().__init__()
        self.weight, self.bias, self.streams = layer.weight, layer.bias, streams

    def forward(self, x: Tensor) -> Tensor:
        """Return y [..., out] of x [..., in]; ShapeError for an x of another width or for a dtype other than fp32."""
        width, weight = self.weight.shape[1], self.weight.dtype
        if x.shape[-1:] != (width,) or not x.dtype == weight == torch.float32:
            given = f"x {list(x.shape)} of {x.dtype} and a weight of {weight}"
            raise ShapeError(f"a streamed layer: {given}; give x [..., {width}], and both of torch.float32")
        y: Tensor = _Streamed.apply(self.streams, x.reshape(-1, x.shape[-1]), self.weight.mT)
        y = y.reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


def streamed(model: Model, team: Team, moving: str, on: Executor | None = None) -> tuple[Model, StreamedProducts]:
    """Return `model` itself with its nn.Linear layers as streamed products of a team of one group, and the streams.

    `moving` is an operand as in `product.PASSES`. Raises ShapeError for a model without linear layers.
    """
    streams = StreamedProducts(team, moving, executor("torch", emulate_on="cpu") if on is None else on)
    layers = [(parent, name, layer) for parent in model.modules() for name, layer in parent.named_children()
              if type(layer) is nn.Linear]  # fmt: skip
    if not layers:
        raise ShapeError(f"{type(model).__name__} holds no torch.nn.Linear to stream")
    for parent, name, layer in layers:
        setattr(parent, name, StreamedLinear(layer, streams))
    return model, streams
