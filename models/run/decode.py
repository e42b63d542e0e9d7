"""Decode (WaferLLM, OSDI'25, section 4): one token of each sequence by MeshGEMV, layer after layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
import torch

from wafer_triton.algorithms.kv_cache import KvCache
from wafer_triton.decoder import decode as blocks
from wafer_triton.decoder.block import Block, schedule
from wafer_triton.device.layout import scatter
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.parts import Call, Tables
from wafer_triton.emulate.program import Program
from wafer_triton.models.place.cuts import Tiles, Weights, fill, held_tile, is_repeated, picked, picker
from wafer_triton.models.run.head import Embedding, Head
from wafer_triton.place.need import weights_of
from wafer_triton.place.transfers import ScheduleRuns
from wafer_triton.schedule.rounds import Buffer
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.text.progress import Progress, silent


@dataclass(frozen=True)
class Layer:
    """The programs of a layer; `append` and `attend` hold one for each sequence.

    `kinds` are the kinds of its blocks; the program of the second is `ffn`, for either kind.
    """

    kinds: tuple[str, str]
    project: Program
    append: tuple[Program, ...]
    attend: tuple[Program, ...]
    output: Program
    ffn: Program

    @property
    def programs(self) -> list[Program]:
        """All programs of the layer."""
        return [self.project, *self.append, *self.attend, self.output, self.ffn]

    @property
    def tiles(self) -> dict[str, Tiles]:
        """The tiles of the weights of the layer's blocks in memory; a bias is given for the first sequence."""
        return {
            kind: {
                name: tiles[:, :, 0] if is_repeated(self.blocks[kind].schedule.buffers[name]) else tiles
                for name, tiles in weights.items()
            }
            for kind, weights in self.weights.items()
        }

    @property
    def weights(self) -> dict[str, Tiles]:
        """The memory [rows, cols, *tile] of the weights of the layer's blocks, by kind."""
        return {
            kind: {
                buffer.name: program.memory[buffer.name].unflatten(-1, held_tile(buffer))
                for buffer in program.schedule.buffers.values()
                if buffer.role == "weight"
            }
            for kind, program in self.blocks.items()
        }

    @property
    def blocks(self) -> dict[str, Program]:
        """The programs that have the weights of the layer's blocks, by kind."""
        return dict(zip(self.kinds, (self.project, self.ffn), strict=True))


