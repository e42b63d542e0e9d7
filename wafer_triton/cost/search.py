"""Search for the best meshes and groups for a request.

Meshes, and pairs of meshes, have a lower bound of their time. They are tried in the order of these bounds, until the
next one exceeds the best time. The result equals the result of a search that tries all.
"""

from __future__ import annotations

import gc
from bisect import insort
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from math import inf

from wafer_triton import estimate
from wafer_triton.cost import inference
from wafer_triton.cost.bounds import Tried, least_prefill, least_seconds, least_token, may_take, too_small
from wafer_triton.cost.cap import Cap, sparse
from wafer_triton.cost.constants import Constants, constants
from wafer_triton.cost.layers import is_paper_benchmark
from wafer_triton.cost.placement import Placement, checked
from wafer_triton.cost.price import best_groups
from wafer_triton.cost.results import Layered, RequestCost
from wafer_triton.device import Device, DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import MeshError, ShapeError, WaferError, check_counts
from wafer_triton.place.regions import Placement as Placed
from wafer_triton.schedule.heads import HeadGroups
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.read import Model, shape_of
from wafer_triton.text.progress import Progress, silent
from wafer_triton.text.quantity import as_in, unit

MOST = 3  # the most pairs of meshes, by least bound, that are placed and priced for each plan
FASTEST = 2  # meshes on which the experts of a mixture are tried in regions, too


@dataclass(frozen=True)
class Plan:
    """A choice of square meshes, by their sides, and of groups for a request, with their predictions.

    `groups` is for the K-trees' first level, `head_groups` for the heads on the columns in decode, in which the cache
    holds `kv_tokens`: a request keeps its head groups. `constants`, `error_band` and `outside` are the request's (see
    `wafer_triton.cost.results`). `experts` is the placement of a mixture's experts in prefill; in decode each lies over
    the whole mesh. `s_mbu` is of decode for one sequence, and `s_mbu_in_regions` its highest possible value with every
    expert in a region of its own.
    """

    prefill_mesh: int = field(metadata=unit("side"))
    decode_mesh: int = field(metadata=unit("side"))
    groups: int = field(metadata=unit("groups"))
    head_groups: int = field(metadata=as_in(Layered, "head_groups"))
    regions: int = field(metadata=as_in(Layered, "regions"))
    tokens_per_second: float = field(metadata=as_in(RequestCost, "tokens_per_second"))
    prefill_seconds: float = field(metadata=as_in(RequestCost, "prefill_seconds"))
    decode_seconds: float = field(metadata=as_in(RequestCost, "decode_seconds"))
    kv_tokens: int = field(metadata=unit("tokens", "KV cache"))
    constants: str
    error_band: float | None = field(metadata=as_in(Layered, "error_band"))
    outside: str | None = field(metadata=as_in(Layered, "outside"))
    experts: str | None = field(default=None, metadata=as_in(Layered, "experts"))
    s_mbu: float | None = field(default=None, metadata=as_in(Cap, "s_mbu"))
    s_mbu_in_regions: float | None = field(default=None, metadata=unit("%", "at most, in regions"))
    layout: str | None = None


