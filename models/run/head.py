"""The final norm and the LM head, which are the embedding too where a model ties them."""

from __future__ import annotations

from functools import cached_property

import torch

from wafer_triton.cost.price import Tally, tally
from wafer_triton.emulate.executor import Executor, Program
from wafer_triton.errors import SramError
from wafer_triton.layout import MeshTensor, scatter
from wafer_triton.models.place.cuts import Tiles, Weights, head_tiles
from wafer_triton.schedule import decode as blocks
from wafer_triton.schedule.block import Block, schedule


class Head:
    """The LM head on its own mesh, for as many tokens at once as fit."""

    def __init__(self, block: Block, executor: Executor, weights: Weights) -> None:
        self.block, self.executor = block, executor
        step = schedule(blocks.head, block, block.batch)
        self.memory = {
            name: executor.store(step, step.buffers[name], tiles) for name, tiles in head_tiles(weights, block).items()
        }
        self.programs: dict[int, Program] = {}

    @property
    def tiles(self) -> Tiles:
        """The final norm and the table, [rows, cols, *tile]."""
        buffers = schedule(blocks.head, self.block, self.block.batch).buffers
        return {name: memory.unflatten(-1, buffers[name].tile) for name, memory in self.memory.items()}

    def place(self, weights: Weights) -> None:
        """Replace the weights by others."""
        for name, tiles in head_tiles(weights, self.block).items():
            self.memory[name].copy_(tiles.reshape(self.memory[name].shape))

    @cached_property
    def most_tokens(self) -> int:
        """The most tokens, of 32 halved again and again, that the head takes at once."""
        return next(tokens for tokens in (32, 16, 8, 4, 2, 1) if self._fits(tokens))

    def tally(self, tokens: int) -> Tally:
        """Counts and predicted cost of so many tokens at once."""
        return tally(schedule(blocks.head, self.block, tokens))

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [tokens, vocab] of x [tokens, width]."""
        mesh, tokens = self.block.mesh, len(x)
        if tokens not in self.programs:
            head = schedule(blocks.head, self.block, tokens)
            space = {"x": self.executor.allocate(head, head.buffers["x"])}
            self.programs[tokens] = self.executor.bind(head, {}, self.memory | space)
        program = self.programs[tokens]
        program.write("x", scatter(x, mesh, "m (y d)").tiles)
        program.run()
        shape = (tokens, self.block.shape.vocab_size)
        return MeshTensor(mesh, program.read("logits"), "m (x v)", shape, {}).gather()

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows [tokens, width] of the table, from where they lie."""
        table = self.tiles["whead"]  # [y, x, d, v]
        ids = ids.to(table.device)
        column, position = ids // table.shape[3], ids % table.shape[3]
        return table[:, column, :, position].flatten(1)[:, : self.block.shape.hidden_size]

    def _fits(self, tokens: int) -> bool:
        try:
            schedule(blocks.head, self.block, tokens)
        except SramError:
            return False
        return True
