"""Prefill (WaferLLM, OSDI'25, section 4.1): a prompt by MeshGEMM and GEMM-T, in chunks that fit the SRAM.

Chunks follow one another through the regions. On a GPU the launches of a chunk in all layers are one record. It is made
once for each length of a chunk and of the chunks before it, and replayed for each prompt. Elsewhere layer after layer
takes all chunks, which computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from wafer_triton.decoder import prefill as prefill_blocks
from wafer_triton.decoder.block import Block, SubLayer, schedule
from wafer_triton.decoder.expert_places import ExpertRegions
from wafer_triton.decoder.expert_regions import prefill_pass
from wafer_triton.device.modes import plain
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.parts import Call
from wafer_triton.emulate.program import Program
from wafer_triton.models.place.cuts import Tiles, is_repeated
from wafer_triton.models.run.chunks import Chunk, ChunkTiles
from wafer_triton.place.transfers import ScheduleRuns
from wafer_triton.schedule.rounds import Buffer
from wafer_triton.text.progress import Progress, silent

Programs = Mapping[str, Program]  # programs of a chunk, by the kind of block
Fill = Callable[[int, list[torch.Tensor], list[torch.Tensor]], None]  # of a layer, with tiles of all chunks


@dataclass(frozen=True)
class Kept:
    """The results of a layer for a chunk: tiles of keys and values, and of expert ids in a layer with experts."""

    k: torch.Tensor
    v: torch.Tensor
    expert_ids: torch.Tensor | None


@dataclass(frozen=True)
class Result:
    """The results of all layers for a chunk, and its activation after them."""

    x: torch.Tensor
    layers: list[Kept]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors, in a fixed order."""
        each = (tiles for kept in self.layers for tiles in (kept.k, kept.v, kept.expert_ids))
        return [self.x, *(tiles for tiles in each if tiles is not None)]


def _write(program: Program, tiles: Tiles) -> None:
    for name, values in tiles.items():
        program.write(name, values)