@contextmanager
def without_collection() -> Iterator[None]:
    """Switch the collector of reference cycles off, as it walks all objects that pricing keeps.

    It would take two fifths of a plan's time, and a plan makes only some thousand cycles. All objects then count as
    old, or the first collection afterwards would walk them.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            if not gc.get_freeze_count():  # a caller's own frozen objects stay frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@without_collection()
def plan(
    *, model: Model, device: DeviceLike = "wse2", input: int, output: int, step: int = 20, best: int = 5,
    sides: Sequence[int] | None = None, program: str = "full", head_groups: int | None = None,
    experts: Placement = None, dtype: str | None = None, progress: Progress = silent,
) -> list[Plan]:  # fmt: skip
    """Return the `best` fastest plans for a request, best first, on square meshes of `sides` (None: all of `step`).

    They are the fastest of `MOST` times as many pairs of meshes: the pairs whose phases alone take the least time.

    A plan holds the embedding, all layers, the head and the whole cache in the SRAM of the device's regions. It has
    `head_groups`, or the best (None). `experts` is the placement of a mixture's experts in prefill; None compares both
    placements on the meshes that are the fastest with each expert over the whole mesh. `dtype` is as in
    `estimate.decode`. Reports "meshes of prefill" and "meshes of decode" to `progress`.

    Raises SramError or MeshError, with the last mesh's reason, when there is no plan, ShapeError for a size that is not
    a positive whole number.
    """
    target, shape = find_device(device), shape_of(model, dtype)
    input, output, step, best = check_counts(input=input, output=output, step=step, best=best)
    if sides is not None:
        sides = check_counts(**{f"side {number}": side for number, side in enumerate(sides, 1)})
    if sides == ():
        raise ShapeError("sides is empty; give a side at least, or leave it out for all multiples of step")
    sides = range(step, min(target.rows, target.cols) + 1, step) if sides is None else sides
    if head_groups is not None and sides:
        HeadGroups(shape.paper_benchmark() if is_paper_benchmark(program) else shape, max(sides), head_groups)  # checks
    checked(experts, shape)
    asked = _Asked(shape, target, input, output, constants(target), program, head_groups)
    both = shape.experts is not None and experts is None
    way: Placement = "spread" if both else experts
    decodes = Tried(sides, asked.tokens, asked.least_decode, partial(progress, "meshes of decode"))
    decodes.until(lambda bound: decodes.has(2 * best, bound))
    prefills = Tried(
        sides, partial(asked.prefill, way=way), partial(asked.least_prefill, way=way),
        partial(progress, "meshes of prefill"),
    )  # fmt: skip
    if both:
        prefills.until(lambda bound: prefills.has(FASTEST, bound))
        for side, spread in prefills.fastest(FASTEST):
            with suppress(WaferError):
                prefills.found[side] = min(spread, asked.prefill(side, "regions"), key=lambda made: made.seconds)
    after = decodes.fastest(2 * best)

    def pairs() -> list[tuple[float, int, int]]:
        """Return the pairs to place so far, each after the lower bound of a request on it in seconds."""
        found = list[tuple[float, int, int]]()
        for first, prefill in prefills.fastest(2 * best):
            if len(found) >= count and prefill.seconds + least_answer > found[count - 1][0]:
                break
            begin = prefill.seconds + turning(first, prefill.experts)
            for side, tokens in after:
                insort(found, (begin + output * tokens.fast, first, side), key=lambda pair: pair[0])
        return found[:count]

    def enough(bound: float) -> bool:
        return not after or (len(found := pairs()) == count and bound + least_answer > found[-1][0])

    turning = cache(asked.turning)
    count, least_answer = MOST * best, output * min((tokens.fast for _, tokens in after), default=0.0)
    prefills.until(enough)
    if not prefills.found or not decodes.found:
        last = prefills.reason or decodes.reason
        if last is None:
            raise MeshError(
                f"no mesh of {target.name} was tried: its sides have no multiple of {step}; give another step"
            )
        phase = "decode" if prefills.found else "prefill"
        said = f"no mesh that was tried on {target.name} holds {phase}; of the last: {last}"
        raise type(last)(said)
    chosen = asked.best(best, [(first, side, prefills.found[first].experts) for _, first, side in pairs()])
    decoding, capacity = asked.c.of("decode"), cache(asked.capacity)
    return [
        Plan(
            first, side, (best_groups(side, decoding) or (1,))[0], request.head_groups, request.decode_regions,
            request.tokens_per_second, request.prefill_seconds, request.decode_seconds,
            capacity(side, request.head_groups), request.constants, request.error_band, request.outside,
            request.experts, *sparse(shape, target, decodes.found[side].seconds, input + output), request.layout,
        )
        for first, side, request in chosen
    ]  # fmt: skip


@dataclass(frozen=True)
class _Prefilled:
    """The seconds of prefill, with the placement of a mixture's experts."""

    seconds: float
    experts: Placement


@dataclass(frozen=True)
class _Tokens:
    """The seconds of the slowest and of the fastest token of an answer."""

    seconds: float
    fast: float


