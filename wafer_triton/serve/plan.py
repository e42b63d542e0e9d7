"""The policy and sizes with the most goodput: a search that simulates organisations, cuts of the device and visits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from wafer_triton.device import Device, DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.errors import ConfigError, WaferError, check_counts
from wafer_triton.serve.course import Run
from wafer_triton.serve.load import Given, Load
from wafer_triton.serve.places import CUTS, check_weights
from wafer_triton.serve.policies import Organisation, Policy, Replacing, Shared, Split, organisation
from wafer_triton.serve.report import Slo, report
from wafer_triton.serve.simulate import simulate
from wafer_triton.serve.sizes import ranked
from wafer_triton.serve.times import Priced
from wafer_triton.serve.workload import Request, both, fixed, poisson
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.read import shape_of
from wafer_triton.text.progress import Progress, silent

BATCHES = (4, 16, 64)
PLACES = 3  # meshes of an organisation that are simulated: of all priced meshes, the three with the highest rates
VISITS = tuple(product((1, 4, 16), (8, 64, 512)))  # prompts of a visit of prefill, and turns between visits


@dataclass(frozen=True)
class Planned:
    """An organisation with its sizes, and predicted figures; `goodput` is the requests a second that keep the SLO."""

    policy: str
    goodput: float
    good: float
    ttft_p99: float
    tpot_p99: float
    batch: int
    prefill_mesh: str
    decode_mesh: str
    columns: int | None = None
    quantum: int | None = None
    turns: int | None = None


def plan(
    model: str | DecoderShape, device: DeviceLike, *, input: int, output: int, rate: float, slo: Slo, best: int = 5,
    count: int = 500, seed: int = 0, progress: Progress = silent,
) -> list[Planned]:  # fmt: skip
    """Return the `best` organisations and sizes for prompts of `input` and answers of `output` tokens.

    Requests arrive by a Poisson process; each organisation is simulated with `count` requests. The most goodput comes
    first; of equal goodput, the lower TTFT. Raises ShapeError for a rate that is not positive, and ConfigError, with
    the least latencies, if no organisation keeps the SLO for any request. Raises SramError or MeshError if no
    organisation fits the device.
    """
    check_counts(best=best)
    shape, device = shape_of(model), find_device(device)
    check_weights(shape, device)
    requests = poisson(rate, count, both(fixed(input), fixed(output)), seed)
    found, reason = list[Planned](), None
    makes = list(_places(Load(max(BATCHES), input + output, input, input, output), device))
    for done, (name, load, given) in enumerate(makes, 1):
        try:
            places = ranked(name, shape, device, load, given)
        except WaferError as error:
            reason = reason or error
        else:
            ways = _ways(name, input)
            for times in places[:PLACES]:
                own = [one for way in ways for one in _planned(requests, times, way, device, slo)]
                found += own
                ways = [_way(min(own, key=_order))]  # other meshes have the visits that are best on the first
        progress("placements", done, len(makes))
    if not found:
        assert reason is not None, "a placement is tried"
        raise reason
    found.sort(key=_order)
    if not found[0].goodput:
        fast, smooth = min(found, key=lambda one: one.ttft_p99), min(found, key=lambda one: one.tpot_p99)
        raise ConfigError(
            f"no way keeps the SLO at rate {rate:g}: the least 99th percentiles are {fast.ttft_p99:.3g} s of TTFT "
            f"(policy {fast.policy}) and {smooth.tpot_p99:.3g} s of TPOT (policy {smooth.policy}); give other bounds"
        )
    return found[:best]


def _places(load: Load, device: Device) -> Iterator[tuple[str, Load, Given]]:
    """Yield the placements to try: an organisation, its load and the sizes that are given."""
    yield "replace", load, Given()
    yield "shared", load, Given()
    for share in CUTS:
        yield "split", load, Given(columns=int(device.cols * share))


def _ways(name: str, input: int) -> list[Organisation]:
    if name == "shared":
        return [Shared(prompts * input, turns) for prompts, turns in VISITS]
    return [Split() if name == "split" else Replacing()]


def _way(one: Planned) -> Organisation:
    """Return the organisation of a planned way of serving."""
    visits = {} if one.quantum is None or one.turns is None else {"quantum": one.quantum, "turns": one.turns}
    return organisation(one.policy, **visits)


def _order(one: Planned) -> tuple[float, ...]:
    return -one.goodput, one.ttft_p99, one.tpot_p99


def _planned(
    requests: list[Request], times: Priced, way: Organisation, device: Device, slo: Slo
) -> Iterator[Planned]:  # fmt: skip
    """Yield the figures of an organisation for each batch; a batch that fits the next smaller one is left out."""
    visit = (way.quantum, way.turns) if isinstance(way, Shared) else (None, None)
    run: Run | None = None
    for batch in sorted(BATCHES, reverse=True):
        if run is None or run.peak_batch >= batch:
            times.batch = batch
            run = simulate(requests, times, Policy(way))
        smaller = max((size for size in BATCHES if size < batch), default=0)
        if run.peak_batch < smaller:  # the smaller batch has the same figures
            continue
        found = report(run, times.pool, device, times.block.dtype, slo)
        yield Planned(
            way.name, found.goodput, found.good, found.ttft["p99"], found.tpot["p99"], batch,
            str(times.place.prefill.mesh), str(times.block.mesh), times.right, *visit,
        )  # fmt: skip