class PrefillRun:
    """Prefill of prompts by the layers `numbers` on the square mesh of `block`.

    `load(layer, kind, memory)` puts a layer's tiles in prefill's layout into memory. It returns tiles to repeat for
    every row of tokens, such as a bias, by buffer.
    """

    def __init__(
        self, block: Block, executor: Executor, load: Callable[[int, str, Tiles], Tiles], numbers: range
    ) -> None:
        self.block, self.executor, self.load, self.numbers = block, executor, load, numbers
        self.side, self.tiles = block.mesh.shape[0], ChunkTiles(block)
        self.weights: dict[str, Tiles] = {kind: {} for kind in block.shape.layers_of}  # all layers use it in turn
        self.programs: dict[tuple[SubLayer, tuple[int, ...]], Program] = {}
        self.scratch: dict[Buffer, torch.Tensor] = {}
        # of the last prompt: experts by sparse layer, see `run`; with regions the passes of each chunk, and the rows of
        # tokens that did not go in the first
        self.expert_ids: list[torch.Tensor] = []
        self.passes: list[int] = []
        self.overflow = 0
        self.forget()

    def runs(self, parts: Sequence[Chunk], passes: Sequence[int] = ()) -> Iterator[ScheduleRuns]:
        """Yield the schedules that run for a prompt through all layers, with `passes` of experts of each chunk."""
        for number, part in enumerate(parts):
            for kind, layers in self.block.shape.layers_of.items():
                past = part.past if kind == "attention" else 0
                yield schedule(prefill_blocks.first_sub_layer(self.block, kind), self.block, part.tokens, past), layers
            if passes:
                yield schedule(prefill_pass, self.block, part.tokens, 0, 0), passes[number]

    def run(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        parts: Sequence[Chunk],
        fill: Callable[[int, torch.Tensor, torch.Tensor], None],
        progress: Progress = silent,
    ) -> torch.Tensor:
        """Return the activation after all layers for x [count, width].

        Calls `fill(layer, k, v)` for each layer, both [count, key heads, head_dim]. Sets `expert_ids` to the expert ids
        [count, k] of the tokens in each layer with experts.
        """
        if len(self.programs) > 16:  # prompts of many lengths: plans are cheap to make again
            self.programs, self.scratch = {}, {}
            self.forget()
        known, regions = set(self.programs), self.block.expert_regions
        every = [
            {kind: self._bound(prefill_blocks.first_sub_layer(self.block, kind), kind, part.tokens,
                               part.past if kind == "attention" else 0)
             for kind in self.block.shape.layers_of}
            for part in parts
        ]  # fmt: skip
        if regions is not None:
            for part in parts:  # before weights are loaded into memory
                self._bound(prefill_pass, "experts", part.tokens, 0, 0)
        fresh = [step for key, program in self.programs.items() if key not in known for step in program.calls]
        self.executor.precompile(fresh, partial(progress, "compiling kernel"))
        self.expert_ids, self.passes, self.overflow = [], [0] * len(parts) if regions is not None else [], 0
        inputs = list(self.tiles.inputs(x, rotary, parts))
        # with regions, the host counts the passes between the launches
        through = self._recorded if self.executor.graphs and regions is None else self._launched
        gather = self.tiles.gatherer(parts, self.executor.device)
        out = through(every, inputs, parts, lambda layer, k, v: fill(layer, gather(k), gather(v)), progress)
        return torch.cat([self.tiles.whole(tiles, part) for tiles, part in zip(out, parts, strict=True)])

    def forget(self) -> None:
        """Drop the records of launches, which hold the addresses of weights."""
        self.steps: dict[tuple[tuple[int, int], ...], Call] = {}
        self.results: dict[tuple[tuple[int, int], ...], Result] = {}

    def _launched(
        self, every: Sequence[Programs], inputs: Sequence[Tiles], parts: Sequence[Chunk], fill: Fill, progress: Progress
    ) -> list[torch.Tensor]:
        """Return the activations of all chunks; each layer runs on all of them, so that its weights are loaded once."""
        xs = [tiles[prefill_blocks.HIDDEN] for tiles in inputs]
        for layer in self.numbers:
            repeated, kept = self._load(layer), list[Kept]()
            for number, part in enumerate(parts):
                first, second = self._pair(every[number], layer)
                if len(parts) > 1 or layer == self.numbers.start:
                    _write(first, inputs[number] | {prefill_blocks.HIDDEN: xs[number]})
                if (
                    prefill_blocks.REAL in second.schedule.buffers
                ):  # tokens alone, without padding, go to experts in regions
                    real = (part.position >= 0).to(xs[number].dtype)[:, None].expand(-1, self.side, -1)
                    second.write(prefill_blocks.REAL, real.contiguous())
                kept.append(self._layer(first, second, part, repeated, kept))
                if self.block.expert_regions is not None and kept[-1].expert_ids is not None:
                    self._send(second, number, part, self.block.expert_regions)
                if len(parts) > 1:
                    xs[number] = second.read(prefill_blocks.HIDDEN)
            self._keep(layer, kept, parts, fill)
            progress("prefill", layer + 1 - self.numbers.start, len(self.numbers))
        return xs if len(parts) > 1 else [every[0]["attention"].read(prefill_blocks.HIDDEN)]

    def _recorded(
        self, every: Sequence[Programs], inputs: Sequence[Tiles], parts: Sequence[Chunk], fill: Fill, progress: Progress
    ) -> list[torch.Tensor]:
        """Return the activations of all chunks; each chunk runs through all layers by one replay of a record."""
        results: list[Result] = []
        for number, part in enumerate(parts):
            kinds = tuple((before.tokens, before.past) for before in parts[: number + 1])
            programs, first = every[number], every[number]["attention"]
            if kinds not in self.steps:
                once = {self.block.shape.kinds(layer): layer for layer in reversed(self.numbers)}.values()
                for layer in self.numbers:  # cut all weights, and compile the kernels of each kind of layer
                    repeated = self._load(layer)
                    if layer in once:
                        _write(first, inputs[number])
                        self._layer(*self._pair(programs, layer), part, repeated, self._before(layer, results))
                run = partial(self._chunk, kinds, programs, part, list(results))
                self.steps[kinds] = self.executor.capture(run, compiled=True)
            _write(first, inputs[number])
            self.steps[kinds]()
            results.append(self.results[kinds])
            progress("prefill", number + 1, len(parts))
        self.executor.check()
        for layer in self.numbers:
            self._keep(layer, self._before(layer, results), parts, fill)
        return [result.x for result in results]

    @plain()  # the results are kept
    def _chunk(
        self, kinds: tuple[tuple[int, int], ...], programs: Programs, part: Chunk, before: Sequence[Result]
    ) -> None:
        """Run a chunk with written inputs through all layers; `results` gets its keys, values and activation.

        Results keep their addresses, as the records of later chunks read them.
        """
        kept = [
            self._layer(*self._pair(programs, layer), part, self._load(layer), self._before(layer, before))
            for layer in self.numbers
        ]
        now = Result(self._pair(programs, self.numbers[-1])[1].read(prefill_blocks.HIDDEN), kept)
        if kinds not in self.results:
            self.results[kinds] = now
            return
        for held, new in zip(self.results[kinds].tensors, now.tensors, strict=True):
            held.copy_(new)

    def _before(self, layer: int, results: Sequence[Result]) -> list[Kept]:
        return [result.layers[layer - self.numbers.start] for result in results]

    def _load(self, layer: int) -> Tiles:
        """Load the weights of a layer; return the attention block's tiles to repeat for every row, such as a bias."""
        repeated, _ = [self.load(layer, kind, self.weights[kind]) for kind in self.block.shape.kinds(layer)]
        return repeated

    def _pair(self, programs: Programs, layer: int) -> tuple[Program, Program]:
        """Return the programs of a layer's two blocks."""
        first, second = self.block.shape.kinds(layer)
        return programs[first], programs[second]

    def _layer(self, first: Program, second: Program, part: Chunk, repeated: Tiles, before: Sequence[Kept]) -> Kept:
        """Run a layer, whose weights are loaded, on a chunk; `before` are the results of the chunks before it."""
        for name, tiles in repeated.items():
            first.write(name, tiles.unsqueeze(2).expand(-1, -1, part.tokens, -1).contiguous())
        old = [kept.k for kept in before], [kept.v for kept in before]
        for name, past in zip(prefill_blocks.PAST, old, strict=True):
            self._past(first, name, part, past)
        first.run()
        second.run()
        expert_ids = (
            second.read(prefill_blocks.EXPERT_IDS) if prefill_blocks.EXPERT_IDS in second.schedule.buffers else None
        )
        k, v = map(first.read, prefill_blocks.NEW)
        return Kept(k, v, expert_ids)

    def _keep(self, layer: int, kept: Sequence[Kept], parts: Sequence[Chunk], fill: Fill) -> None:
        """Write keys and values of all chunks to the cache, and the tokens' experts to `expert_ids`."""
        experts = self.block.shape.experts
        if experts is not None and (taken := [one.expert_ids for one in kept if one.expert_ids is not None]):
            rows = [tiles[:, 0].flatten(0, 1)[part.index] for tiles, part in zip(taken, parts, strict=True)]
            self.expert_ids.append(torch.cat(rows)[:, : experts.top_k].long().cpu())
        fill(layer, [one.k for one in kept], [one.v for one in kept])

    def _send(self, routing: Program, number: int, part: Chunk, regions: ExpertRegions) -> None:
        """Run the passes that bring a chunk's tokens to their experts, after the routing."""
        passes = -(-int(routing.read(prefill_blocks.DEMAND).max()) // regions.capacity)
        for each in range(passes):
            self._bound(prefill_pass, "experts", part.tokens, 0, each).run()
        self.passes[number] += passes
        self.overflow += int((routing.read(prefill_blocks.RANKS)[:, 0] >= regions.capacity).sum())

    def _bound(self, adds: SubLayer, kind: str, *args: int) -> Program:
        key = (adds, args)
        if key not in self.programs:
            step = schedule(adds, self.block, *args)
            shared: Tiles = {}
            for name, buffer in step.buffers.items():
                if not buffer.given:
                    continue
                # weights are shared by chunks of all sizes, x by the two blocks of a layer
                if buffer.role == "weight" and not is_repeated(buffer):
                    pool = self.weights[kind]
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
