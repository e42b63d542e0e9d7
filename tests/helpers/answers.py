"""The answers of a run, an estimate and a plan on where a model lies."""

from collections.abc import Callable
from typing import NamedTuple

from wafer_triton import estimate
from wafer_triton.cost import search
from wafer_triton.device import device
from wafer_triton.device.mesh import as_mesh
from wafer_triton.errors import WaferError
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.options import PlaceOptions
from wafer_triton.models.place import choice
from wafer_triton.models.random import config_of
from wafer_triton.place.regions import Placement


class Case(NamedTuple):
    """A request to place: a model, a chip, the meshes of both phases, and a context whose first half is the prompt."""

    model: str
    chip: str
    decode: str
    prefill: str
    context: int


def answer(place: Callable[[], Placement]) -> object:
    """Return the facts of a placement on which all must agree, or the reason why there is none."""
    try:
        found = place()
    except WaferError as error:
        return str(error)
    alike = [
        (found.decode.head_groups, found.prefill.head_groups, found.chunk_tokens, found.layout, len(found.regions))
    ]
    regions = (found.regions, found.prefill_regions)
    return alike + [(region.mesh, region.blocks, region.sram_by_buffer) for each in regions for region in each]


def run_place(config: DecoderConfig, case: Case) -> Placement:
    """Return the place that `generate` finds, for a prompt of half the context."""
    options = PlaceOptions(
        mesh=case.decode, device=case.chip, dtype="fp16", accumulate="fp16", max_length=case.context,
        max_prompt=case.context // 2, prefill_mesh=case.prefill, experts=experts_of(config),
    )  # fmt: skip
    return choice.place(config, options)


def request_of(config: DecoderConfig, case: Case) -> dict[str, object]:
    """Return the arguments of an estimate of a request."""
    prompt = case.context // 2
    return {
        "device": case.chip, "model": config, "prefill_mesh": case.prefill, "decode_mesh": case.decode,
        "input": prompt, "output": case.context - prompt, "experts": experts_of(config),
    }  # fmt: skip


def experts_of(config: DecoderConfig) -> str | None:
    return "spread" if config.experts else None


def difference(case: Case) -> str | None:
    """Return the difference between the answers of a run and of an estimate, or None."""
    config = config_of(case.model)
    run = answer(lambda: run_place(config, case))
    estimated = answer(lambda: estimate.request_place(**request_of(config, case)))
    if run == estimated:
        return None
    said = [each if isinstance(each, str) else f"{each[0]}, {len(each) - 1} regions" for each in (run, estimated)]
    return f"{case}: a run {said[0]!r}, an estimate {said[1]!r}"


def planned(case: Case) -> str | None:
    """Return the difference between a plan on the square mesh of decode and a request, or None."""
    config = config_of(case.model)
    side = as_mesh(case.decode, device(case.chip)).rows
    request = request_of(config, case._replace(prefill=case.decode))
    asked = {name: request[name] for name in ("device", "model", "input", "output", "experts")}
    try:
        (best,) = search.plan(**asked, sides=(side,), best=1)
        plan = str((best.regions, best.layout, best.head_groups))
    except WaferError:
        plan = "refused"
    try:
        found = estimate.request_place(**request)
        place = str((len(found.regions), found.layout, found.decode.head_groups))
    except WaferError:
        place = "refused"
    return None if plan == place else f"{case}: a plan {plan}, a request {place}"
