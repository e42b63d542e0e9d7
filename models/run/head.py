"""The embedding, and the final norm with the LM head; in a tied model both share one table."""

from __future__ import annotations

import torch

from wafer_triton.decoder import decode as blocks
from wafer_triton.decoder.block import Block, SubLayer, schedule
from wafer_triton.device.dtype import torch_dtype
from wafer_triton.device.layout import scatter
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.program import Program
from wafer_triton.models.place.cuts import Tiles, Weights, fill
from wafer_triton.place.need import weights_of
from wafer_triton.place.transfers import ScheduleRuns


class End:
    """The embedding or the head: a sub-layer with resident `memory`, on the mesh of the head's block.

    Its weights lie in memory of its own, or in that of another which `shared` gives. Without weights, as on ranks that
    do not hold them, it only counts.
    """

    sub_layer: SubLayer
    kind: str

    def __init__(
        self, block: Block, executor: Executor, weights: Weights | None, shared: Tiles | None = None
    ) -> None:  # fmt: skip
        self.block, self.executor = block, executor
        self.programs: dict[int, Program] = {}
        held = {} if weights is None else weights_of(block, self.kind, "decode")
        memory = executor.allocate_all(schedule(self.sub_layer, block, 1), held) if shared is None else shared
        self.memory = {name: memory[name] for name in held}
        if weights is not None:
            self.place(weights)

    @property
    def most_tokens(self) -> int:
        """The most tokens of one run."""
        return blocks.most_tokens(self.sub_layer, self.block)

    @property
    def tiles(self) -> Tiles:
        """The resident tiles, [rows, cols, *tile]."""
        buffers = schedule(self.sub_layer, self.block, 1).buffers
        return {name: memory.unflatten(-1, buffers[name].tile) for name, memory in self.memory.items()}

    def place(self, weights: Weights) -> None:
        """Write weights into memory, in place of earlier ones."""
        buffers, mesh = weights_of(self.block, self.kind, "decode"), self.block.mesh
        fill(self.tiles, buffers, weights, 0, mesh, self.executor.rectangle(mesh))

    def runs(self, tokens: int) -> list[ScheduleRuns]:
        """Return the schedule that runs for `tokens` tokens at once."""
        return [(schedule(self.sub_layer, self.block, tokens), 1)]

    def program(self, tokens: int) -> Program:
        """Return the program for `tokens` tokens at once."""
        if tokens not in self.programs:
            built = schedule(self.sub_layer, self.block, tokens)
            given = [buffer for buffer in built.buffers.values() if buffer.given]
            space = {b.name: self.executor.allocate(built, b) for b in given if b.name not in self.memory}
            self.programs[tokens] = self.executor.bind(built, {}, self.memory | space)
        return self.programs[tokens]


class Head(End):
    """The final norm and the LM head."""

    sub_layer, kind = blocks.head, "head"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of logits."""
        return torch_dtype(schedule(self.sub_layer, self.block, 1).buffers[blocks.LOGITS].dtype)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [tokens, vocab] of x [tokens, width], for at most `most_tokens` tokens."""
        program = self.program(len(x))
        program.write(blocks.HIDDEN, scatter(x, self.block.mesh, blocks.HIDDEN_SPEC).tiles)
        program.run()
        return program.gather(blocks.LOGITS, "m (x v)", (len(x), self.block.shape.vocab_size))


class Embedding(End):
    """The embedding; its table is the head's in a tied model, else its own in a region like the head's."""

    sub_layer, kind = blocks.embed, "embedding"

    def __init__(self, head: Head, weights: Weights | None) -> None:
        self.tied = head.block.shape.tie_word_embeddings
        super().__init__(head.block, head.executor, weights, head.memory if self.tied else None)

    def place(self, weights: Weights) -> None:
        """Write a table of its own into memory, in place of an earlier one."""
        if not self.tied:
            super().place(weights)

    def run(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows [tokens, width] of the table."""
        rows = []
        for some in ids.split(self.most_tokens):
            self.give(some)
            rows.append(self.look_up(len(some)))
        return torch.cat(rows)

    def prompt_runs(self, tokens: int) -> list[ScheduleRuns]:
        """Return the schedules that run for a prompt of `tokens` tokens, in batches if needed."""
        sizes = blocks.batches(self.sub_layer, self.block, tokens)
        return [(schedule(self.sub_layer, self.block, size), times) for size, times in sizes.items()]

    def give(self, ids: torch.Tensor) -> None:
        """Write the ids [tokens], at most `most_tokens`, to every core."""
        self.program(len(ids)).write(blocks.IDS, ids.float().expand(*self.block.mesh.shape, -1))

    def program(self, tokens: int) -> Program:
        """Return the program for `tokens` tokens at once; a new one gets the number of each core's first row."""
        fresh, program = tokens not in self.programs, super().program(tokens)
        if fresh:
            (rows, cols), share = self.block.mesh.shape, self.block.share(self.block.shape.vocab_size, "x")
            program.write(
                blocks.FIRST_ID, (torch.arange(cols, device="cpu")[:, None] * share).float().expand(rows, -1, -1)
            )
        return program

    def look_up(self, tokens: int) -> torch.Tensor:
        """Return the rows [tokens, width] of the table for the tokens that were given."""
        program = self.program(tokens)
        program.run()
        return program.gather(blocks.HIDDEN, blocks.HIDDEN_SPEC, (tokens, self.block.shape.hidden_size))
