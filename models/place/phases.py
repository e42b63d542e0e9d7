"""Going from prefill to decode and back: where weights and cache lie then, and what moving them takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from wafer_triton.cost.price import Tally
from wafer_triton.models.place import moves as replacement
from wafer_triton.models.place.cuts import PlacedWeights, Tiles, layer_tiles, sources
from wafer_triton.models.place.regions import Placement
from wafer_triton.models.run.prefill import Chunk
from wafer_triton.schedule.kv_cache import KvCache


class Phases:
    """A placed model's weights, which lie as prefill wants them at first, then as the phase that runs does."""

    def __init__(self, placement: Placement, weights: PlacedWeights) -> None:
        self.placement, self.weights = placement, weights
        self.phase = "prefill"
        self._kept: dict[tuple[int, str], Tiles] = {}

    def forget(self) -> None:
        """The weights are others now."""
        self._kept = {}

    def fill(self, layer: int, kind: str, memory: Tiles) -> torch.Tensor | None:
        """A layer's tiles, as prefill places them, into memory of its programs; its bias, given once, if it has one.

        On a square mesh they are decode's tiles on other cores; for another grid they are cut once and kept.
        """
        two = self.placement.prefill.mesh
        if self.placement.decode.mesh.shape == two.shape:
            tiles = self.weights.layers[layer][kind]
            for name, to in memory.items():
                source = sources(two)[name].to(to.device)
                torch.index_select(tiles[name].flatten(2).flatten(0, 1), 0, source, out=to.flatten(0, 1))
            return tiles.get("bqkv")
        if (layer, kind) not in self._kept:
            self._kept[layer, kind] = layer_tiles(self.weights, layer, self.placement.prefill, kind, "prefill")
        for name, to in memory.items():
            to.copy_(self._kept[layer, kind][name].reshape(to.shape))
        return self._kept[layer, kind].get("bqkv")

    def enter(self, phase: str) -> Tally:
        """The tally of bringing all weights into place for "prefill" or "decode"; nothing if they are."""
        if phase == self.phase:
            return Tally()
        self.phase = phase
        return replacement.weights(self.placement.decode, self.placement.prefill) + self._between

    def move_cache(self, parts: Sequence[Chunk], cache: KvCache) -> Tally:
        """The tally of bringing a prompt's keys and values from where prefill left them into the cache of decode."""
        lies = [(part.position >= 0).nonzero()[:, 0] for part in parts]
        order = torch.cat([part.position[part.position >= 0] for part in parts]).argsort()
        rows = torch.cat(lies)[order].numpy()
        return replacement.cache(self.placement.decode, self.placement.prefill, rows, cache.row_of(len(rows)))

    @cached_property
    def _between(self) -> Tally:
        """The way of the weights between the regions of the two phases, where these are not the same."""
        homes = {name: region for region in self.placement.prefill_regions for name in region.blocks}
        total = Tally()
        for region in self.placement.regions:
            held = sum(size for name, size in region.sram_by_buffer.items() if name.startswith("w"))
            for name in region.blocks:
                if name != "head":  # which stays where it is
                    total += replacement.between(region.mesh, homes[name].mesh, held // len(region.blocks))
        return total
