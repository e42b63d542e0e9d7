"""Whether a model fits a device: what a core holds of a layer, and the regions that layers, embedding and head take.

The one check of estimates and plans. Regions are counted by cores, as in the paper, not laid out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import Any

from wafer_triton.cost.constants import Constants
from wafer_triton.cost.layers import decode_needs, feed_forward, outlined, sketched
from wafer_triton.dtype import BYTES
from wafer_triton.errors import MeshError, ShapeError, SramError
from wafer_triton.mesh import Mesh
from wafer_triton.schedule import decode, prefill, sram
from wafer_triton.schedule.block import Block
from wafer_triton.schedule.builder import Builder

AS_IF = "as_if=True (--as-if) prices it all the same"
_NOTHING = sram.Need({}, {})
_TRIED = 24  # meshes that are tried where a device is too small for one


class FullError(MeshError):
    """A device has too few cores for all regions of a model."""


class LargeError(FullError):
    """A device has less SRAM than a model has weights, whatever the mesh."""


@dataclass(frozen=True)
class Residence:
    """The regions of a model on a device, the cores that they take, and the layers of one that holds nothing else."""

    regions: int
    cores: int
    layers_per_region: int


def decode_residence(block: Block, c: Constants) -> Residence:
    """Where decode's layers, with their cache, the embedding and the head lie.

    Raises SramError if a core does not hold a layer, and FullError if the device does not hold them all.
    """
    held_by_all(block, c)
    needed = decode_need(block)
    what = f"{block.shape.name}, decode"
    sram.demand(what, block.mesh, needed.stays | needed.passes)
    tokens = block.entries * block.mesh.shape[0]
    return _residence(f"{what} with {tokens:,} tokens of cache", block, needed, block, c)


def held_by_all(block: Block, c: Constants) -> None:
    """LargeError if the experts of a model, most of which rest, are more than all cores of the device hold together."""
    shape, device = block.shape, block.mesh.device
    weights, held = shape.parameters * BYTES[block.dtype], int(c.cores or device.cores) * device.sram_bytes
    if shape.experts is not None and weights > held:
        raise LargeError(
            f"{shape.name} does not fit {device.name}: its {shape.parameters:,} weights take {weights:,} B in "
            f"{block.dtype}, and all cores together hold {held:,} B; no mesh of it holds them: give a device of more "
            f"cores or SRAM, or a smaller model"
        )


def prefill_residence(choices: list[Block], last: Block, tokens: int, c: Constants) -> tuple[Block, int]:
    """The block for a prompt of `tokens` tokens, and how many tokens a row takes at once.

    They are all of its tokens, halved again and again until the device holds the layers with their keys and values. The
    measured program takes all at once. Of the `choices` the first that fits so is taken, with a second buffer of
    partial sums if there is room for it. The embedding and the head are those of decode's block `last`. Raises
    SramError when a core does not hold a layer in any of these ways, and FullError as `decode_residence`.
    """
    held_by_all(choices[0], c)
    block, least = choices[0], min(map(_weights, choices), key=lambda held: sum(held.values()))
    what = f"{block.shape.name}, prefill of {tokens:,} tokens"
    sram.demand(what, block.mesh, least)  # soon said, also where an lcm grid makes many tiles of a core's
    _residence(what, block, sram.Need(least, {}), last, c)
    rows = -(-tokens // block.mesh.shape[0])
    sizes = [rows] if block.apart else [size for shift in range(rows.bit_length()) if (size := rows >> shift)]
    for size in sizes:
        for choice in (replace(choice, overlap=overlap) for choice in choices for overlap in (True, False)):
            try:
                _prefill_fits(what, choice, last, size, rows, c)
            except (SramError, FullError) as error:
                reason = error
                continue
            return choice, size
    raise reason


def _prefill_fits(what: str, block: Block, last: Block, size: int, rows: int, c: Constants) -> None:
    """An error unless the device holds a prompt of `rows` tokens a row, of which `size` go at once."""
    needed, past = prefill_need(block, size, rows - size), rows - size
    what += " at once" if not past else f", {size:,} a row at once"
    sram.demand(what, block.mesh, needed.stays | needed.passes)
    attention = outlined(prefill.attention, block, size, past)
    fold = block.mesh.fold[0] * block.mesh.fold[1]
    kept = {name: attention.buffers[name].bytes * fold for name in ("keys", "values")}  # of every layer, until decode
    passes = {name: held for name, held in needed.passes.items() if name not in kept}
    _residence(what, block, sram.Need(needed.stays | kept, passes), last, c)


def regions_of(mesh: Mesh, c: Constants) -> int:
    """The regions as large as a mesh that its device has."""
    return int(c.cores or mesh.device.cores) // (mesh.rows * mesh.cols)


def _residence(what: str, block: Block, layer: sram.Need, last: Block, c: Constants) -> Residence:
    """The residence of layers that need as much, on the block's mesh, beside the ends of the block `last`."""
    mesh, count = block.mesh, block.shape.num_hidden_layers
    area, limit = mesh.rows * mesh.cols, mesh.device.sram_bytes
    device_cores = int(c.cores or mesh.device.cores)
    ends, home = _ends(last)
    larger = home.rows * home.cols > area  # then layers do not lie beside the ends

    def take(layers: int) -> tuple[int, int]:
        """Regions and cores of so many layers and the ends."""
        if not larger:
            regions = _regions(layers, layer, ends, limit)
            return regions, regions * area
        apart, regions = _regions(0, _NOTHING, ends, limit), _regions(layers, layer, (), limit)
        return apart + regions, apart * home.rows * home.cols + regions * area

    regions, cores = take(count)
    if cores > device_cores:
        fitting = most(lambda layers: take(layers)[1] <= device_cores, count)
        parts = f"{count:,} layers" + ", embedding and head" * bool(ends)
        raise FullError(
            f"{what} does not fit {mesh.device.name}: {parts} take {cores:,} cores in regions of {mesh}, and there are "
            f"{device_cores:,}; {fitting:,} of the layers would fit, or all on a device of {cores:,} such cores"
        )
    return Residence(regions, cores, _room(layer, _NOTHING, limit))


