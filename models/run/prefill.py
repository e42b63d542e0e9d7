"""Prefill (WaferLLM, OSDI'25, section 4.1): a prompt by MeshGEMM and GEMM-T, in as many chunks as its SRAM asks for.

Chunks follow one another through the regions; here layer after layer takes all of them, which computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange

from wafer_triton.cost.price import Tally, tally
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.program import Program
from wafer_triton.layout import MeshTensor, scatter
from wafer_triton.models.place.cuts import Tiles, picked, unpicked
from wafer_triton.report import Progress, silent
from wafer_triton.schedule import prefill as prefill_blocks
from wafer_triton.schedule.block import Block, Part, schedule
from wafer_triton.schedule.expert_places import ExpertRegions
from wafer_triton.schedule.expert_regions import prefill_pass
from wafer_triton.schedule.kv_cache import KvCache
from wafer_triton.schedule.rounds import Buffer

WEIGHTS = ("norm", "router", "wqkv", "wo", "wgu", "wdown", "qk_norm", "wgu.shared", "wdown.shared")


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of a prompt, `count` from `start` on, spread over the rows of the mesh.

    A row holds up to `tokens` of them, and `past` entries of the chunks before. `position` [rows, tokens] is the number
    of the token that lies there, -1 where none does.
    """

    start: int
    count: int
    tokens: int
    past: int
    position: torch.Tensor

    @property
    def index(self) -> torch.Tensor:
        """The position of each token among the padded rows."""
        return (self.position.flatten() >= 0).nonzero().flatten()


