"""Placements of a model for serving: the meshes to try, the columns of each phase, and the number of full caches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from wafer_triton.cost import inference, layers
from wafer_triton.cost.cap import kv_bytes, weight_bytes
from wafer_triton.cost.constants import constants
from wafer_triton.decoder.block import Block
from wafer_triton.device import Device
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.errors import MeshError, WaferError
from wafer_triton.place.regions import FullError, Placement, decode_regions, place_model
from wafer_triton.serve.load import Given, Load
from wafer_triton.serve.times import Priced
from wafer_triton.shape.decoder import DecoderShape

T = TypeVar("T")
DTYPE = "fp16"  # of all blocks that are priced
MOST_CUTS = 6  # times that a side of the device is cut for the meshes that are tried
CUTS = (0.25, 0.375, 0.5, 0.625, 0.75)  # of the device's columns, for prefill, that are tried


def check_weights(shape: DecoderShape, device: Device) -> None:
    """Raise FullError if all cores of a device together have less SRAM than a model has weights."""
    weights, room = weight_bytes(shape, DTYPE), device.cores * device.sram_bytes
    if weights > room:
        raise FullError(
            f"{shape.name} does not fit {device.name}: its layers have {weights:,} B of weights, and all cores "
            f"together hold {room:,} B; take a smaller model, or a device of more cores"
        )


def fitting(makes: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Yield the placements that fit; without one, raise the error of the one that was nearest to a fit."""
    reason: WaferError | None = None
    fits = False
    for make in makes:
        try:
            made = make()
        except WaferError as error:
            reason = nearer(reason, error)
        else:
            fits = True
            yield made
    if not fits:
        assert reason is not None, "a mesh is tried"
        raise reason


def nearer(one: WaferError | None, other: WaferError) -> WaferError:
    """Return the error of the nearer fit: a FullError, as cores held their blocks, else `other`, of a smaller mesh."""
    return one if isinstance(one, FullError) and not isinstance(other, FullError) else other


def meshes(device: Device, mesh: Any) -> Iterator[Mesh]:
    """Yield the given mesh, or square ones that fill the device's rows or columns a whole number of times."""
    if mesh is not None:
        yield as_mesh(mesh, device)
        return
    sides = {length // cuts for length in (device.rows, device.cols) for cuts in range(1, MOST_CUTS + 1)}
    for side in sorted(sides, reverse=True):
        if 0 < side <= min(device.rows, device.cols):
            yield Mesh(side, side, device)


def with_caches(place: Callable[[int], T], shape: DecoderShape, device: Device, load: Load, given: Given) -> T:
    """Return the placement with the given number of full caches, or as many as fit, up to one for each sequence."""
    room, one = device.cores * device.sram_bytes - weight_bytes(shape, DTYPE), kv_bytes(shape, DTYPE, load.context)
    if given.caches is not None:
        if given.caches * one > room:
            raise FullError(
                f"caches = {given.caches:,} of {load.context:,} tokens take {given.caches * one:,} B, and all cores of "
                f"{device.name} have {room:,} B beside the weights of {shape.name}; give fewer than {room // one + 1:,}"
            )
        return place(given.caches)
    least, most = load.at_once, min(load.batch, room // one)
    best, middle = place(least), most  # which mostly fit
    while least < most:
        try:
            best, least = place(middle), middle
        except WaferError:
            most = middle - 1
        middle = (least + most + 1) // 2
    return best


def fastest_decode(meshes: Sequence[Mesh], shape: DecoderShape, load: Load, given: Given) -> Block:
    """Return the block of decode on the mesh of the most tokens a second; raises as `fitting`."""
    device, tokens = meshes[0].device, load.input + load.output // 2
    c = constants(device)

    def tokens_per_cycle(block: Block) -> float:
        entries = -(-tokens // block.mesh.shape[0])
        one = layers.total(layers.decode_steps(replace(block, batch=1, entries=entries), tokens, c)).cycles
        sequences = min(load.batch, block.batch * load.context // (load.input + load.output))
        return min(sequences, len(decode_regions(block))) / one

    placings = (partial(inference.batch_placed, layers.decode_blocks(shape, mesh, load.context, c)) for mesh in meshes)
    return max(
        fitting(partial(with_caches, place, shape, device, load, given) for place in placings), key=tokens_per_cycle
    )


def fastest_prefill(meshes: Sequence[Mesh], shape: DecoderShape, load: Load, given: Given) -> list[Mesh]:
    """Return the meshes that hold prefill, the fastest first; a single mesh is not priced."""
    if len(meshes) == 1:
        return list(meshes)
    c, found = constants(meshes[0].device), list[tuple[float, Mesh]]()
    for mesh in meshes:
        with suppress(WaferError):
            own = inference.prefill_on(mesh, shape, load.input, c, experts=given.where(shape))
            found.append((own.seconds, mesh))
    return [mesh for _, mesh in sorted(found, key=lambda each: each[0])] or list(meshes)


def together(first: Mesh, shape: DecoderShape, load: Load, given: Given, block: Block | None = None) -> Priced:
    """Return the times of both phases on the whole device; `block` is decode's (None: on the mesh of prefill)."""
    c = constants(first.device)
    blocks = layers.decode_blocks(shape, first, load.context, c) if block is None else [block]
    choices = inference.prefill_choices(first, shape, load.context, c, "full", None, given.where(shape))

    def placed(tokens: int, caches: int) -> Placement:
        return inference.first(
            lambda one: place_model(replace(one, batch=caches), choices, tokens, layers.prefill_price(c)), blocks
        )

    if blocks[0].mesh == replace(first, fold=(1, 1)):
        return of(with_caches(partial(placed, load.context), shape, first.device, load, given), load)
    held = max(load.context, min(load.batch * load.input, 8 * load.context))
    while True:  # prompts wait in prefill's regions until all weights move
        try:
            return of(placed(held, blocks[0].batch), load, held=held)
        except WaferError:
            if held == load.context:
                raise
            held = max(load.context, held // 2)


def splits(shape: DecoderShape, device: Device, load: Load, given: Given) -> Iterator[Callable[[], Priced]]:
    """Yield placements with columns for prefill and the rest for decode."""
    cuts = [int(device.cols * share) for share in CUTS] if given.columns is None else [given.columns]
    for columns in cuts:
        if not 1 <= columns < device.cols:
            raise MeshError(
                f"columns = {columns} of prefill: {device.name} has {device.cols}, and decode needs some of them; give "
                f"1 to {device.cols - 1}"
            )
        yield partial(split, shape, device, load, given, columns)


def split(shape: DecoderShape, device: Device, load: Load, given: Given, columns: int) -> Priced:
    """Return times of prefill on the first `columns` columns of a device and of decode on the others."""
    left, right = replace(device, cols=columns), replace(device, cols=device.cols - columns)
    c = constants(device)
    block = fastest_decode(list(meshes(right, given.decode_mesh)), shape, load, given)
    placings = (
        partial(inference.prefill_placed, mesh, shape, load.context, c, "full", None, given.where(shape))
        for mesh in fastest_prefill(list(meshes(left, given.prefill_mesh)), shape, load, given)
    )
    own = next(fitting(placings))
    place = Placement(
        block, own.block, block, block, decode_regions(block), own.regions, own.chunk_tokens, "rectangles"
    )  # fmt: skip
    return of(place, load, right=columns)


def of(place: Placement, load: Load, held: int | None = None, right: int | None = None) -> Priced:
    """Return the times of a placement under a load; `held` and `right` are as in `Priced`."""
    return Priced(
        place, batch=load.batch, longest=load.context, at_once=load.at_once, held=held, right=right
    )  # fmt: skip
