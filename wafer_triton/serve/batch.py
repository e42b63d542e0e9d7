"""Decode of a batch: its sequences all at once, or in groups that follow one another through the regions of a model.

`times` prices the seconds, and `pipeline` composes them. In a turn each sequence gets a token. It takes the latency of
a group through all regions, or the time of the busiest region for all groups, whichever is longer.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from wafer_triton.cost import layers
from wafer_triton.cost.bands import SEVERAL, layer_basis
from wafer_triton.cost.constants import Constants, constants
from wafer_triton.cost.inference import batch_placed
from wafer_triton.cost.results import Layered
from wafer_triton.decoder.block import Block
from wafer_triton.device import DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.device.mesh import as_mesh
from wafer_triton.errors import ShapeError, WaferError, check_counts
from wafer_triton.place.layouts import LAYOUTS
from wafer_triton.place.regions import Placement, decode_regions
from wafer_triton.serve.pipeline import group_sizes, period
from wafer_triton.serve.times import Priced
from wafer_triton.shape.read import Model, shape_of
from wafer_triton.text.quantity import digits, unit
from wafer_triton.text.table import Result

MOST_BATCH = 1024  # sequences; each is priced alone


@dataclass(frozen=True, repr=False)
class Batched(Result):
    """A predicted turn of decode, in which each of `batch` sequences gets a token.

    Of `sequence_groups` groups, each has at most `at_once` sequences. A turn takes `seconds`, the longer of two times:
    `latency_seconds` of the largest group through all regions, and `busiest_seconds` of all groups in their slowest
    regions. `one_group_...` are of all sequences in one group. `falls` is the reason
    why one group gives fewer tokens a second than a smaller one, None where it does not.
    """

    main = ("batch", "at_once", "tokens_per_second", "user_tokens_per_second", "seconds", "regions", "error_band")
    units_of = (Layered,)

    batch: int = field(metadata=unit("sequences"))
    at_once: int = field(metadata=unit("sequences", "sequences of a group"))
    sequence_groups: int = field(metadata=unit("groups"))
    tokens_per_second: float  # of the wafer
    user_tokens_per_second: float = field(metadata=unit("tokens/s", "tokens per second of a user"))
    seconds: float  # of a turn
    latency_seconds: float = field(metadata=unit("s", "time of a group through all regions"))
    busiest_seconds: float = field(metadata=unit("s", "time of the busiest region"))
    one_group_tokens_per_second: float = field(metadata=unit("tokens/s", "tokens per second in one group"))
    one_group_user_tokens_per_second: float = field(
        metadata=unit("tokens/s", "tokens per second of a user in one group")
    )
    joules_per_token: float
    regions: int
    sram_peak_bytes: int
    bound: str  # "latency" or "busiest region"
    falls: str | None
    head_groups: int
    constants: str
    error_band: float | None
    outside: str | None


def batch(
    *, device: DeviceLike = "wse2", model: Model, mesh: Any, context: int, batch: int = 1,
    at_once: int | None = None, head_groups: int | None = None, dtype: str | None = None,
) -> Batched:  # fmt: skip
    """Return a turn of decode of `batch` sequences, each with `context` tokens in its cache.

    Groups of `at_once` sequences follow one another through the regions (None: the size with the most tokens a second,
    of the powers of two and the batch). The placement has buffers and caches for all sequences. Room for more of them
    spreads the layers over more regions. So the fastest is taken of placements with room for the batch and for each
    larger power of two, by each number of head groups that `estimate.decode` tries; a batch of one lies as there, and
    `dtype` is as there. Raises ShapeError for a group larger than the batch, and as `estimate.decode`.
    """
    chip, shape = find_device(device), shape_of(model, dtype)
    on = as_mesh(mesh, chip)
    context, batch = check_counts(context=context, batch=batch)
    if at_once is not None:
        (at_once,) = check_counts(at_once=at_once)
    if batch > MOST_BATCH:
        raise ShapeError(f"batch = {batch:,} is more than the {MOST_BATCH:,} sequences that are taken here")
    if at_once is not None and at_once > batch:
        raise ShapeError(f"at_once = {at_once}: a group has no more sequences than the batch, {batch}; give fewer")
    c = constants(on.device)
    sizes = sizes_of(batch)
    tried = [at_once] if at_once else sizes
    blocks = layers.decode_blocks(shape, on, context, c, head_groups=head_groups)
    placements, larger = list[Priced](), [1 << shift for shift in range(batch.bit_length(), MOST_BATCH.bit_length())]
    for own in blocks if batch > 1 else ():  # the head groups that are fastest for one may not be for several
        with suppress(WaferError):  # until no more caches fit
            placements += (times_of(batch_placed([own], size), context) for size in (batch, *larger))
    placements = placements or [times_of(batch_placed(blocks, batch), context)]
    times = min(placements, key=lambda each: min(turn(each, batch, size) for size in tried))
    block = times.block
    turns = {size: turn(times, batch, size) for size in tried}
    chosen = min(turns, key=lambda size: turns[size])
    entries, groups = -(-context // times.rows), -(-batch // chosen)
    largest = -(-batch // groups)
    latency = times.latency(largest, largest * times.attend(entries))
    together = {size: times.latency(size, size * times.attend(entries)) for size in sizes}
    fastest = max(together, key=lambda size: size / together[size])
    return Batched(
        batch=batch,
        at_once=chosen,
        sequence_groups=groups,
        tokens_per_second=batch / turns[chosen],
        user_tokens_per_second=1 / turns[chosen],
        seconds=turns[chosen],
        latency_seconds=latency,
        busiest_seconds=sum(times.slowest(size, size * times.attend(entries)) for size in group_sizes(batch, groups)),
        one_group_tokens_per_second=batch / together[batch],
        one_group_user_tokens_per_second=1 / together[batch],
        joules_per_token=turns[chosen] * chip.power_watts / batch,
        regions=len(times.regions),
        sram_peak_bytes=max(region.sram_peak_bytes for region in times.place.regions),
        bound="latency" if latency >= turns[chosen] else "busiest region",
        falls=None if fastest == batch else falls(block, context, fastest, batch, c),
        head_groups=block.head_groups,
        **layer_basis("decode", on, shape, context, "full", SEVERAL * (batch > 1)).fields(),
    )


def times_of(block: Block, context: int) -> Priced:
    """Return the times of a block of decode that is placed alone."""
    alone = Placement(block, block, block, block, decode_regions(block), (), 1, LAYOUTS[0])
    return Priced(alone, batch=block.batch, longest=context, at_once=block.batch)


def sizes_of(batch: int) -> list[int]:
    """Return the sizes of groups that are tried: powers of two below the batch, and the batch."""
    return [*(1 << shift for shift in range((batch - 1).bit_length())), batch]


def turn(times: Priced, batch: int, at_once: int) -> float:
    """Return the seconds of a turn of `batch` sequences with full caches, in groups of at most `at_once`."""
    entries = -(-times.longest // times.rows)
    return period(times, [[entries] * size for size in group_sizes(batch, -(-batch // at_once))])


def falls(block: Block, context: int, fewer: int, more: int, c: Constants) -> str:
    """Return why a token takes more cycles in a group of `more` sequences than in one of `fewer`: the step that grows.

    A local product with several rows is a loop over k; with one row it is one instruction over the tile.
    """
    own = {size: replace(block, batch=size) for size in (fewer, more)}
    cycles = {
        size: {name: cost.cycles / size for name, cost in layers.decode_steps(each, context, c).items()}
        for size, each in own.items()
    }
    step = max(cycles[more], key=lambda name: cycles[more][name] - cycles[fewer].get(name, 0.0))
    rows = {size: _rows(each, context, step) for size, each in own.items()}
    form = f"; its local products have {rows[fewer]} row and {rows[more]} rows, and several rows take a loop over k"
    return (
        f"{step} takes {digits(cycles[more][step])} cycles a token and layer, with {fewer} sequences "
        f"{digits(cycles[fewer].get(step, 0.0))}{form * (rows[fewer] == 1 < rows[more])}"
    )


def _rows(block: Block, context: int, step: str) -> int:
    """Return the most rows of a local product of a step."""
    phases = [
        phase
        for every in layers.phases_by_kind(block, layers.decode_sub_layers(block, context)).values()
        for phase in every
    ]
    return max((one.m for phase in phases if phase.label == step for core in phase.products for one in core), default=0)