@dataclass(frozen=True)
class _Asked:
    """A request to a model on a device, predicted on square meshes."""

    shape: DecoderShape
    device: Device
    input: int
    output: int
    c: Constants
    program: str
    head_groups: int | None

    def mesh(self, side: int) -> Mesh:
        """Return a square mesh."""
        return Mesh(side, side, self.device)

    @property
    def whole(self) -> tuple[int, Constants, str, int | None]:
        """The arguments of an estimate of prefill after the mesh and the shape."""
        return self.input, self.c, self.program, self.head_groups

    def prefill(self, side: int, way: Placement) -> _Prefilled:
        """Estimate prefill alone."""
        made = inference.prefill_on(self.mesh(side), self.shape, *self.whole, experts=way)
        return _Prefilled(made.seconds, way)

    def least_prefill(self, side: int, way: Placement) -> float:
        """Return a lower bound of prefill in seconds, inf on a mesh that cannot hold the model."""
        if too_small(self.mesh(side), self.shape, self.input, self.program, way == "spread"):
            return inf
        return least_prefill(self.mesh(side), self.shape, *self.whole, way)

    def turning(self, side: int, way: Placement) -> float:
        """Return seconds of transposing and skewing the weights of prefill."""
        placed, _ = inference.prefill_placed(self.mesh(side), self.shape, *self.whole, way)
        return inference.turning_cycles(placed, self.c) / self.device.clock_hz

    def tokens(self, side: int) -> _Tokens:
        """Estimate the first and the last token of the answer, with the head groups that are best for the last."""
        mesh, last = self.mesh(side), self.input + self.output
        late = inference.decode_on(mesh, self.shape, last, self.c, None, self.program, self.head_groups)
        early = inference.decode_on(
            mesh, self.shape, self.input + 1, self.c, program=self.program, head_groups=late.head_groups
        )
        return _Tokens(*sorted((early.seconds, late.seconds))[::-1])

    def least_decode(self, side: int) -> float:
        """Return a lower bound of the last token in seconds, inf on a mesh that cannot hold the model."""
        last = self.input + self.output
        return least_token(self.mesh(side), self.shape, last, self.c, self.program, self.head_groups)

    def best(
        self, count: int, pairs: Sequence[tuple[int, int, Placement]]
    ) -> list[tuple[int, int, estimate.RequestCost]]:
        """Return the fastest requests of pairs of meshes, the fastest first.

        Raises MeshError, with the last pair's reason, if no pair holds both phases.
        """
        errors, places = dict[int, WaferError](), list[tuple[float, int, Placed]]()
        found = list[tuple[float, int, estimate.RequestCost]]()
        for number, (first, side, way) in enumerate(pairs):
            asked = self.mesh(first), self.mesh(side), self.shape, self.input, self.output, self.c
            try:
                place = inference.request_placed(*asked, None, self.program, self.head_groups, way)
                places.append((least_seconds(place, *asked[3:], self.program), number, place))
            except WaferError as error:  # each phase fits alone
                errors[number] = error
        for least, number, place in sorted(places, key=lambda one: one[0]):
            limit = found[count - 1][2].seconds if len(found) >= count else inf
            if least > limit:
                break
            try:
                if not may_take(place, self.input, self.c, least, limit):
                    continue
                request = inference.request_on(place, self.input, self.output, self.c, self.program)
                insort(found, (-request.tokens_per_second, number, request), key=lambda one: one[:2])
            except WaferError as error:
                errors[number] = error
        if not found:
            reason = errors[max(errors)]
            raise MeshError(
                f"no two meshes that were tried on {self.device.name} hold both phases; of the last: {reason}; give "
                f"shorter prompts and answers, or a larger device"
            )
        return [(*pairs[number][:2], request) for _, number, request in found[:count]]

    def capacity(self, side: int, head_groups: int) -> int:
        """Return tokens of the KV cache in decode."""
        return estimate.kv(
            device=self.device, model=self.shape, mesh=self.mesh(side), program=self.program, head_groups=head_groups
        ).shift_tokens
