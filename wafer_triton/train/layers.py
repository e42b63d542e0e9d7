"""Linear layers of a torch model as streamed products on a group of dies: forward and both gradients, with values.

    >>> dies = wafer("wafer-32")
    >>> model, streams = streamed(model, Team(dies.mesh(2, 4), "cycle", 2, 4), "w")  # weights move
    >>> loss(model(x)).backward()
    >>> seconds = sum(die_cost(schedule, dies).seconds * times for schedule, times in streams.ran.items())

All else of the model, attention and its optimizer among it, stays torch's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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
from wafer_triton.train.product import CUTS, PASSES, SIZES, Team, product

Model = TypeVar("Model", bound=nn.Module)


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

    def run(self, which: str, **operands: Tensor) -> list[Tensor]:
        """Return the results of a pass, whole, for whole operands x [m, k], w [k, n] and dy [m, n]."""
        sizes = {size: count for name, whole in operands.items()
                 for size, count in zip(SIZES[name[-1]], whole.shape, strict=True)}  # fmt: skip
        tiles = {size: -(-sizes[size] // (self.team.size if size in CUTS[self.moving] else 1)) for size in "mkn"}
        schedule = self._product(which, **tiles)
        program = self.on.borrow(schedule)
        for name, whole in operands.items():
            program.write(name, self._cut(name[-1], whole, tiles))
        program.captured()
        self.ran[schedule] += 1
        found = [self._whole(name[-1], program.read(name), sizes, tiles)
                 for name, buffer in schedule.buffers.items() if buffer.role == "output"]  # fmt: skip
        POOL.give(program)
        return found

    def _cut(self, operand: str, whole: Tensor, tiles: Mapping[str, int]) -> Tensor:
        """Return the tiles [rows, cols, elements] of an operand, by slots in the order in which the die computes."""
        rows, cols = (tiles[size] for size in SIZES[operand])
        down, across = (self.team.size if size in CUTS[self.moving] else 1 for size in SIZES[operand])
        padded = whole.new_zeros(down * rows, across * cols)
        padded[: whole.shape[0], : whole.shape[1]] = whole
        blocks = padded.view(down, rows, across, cols).transpose(1, 2)
        if SIZES[operand][1] == next(size for size in CUTS[self.moving] if size in SIZES[operand]):
            blocks = blocks.transpose(0, 1)  # by position, then by slot
        if blocks.shape[1] > 1:
            blocks = blocks[torch.arange(self.team.size)[:, None], self._order]
        cut = torch.empty(self.team.size, blocks[0].numel(), dtype=whole.dtype)
        cut[self._dies] = blocks.reshape(self.team.size, -1)
        return cut.view(*self.team.mesh.shape, -1)

    def _whole(self, operand: str, cut: Tensor, sizes: Mapping[str, int], tiles: Mapping[str, int]) -> Tensor:
        """Return the operand that was cut: numbers of its elements, cut alike, say where each goes (0: padding)."""
        rows, cols = (sizes[size] for size in SIZES[operand])
        places = self._cut(operand, torch.arange(1, rows * cols + 1).view(rows, cols), tiles)
        whole = cut.new_empty(rows * cols + 1)
        whole[places.view(cut.shape)] = cut
        return whole[1:].view(rows, cols)


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams: StreamedProducts, x: Tensor, w: Tensor) -> Tensor:
        ctx.streams = streams
        ctx.save_for_backward(x, w)
        return streams.run("forward", x=x, w=w)[0].detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        (x, w), run = ctx.saved_tensors, ctx.streams.run
        if ctx.streams.moving == "y":
            return None, *run("backward", x=x, w=w, dy=dy)
        _, x_needed, w_needed = ctx.needs_input_grad
        (dx,) = run("dx", dy=dy, w=w) if x_needed else (None,)
        (dw,) = run("dw", x=x, dy=dy) if w_needed else (None,)
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
