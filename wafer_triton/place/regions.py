"""The regions of a device that hold a model, for estimates, for plans and for runs.

A region takes as many consecutive blocks as its SRAM holds; `place.layouts` gives the positions of regions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from wafer_triton.decoder import decode as decode_blocks
from wafer_triton.decoder.block import Block
from wafer_triton.device import Device
from wafer_triton.device.dtype import BYTES
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import MeshError, SramError
from wafer_triton.place.layouts import LAYOUTS, lay_out
from wafer_triton.place.need import ENDS, block_names, decode_need, prefill_need, weights_of
from wafer_triton.schedule import sram
from wafer_triton.text.quantity import numbered
from wafer_triton.text.table import Table

Needs = dict[str, sram.Need]  # by the kind of block
Price = Callable[[Block, int, int], float]  # of a block, a row's tokens, and how many of them it takes at once


class FullError(MeshError):
    """A device has too few cores for all regions of a model."""


@dataclass(frozen=True)
class Region:
    """A part of the device that holds some consecutive blocks, with its SRAM peak per core in bytes."""

    mesh: Mesh
    blocks: tuple[str, ...]
    sram_peak_bytes: int
    sram_by_buffer: dict[str, int] = field(hash=False)

    @property
    def kinds(self) -> Counter[str]:
        """How many blocks of each kind it holds."""
        return Counter(name.split()[-1] for name in self.blocks)


Regions = tuple[Region, ...]


@dataclass(frozen=True)
class Placement:
    """A model on a device: its blocks for `decode` and `prefill`, on one mesh or two, and the regions that hold them.

    `prefill.mesh` is square: a rectangular one is folded to its lcm grid. Each row of it takes `chunk_tokens` tokens of
    the longest prompt at once. The embedding and the head lie on the mesh of `head`. If prefill has a mesh of its own,
    they move there from the mesh of `prefill_head` before decode.
    """

    decode: Block
    prefill: Block
    head: Block
    prefill_head: Block
    regions: Regions
    prefill_regions: Regions
    chunk_tokens: int
    layout: str

    def _repr_html_(self) -> str:
        rows = [
            (str(each.mesh.origin), str(each.mesh), each.sram_peak_bytes, f"{each.blocks[0]} to {each.blocks[-1]}")
            for each in self.regions
        ]
        title = f"{len(self.regions)} regions on {self.decode.mesh.device.name}"
        return Table.rows(("origin", "cores", "SRAM peak (B)", "blocks"), rows, title=title)._repr_html_()

    def on(self, device: Device) -> Placement:
        """Return the placement on another device. Its cores must have as much SRAM; this is not checked."""

        def moved(part: Any) -> Any:
            if isinstance(part, tuple):
                return tuple(map(moved, part))
            return replace(part, mesh=replace(part.mesh, device=device))

        return replace(self, **{part.name: moved(getattr(self, part.name)) for part in fields(self)[:-2]})

    def chunk(self, count: int) -> int:
        """Return the tokens that a row takes at once of a prompt of `count`; SramError names the longest that fits."""
        side, limit = self.prefill.mesh.shape[0], self.prefill.mesh.device.sram_bytes
        rows = -(-count // side)
        for tokens in _sizes(rows, self.prefill):
            if self._overflow(tokens, rows - tokens) is None:
                return tokens
        longest = next(fewer for fewer in range(rows - 1, -1, -1) if fewer == 0 or not self._overflow(1, fewer - 1))
        raise SramError(
            f"prefill of {count} tokens on mesh {self.prefill.mesh} overflows the {limit:,} B of SRAM of each core on "
            f"{self.prefill.mesh.device.name}; at most {longest * side} tokens fit as the model lies, in chunks; "
            f"give max_prompt={count} when it is placed, or a larger mesh ({self._overflow(1, rows - 1)})"
        )

    def _overflow(self, tokens: int, past: int) -> str | None:
        """Return the reason why the new and past tokens a row do not fit; None if they do."""
        needs = _prefill_needs(
            self.decode, self.prefill, tokens, past, not phases_share_cores(self.decode, self.prefill)
        )
        mixes = {tuple(kind for kind in each.kinds.elements() if kind not in ENDS) for each in self.prefill_regions}
        held = sram.fullest(sram.total(needs[kind] for kind in mix) for mix in mixes)
        peak = sum(held.values())
        buffers = ", ".join(f"{name} {size:,} B" for name, size in held.items())
        return None if peak <= self.prefill.mesh.device.sram_bytes else f"{peak:,} B a core: {buffers}"


def decode_regions(block: Block, layout: str = LAYOUTS[0]) -> Regions:
    """Return the regions of decode alone, with its cache, the embedding and the head.

    Raises SramError if a core does not hold a block, and FullError if the device does not hold them all.
    """
    check_total_weights(block)
    needs = {kind: decode_need(block, kind) for kind in block.shape.layers_of}
    _check_needs(f"{block.shape.name}, decode", needs, block.mesh)
    tokens = block.entries * block.mesh.shape[0]
    what = f"{block.shape.name}, decode with {tokens:,} tokens of cache"
    return _pack_regions(what, needs, block.mesh, _head(block), layout)


@dataclass(frozen=True)
class PrefillPlacement:
    """A block of prefill, the tokens of the longest prompt that a row takes at once, and the regions that hold it."""

    block: Block
    chunk_tokens: int
    regions: Regions


def place_prefill(
    choices: Sequence[Block], last: Block, prompt: int, price: Price, layout: str = LAYOUTS[0]
) -> PrefillPlacement:
    """Return prefill on cores of its own, which keep all keys and values; embedding and head are as in block `last`.

    A row takes all its tokens at once if they fit: with the first of the `choices` that fits, and a second buffer of
    partial sums if there is room for it. If experts fit both over the whole mesh and in regions, the first choices of
    both are compared. Else a row takes the fewest equal chunks that fit, or one size smaller. Of choices that are
    compared, that of the lowest `price(block, rows, at_once)` is taken. Raises the errors of `decode_regions`.
    """
    check_total_weights(choices[0])
    return _prefill(last, choices, prompt, layout, price, alone=True)


def place_model(
    decode: Block, choices: Sequence[Block], prompt: int, price: Price, layout: str = LAYOUTS[0]
) -> Placement:
    """Return decode, and prefill of up to `prompt` tokens by one of the `choices`, see `place_prefill`.

    On one mesh both phases share their regions, else each has its own. Shared regions hold a block's buffers for both
    phases, and a second buffer of partial sums if that costs neither a chunk nor a region. A head that does not fit one
    region gets a larger one, a whole multiple of it. Raises the errors of `decode_regions`.
    """
    check_total_weights(decode)
    head = _head(decode)
    if not phases_share_cores(decode, choices[0]):
        regions = decode_regions(decode, layout)
        mesh = replace(choices[0].mesh, fold=(1, 1))
        last = replace(decode, mesh=mesh, entries=1, batch=1, groups=None, head_groups=1, head_tree=None)
        alone = place_prefill(choices, last, prompt, price, layout)
        return Placement(decode, alone.block, head, _head(last), regions, alone.regions, alone.chunk_tokens, layout)
    both = _prefill(decode, choices, prompt, layout, price, alone=False)
    return Placement(decode, both.block, head, head, both.regions, both.regions, both.chunk_tokens, layout)


def phases_share_cores(decode: Block, prefill: Block) -> bool:
    """Return whether both phases run on the same cores; decode may have a mesh too long to be folded for prefill."""
    return replace(prefill.mesh, fold=(1, 1)) == decode.mesh


def _prefill(
    decode: Block, choices: Sequence[Block], prompt: int, layout: str, price: Price, alone: bool
) -> PrefillPlacement:
    """Return prefill of a prompt, in regions that it shares with decode unless it is `alone`."""
    rows, reason = -(-prompt // choices[0].mesh.shape[0]), None

    def fitting(tokens: int) -> list[PrefillPlacement]:
        nonlocal reason
        fits = list[PrefillPlacement]()
        for choice in choices:
            in_regions = choice.expert_regions is not None
            if tokens == rows and any(in_regions == (fit.block.expert_regions is not None) for fit in fits):
                continue
            best: PrefillPlacement | None = None
            # a second buffer of partial sums is for speed: it may cost regions of prefill alone, but none of decode
            for overlap in (alone, not alone) if choice.overlap else (False,):
                if best is not None and alone:
                    break
                block = replace(choice, overlap=overlap)
                try:
                    regions = _prefill_regions(decode, block, prompt, tokens, rows - tokens, layout, alone)
                except (SramError, FullError) as error:
                    if reason is None:
                        _check_weights(decode, tuple(choices), prompt, layout)
                    reason = reason if isinstance(error, SramError) and reason else error
                    continue
                if best is None or (not alone and len(regions) == len(best.regions)):
                    best = PrefillPlacement(block, tokens, regions)
            if best is not None:
                fits.append(best)
        return fits

    whole, *sizes = _sizes(rows, choices[0])
    fits = fitting(whole)
    if not fits:
        if not sizes or not fitting(sizes[-1]):  # a smaller chunk needs less
            assert reason is not None, "a prompt has a token"
            raise reason
        number = bisect_left(sizes, True, key=lambda tokens: bool(fitting(tokens)))
        # one chunk more may have room for the second buffer, and be faster
        fits = [placed for tokens in sizes[number : number + 2] for placed in fitting(tokens)]
    if len(fits) == 1:
        return fits[0]
    return min(fits, key=lambda placed: price(placed.block, rows, placed.chunk_tokens))


def _check_weights(decode: Block, choices: tuple[Block, ...], prompt: int, layout: str) -> None:
    """Raise SramError or FullError if the weights of no choice fit: a quick check, for which one choice often does."""
    shape, mesh = choices[0].shape, choices[0].mesh
    what = f"{shape.name}, prefill of {numbered(prompt, 'tokens')}"

    def needs(block: Block) -> Needs:
        held = {kind: weights_of(block, kind, "prefill").values() for kind in shape.layers_of}
        times = mesh.per_core
        return {kind: sram.Need({one.name: one.bytes * times for one in each}, {}) for kind, each in held.items()}

    def check(held: Needs) -> None:
        _check_needs(what, held, mesh)
        _pack_regions(what, held, replace(mesh, fold=(1, 1)), _head(decode), layout)

    try:
        check(needs(choices[0]))
    except (SramError, FullError):
        check(min(map(needs, choices), key=lambda kinds: sum(sum(need.resident.values()) for need in kinds.values())))


def _prefill_regions(
    decode: Block, block: Block, prompt: int, tokens: int, past: int, layout: str, alone: bool
) -> Regions:
    needs = _prefill_needs(decode, block, tokens, past, alone)
    what = f"{block.shape.name}, {'' if alone else 'decode and '}prefill of {numbered(prompt, 'tokens')}"
    _check_needs(what + f", {tokens:,} a row at once" * bool(past), needs, block.mesh)
    return _pack_regions(what, needs, replace(block.mesh, fold=(1, 1)), _head(decode), layout)


def _prefill_needs(decode: Block, prefill: Block, tokens: int, past: int, alone: bool) -> Needs:
    """Return what each kind of block needs with new and past tokens a row, plus decode's needs unless `alone`."""
    kinds = prefill.shape.layers_of
    if alone:
        return {kind: prefill_need(prefill, kind, tokens, past, keep=True) for kind in kinds}
    return {kind: decode_need(decode, kind).beside(prefill_need(prefill, kind, tokens, past)) for kind in kinds}


