"""Prefill (WaferLLM, OSDI'25, section 4.1): a whole prompt by MeshGEMM and GEMM-T, layer after layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from einops import rearrange

from wafer_triton.account import Account, account
from wafer_triton.executor import Executor, Program
from wafer_triton.layout import scatter
from wafer_triton.models.blocks import Block
from wafer_triton.models.placement import KINDS, Weights, attention_tiles, ffn_tiles, schedule, tokens_a_row
from wafer_triton.schedule.kv_cache import KvCache
from wafer_triton.schedule.rounds import Buffer, Schedule

Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """No progress report."""


class Prefill:
    """One prompt of `count` tokens on the square mesh of a decode block, its rows as evenly filled as the cache's."""

    def __init__(self, block: Block, weights: Weights, executor: Executor, count: int) -> None:
        self.decode, self.weights, self.executor, self.count = block, weights, executor, count
        self.block = replace(block, mesh=block.mesh.square())
        self.side = self.block.mesh.shape[0]
        spread = KvCache(self.side, count)
        self.tokens = tokens_a_row(block, count)
        row, edges = spread.row_of(count), spread.windows(count)
        # the place of each token among the padded rows
        self.index = torch.from_numpy(row * self.tokens + np.arange(count) - edges[row])

        self.schedules = [schedule(self.block, f"prefill_{kind}", self.tokens) for kind in KINDS]

    @property
    def account(self) -> Account:
        """Rounds, hops and bytes of all layers."""
        return sum(map(account_of, self.schedules), Account()) * self.block.config.num_hidden_layers

    def run(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        caches: Sequence[dict[str, torch.Tensor]],
        progress: Progress = silent,
    ) -> torch.Tensor:
        """x [count, width] through all layers; fills each layer's `k_cache` and `v_cache`."""
        given = {
            "x": self._spread(x, "(y m) (x d)"),
            "cos": self._spread(rotary[0], "(y m) (x p)"),
            "sin": self._spread(rotary[1], "(y m) (x p)"),
            "bias": self._mask(),
        }
        attention = self.schedules[0]
        shared = {name: self.executor.store(attention, attention.buffers[name], tiles) for name, tiles in given.items()}
        scratch: dict[Buffer, torch.Tensor] = {}
        programs: list[Program] = []
        for layer, cache in enumerate(caches):
            tiles = [make(self.weights, layer, self.block, "prefill") for make in (attention_tiles, ffn_tiles)]
            if not programs:  # planned once; the layers' weights pass through the same memory
                programs = [
                    self.executor.bind(one, weights, shared, scratch)
                    for one, weights in zip(self.schedules, tiles, strict=True)
                ]
            for program, weights in zip(programs, tiles, strict=True):
                for name, tile in weights.items():
                    program.write(name, tile)
                program.run()
            self._fill(cache, programs[0])
            progress("prefill", layer + 1, len(caches))
        whole = scatter(torch.zeros(self.side * self.tokens, x.shape[1]), self.block.mesh, "(y m) (x d)")
        return replace(whole, tiles=programs[1].read("x")).gather()[self.index]

    def _spread(self, values: torch.Tensor, pattern: str) -> torch.Tensor:
        padded = values.new_zeros(self.side * self.tokens, values.shape[1])
        padded[self.index] = values
        return scatter(padded, self.block.mesh, pattern).tiles

    def _mask(self) -> torch.Tensor:
        """[rows, cols, tokens, tokens]: 0 where the query of the row may see the key of the column, else -inf.

        A padded query sees every real key, so that its row stays finite; a padded key is seen by none.
        """
        position = torch.full((self.side * self.tokens,), -1)
        position[self.index] = torch.arange(self.count)
        query = torch.where(position < 0, self.count, position)
        seen = (position[None, :] >= 0) & (position[None, :] <= query[:, None])
        bias = torch.where(seen, 0.0, float("-inf"))
        return scatter(bias, self.block.mesh, "(y m) (x n)").tiles

    def _fill(self, memory: dict[str, torch.Tensor], program: Program) -> None:
        """Keys and values of the prompt into a layer's decode cache, row by row in order."""
        block, half = self.decode, self.block.config.head_dim // 2
        cols = block.mesh.shape[1]
        entries = torch.arange(self.count)
        row = torch.from_numpy(block.cache(self.count).row_of(self.count))
        for name in ("k", "v"):
            tiles = program.read(name).unflatten(-1, (2, self.block.pairs))
            whole = rearrange(tiles, "y x m g two p -> (y m) g two (x p)")[self.index][..., :half]
            padded = whole.new_zeros(*whole.shape[:-1], cols * block.pairs)
            padded[..., :half] = whole
            cut = rearrange(padded, "n g two (x p) -> n x (g two p)", x=cols)
            cache = memory[f"{name}_cache"].unflatten(-1, (block.slots, -1))
            cache[row, :, entries % block.slots] = cut.to(cache.dtype)


@lru_cache(maxsize=256)
def account_of(made: Schedule) -> Account:
    """The account of a schedule, counted once."""
    return account(made)
