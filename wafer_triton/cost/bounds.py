"""Lower bounds of the time of prefill and of requests, by which a search orders meshes; cheaper than estimates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Generic, Protocol, TypeVar

from wafer_triton.cost import inference, layers
from wafer_triton.cost.constants import Constants
from wafer_triton.cost.phases import products_by_kind
from wafer_triton.cost.placement import Placement as Experts
from wafer_triton.cost.price import priced, sum_cycles
from wafer_triton.count.traffic import WORD_BYTES
from wafer_triton.device.dtype import BYTES
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import WaferError
from wafer_triton.place import moves
from wafer_triton.place.layouts import device_regions
from wafer_triton.place.regions import Placement
from wafer_triton.schedule import prefill
from wafer_triton.schedule.block import Block
from wafer_triton.schedule.heads import distinct
from wafer_triton.shape.decoder import DecoderShape


class Timed(Protocol):
    """An estimate that takes time."""

    @property
    def seconds(self) -> float: ...


T = TypeVar("T", bound=Timed)


class Tried(Generic[T]):
    """Estimates by side, made in the order of the sides' bounds and only if needed.

    A bound is the least number of seconds for a side, inf if it cannot hold the model.
    """

    def __init__(
        self, sides: Sequence[int], estimated: Callable[[int], T], least: Callable[[int], float],
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        self.sides, self.estimated, self.progress = tuple(dict.fromkeys(sides)), estimated, progress
        self.left = sorted(((_bound(least, side), side) for side in self.sides), key=lambda pair: pair[0])
        self.found: dict[int, T] = {}
        self.errors: dict[int, WaferError] = {}

    def until(self, enough: Callable[[float], bool]) -> None:
        """Make estimates until the next bound is `enough`; sides of bound inf are tried if no other holds the model."""
        while self.left and not (self.found and (self.left[0][0] == inf or enough(self.left[0][0]))):
            _, side = self.left.pop(0)
            try:
                self.found[side] = self.estimated(side)
            except WaferError as error:
                self.errors[side] = error
            self.progress(len(self.sides) - len(self.left), len(self.sides))

    def fastest(self, count: int) -> list[tuple[int, T]]:
        """Return the fastest estimates so far, and their sides."""
        found = [(side, self.found[side]) for side in self.sides if side in self.found]
        return sorted(found, key=lambda pair: pair[1].seconds)[:count]

    def has(self, count: int, bound: float) -> bool:
        """Return whether `count` estimates are below a bound."""
        return len(self.found) >= count and bound > self.fastest(count)[-1][1].seconds

    @property
    def reason(self) -> WaferError | None:
        """The error of the last side, if no side holds the model."""
        return None if self.found else next((self.errors[side] for side in reversed(self.sides)), None)


def _bound(least: Callable[[int], float], side: int) -> float:
    """Return the bound of a side; 0 if its estimate is refused, so that its error is found first."""
    try:
        return least(side)
    except WaferError:
        return 0.0


def too_small(mesh: Mesh, shape: DecoderShape, context: int, program: str, spread: bool = True) -> bool:
    """Return whether the layers take more regions than the device has, by a lower bound of a core's bytes.

    Experts are `spread` over the whole mesh, as in decode, or lie in regions of it. The answer is False for a decoder
    with sub-layers of the user's own.
    """
    if shape.variant is not None:
        return False
    shape = shape.paper_benchmark() if layers.is_paper_benchmark(program) else shape
    sizes, limit = _least_bytes(mesh, shape, context, spread), mesh.device.sram_bytes
    regions, held = 0, inf
    for layer in range(shape.num_hidden_layers):
        for kind in shape.kinds(layer):
            regions, held = (regions, held + sizes[kind]) if held + sizes[kind] <= limit else (regions + 1, sizes[kind])
    room = device_regions(mesh, inference.layout_of(program))
    return max(sizes.values()) > limit or regions > room


def _least_bytes(mesh: Mesh, shape: DecoderShape, context: int, spread: bool) -> dict[str, float]:
    """Return a lower bound of a core's resident bytes by kind of block.

    All is cut evenly; on a square mesh, where no phase is folded, matrices are padded to whole tiles instead.
    """
    count, side = shape.decode_elements(0), mesh.shape[0]
    cache = (shape.decode_elements(context)["attention"] - count["attention"]) / mesh.cores
    least = {kind: number / mesh.cores for kind, number in count.items()}
    if mesh.shape == (side, side):
        d, e = -(-shape.hidden_size // side), shape.experts
        width = min(2 * (kind.query_heads + kind.kv_heads) * kind.head for kind in distinct(shape, side))
        padded = {"attention": d * width, "ffn": 3 * d * -(-shape.intermediate_size // side)}
        if e is not None:
            padded["experts"] = 3 * d * e.tiles * -(-e.width // side) if spread else 0
        least = {kind: max(number, padded[kind]) for kind, number in least.items()}
    least["attention"] += cache
    return {kind: number * BYTES[shape.weights or "fp16"] for kind, number in least.items()}


def least_cycles(block: Block, tokens: int, c: Constants, spread: bool) -> float:
    """Return a lower bound of the cycles of prefill's layers for `tokens` tokens a row, at once or in chunks.

    The bound is the cycles of the products. The tokens of a chunk attend to tokens up to their own chunk alone, at
    least half of all pairs. Experts count if each is `spread` over the whole mesh; if a chunk gives some experts no
    token, they count once for the tokens of all chunks. The bound of sub-layers of the user's own is 0.
    """
    if block.shape.variant is not None:
        return 0.0
    products, count = products_by_kind(block, tokens), block.shape.num_hidden_layers
    times = block.shape.layers_of | {"pairs": count / 2, "out": count}
    if "experts" in products:
        few = [replace(product, m=max(1, product.m - 1)) for product in products["experts"]]
        products["experts"] = few if spread else []
    return block.mesh.shape[0] * sum(sum_cycles(each, c) * times[kind] for kind, each in products.items())


def least_prefill(
    mesh: Mesh, shape: DecoderShape, tokens: int, c: Constants, program: str, head_groups: int | None, experts: Experts
) -> float:
    """Return a lower bound of `prefill_on` on a whole mesh, in seconds, whether the device holds the model or not.

    Raises MeshError for head groups that do not fit.
    """
    whole = layers.prefill_block(shape, mesh, c, program)
    rows, spread = -(-tokens // whole.mesh.shape[0]), experts == "spread"
    blocks = prefill.head_group_blocks(whole, head_groups)
    return min(least_cycles(block, rows, c, spread) for block in blocks) / mesh.device.clock_hz


def least_token(
    mesh: Mesh, shape: DecoderShape, context: int, c: Constants, program: str, head_groups: int | None
) -> float:  # fmt: skip
    """Return a lower bound of `decode_on` in seconds, without the ways between regions; inf if `too_small`.

    Raises SramError or FullError for a model that does not fit.
    """
    if too_small(mesh, shape, context, program):
        return inf
    block, _ = inference.decode_placed(mesh, shape, context, c, None, program, head_groups)
    layer, outer = layers.decode_steps(block, context, c), inference.ends(block, 1, c)
    cycles = layers.total(layer).cycles * shape.num_hidden_layers + sum(layers.total(end).cycles for end in outer)
    return cycles / mesh.device.clock_hz


def least_seconds(place: Placement, input: int, output: int, c: Constants, program: str = "full") -> float:
    """Return a lower bound of `request_on` in seconds: handing on is free, and moves cost their busiest link alone."""
    decode, prefill = place.decode, place.prefill
    own = inference.last_block(prefill, c, program)
    turns = priced(moves.of_layers(decode, prefill, place.prefill_regions), c).cycles
    words = sum(shift.busiest_bytes for shift in moves.shifts(place, input)) / WORD_BYTES
    cycles = turns + words * c.word_cycles + inference.decoding_cycles(decode, input, output, c, 0.0)[0]
    prefilled = inference.prefill_priced(prefill, place.at_once, own, input, c, program)
    return prefilled.seconds + cycles / decode.mesh.device.clock_hz


def may_take(place: Placement, input: int, c: Constants, least: float, limit: float) -> bool:
    """Return whether a request may take `limit` seconds or less, given its lower bound `least`.

    Moves are priced, the largest first, until the bound exceeds `limit`.
    """
    hz = place.decode.mesh.device.clock_hz
    for shift in sorted(moves.shifts(place, input), key=lambda shift: -shift.busiest_bytes):
        if least > limit:
            return False
        words = shift.busiest_bytes / WORD_BYTES
        least += (priced((shift.scheduled,), c).cycles - words * c.word_cycles) / hz
    return least <= limit
