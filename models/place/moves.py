"""The layout of a placed model's weights, prefill's or decode's, and the schedules that change it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from wafer_triton.algorithms.kv_cache import KvCache
from wafer_triton.emulate.executor import Executor
from wafer_triton.models.place.cuts import PlacedWeights, Tiles, is_repeated, prefill_tiles, sources
from wafer_triton.models.run.chunks import Chunk
from wafer_triton.place import moves
from wafer_triton.place.need import weights_of
from wafer_triton.place.regions import Placement
from wafer_triton.place.transfers import ScheduleRuns


class Phases:
    """The layout of a placed model's weights: prefill's at first, then that phase's that runs."""

    def __init__(self, placement: Placement, weights: PlacedWeights, executor: Executor) -> None:
        self.placement, self.weights, self.executor = placement, weights, executor
        self.phase = "prefill"
        self._kept: dict[tuple[int, str], Tiles] = {}

    def forget(self) -> None:
        """Drop tiles of weights that were replaced."""
        self._kept = {}

    def fill(self, layer: int, kind: str, memory: Tiles) -> Tiles:
        """Put a layer's tiles in prefill's layout into memory of its programs; return the tiles to repeat.

        On a square mesh prefill's tiles are decode's on other cores. On another grid, or if the phases hold the heads
        in different groups, they are cut once and kept.
        """
        (decode, prefill), mesh = (self.placement.decode, self.placement.prefill), self.placement.prefill.mesh
        held = weights_of(prefill, kind, "prefill")
        repeated = [name for name, buffer in held.items() if is_repeated(buffer)]
        source = sources(decode, prefill, kind, self.executor.device)
        if source is not None:
            tiles = self.weights.layers[layer][kind]
            for name, target in memory.items():
                here, cores = source[name]
                self.executor.gather_tiles(mesh, tiles[here].flatten(2), cores, target)
            return {name: self.executor.all_gather(decode.mesh, tiles[source[name][0]]) for name in repeated}
        if (layer, kind) not in self._kept:
            self._kept[layer, kind] = prefill_tiles(self.weights, layer, prefill, kind)
        kept = self._kept[layer, kind]
        for name, target in memory.items():
            target.copy_(kept[name][self.executor.rectangle(mesh)].reshape(target.shape))
        return {name: kept[name] for name in repeated}

    def enter(self, phase: str) -> bool:
        """Set the phase, "prefill" or "decode", for which all weights lie in place; return whether they had to move."""
        moved, self.phase = phase != self.phase, phase
        return moved

    def move_cache(self, parts: Sequence[Chunk], cache: KvCache) -> Iterator[ScheduleRuns]:
        """Return the schedules that move a prompt's keys and values from prefill's cores into the cache of decode."""
        rows = torch.cat([(part.position >= 0).nonzero()[:, 0] for part in parts])
        order = torch.cat([part.position[part.position >= 0] for part in parts]).argsort()
        source = rows[order].numpy()
        target = cache.row_of(len(source))
        return moves.cache_schedules(self.placement, source, target)
