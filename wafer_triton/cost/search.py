"""Search for the best meshes and groups for a request: both phases on every side, then the best pairs of sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

from wafer_triton import estimate
from wafer_triton.cost import inference
from wafer_triton.cost.cap import Cap, sparse
from wafer_triton.cost.constants import constants
from wafer_triton.cost.placement import ExpertPlacement, checked
from wafer_triton.cost.price import best_groups
from wafer_triton.cost.results import Layered, RequestCost
from wafer_triton.decoder.heads import HeadGroups
from wafer_triton.device import Device, DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.device.dtype import DtypeLike
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import MeshError, ShapeError, WaferError, check_counts
from wafer_triton.shape.read import Model, shape_of
from wafer_triton.text.progress import Progress, silent
from wafer_triton.text.quantity import PREDICTED, unit
from wafer_triton.text.table import Result, Results, Table

T = TypeVar("T")
MOST = 3  # pairs of meshes that are placed and priced for each plan,
LEAST = 15  # and at least: one plan is the first of five


@dataclass(frozen=True, repr=False)
class Plan(Result):
    """A choice of square meshes, by their sides, and of groups for a request, with their predictions.

    `groups` is for the K-trees' first level, `head_groups` for the heads on the columns in decode, in which the cache
    holds `kv_tokens`: a request keeps its head groups. `constants`, `error_band` and `outside` are the request's (see
    `wafer_triton.cost.results`). `experts` is the placement of a mixture's experts in prefill; in decode each lies over
    the whole mesh. `s_mbu` is of decode for one sequence, and `s_mbu_in_regions` its highest possible value with every
    expert in a region of its own.
    """

    main = (
        "prefill_mesh", "decode_mesh", "tokens_per_second", "prefill_seconds", "decode_seconds", "kv_tokens",
        "error_band",
    )  # fmt: skip
    units_of = (Layered, RequestCost, Cap)

    prefill_mesh: int = field(metadata=unit("side"))
    decode_mesh: int = field(metadata=unit("side"))
    groups: int = field(metadata=unit("groups"))
    head_groups: int
    regions: int
    tokens_per_second: float
    prefill_seconds: float
    decode_seconds: float
    kv_tokens: int = field(metadata=unit("tokens", "KV cache"))
    constants: str
    error_band: float | None
    outside: str | None
    experts: str | None = None
    s_mbu: float | None = None
    s_mbu_in_regions: float | None = field(default=None, metadata=unit("%", "at most, in regions"))
    layout: str | None = None


def plan(
    *, model: Model, device: DeviceLike = "wse2", input: int, output: int, step: int = 20, best: int = 5,
    sides: Sequence[int] | None = None, head_groups: int | None = None,
    experts: ExpertPlacement = None, dtype: DtypeLike | None = None, progress: Progress = silent,
) -> Results[Plan]:  # fmt: skip
    """Return the `best` fastest plans for a request, best first, on square meshes of `sides` (None: all of `step`).

    Both phases are priced alone on every side. The `MOST` times `best` pairs of meshes whose phases take the least
    time, and at least `LEAST`, are then priced as whole requests, and as many pairs of equal meshes, between which
    weights move least. The fastest are the plans; of unequal meshes one with a shorter re-placement may be missed.

    A plan holds the embedding, all layers, the head and the whole cache in the SRAM of the device's regions. It has
    `head_groups`, or the best (None). `experts` is the placement of a mixture's experts in prefill (None: the faster).
    `dtype` is as in `estimate.decode`. Reports "meshes of prefill" and "meshes of decode" to `progress`.

    Raises SramError or MeshError, with the last mesh's reason, when there is no plan, ShapeError for a size that is not
    a positive whole number.
    """
    target, shape = find_device(device), shape_of(model, dtype)
    input, output, step, best = check_counts(input=input, output=output, step=step, best=best)
    if sides is not None:
        sides = check_counts(**{f"side {number}": side for number, side in enumerate(sides, 1)})
    if sides == ():
        raise ShapeError("sides is empty; give a side at least, or leave it out for all multiples of step")
    sides = range(step, min(target.rows, target.cols) + 1, step) if sides is None else tuple(dict.fromkeys(sides))
    if head_groups is not None and sides:
        HeadGroups(shape, max(sides), head_groups)  # checks
    checked(experts, shape)
    c = constants(target)

    def mesh(side: int) -> Mesh:
        return Mesh(side, side, target)

    def prefill(side: int) -> float:
        """Return the seconds of prefill alone."""
        return inference.prefill_on(mesh(side), shape, input, c, head_groups=head_groups, experts=experts).seconds

    def token(side: int) -> tuple[float, float]:
        """Return the seconds of an answer's fastest and slowest token, with the head groups that its last one takes."""
        late = inference.decode_on(mesh(side), shape, input + output, c, head_groups=head_groups)
        early = inference.decode_on(mesh(side), shape, input + 1, c, head_groups=late.head_groups)
        return min(early.seconds, late.seconds), max(early.seconds, late.seconds)

    def request(first: int, side: int) -> RequestCost:
        place = inference.request_placed(
            mesh(first), mesh(side), shape, input, output, c, head_groups=head_groups, experts=experts
        )
        return inference.request_on(place, input, output, c)

    prefills = _each(sides, prefill, "prefill", target, step, progress)
    decodes = _each(sides, token, "decode", target, step, progress)

    def seconds(pair: tuple[int, int]) -> tuple[float, float]:
        """Return the seconds of a request; where its answer is one token, a token of decode breaks the tie."""
        first, side = pair
        fast, _ = decodes[side]
        return prefills[first] + inference.answer_steps(output) * fast, fast

    pairs = sorted(product(prefills, decodes), key=seconds)
    equal, tried = [(first, side) for first, side in pairs if first == side], max(LEAST, MOST * best)
    plans = [
        Plan(
            first, side, (best_groups(side, c.of("decode")) or (1,))[0], cost.head_groups, cost.decode_regions,
            cost.tokens_per_second, cost.prefill_seconds, cost.decode_seconds,
            estimate.kv(device=target, model=shape, mesh=mesh(side), head_groups=cost.head_groups).shift_tokens,
            cost.constants, cost.error_band, cost.outside, cost.experts,
            *sparse(shape, target, decodes[side][1], input + output), cost.layout,
        )
        for first, side, cost in _fastest(list(dict.fromkeys([*pairs[:tried], *equal[:tried]])), request, target)[:best]
    ]  # fmt: skip
    return Results(plans, Table.of(plans, *Plan.main, title=f"Plans, {PREDICTED}"))