def chunks(side: int, count: int, tokens: int) -> list[Chunk]:
    """A prompt in chunks of `tokens` on each of `side` rows; the last may have fewer."""
    parts: list[Chunk] = []
    for start in range(0, count, side * tokens):
        here = min(count - start, side * tokens)
        spread, rows = KvCache(side, here), -(-here // side)
        row, edges = spread.row_of(here), spread.windows(here)
        position = np.full((side, rows), -1)
        position[row, np.arange(here) - edges[row]] = start + np.arange(here)
        past = sum(chunk.tokens for chunk in parts)
        parts.append(Chunk(start, here, rows, past, torch.from_numpy(position)))
    return parts


class Prefill:
    """Runs prompts through the layers `numbers` (None: all) on the square mesh of `block`.

    `load(layer, kind, memory)` puts a layer's tiles, as prefill places them, into memory and returns its bias, if any.
    """

    def __init__(
        self, block: Block, executor: Executor, load: Callable[[int, str, Tiles], torch.Tensor | None],
        numbers: range | None = None,
    ) -> None:  # fmt: skip
        self.block, self.executor, self.load = block, executor, load
        self.numbers = range(block.shape.num_hidden_layers) if numbers is None else numbers
        self.side = block.mesh.shape[0]
        self.weights: dict[str, Tiles] = {kind: {} for kind in block.shape.layers_of}  # that all layers pass through
        self.programs: dict[tuple[Part, tuple[int, ...]], Program] = {}
        self.scratch: dict[Buffer, torch.Tensor] = {}
        # of the last prompt: experts by sparse layer, see `run`; with regions the passes of each chunk, and the rows of
        # tokens that did not go in the first
        self.chosen: list[torch.Tensor] = []
        self.passes: list[int] = []
        self.overflow = 0

    def tally(self, parts: Sequence[Chunk], passes: Sequence[int] = ()) -> Tally:
        """Counts and predicted cost of a prompt through all layers, with so many passes of experts of each chunk."""
        total = Tally()
        for number, part in enumerate(parts):
            for kind, layers in self.block.shape.layers_of.items():
                past = part.past if kind == "attention" else 0
                total += tally(schedule(prefill_blocks.first(self.block, kind), self.block, part.tokens, past)) * layers
            if passes:
                total += tally(schedule(prefill_pass, self.block, part.tokens, 0, 0)) * passes[number]
        return total

    def run(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        parts: Sequence[Chunk],
        fill: Callable[[int, torch.Tensor, torch.Tensor], None],
        progress: Progress = silent,
    ) -> torch.Tensor:
        """x [count, width] through the layers; calls `fill(layer, k, v)`, both [count, key heads, head_dim].

        `chosen` has then the experts [count, k] that its tokens took in each layer that has some.
        """
        shape = self.block.shape
        if len(self.programs) > 16:  # prompts of many lengths: plans are cheap to make again
            self.programs, self.scratch = {}, {}
        attention = [self._program("attention", part.tokens, part.past) for part in parts]
        others = {
            kind: [self._program(kind, part.tokens, 0) for part in parts]
            for kind in shape.layers_of
            if kind != "attention"
        }
        regions = self.block.expert_regions
        self.passes, self.overflow = [], 0
        if regions is not None:
            for part in parts:  # before weights are loaded, which its memory is for
                self._bound(prefill_pass, "experts", part.tokens, 0, 0)
            self.passes = [0] * len(parts)
        xs = [self._spread(x, part, "(y m) (x d)") for part in parts]
        held = [picked(values, self.block.layout.pair_of, 1) for values in rotary]
        angles = [[self._spread(values, part, "(y m) (x p)") for values in held] for part in parts]
        masks = list(self._masks(parts))
        self.chosen = []
        for layer in self.numbers:
            kinds = shape.kinds(layer)
            bias, _ = (self.load(layer, kind, self.weights[kind]) for kind in kinds)
            keys: list[torch.Tensor] = []
            values: list[torch.Tensor] = []
            chosen: list[torch.Tensor] = []
            for number, part in enumerate(parts):
                first, second = attention[number], others[kinds[1]][number]
                if len(parts) > 1 or layer == self.numbers.start:
                    first.write("x", xs[number])
                    for name, tiles in zip(("cos", "sin"), angles[number], strict=True):
                        first.write(name, tiles)
                    first.write("bias", masks[number])
                if kinds[1] == "experts" and regions is not None:
                    real = (part.position >= 0).to(x.dtype)[:, None].expand(-1, self.side, -1)
                    second.write("real", real.contiguous())
                if bias is not None:
                    first.write("bqkv", bias.unsqueeze(2).expand(-1, -1, part.tokens, -1).contiguous())
                for name, past in (("keys", keys), ("values", values)):
                    self._past(first, name, part, past)
                first.run()
                second.run()
                if kinds[1] == "experts" and regions is not None:
                    self._send(second, number, part, regions)
                keys.append(first.read("k"))
                values.append(first.read("v"))
                if kinds[1] == "experts":
                    chosen.append(second.read("chosen")[:, 0].flatten(0, 1)[part.index])
                if len(parts) > 1:
                    xs[number] = second.read("x")
            if shape.experts is not None and chosen:
                self.chosen.append(torch.cat(chosen)[:, : shape.experts.chosen].long().cpu())
            fill(layer, self._gather(keys, parts), self._gather(values, parts))
            progress("prefill", layer + 1 - self.numbers.start, len(self.numbers))
        if len(parts) == 1:
            xs = [attention[0].read("x")]
        return torch.cat([self._whole(tiles, part) for tiles, part in zip(xs, parts, strict=True)])

    def _send(self, routing: Program, number: int, part: Chunk, regions: ExpertRegions) -> None:
        """The passes that take a chunk's tokens to their experts, after their routing."""
        passes = -(-int(routing.read("demand").max()) // regions.capacity)
        for turn in range(passes):
            self._bound(prefill_pass, "experts", part.tokens, 0, turn).run()
        self.passes[number] += passes
        self.overflow += int((routing.read("ranks")[:, 0] >= regions.capacity).sum())

    def _program(self, kind: str, tokens: int, past: int) -> Program:
        return self._bound(prefill_blocks.first(self.block, kind), kind, tokens, past)

    def _bound(self, adds: Part, kind: str, *args: int) -> Program:
        key = (adds, args)
        if key not in self.programs:
            step = schedule(adds, self.block, *args)
            shared: Tiles = {}
            for name, buffer in step.buffers.items():
                if buffer.role not in ("input", "resident"):
                    continue
                # weights are shared by chunks of all sizes, x by the two blocks of a layer
                pool = self.weights[kind] if name in WEIGHTS else None
                if pool is not None:
                    shared[name] = pool.setdefault(name, self.executor.allocate(step, buffer))
                else:
                    shared[name] = self.scratch.setdefault(buffer, self.executor.allocate(step, buffer))
            self.programs[key] = self.executor.bind(step, {}, shared, self.scratch)
        return self.programs[key]

    def _past(self, program: Program, name: str, part: Chunk, past: list[torch.Tensor]) -> None:
        if part.past:
            memory = program.memory[name].unflatten(-1, (part.tokens + part.past, -1))
            whole = torch.cat(past, 2).flatten(3)
            memory[..., part.tokens :, :].copy_(whole[self.executor.rectangle(self.block.mesh)])

    def _spread(self, values: torch.Tensor, part: Chunk, pattern: str) -> torch.Tensor:
        padded = values.new_zeros(self.side * part.tokens, values.shape[1])
        padded[part.index] = values[part.start : part.start + part.count]
        return scatter(padded, self.block.mesh, pattern).tiles

    def _whole(self, tiles: torch.Tensor, part: Chunk) -> torch.Tensor:
        shape = (self.side * part.tokens, self.block.shape.hidden_size)
        return MeshTensor(self.block.mesh, tiles, "(y m) (x d)", shape, {}).gather()[part.index]

    def _masks(self, parts: Sequence[Chunk]) -> Iterator[torch.Tensor]:
        """Of each chunk, 0 where a query of the row may see a key of a core's block, else -inf.

        [rows, cols, tokens, seen], where the key's row is the core's column; with several head groups [rows, cols,
        slots, tokens, seen]. A padded query sees every real key, so that its row stays finite. No query sees a padded
        key.
        """
        rows = torch.arange(self.side)
        held = rows[None] if self.block.head_groups == 1 else torch.from_numpy(self.block.blocks.row_of)
        for number, part in enumerate(parts):
            keys = torch.cat([chunk.position for chunk in (part, *parts[:number])], 1)
            query = torch.where(part.position < 0, part.start + part.count, part.position)
            seen = (keys >= 0) & (keys <= query[:, :, None, None])  # [rows, tokens, rows of keys, keys]
            masks = torch.where(seen, 0.0, float("-inf")).transpose(1, 2)
            yield masks[rows.view(-1, *[1] * (held.ndim - 1)), held]

    def _gather(self, entries: list[torch.Tensor], parts: Sequence[Chunk]) -> torch.Tensor:
        """Keys or values [count, key heads, head_dim] from the tiles of all chunks."""
        pattern = "y x m g n -> (y m) (x g n)"
        rows = [rearrange(tiles, pattern)[part.index] for tiles, part in zip(entries, parts, strict=True)]
        whole = unpicked(torch.cat(rows), self.block.layout.rows("k"), 1)
        return whole.unflatten(1, (-1, self.block.shape.head_dim))
