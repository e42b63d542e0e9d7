"""The times of serving, all from priced schedules: prefill, decode, re-placement, keys and values.

Decode of a group of b sequences is priced as a batch of `wafer_triton.cost.layers`. Projections and feed-forward take
all b sequences at once, attention takes one after the other. So the seconds of attention depend on the entries of its
own sequence alone. Prices are exact and kept, by entries a row and by rows of tokens. The moves of keys and values are
priced at multiples of `STRIDE` tokens and interpolated in between.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache, cached_property
from math import inf

from wafer_triton.cost import layers
from wafer_triton.cost.cap import kv_bytes, weight_bytes
from wafer_triton.cost.constants import constants
from wafer_triton.cost.inference import costs_of_ways, ends, last_block
from wafer_triton.cost.price import priced
from wafer_triton.decoder import decode as decode_parts
from wafer_triton.errors import ShapeError, check_counts
from wafer_triton.place import moves
from wafer_triton.place.need import ENDS
from wafer_triton.place.regions import Placement, phases_share_cores

STRIDE = 256  # tokens between two prices of keys and values


class Priced:
    """`pipeline.Times` of a model that is placed, see there for the fields.

    `place.decode.batch` full caches make the pool, which up to `batch` sequences share. `right` is the first column of
    decode if each phase has columns of its own, and None if the weights move between the phases. Raises ShapeError for
    a count below 1, or for more sequences of a group than caches.
    """

    organisation = ""  # that the sizes were chosen for, by its name; "" fits each

    def __init__(
        self, place: Placement, *, batch: int, longest: int, at_once: int = 1, held: int | None = None,
        right: int | None = None,
    ) -> None:  # fmt: skip
        check_counts(batch=batch, at_once=at_once, longest=longest)
        if at_once > place.decode.batch:
            raise ShapeError(
                f"at_once = {at_once} sequences of a group, but the cores of decode have the buffers of "
                f"{place.decode.batch}; give a smaller at_once, or place decode with caches={at_once}"
            )
        self.place, self.batch, self.at_once, self.right = place, batch, min(at_once, batch), right
        block = self.block = place.decode
        self.device = block.mesh.device
        self.c = constants(self.device)
        self.rows = block.mesh.shape[0]
        self.pool = block.batch * block.entries
        self.longest = min(longest, block.entries * self.rows)
        apart = right is None and not phases_share_cores(block, place.prefill)
        self.held = inf if not apart else longest if held is None else held
        self.side = place.prefill.mesh.shape[0]
        self.regions = [region.kinds for region in place.regions]
        self.prefill_regions = [region.kinds for region in place.prefill_regions]
        for price in ("attend", "_base", "_chunk", "_embedding_of", "hand_over_exactly", "switch", "read"):
            setattr(self, price, cache(getattr(self, price)))  # kept as long as this object

    # --- decode ---

    def attend(self, entries: int) -> float:
        """See `pipeline.Times`."""
        return self._decode(1, entries)["attention"] - self._decode(1, 1)["attention"]

    def _decode(self, count: int, entries: int) -> dict[str, float]:
        """Return seconds of each kind of block with `count` sequences, each of `entries` entries a row."""
        block = replace(self.block, batch=count, entries=entries)
        costs = layers.costs_by_kind(block, layers.decode_sub_layers(block, entries * self.rows), self.c)
        return {kind: cost.cycles / self.device.clock_hz for kind, cost in costs.items()}

    def latency(self, count: int, attending: float) -> float:
        """See `pipeline.Times`."""
        return self._base(count)[0] + self.block.shape.num_hidden_layers * attending

    def slowest(self, count: int, attending: float) -> float:
        """See `pipeline.Times`."""
        return max([base + attentions * attending for base, attentions in self._base(count)[1]])

    def _base(self, count: int) -> tuple[float, tuple[tuple[float, int], ...]]:
        """Return seconds of a group with one entry a row, and (seconds, attention blocks) for each kind of region."""
        each = self.stages_of_decode(count)
        kinds = {(seconds, held.get("attention", 0)) for seconds, held in zip(each, self.regions, strict=True)}
        most = {n: max(seconds for seconds, attentions in kinds if attentions == n) for _, n in kinds}
        return sum(each), tuple((seconds, n) for n, seconds in most.items())

    def stages_of_decode(self, count: int) -> list[float]:
        """Return seconds of a group in each region, with one entry a row: its blocks, and the hand-over to it."""
        steps = dict(zip(ENDS, ends(self.block, count, self.c, count), strict=True))
        kinds = self._decode(count, 1) | {
            end: layers.total(each).cycles / self.device.clock_hz for end, each in steps.items()
        }
        block = replace(self.block, batch=count)
        meshes = [region.mesh for region in self.place.regions]
        handing = [cost.cycles / self.device.clock_hz for cost in costs_of_ways(meshes, block, self.c)]
        handing = [0.0] * (len(self.regions) - len(handing)) + handing  # without a tied head nothing comes to the first
        return [come + _seconds(held, kinds, block.shape.tie_word_embeddings)
                for come, held in zip(handing, self.regions, strict=True)]  # fmt: skip

    # --- prefill ---

    def stages(self, tokens: int, past: int, last: bool) -> tuple[float, ...]:
        """See `pipeline.Times`; a chunk takes whole rows of tokens, in parts that the cores hold at once."""
        rows, before = -(-tokens // self.side), -(-past // self.side)
        kinds = dict(self._chunk(rows, before))
        if self.block.shape.vocab_size:
            kinds |= {"embedding": self._embedding(tokens), "head": self._head if last else 0.0}
        tied = self.block.shape.tie_word_embeddings
        return tuple(_seconds(held, kinds, tied) for held in self.prefill_regions)

    def _chunk(self, rows: int, before: int) -> dict[str, float]:
        """Return seconds of each kind of block for `rows` rows of tokens, after `before` earlier rows."""
        block, size = self.place.prefill, self.place.chunk_tokens
        seconds = dict.fromkeys(block.shape.layers_of, 0.0)
        for start in range(0, rows, size):
            chunk = layers.chunk_sub_layers(block, min(size, rows - start), before + start)
            for kind, cost in layers.costs_by_kind(block, chunk, self.c).items():
                seconds[kind] += cost.cycles / self.device.clock_hz
        return seconds

    @cached_property
    def _own(self) -> layers.Block:
        """The block of prefill's embedding and head."""
        return last_block(self.place.prefill, self.c, "full")

    def _embedding_of(self, tokens: int) -> float:
        """Return seconds of the embedding of tokens that go at once."""
        return layers.total(layers.embedding_steps(self._own, tokens, self.c)).cycles / self.device.clock_hz

    def _embedding(self, tokens: int) -> float:
        sizes = decode_parts.batches(decode_parts.embed, decode_parts.head_block(self._own), tokens)
        return sum(times * self._embedding_of(size) for size, times in sizes.items())

    @cached_property
    def _head(self) -> float:
        return layers.total(layers.head_steps(self._own, 1, self.c)).cycles / self.device.clock_hz

    # --- between the phases ---

    def hand_over(self, tokens: int) -> float:
        """See `pipeline.Times`; interpolated between multiples of `STRIDE`."""
        low = tokens // STRIDE * STRIDE
        start, end = self.hand_over_exactly(max(1, low)), self.hand_over_exactly(low + STRIDE)
        return start + (end - start) * (tokens - low) / STRIDE

    def hand_over_exactly(self, tokens: int) -> float:
        """Return seconds to move the keys and values of a prompt to decode, priced for exactly these tokens."""
        return priced(moves.prompt_schedules(self.place, tokens, self.right or 0), self.c).cycles / self.device.clock_hz

    def switch(self) -> float:
        """See `pipeline.Times`; the return route is the forward route reversed, and takes as long."""
        if self.right is not None:
            return 0.0
        return priced(moves.weights_between_phases(self.place), self.c).cycles / self.device.clock_hz

    # --- bytes ---

    def read(self, count: int) -> float:
        """See `pipeline.Times`; of a mixture the experts that `count` tokens take on average at uniform routing."""
        shape, dtype = self.block.shape, self.block.dtype
        whole = float(weight_bytes(shape, dtype))
        if shape.experts is not None:
            none = weight_bytes(shape, dtype, [{}] * shape.layers_of["experts"])
            untaken = (1 - shape.experts.top_k / shape.experts.count) ** count
            whole -= (whole - none) * untaken
        return whole

    def cached(self, tokens: int) -> float:
        """See `pipeline.Times`."""
        return float(kv_bytes(self.block.shape, self.block.dtype, tokens))


def _seconds(held: Counter[str], kinds: dict[str, float], tied: bool) -> float:
    """Return seconds of a region's blocks; a tied head has the embedding with it."""
    whole = sum(count * kinds[kind] for kind, count in held.items())
    return whole + kinds["embedding"] if tied and "head" in held else whole
