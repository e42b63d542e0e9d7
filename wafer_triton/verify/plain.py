"""What the formulas of `verify.decoder` share: whole tensors from tiles and back, with their padding, and norms."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING

from wafer_triton.algorithms.ring import alignment_sources
from wafer_triton.decoder.block import Block
from wafer_triton.device.layout import MESH_AXES, letters
from wafer_triton.schedule.rounds import Buffer
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.verify.intent import Intent
from wafer_triton.verify.specs import Tiles, from_tiles, to_tiles
from wafer_triton.verify.state import tiles_shape

if TYPE_CHECKING:
    from torch import Tensor

Formula = Callable[..., Tiles]  # of whole tensors by the names of their buffers, to whole tensors by name


def plain_intent(schedule: Schedule, formula: Formula) -> Intent:
    """Return an intent whose reference is `formula` on the whole tensors of a schedule's buffers."""
    cuts = {
        name: letters(cut) | ({"slot": "slot"} if buffer.slots > 1 else {})
        for name, buffer in _formula_buffers(schedule, formula).items()
        if (cut := spec(buffer))
    }
    return Intent(cuts, {}, reference=on_tiles(schedule, formula))


def on_tiles(schedule: Schedule, formula: Formula) -> Callable[..., Tiles]:
    """Return `formula` as a function of a schedule's tiles, followed by the numbers that the formula takes first.

    The formula's other parameters are named as buffers; with `**more` it takes all that are given. Padding stays.
    """
    buffers = _formula_buffers(schedule, formula)

    def computed(tiles: Tiles, *args: int) -> Tiles:
        wholes = formula(*args, **{name: _whole(tiles[name], buffer) for name, buffer in buffers.items()})
        return {
            name: to_tiles(tensor, schedule.mesh, spec(schedule.buffers[name])).reshape(tiles_shape(schedule, name))
            for name, tensor in wholes.items()
        }

    return computed


def _formula_buffers(schedule: Schedule, formula: Formula) -> dict[str, Buffer]:
    """Return the buffers that a formula takes, by name."""
    parameters = signature(formula).parameters
    every = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: each for name, each in schedule.buffers.items() if name in parameters or (every and each.given)}


def spec(buffer: Buffer) -> str:
    """Return the partition spec of a buffer: its own, or that of the parameter that it holds.

    A tile may have an axis more than the parameter, as for the norms of heads. Without either ("") tiles stay tiles.
    """
    if buffer.pattern or not buffer.holds:
        return buffer.pattern
    left, _, right = buffer.holds[0].pattern.partition("->")
    cuts = {letter: f"({axis} {letter})" for letter, axis in letters(left).items()}
    own = [cuts.get(letter, letter) for letter in re.findall(r"\w+", right or left) if letter not in MESH_AXES]
    return " ".join(["more"] * (len(buffer.tile) - len(own)) + own)


def _whole(tiles: Tensor, buffer: Buffer) -> Tensor:
    """Return tiles as one tensor, weights without their skew; of several squares skewed alone a stack of tensors."""
    if not buffer.skew:
        return from_tiles(tiles, spec(buffer))
    import torch

    side = buffer.skew
    squares = tiles.unflatten(1, (-1, side)).unflatten(0, (-1, side)).transpose(1, 2).flatten(0, 1)
    straight = torch.empty_like(squares)
    straight.flatten(1, 2)[:, alignment_sources(side).tolist()] = squares.flatten(1, 2)
    wholes = torch.stack([from_tiles(square, spec(buffer)) for square in straight])
    return wholes[0] if len(wholes) == 1 else wholes


def rms_norm(block: Block, x: Tensor, weight: Tensor) -> Tensor:
    """Return RMSNorm of x [..., width with padding], which divides by the width without padding."""
    c = block.shape
    return x * (x.square().sum(-1, True) / c.hidden_size + c.rms_norm_eps).rsqrt() * weight


def head_norm(block: Block, heads: Tensor, weight: Tensor) -> Tensor:
    """Return RMSNorm of query and key heads [tokens, columns, heads, head], times their `weight`.

    The mean square is of each head, over the columns that hold it. With `qk_norm_whole` all query heads of a token
    share one, and all key heads another.
    """
    c, squares = block.shape, heads.square()
    if c.qk_norm_whole:
        q, k = squares.sum((1, 3), True).split((block.query_heads, block.kv_heads), 2)
        key_width = (block.layout.rows("k") >= 0).sum()  # copies of key heads included
        means = [(q.sum(2, True) / c.q_width).expand_as(q), (k.sum(2, True) / key_width).expand_as(k)]
        mean = concat(means, 2)
    else:
        sums = [part.sum((1, 3), True).expand_as(part) for part in squares.split(segment_widths(block), 1)]
        mean = concat(sums, 1) / c.head_dim
    return heads * ((mean + c.rms_norm_eps).rsqrt() * weight)


def segment_widths(block: Block) -> list[int]:
    """Return the number of columns that hold a head together, for each head group; a column left over counts as 1."""
    columns, width = block.mesh.shape[1], block.layout.width
    return [width] * (columns // width) + [1] * (columns % width)


def concat(parts: list[Tensor], dim: int) -> Tensor:
    """Return torch.cat of tensors; torch is imported here, as importing this module does without."""
    import torch

    return torch.cat(parts, dim)


def swiglu(h: Tensor, gate_up: Tensor, down: Tensor, columns: int) -> Tensor:
    """Return (silu(h @ gate) * (h @ up)) @ down of h [tokens, width].

    `gate_up` [width, columns * 2 * n] has the gates of the first mesh column, then its ups, then those of the next.
    """
    gate, up = (h @ gate_up).unflatten(-1, (columns, 2, -1)).unbind(-2)
    return (gate * gate.sigmoid() * up).flatten(1) @ down
