"""The sizes of serving: meshes, columns of the device and full caches, given or chosen by the priced schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from wafer_triton.cost import inference, layers
from wafer_triton.cost.cap import kv_bytes, weight_bytes
from wafer_triton.cost.constants import constants
from wafer_triton.cost.placement import Placement as Experts
from wafer_triton.cost.placement import checked
from wafer_triton.device import Device, DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.errors import ConfigError, MeshError, ShapeError, SramError, WaferError, check_counts, check_type
from wafer_triton.place.fitting import remedies
from wafer_triton.place.regions import FullError, Placement, Prefill, decode_regions, placed
from wafer_triton.schedule.block import Block
from wafer_triton.serve.pipeline import period
from wafer_triton.serve.policies import organisation
from wafer_triton.serve.times import Priced
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.read import shape_of

T = TypeVar("T")
DTYPE = "fp16"  # of all blocks that are priced
MOST_BATCH = 65_536  # sequences in decode, each of which has a slot
MOST_CUTS = 6  # times that a side of the device is cut for the meshes that are tried
CUTS = (0.25, 0.375, 0.5, 0.625, 0.75)  # of the device's columns, for prefill, that are tried


@dataclass(frozen=True)
class Load:
    """The sizes that a placement must hold, and the mean request that it is chosen for, all in tokens but `batch`.

    Up to `batch` sequences of at most `context` tokens decode together, `at_once` of them in a group. A prompt has at
    most `prompt` tokens. Raises ShapeError for a size below 1.
    """

    batch: int
    context: int
    prompt: int
    input: int  # of the mean request
    output: int
    at_once: int = 1

    def __post_init__(self) -> None:
        check_counts(**vars(self))
        if self.batch > MOST_BATCH:
            raise ShapeError(f"batch = {self.batch:,} is more than the {MOST_BATCH:,} sequences that are taken here")


@dataclass(frozen=True)
class Given:
    """The sizes that a user gives; None leaves one to the prices."""

    prefill_mesh: Any = None
    decode_mesh: Any = None
    columns: int | None = None  # of prefill, with policy split
    caches: int | None = None  # sequences of `context` tokens that the caches hold
    experts: Experts = None  # of a mixture in prefill; None has each on the whole mesh

    def where(self, shape: DecoderShape) -> Experts:
        """Return where the experts of a model live, None for a dense one."""
        return "spread" if self.experts is None and shape.experts is not None else self.experts


def priced(name: str, model: str | DecoderShape, on: DeviceLike, load: Load, given: Given = Given()) -> Priced:
    """Return the first of `ranked`, and raise as it does."""
    return ranked(name, model, on, load, given)[0]


def ranked(name: str, model: str | DecoderShape, on: DeviceLike, load: Load, given: Given = Given()) -> list[Priced]:
    """Return times of a model on a device under an organisation, by its name in `policies.ORGANISATIONS`.

    Sizes that are not given are tried: meshes of "shared", columns of "split". Those with the most requests a second by
    the mean request alone come first: see `rate`. Of "replace" there is one place alone. Raises ConfigError for an
    unknown organisation, SramError or MeshError, with the last reason, where nothing fits. Without columns of prefill
    or given caches the error names changes that make the model fit, see `fitting.remedies`.
    """
    organisation(name)
    check_type("priced: load", load, Load, ConfigError)
    check_type("priced: given", given, Given, ConfigError)
    shape, device = shape_of(model), find_device(on)
    checked(given.experts, shape)
    try:
        check_weights(shape, device)
        return _organised(name, shape, device, load, given)
    except (SramError, FullError) as error:
        if name == "split" or given.caches is not None:  # the reason names fewer caches already
            raise
        meshes = list(_meshes(device, given.decode_mesh if given.prefill_mesh is None else given.prefill_mesh))
        mesh = meshes[len(meshes) // 2]

        def place(on: Mesh, own: DecoderShape) -> None:
            second = on if given.decode_mesh is None else as_mesh(given.decode_mesh, on.device)
            _together(on, second, own, load, given)

        more = remedies(place, mesh, shape).replace("; it", f"; on mesh {mesh} it", 1)
        raise type(error)(f"{error}{more}") from None


def _organised(name: str, shape: DecoderShape, device: Device, load: Load, given: Given) -> list[Priced]:
    """Return the times under a known organisation."""
    if name == "split":
        return _by_rate(f"{shape.name} in columns of {device.name}", _splits(shape, device, load, given), load)
    if given.columns is not None:
        raise MeshError(f"columns = {given.columns} of prefill: only policy split has columns of its own; leave it out")
    if name == "shared":
        mesh = given.decode_mesh if given.prefill_mesh is None else given.prefill_mesh
        if given.decode_mesh is not None and as_mesh(given.decode_mesh, device) != as_mesh(mesh, device):
            raise MeshError(
                f"prefill on {mesh} and decode on {given.decode_mesh}: policy shared has one mesh; give one"
            )
        makes = (partial(_together, on, on, shape, load, given) for on in _meshes(device, mesh))
        return _by_rate(f"{shape.name} on one mesh of {device.name}", makes, load)
    prefills, decodes = list(_meshes(device, given.prefill_mesh)), list(_meshes(device, given.decode_mesh))
    second, block = _fastest_decode(decodes, shape, load, given)
    firsts = _fastest_prefill(prefills, shape, load, given)
    makes = (partial(_together, on, second, shape, load, given, block) for on in firsts)
    return [_first_of(makes)]


def check_weights(shape: DecoderShape, device: Device) -> None:
    """Raise FullError if all cores of a device together have less SRAM than a model has weights."""
    weights, room = weight_bytes(shape, DTYPE), device.cores * device.sram_bytes
    if weights > room:
        raise FullError(
            f"{shape.name} does not fit {device.name}: its layers have {weights:,} B of weights, and all cores "
            f"together hold {room:,} B; take a smaller model, or a device of more cores"
        )


def rate(times: Priced, load: Load) -> float:
    """Return about how many mean requests a second are served, if all resources were always busy."""
    stages = times.stages(load.input, 0, True)
    sequences = min(times.batch, max(1, times.pool * times.rows // (load.input + load.output)))
    entries = min(-(-(load.input + load.output // 2) // times.rows), times.pool)
    groups = min(sequences, -(-times.batch // times.at_once))
    sizes = [sequences // groups + (number < sequences % groups) for number in range(groups)]
    turn = period(times, [[entries] * size for size in sizes])
    answers = load.output * turn / sequences
    if times.right is not None:
        return 1 / max(max(stages), answers)
    return 1 / (max(stages) + (sum(stages) + 2 * times.switch()) / sequences + times.hand_over(load.input) + answers)


def _by_rate(what: str, makes: Iterable[Callable[[], Priced]], load: Load) -> list[Priced]:
    """Return all times, the highest rate first; raise the last error, by its kind, where there is none."""
    found, reason = list[Priced](), None
    for make in makes:
        try:
            found.append(make())
        except WaferError as error:
            reason = _nearer(reason, error)
    if not found:
        assert reason is not None, "a mesh is tried"
        raise type(reason)(f"no place was found for {what}; of the nearest: {reason}")
    return sorted(found, key=lambda times: -rate(times, load))


def _first_of(makes: Iterable[Callable[[], T]]) -> T:
    reason: WaferError | None = None
    for make in makes:
        try:
            return make()
        except WaferError as error:
            reason = _nearer(reason, error)
    assert reason is not None, "a mesh is tried"
    raise reason


def _nearer(one: WaferError | None, other: WaferError) -> WaferError:
    """Return the reason of the place that was nearer to a fit: cores that hold their blocks, then the smaller mesh."""
    return one if isinstance(one, FullError) and not isinstance(other, FullError) else other


def _meshes(device: Device, mesh: Any) -> Iterator[Mesh]:
    """Yield the mesh that is given, or square ones that fill the device's rows or columns a whole number of times."""
    if mesh is not None:
        yield as_mesh(mesh, device)
        return
    sides = {length // cuts for length in (device.rows, device.cols) for cuts in range(1, MOST_CUTS + 1)}
    for side in sorted(sides, reverse=True):
        if 0 < side <= min(device.rows, device.cols):
            yield Mesh(side, side, device)


def _with_caches(place: Callable[[int], T], shape: DecoderShape, device: Device, load: Load, given: Given) -> T:
    """Return the place with as many full caches as given, or as fit, up to one for each sequence."""
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


def _fastest_decode(
    meshes: Sequence[Mesh], shape: DecoderShape, load: Load, given: Given
) -> tuple[Mesh, Block]:  # fmt: skip
    """Return the mesh of the most tokens a second, and its block of decode; raise the last error without one."""
    c, found, reason = constants(meshes[0].device), list[tuple[float, Mesh, Block]](), None
    entries_of = load.input + load.output // 2
    for mesh in meshes:
        blocks = layers.decode_blocks(shape, mesh, load.context, c)

        def place(caches: int, blocks: Sequence[Block] = blocks) -> Block:
            return inference.first(lambda block: (decode_regions(block), block)[1],
                                   [replace(block, batch=caches) for block in blocks])  # fmt: skip

        try:
            block = _with_caches(place, shape, mesh.device, load, given)
        except WaferError as error:
            reason = _nearer(reason, error)
            continue
        entries = -(-entries_of // mesh.shape[0])
        one = layers.total(layers.decode_steps(replace(block, batch=1, entries=entries), entries_of, c)).cycles
        regions = len(decode_regions(block))
        sequences = min(load.batch, block.batch * load.context // (load.input + load.output))
        found.append((min(sequences, regions) / one, mesh, block))
    if not found:
        assert reason is not None, "a mesh is tried"
        raise reason
    return max(found, key=lambda each: each[0])[1:]


def _fastest_prefill(meshes: Sequence[Mesh], shape: DecoderShape, load: Load, given: Given) -> list[Mesh]:
    """Return meshes that hold prefill, the fastest first; of a single one no price is asked."""
    if len(meshes) == 1:
        return list(meshes)
    c, found = constants(meshes[0].device), list[tuple[float, Mesh]]()
    for mesh in meshes:
        with suppress(WaferError):
            own = inference.prefill_on(mesh, shape, load.input, c, experts=given.where(shape))
            found.append((own.seconds, mesh))
    return [mesh for _, mesh in sorted(found, key=lambda each: each[0])] or list(meshes)


def _together(
    first: Mesh, second: Mesh, shape: DecoderShape, load: Load, given: Given, block: Block | None = None
) -> Priced:  # fmt: skip
    """Return times of both phases on the whole device; a `block` of decode is placed already."""
    c = constants(first.device)
    blocks = [block] if block is not None else layers.decode_blocks(shape, second, load.context, c)
    alone = replace(first, fold=(1, 1)) != second

    def prefilled(tokens: int) -> Callable[[int], Placement]:
        (choices,) = inference.prefill_choices(first, shape, load.prompt, c, "full", None, False, given.where(shape))
        return lambda caches: inference.first(
            lambda one: placed(replace(one, batch=caches), choices, tokens), blocks
        )  # fmt: skip

    if not alone:
        place = _with_caches(prefilled(load.prompt), shape, first.device, load, given)
        return _of(place, load)
    caches = blocks[0].batch if block is not None else (given.caches or load.at_once)
    held = max(load.prompt, min(load.batch * load.input, 8 * load.prompt))
    while True:  # prompts wait in prefill's regions until all weights move
        try:
            return _of(prefilled(held)(caches), load, held=held)
        except WaferError:
            if held == load.prompt:
                raise
            held = max(load.prompt, held // 2)


def _splits(shape: DecoderShape, device: Device, load: Load, given: Given) -> Iterator[Callable[[], Priced]]:
    """Yield placements with columns for prefill and the rest for decode."""
    cuts = [int(device.cols * share) for share in CUTS] if given.columns is None else [given.columns]
    for columns in cuts:
        if not 1 <= columns < device.cols:
            raise MeshError(
                f"columns = {columns} of prefill: {device.name} has {device.cols}, and decode needs some of them; give "
                f"1 to {device.cols - 1}"
            )
        yield partial(_split, shape, device, load, given, columns)


def _split(shape: DecoderShape, device: Device, load: Load, given: Given, columns: int) -> Priced:
    left, right = replace(device, cols=columns), replace(device, cols=device.cols - columns)
    c = constants(device)
    _, block = _fastest_decode(list(_meshes(right, given.decode_mesh)), shape, load, given)

    def prefilled(mesh: Mesh) -> Prefill:
        return inference.prefill_placed(mesh, shape, load.prompt, c, "full", None, False, given.where(shape))[0]

    prefills = _fastest_prefill(list(_meshes(left, given.prefill_mesh)), shape, load, given)
    own = _first_of(partial(prefilled, mesh) for mesh in prefills)
    place = Placement(
        block, own.block, block, block, decode_regions(block), own.regions, own.at_once, "rectangles"
    )  # fmt: skip
    return _of(place, load, right=columns)


def _of(place: Placement, load: Load, held: int | None = None, right: int | None = None) -> Priced:
    return Priced(
        place, batch=load.batch, longest=load.context, prompt=load.prompt, at_once=load.at_once, held=held, right=right
    )  # fmt: skip
