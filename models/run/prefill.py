"""Prefill (WaferLLM, OSDI'25, section 4.1): a prompt by MeshGEMM and GEMM-T, in chunks that fit the SRAM.

Chunks follow one another through the regions. On a GPU the launches of a chunk in all layers are one record. It is made
once for each length of a chunk and of the chunks before it, and replayed for each prompt. Elsewhere layer after layer
takes all chunks, which computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch

from wafer_triton.decoder import prefill as prefill_blocks
from wafer_triton.decoder.block import Block, SubLayer, schedule
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
Sizes = tuple[tuple[int, int], ...]  # the tokens and the past of the rows of a chunk and of those before it


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
                sub_layers = prefill_blocks.sub_layers_of(self.block, kind, part.tokens, part.past)
                first, *repeated = [schedule(adds, self.block, *args) for adds, args in sub_layers]
                yield first, layers
                yield from ((each, passes[number]) for each in repeated)

    def run(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        parts: Sequence[Chunk],
        fill: Callable[[str, torch.Tensor], None],
        progress: Progress = silent,
    ) -> torch.Tensor:
        """Return the activation after all layers for x [count, width].

        Calls `fill` for "k" and for "v" with these [layers, count, key heads, head_dim]. Sets `expert_ids` to the
        expert ids [count, k] of the tokens in each layer with experts.
        """
        if len(self.programs) > 16:  # prompts of many lengths: plans are cheap to make again
            self.programs, self.scratch = {}, {}
            self.forget()
        known, regions = set(self.programs), self.block.expert_regions
        every = list[Programs]()
        for part in parts:
            bound = dict[str, Program]()
            for kind in self.block.shape.layers_of:
                sub_layers = prefill_blocks.sub_layers_of(self.block, kind, part.tokens, part.past)
                # passes, too, before their weights are loaded into memory
                bound[kind], *_ = [self._bound(kind, *each) for each in sub_layers]
            every.append(bound)
        fresh = [step for key, program in self.programs.items() if key not in known for step in program.calls]
        self.executor.precompile(fresh, partial(progress, "compiling kernel"))
        self.passes, self.overflow = [0] * len(parts) if regions is not None else [], 0
        inputs = list(self.tiles.inputs(x, rotary, parts))
        # with regions, the host counts the passes between the launches
        through = self._recorded if self.executor.graphs and regions is None else self._launched
        gather = self.tiles.gatherer(parts, self.executor.device)
        results = through(every, inputs, parts, progress)
        for name in prefill_blocks.NEW:
            fill(name, gather([result[name] for result in results]))
        each = zip(results, parts, strict=True)
        x = torch.cat([self.tiles.whole(result[prefill_blocks.HIDDEN], part) for result, part in each])
        self.executor.check()  # which waits for a GPU, so all work is launched before
        self.expert_ids = self._expert_ids(results, parts)
        return x

    def forget(self) -> None:
        """Drop the records of launches, which hold the addresses of weights."""
        self.steps: dict[Sizes, Call] = {}
        self.results: dict[Sizes, Tiles] = {}

    def _launched(
        self, every: Sequence[Programs], inputs: Sequence[Tiles], parts: Sequence[Chunk], progress: Progress
    ) -> list[Tiles]:
        """Return the results of all chunks; each layer runs on all of them, so that its weights are loaded once."""
        results = [{prefill_blocks.HIDDEN: tiles[prefill_blocks.HIDDEN]} for tiles in inputs]
        for layer in self.numbers:
            repeated = self._load(layer)
            for number, part in enumerate(parts):
                (first, second), result = self._pair(every[number], layer), results[number]
                if len(parts) > 1 or layer == self.numbers[0]:
                    _write(first, inputs[number] | {prefill_blocks.HIDDEN: result[prefill_blocks.HIDDEN]})
                in_regions = prefill_blocks.REAL in second.schedule.buffers
                if in_regions:  # tokens alone, without padding, go to experts
                    real = (part.position >= 0).to(result[prefill_blocks.HIDDEN].dtype)[:, None]
                    second.write(prefill_blocks.REAL, real.expand(-1, self.side, -1).contiguous())
                self._layer(first, second, part, repeated, layer, results[: number + 1])
                if in_regions:
                    self._send(second, number, part)
                if len(parts) > 1 or layer == self.numbers[-1]:
                    result[prefill_blocks.HIDDEN] = second.read(prefill_blocks.HIDDEN)
            progress("prefill", layer + 1 - self.numbers.start, len(self.numbers))
        return results

    def _recorded(
        self, every: Sequence[Programs], inputs: Sequence[Tiles], parts: Sequence[Chunk], progress: Progress
    ) -> list[Tiles]:
        """Return the results of all chunks; each chunk runs through all layers by one replay of a record."""
        results: list[Tiles] = []
        for number, part in enumerate(parts):
            kinds = tuple((before.tokens, before.past) for before in parts[: number + 1])
            programs, first = every[number], every[number]["attention"]
            if kinds not in self.steps:
                once = {self.block.shape.kinds(layer): layer for layer in reversed(self.numbers)}.values()
                for layer in self.numbers:  # cut all weights, and compile the kernels of each kind of layer
                    repeated = self._load(layer)
                    if layer in once:
                        _write(first, inputs[number])
                        self._layer(*self._pair(programs, layer), part, repeated, layer, [*results, {}])
                run = partial(self._chunk, kinds, programs, part, list(results))
                self.steps[kinds] = self.executor.capture(run, compiled=True)
            _write(first, inputs[number])
            self.steps[kinds]()
            results.append(self.results[kinds])
            progress("prefill", number + 1, len(parts))
        return results

    @plain()  # the results are kept
    def _chunk(self, kinds: Sizes, programs: Programs, part: Chunk, before: Sequence[Tiles]) -> None:
        """Run a chunk with written inputs through all layers; `results` gets its keys, values and activation.

        Results keep their addresses, as the records of later chunks read them.
        """
        results = [*before, self.results.setdefault(kinds, {})]
        for layer in self.numbers:
            first, second = self._pair(programs, layer)
            self._layer(first, second, part, self._load(layer), layer, results)
        x = second.read(prefill_blocks.HIDDEN)
        results[-1].setdefault(prefill_blocks.HIDDEN, x).copy_(x)

    def _load(self, layer: int) -> Tiles:
        """Load the weights of a layer; return the attention block's tiles to repeat for every row, such as a bias."""
        repeated, _ = [self.load(layer, kind, self.weights[kind]) for kind in self.block.shape.kinds(layer)]
        return repeated

    def _pair(self, programs: Programs, layer: int) -> tuple[Program, Program]:
        """Return the programs of a layer's two blocks."""
        first, second = self.block.shape.kinds(layer)
        return programs[first], programs[second]

    def _layer(
        self, first: Program, second: Program, part: Chunk, repeated: Tiles, layer: int, results: Sequence[Tiles]
    ) -> None:
        """Run a layer, whose weights are loaded, on a chunk; the last of `results` gets keys, values and expert ids.

        These are [layers, rows, cols, elements of a core]. The other `results` are of the chunks before.
        """
        mesh, number = self.block.mesh, layer - self.numbers.start
        for name, tiles in repeated.items():
            first.write(name, tiles.unsqueeze(2).expand(-1, -1, part.tokens, -1).contiguous())
        for name, new in zip(prefill_blocks.PAST, prefill_blocks.NEW, strict=True):
            if part.past:
                past = torch.cat([result[new][number] for result in results[:-1]], 2)[self.executor.rectangle(mesh)]
                first.memory[name][..., -past.shape[2] :].copy_(past)
        first.run()
        second.run()
        for name in (*prefill_blocks.NEW, prefill_blocks.EXPERT_IDS):
            program = first if name in first.memory else second
            if name in program.memory:
                tiles = self.executor.all_gather(mesh, program.memory[name])
                if name not in results[-1]:
                    results[-1][name] = tiles.new_empty(len(self.numbers), *tiles.shape)
                results[-1][name][number] = tiles

    def _expert_ids(self, results: Sequence[Tiles], parts: Sequence[Chunk]) -> list[torch.Tensor]:
        """Return the expert ids [count, k] of the tokens of all chunks, for each layer with experts."""
        experts, name, rows = self.block.shape.experts, prefill_blocks.EXPERT_IDS, list[torch.Tensor]()
        if experts is None or name not in results[0]:
            return []
        for result, part in zip(results, parts, strict=True):
            rows.append(result[name][:, :, 0].unflatten(2, (part.tokens, -1)).flatten(1, 2)[:, part.index])
        ids = torch.cat(rows, 1)[..., : experts.top_k].long().cpu()
        each = zip(ids, self.numbers, strict=True)
        return [tokens for tokens, layer in each if "experts" in self.block.shape.kinds(layer)]

    def _send(self, routing: Program, number: int, part: Chunk) -> None:
        """Run the passes that bring a chunk's tokens to their experts, after the routing."""
        capacity = self.block.experts_in_regions[1].capacity
        passes = -(-int(routing.read(prefill_blocks.DEMAND).max()) // capacity)
        for each in range(passes):
            self._bound("experts", prefill_pass, (part.tokens, 0, each)).run()
        self.passes[number] += passes
        self.overflow += int((routing.read(prefill_blocks.RANKS)[:, 0] >= capacity).sum())

    def _bound(self, kind: str, adds: SubLayer, args: tuple[int, ...]) -> Program:
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