def _each(
    sides: Sequence[int], price: Callable[[int], T], phase: str, device: Device, step: int, progress: Progress
) -> dict[int, T]:
    """Return the price of a phase on each square mesh that holds it; raise the last mesh's error if none does."""
    if not sides:
        raise MeshError(f"no mesh of {device.name} was tried: its sides have no multiple of {step}; give another step")
    found, last = dict[int, T](), None
    for number, side in enumerate(sides, 1):
        try:
            found[side] = price(side)
        except WaferError as error:
            last = error
        progress(f"meshes of {phase}", number, len(sides))
    if last is not None and not found:
        raise type(last)(
            f"no mesh that was tried on {device.name} holds {phase}; of the last: {last.message}; take fewer tokens or "
            f"layers, dtype int8 or fp8, another step or a larger device"
        )
    return found


def _fastest(
    pairs: Sequence[tuple[int, int]], price: Callable[[int, int], RequestCost], device: Device
) -> list[tuple[int, int, RequestCost]]:  # fmt: skip
    """Price a request on each pair of meshes; return those that hold both phases, the fastest first.

    If no pair does, raises MeshError, which says why the last one does not.
    """
    found, reason = list[tuple[int, int, RequestCost]](), None
    for first, side in pairs:
        try:
            found.append((first, side, price(first, side)))
        except WaferError as error:  # each phase fits alone
            reason = error
    if not found:
        assert reason is not None, "a pair is tried"
        raise MeshError(
            f"no two meshes that were tried on {device.name} hold both phases; of the last: {reason.message}; "
            f"give shorter prompts and answers, or a larger device"
        )
    return sorted(found, key=lambda one: -one[2].tokens_per_second)