def _sizes(rows: int, prefill: Block) -> list[int]:
    """Return the tokens that a row may take at once: all, half, a third, ... of its `rows` tokens; all if `unfused`."""
    return [rows] if prefill.unfused else list(dict.fromkeys(-(-rows // parts) for parts in range(1, rows + 1)))


def _check_needs(what: str, needs: Needs, mesh: Mesh) -> None:
    for kind, need in needs.items():
        sram.demand(f"{what}, {kind}", mesh, need.resident | need.workspace)


def _head(block: Block) -> Block:
    try:
        return decode_blocks.head_block(block) if block.shape.vocab_size else block
    except MeshError as error:
        raise FullError(str(error)) from None


def _pack_regions(what: str, kinds: Needs, mesh: Mesh, head: Block, layout: str) -> Regions:
    """Return the regions of all blocks in order, each kind with one need; FullError if the device is too small."""
    shape, limit = head.shape, mesh.device.sram_bytes
    ends: tuple[str, ...] = ENDS if shape.vocab_size else ()
    if shape.tie_word_embeddings:
        ends = ends[1:]
    needs = kinds | {end: decode_need(head, end) for end in ends}
    sizes = {kind: (sum(need.resident.values()), sum(need.workspace.values())) for kind, need in needs.items()}
    packed: list[tuple[Mesh, list[str]]] = []
    resident = workspace = 0
    for name in (*ends[:-1], *block_names(shape), *ends[-1:]):
        on, (more, most) = head.mesh if name in ends else mesh, sizes[name.split()[-1]]
        if packed and packed[-1][0] == on and resident + more + max(workspace, most) <= limit:
            packed[-1][1].append(name)
            resident, workspace = resident + more, max(workspace, most)
        else:
            packed.append((on, [name]))
            resident, workspace = more, most
    meshes = [on for on, _ in packed]
    laid = lay_out(meshes, layout)
    if len(laid) < len(meshes):
        raise FullError(_full_message(f"{what} on mesh {mesh}", mesh.device, packed, len(laid), layout), _remedy(head))
    regions = []
    for (_, names), placed in zip(packed, laid, strict=True):
        buffers = sram.total(needs[name.split()[-1]] for name in names)
        regions.append(Region(placed, tuple(names), sum(buffers.values()), buffers))
    return tuple(regions)


def _full_message(what: str, device: Device, packed: list[tuple[Mesh, list[str]]], laid: int, layout: str) -> str:
    """Return the message of regions that do not fit after the first `laid`."""
    blocks, every = sum(len(names) for _, names in packed[:laid]), sum(len(names) for _, names in packed)
    rectangles = f"{device.rows} x {device.cols} cores, laid out in rows"
    on = rectangles if layout == "rectangles" else f"{device.wafer_cores:,} cores, by area"
    room = f"{numbered(laid, 'regions')} of {packed[max(laid - 1, 0)][0]}"
    return (
        f"{what} does not fit {device.name}: its {every:,} blocks take {len(packed):,} regions; on {on}, {room} find "
        f"room, with {blocks:,} of the blocks"
    )


def check_total_weights(block: Block) -> None:
    """Raise FullError if a model with experts has more weights than all cores of the device hold together."""
    shape, device = block.shape, block.mesh.device
    weights, held = _weights(block)
    if shape.experts is not None and weights > held:
        raise FullError(
            f"{shape.name} does not fit {device.name}: its {shape.parameters:,} weights take {weights:,} B in "
            f"{block.weight_dtype}, and all cores together hold {held:,} B",
            _remedy(block),
        )


def _weights(block: Block) -> tuple[int, int]:
    """Return the bytes of a model's weights, and those that all cores of its device hold together."""
    shape, device = block.shape, block.mesh.device
    return shape.parameters * BYTES[block.weight_dtype], device.cores * device.sram_bytes


def _remedy(block: Block) -> str:
    """Return what helps a model that does not fit: another mesh if the device has the room, else less of it."""
    weights, held = _weights(block)
    if weights <= held:
        return sram.ASK
    return f"take fewer layers ({block.shape.name},layers=...), dtype int8 or fp8, or a larger device"