def _regions(layers: int, layer: sram.Need, ends: tuple[sram.Need, ...], limit: int) -> int:
    """Regions of one mesh that hold the layers between the ends, each of which has layers beside it, if there is room.

    Layers stay whole, so that it may be one region fewer where a region takes the attention of a layer alone.
    """
    stays = [sum(end.stays.values()) for end in ends]
    passes = max((sum(need.passes.values()) for need in (*ends, *[layer] * bool(layers))), default=0)
    if len(ends) > 1 and sum(stays) + layers * sum(layer.stays.values()) + passes <= limit:
        return 1
    beside = sum(_room(layer, end, limit) for end in ends) if layers else 0
    return len(ends) + -(-max(0, layers - beside) // max(1, _room(layer, _NOTHING, limit)))


def _room(layer: sram.Need, end: sram.Need, limit: int) -> int:
    """Layers that one region holds beside an end; what comes and goes shares its place."""
    passes = max(sum(need.passes.values()) for need in (layer, end))
    return max(0, limit - passes - sum(end.stays.values())) // max(1, sum(layer.stays.values()))


def most(fits: Callable[[int], bool], count: int) -> int:
    """The largest of 0 to `count` that fits, where every smaller one does too."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


@lru_cache(maxsize=256)
def _ends(last: Block) -> tuple[tuple[sram.Need, ...], Mesh]:
    """What the embedding, if it is not the head's, and the head need, and the mesh where they lie."""
    if not last.shape.vocab_size:
        return (), last.mesh
    try:
        home = decode.head_block(last)
    except MeshError as error:
        raise FullError(str(error)) from None
    parts = (decode.head,) if last.shape.tie_word_embeddings else (decode.embed, decode.head)
    return tuple(sram.need([sketched(part, home, 1)]) for part in parts), home.mesh


def fitted(
    place: Callable[[Mesh, Constants], Any], mesh: Mesh, c: Constants, as_if: bool | None
) -> tuple[Mesh, Constants, str | None]:
    """The mesh and constants to price a model by, and why it does not fit; None where it does.

    What does not fit is refused with what would. With `as_if` it is given a device of more cores, or, where a core does
    not hold a layer, of more SRAM; None says that this is not on offer. `place` raises SramError or FullError for a
    mesh that does not hold the model.
    """
    if as_if not in (None, True, False):
        raise ShapeError(f"as_if = {as_if!r} must be true or false")
    try:
        place(mesh, c)
        return mesh, c, None
    except (SramError, FullError) as error:
        reason = error
    if not as_if:
        offer = "" if as_if is None else f"; {AS_IF}"
        raise type(reason)(_with_hint(place, mesh, c, reason) + offer) from None
    endless = replace(c, cores=float(2**60))
    try:
        place(mesh, endless)
    except (SramError, FullError):
        mesh = replace(mesh, device=mesh.device.unbounded())
    return mesh, endless, str(reason)


def _with_hint(place: Callable[[Mesh, Constants], Any], mesh: Mesh, c: Constants, reason: SramError | FullError) -> str:
    """The reason why a mesh does not fit, and one of its proportions that does."""

    def fits(candidate: Mesh) -> None:
        try:
            place(candidate, c)
        except FullError as full:
            raise SramError(str(full)) from None

    if isinstance(reason, LargeError):
        return str(reason)
    if isinstance(reason, SramError):
        try:
            sram.fitting(fits, mesh)
        except SramError as error:
            return str(error)
    for candidate in _alike(mesh):
        try:
            fits(candidate)
        except SramError:
            continue
        return f"{reason}; mesh {candidate} holds it"
    return f"{reason}; no mesh of these proportions holds it"


def _alike(mesh: Mesh) -> list[Mesh]:
    """Some meshes of the same proportions over the whole device, the one next in size first."""
    common = gcd(mesh.rows, mesh.cols)
    rows, cols = mesh.rows // common, mesh.cols // common
    most = min(mesh.device.rows // rows, mesh.device.cols // cols)
    step = max(1, most // _TRIED)
    meshes = [Mesh(times * rows, times * cols, mesh.device) for times in range(step, most + 1, step) if times != common]
    return sorted(meshes, key=lambda candidate: abs(candidate.rows - mesh.rows))


def _weights(block: Block) -> dict[str, int]:
    """Bytes of a prefill layer's weights on a core, by buffer."""
    b = Builder(block.mesh, "weights")
    block.attention_weights(b, "x", 1, block.apart)
    attention = sram.need([b])
    needs = []
    for kind in feed_forward(block):
        b = Builder(block.mesh, "weights")
        if kind == "ffn":
            block.ffn_weights(b, "x", block.apart)
        else:
            block.expert_weights(b, "x") if block.expert_regions is None else block.expert_weights_in_regions(b)
        needs.append(_layer_need(attention, sram.need([b])))
    return _largest(needs).stays


@lru_cache(maxsize=1024)
def decode_need(block: Block) -> sram.Need:
    """What a core needs for one decode layer, of layers of two kinds for one that takes more."""
    needs = decode_needs(block)
    return _largest([_layer_need(needs["attention"], needs[kind]) for kind in feed_forward(block)])


@lru_cache(maxsize=1024)
def prefill_need(block: Block, tokens: int, past: int = 0) -> sram.Need:
    """What a core needs for one prefill layer of `tokens` new and `past` old tokens a row, as of `decode_need`."""
    needs = []
    for kind in feed_forward(block):
        attention, *others = dict.fromkeys(prefill.layer(block, tokens, past, kind))
        built = [[outlined(part, block, *args) for part, args in parts] for parts in ([attention], others)]
        needs.append(_layer_need(*map(sram.need, built)))
    return _largest(needs)


def _largest(needs: list[sram.Need]) -> sram.Need:
    return max(needs, key=lambda need: sum(need.stays.values()) + sum(need.passes.values()))


def _layer_need(attention: sram.Need, ffn: sram.Need) -> sram.Need:
    """The need of two blocks in the same memory; a weight's name that both have gets the block's name added."""
    stays = attention.stays | {f"{name} of feed-forward" * (name in attention.stays) or name: size
                               for name, size in ffn.stays.items()}  # fmt: skip
    return sram.Need(stays, max(attention.passes, ffn.passes, key=lambda sizes: sum(sizes.values())))