class Decode:
    """Layers `numbers` (None: all) of a model placed for decode with KV caches, and its embedding and head, if given.

    A step takes one token of each sequence through them.
    """

    def __init__(
        self, block: Block, executor: Executor, weights: Weights, progress: Progress = silent, head: Head | None = None,
        embedding: Embedding | None = None, numbers: range | None = None,
    ) -> None:  # fmt: skip
        self.block, self.executor, self.head, self.embedding = block, executor, head, embedding
        self.numbers = range(block.shape.num_hidden_layers) if numbers is None else numbers
        sequences, shape = range(block.batch), block.shape
        self.fixed = [schedule(make, block) for make in (blocks.project, blocks.output)]
        self.others = {
            kind: schedule(make, block) for kind, make in blocks.FEED_FORWARD.items() if kind in shape.layers_of
        }
        self.attend = [schedule(blocks.attend, block, sequence) for sequence in sequences]
        project, output = self.fixed
        buffers = {**project.buffers, **output.buffers}
        # activations are shared by all layers
        shared = {
            name: executor.allocate(project, buffer)
            for name, buffer in buffers.items()
            if buffer.role in ("input", "state", "output")
        }
        biases = [executor.allocate(attend, attend.buffers[blocks.MASK]) for attend in self.attend]
        scratch: dict[Buffer, torch.Tensor] = {}
        # the slot of an append changes with every step, and is the same in all layers
        first_appends = [schedule(blocks.append, block, sequence, 0, 0) for sequence in sequences]
        tables = [Tables() for _ in sequences]
        self.steps: dict[tuple[int, ...], Call] = {}
        self.results: dict[tuple[int, ...], torch.Tensor] = {}  # by active sequences; the next step overwrites it
        self.layers: list[Layer] = []
        self.compiled = False
        self.cache: Tiles = {}  # keys or values of a sequence: [layers, rows, cols, slots * numel]
        for which, sequence in product("kv", sequences):
            layers = replace(buffers[f"{which}_cache"], slots=len(self.numbers) * block.slots)
            memory = executor.allocate(project, layers).zero_()  # empty slots are masked, but no mask stops NaN
            self.cache[blocks.cache_name(which, sequence)] = memory.view(len(self.numbers), *memory.shape[:2], -1)
        for number in self.numbers:
            caches = {name: memory[len(self.layers)] for name, memory in self.cache.items()}
            first = executor.bind(project, {}, shared | caches | self._room(project, "attention"), scratch)
            appends = tuple(
                executor.bind(append, {}, first.memory, scratch, table)
                for append, table in zip(first_appends, tables, strict=True)
            )
            attends = tuple(
                executor.bind(attend, {}, first.memory | {blocks.MASK: bias}, scratch)
                for attend, bias in zip(self.attend, biases, strict=True)
            )
            kinds = shape.kinds(number)
            other = self.others[kinds[1]]
            # the expert ids of every layer are read after the step
            own = {b.name: executor.allocate(other, b) for b in other.buffers.values() if b.role == "output"}
            last = executor.bind(other, {}, shared | own | self._room(other, kinds[1]), scratch)
            middle = executor.bind(output, {}, first.memory, scratch)
            self.layers.append(Layer(kinds, first, appends, attends, middle, last))
            self._fill(number, weights)
            progress("placing weights", len(self.layers), len(self.numbers))

    def compile(self, progress: Progress = silent) -> None:
        """Compile the kernels of a step once, for a layer of each kind, the embedding and the head."""
        if self.compiled:
            return
        layers = {layer.kinds: layer for layer in self.layers}.values()
        programs = [program for layer in layers for program in layer.programs]
        ends = [end for end in (self.embedding, self.head) if end is not None]
        programs += [end.program(self.block.batch) for end in ends]
        steps = [step for program in programs for step in program.calls]
        self.executor.precompile(steps, partial(progress, "compiling kernel"))
        self.compiled = True

    def place(self, weights: Weights) -> None:
        """Replace the weights by others."""
        for number in self.numbers:
            self._fill(number, weights)

    def run(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        counts: Sequence[int],
        caches: Sequence[KvCache],
        active: Sequence[int],
    ) -> torch.Tensor:
        """Return logits [batch, vocab] after one token of each sequence; without a head, the activation.

        `x` holds the tokens' ids [batch], or their values [batch, width] without an embedding. `counts` are the tokens
        in the `caches`, by sequence. The caches of sequences that are not `active` do not change.
        """
        self.compile()
        mesh, first = self.block.mesh, self.layers[0]
        for name, angles in zip(blocks.ANGLES, rotary, strict=True):
            first.project.write(name, scatter(picked(angles, self.block.layout.pair_of, 1), mesh, "m (x p)").tiles)
        if self.embedding is None:
            self._enter(x)
        else:
            self.embedding.give(x)
        for sequence in active:
            append = schedule(blocks.append, self.block, sequence, counts[sequence], caches[sequence].prefilled)
            held = torch.from_numpy(caches[sequence].positions(counts[sequence] + 1) >= 0).to(self.executor.device)
            bias = torch.where(held, 0.0, float("-inf"))[:, None, None, :].expand(-1, mesh.shape[1], -1, -1)
            first.attend[sequence].write(blocks.MASK, bias.contiguous())
            for layer in self.layers:
                layer.append[sequence].rebind(append)
        which = tuple(active)
        if which not in self.steps:  # on a GPU one graph
            self.steps[which] = self.executor.capture(partial(self.step, which))
        self.steps[which]()
        for sequence in active:  # while a GPU runs the step; the next one looks its append up
            if counts[sequence] + 1 < caches[sequence].capacity:
                schedule(blocks.append, self.block, sequence, counts[sequence] + 1, caches[sequence].prefilled)
        self.executor.check()
        return self.results[which].clone()  # the next step overwrites it

    def runs(self, held: Mapping[int, tuple[int, int]]) -> Iterator[ScheduleRuns]:
        """Yield the schedules that run for a token of each sequence through all layers.

        `held` has, for each active sequence, the tokens in its cache and the number of tokens of its prompt.
        """
        attends = [self.attend[sequence] for sequence in held]
        appends = [schedule(blocks.append, self.block, sequence, *tokens) for sequence, tokens in held.items()]
        layers = self.block.shape.layers_of
        yield from ((part, layers["attention"]) for part in (*self.fixed, *attends, *appends))
        yield from ((other, layers[kind]) for kind, other in self.others.items())

    def step(self, active: tuple[int, ...]) -> None:
        """Run from the embedding to the result, on the current inputs and index tables."""
        if self.embedding is not None:
            self._enter(self.embedding.look_up(self.block.batch))
        for layer in self.layers:
            layer.project.run()
            for sequence in active:
                layer.append[sequence].run()
                layer.attend[sequence].run()
            layer.output.run()
            layer.ffn.run()
        x = self.layers[-1].ffn.gather(
            blocks.HIDDEN, blocks.HIDDEN_SPEC, (self.block.batch, self.block.shape.hidden_size)
        )
        self.results[active] = x if self.head is None else self.head.run(x)

    def expert_ids(self, active: Sequence[int]) -> list[torch.Tensor]:
        """Return the expert ids [active, k] of the last tokens in each layer with experts; all cores have the same."""
        e = self.block.shape.experts
        layers = [layer for layer in self.layers if layer.kinds[1] == "experts"]
        return [layer.ffn.read(blocks.EXPERT_IDS)[0, 0, list(active), : e.top_k].long().cpu() for layer in layers if e]

    def _enter(self, x: torch.Tensor) -> None:
        """Write x [batch, width] to the input of the first layer."""
        self.layers[0].project.write(blocks.HIDDEN, scatter(x, self.block.mesh, blocks.HIDDEN_SPEC).tiles)

    def filler(self, sequence: int, cache: KvCache, count: int) -> Callable[[str, torch.Tensor], None]:
        """Return the function that puts keys or values of a prompt into the caches of all layers, row by row in order.

        It takes "k" or "v", and these [layers, count, key heads, head_dim]. Its tables go to the device once.
        """
        block, device = self.block, self.executor.device
        down, along = self.executor.rectangle(block.mesh)
        rows, rows_of_tokens = block.layout.rows("k")[along], cache.row_of(count)
        here = np.flatnonzero((rows_of_tokens >= down.start) & (rows_of_tokens < down.stop))
        places = here, rows_of_tokens[here] - down.start, here % cache.slots
        tokens, row, slot = (torch.from_numpy(each).to(device) for each in places)
        columns = picker(rows, 2, device)

        def fill(which: str, values: torch.Tensor) -> None:
            memory = self.cache[blocks.cache_name(which, sequence)].unflatten(-1, (block.slots, -1))
            tiles = columns(values.flatten(2)[:, tokens]).unflatten(2, rows.shape).to(memory.dtype)
            memory.transpose(2, 3)[:, row, slot] = tiles

        return fill

    def _room(self, schedule: Schedule, kind: str) -> Tiles:
        """Return memory for the weights of a block."""
        return self.executor.allocate_all(schedule, weights_of(self.block, kind, "decode"))

    def _fill(self, number: int, weights: Weights) -> None:
        """Write a layer's weights into its memory."""
        mesh, layer = self.block.mesh, self.layers[number - self.numbers.start]
        for kind, memory in layer.weights.items():
            here = self.executor.rectangle(mesh)
            fill(memory, weights_of(self.block, kind, "decode"), weights, number, mesh, here)
