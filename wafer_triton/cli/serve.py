"""`wafer-triton serve`: many requests on one wafer, simulated over priced schedules. Every time is wafer time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.answer import tell
from wafer_triton.cli.app import given, made, need, refuse
from wafer_triton.errors import ConfigError
from wafer_triton.text.quantity import PREDICTED, Legend, digits, quantity, unit
from wafer_triton.text.table import Table

if TYPE_CHECKING:
    from wafer_triton.serve.load import Load
    from wafer_triton.serve.policies import Policy
    from wafer_triton.serve.report import Report
    from wafer_triton.serve.times import Priced
    from wafer_triton.serve.workload import Request

DEFAULT_COUNT = 1000  # requests at a rate
MANY = 10_000  # prompts and chunks of prompts of a simulation that reports its progress
MOST_CHUNKS = 10**8  # which take some hours
LONG_PROMPT = 4096  # tokens from which on prices take more than some seconds
SLACK = 0.1  # share of the arrivals' time by which the last answer may end later, before the rate is doubted


def _serve(
    *, model: str, dtype: str | None = None, device: str = "wse2", requests: Path | None = None,
    rate: float | None = None, input: str | None = None, output: str | None = None,
    count: int | None = None, seed: int = 0, policy: str = "shared", chunk: int | None = None,
    quantum: int | None = None, turns: int | None = None, batch: int = 32, at_once: int = 1,
    context: int | None = None, caches: int | None = None, prefill_mesh: str | None = None,
    decode_mesh: str | None = None, columns: int | None = None, experts: str | None = None, slo: str | None = None,
    find_rate: bool = False, overload: bool = False, out: Sequence[Path] = (), json: bool = False,
) -> int:  # fmt: skip
    from wafer_triton.device import device as find_device
    from wafer_triton.draw.progress import Progress
    from wafer_triton.serve.load import Given
    from wafer_triton.serve.policies import Policy, organisation
    from wafer_triton.serve.report import Slo, report, write_csv
    from wafer_triton.serve.simulate import simulate
    from wafer_triton.serve.sizes import priced
    from wafer_triton.shape.read import shape_of

    visits = given(quantum=quantum, turns=turns)
    limits = Slo() if slo is None else Slo.of(slo)
    if find_rate:
        refuse("a rate is searched by --find-rate; leave it out", rate=rate, overload=overload, out=out)
        need("--find-rate", slo=slo)

    at = _requests(requests, input, output, count, seed)
    workload = at(1.0 if find_rate else rate)
    if policy != "shared":
        refuse("says when a shared mesh changes its phase: give --policy shared", **visits)
    scheduling = Policy(organisation(policy, **visits), chunk)
    chip, chunks = find_device(device), prompts_and_chunks(workload, scheduling)
    with Progress(brief=chunks < MANY and max(one.input for one in workload) < LONG_PROMPT) as progress:
        load = _load(workload, context, batch, at_once)
        placed = Given(prefill_mesh, decode_mesh, columns, caches, experts)
        times = priced(policy, shape_of(model, dtype), chip, load, placed, progress)
        if find_rate:
            return _tell_rate(json, slo, at, times, scheduling, limits, seed, progress)
        run = simulate(workload, times, scheduling, progress=progress)
        found = report(run, times.pool, chip, times.block.dtype, limits)
        if not overload:
            check_rate(workload, times, scheduling, found, progress, rate)
    refused = [one.refused for one in run.served if one.refused]
    notes = [f"refused: {len(refused):,} requests; of the first: {refused[0]}"] if refused else []
    for file in out:
        write_csv(run, file)
        if requests is not None:
            notes.append(f"{file} numbers the requests of {requests} in the order of arrival, the first at 0 s")
    notes += [f"written: {file}" for file in out]
    files = list(map(str, out))
    answer = asdict(found) | {"sizes": sizes(times), "policy": named(scheduling), "files": files, "events": run.events}
    return tell(json, answer, *texts_of(slo, times, scheduling, found), *notes)


serve = made(
    _serve,
    written={"out": (".csv",)},
    words={
        "prefill_mesh": (str, "rows x columns of prefill, 48x64, or 64 for 64x64 (default: the best)"),
        "decode_mesh": (str, "rows x columns of decode, 48x64, or 64 for 64x64 (default: the best)"),
        "input": (str, "tokens of the prompt, or 64:1024, at random between them"),
        "output": (str, "tokens of the answer, or 64:1024, at random between them"),
        "batch": (int, "sequences of a step, at most"),
        "at_once": (int, "sequences of a group, which follow one another through the regions"),
        "context": (int, "tokens in a sequence's cache, at most (default: of the longest request)"),
    },
)


def _requests(
    trace: Path | None, input: str | None, output: str | None, count: int | None, seed: int
) -> Callable[[float | None], list[Request]]:  # fmt: skip
    """Return the requests at a rate, None for a trace's own; ConfigError for options that do not go together."""
    from wafer_triton.serve import workload
    from wafer_triton.serve.traces import read_trace

    if trace is None:
        if input is None or output is None:
            raise ConfigError("give --requests FILE, or lengths by --input and --output")
        lengths = workload.both(workload.length_of(input), workload.length_of(output))

        def drawn(rate: float | None) -> list[Request]:
            if rate is None:
                raise ConfigError("give --rate, at which requests arrive, or --requests FILE")
            return workload.poisson(rate, count or DEFAULT_COUNT, lengths, seed)

        return drawn
    refuse("a trace has lengths and arrivals; leave it out beside --requests", input=input, output=output)
    requests = read_trace(trace)
    if count is not None and count > len(requests):
        raise ConfigError(f"--count {count:,}: the trace has {len(requests):,} requests; give no more")
    requests = requests[:count]
    return lambda rate: requests if rate is None else workload.rescaled(requests, rate)


def _load(requests: list[Request], context: int | None, batch: int, at_once: int) -> Load:
    """Return the sizes of requests; of `context` the given one, else that of the longest."""
    from wafer_triton.serve.load import Load

    if at_once > batch:
        raise ConfigError(f"--at-once {at_once}: a group has no more sequences than --batch {batch}; give fewer")
    context = context or max(request.input + request.output for request in requests)
    mean = [sum(getattr(request, name) for request in requests) / len(requests) for name in ("input", "output")]
    return Load(batch, context, min(context, math.ceil(mean[0])), math.ceil(mean[1]), at_once)


def prompts_and_chunks(requests: list[Request], policy: Policy) -> int:
    """Return the number of prompts, or of the chunks that they go in; ConfigError for more than `MOST_CHUNKS`."""
    count = sum(1 if policy.chunk is None else -(-one.input // policy.chunk) for one in requests)
    if count > MOST_CHUNKS:
        raise ConfigError(
            f"--chunk {policy.chunk}: the prompts go in {count:,} chunks, and at most {MOST_CHUNKS:,} are simulated; "
            f"give a larger --chunk, or fewer requests"
        )
    return count


def check_rate(
    requests: list[Request], times: Priced, policy: Policy, found: Report, progress: Any, rate: float | None
) -> None:
    """Raise ConfigError where requests come faster than they are served, with the rate that can be served.

    The error names the `rate` that was given (None: of a trace as it is).
    """
    from wafer_triton.serve.rates import most_served

    span = requests[-1].arrival - requests[0].arrival
    if found.seconds <= span * (1 + SLACK) or len(requests) < 2 * times.batch:
        return
    most = most_served(requests, times, policy, lambda _, *done: progress("requests at once", *done))
    asked = (len(requests) - 1) / span if span else math.inf
    if asked > most:
        raise ConfigError(
            f"rate {digits(rate or asked)}: requests come faster than they are served, at most {digits(most)} a second "
            f"by policy {policy.organisation.name}; lower --rate, change the policy or --batch, or give --overload"
        )


def sizes(times: Priced) -> dict[str, Any]:
    """Return the sizes of a placement."""
    return {
        "prefill_mesh": str(times.place.prefill.mesh),
        "prefill_regions": len(times.prefill_regions),
        "decode_mesh": str(times.block.mesh),
        "decode_regions": len(times.regions),
        "columns": times.right,
        "batch": times.batch,
        "at_once": times.at_once,
        "caches": times.block.batch,
        "cache_tokens": times.pool * times.rows,
    }


def named(policy: Policy) -> dict[str, Any]:
    """Return a policy as plain values."""
    return {"organisation": policy.organisation.name, "chunk": policy.chunk} | asdict(policy.organisation)


def _tell_rate(
    json: bool, slo: str | None, at: Callable[[float], list[Request]], times: Priced, policy: Policy, limits: Any,
    seed: int, progress: Any,
) -> int:  # fmt: skip
    """Search the highest rate that keeps an SLO; print it, its neighbours and what limits it."""
    from wafer_triton.serve.rates import NEAR, SHARE, highest_rate

    rate, limit, tried = highest_rate(at, times, policy, limits, progress)
    place = [one.rate for one in tried].index(rate)
    near = Table.of(tried[max(0, place - 2) : place + 3])
    said = (
        f"served: {digits(rate)} requests a second, limited by {limit}; {quantity(SHARE, '%')} of {len(at(rate)):,} "
        f"requests or more keep the SLO, by arrivals of seed {seed}; within {quantity(NEAR, '%')}"
    )
    answer = {"rate": rate, "limit": limit, "tried": Table.of(tried), "seed": seed}
    return tell(json, answer | {"sizes": sizes(times), "policy": named(policy)}, _head(slo, times, policy), near, said)


def texts_of(slo: str | None, times: Priced, policy: Policy, found: Report) -> list[str | Table]:
    """Return the figures for people."""
    legend = Legend(type(found))
    latencies = [{"latency": legend.label(name)} | getattr(found, name) for name in LATENCIES]
    seconds = Legend(dict.fromkeys(latencies[0], unit("s")))
    absent = (*LATENCIES, "course", *(("goodput", "good") if slo is None else ()))
    figures = {name: value for name, value in vars(found).items() if name not in absent}
    tables = Table(latencies, seconds), Table([figures], legend, upright=True), Table.of(found.course)
    return [_head(slo, times, policy), *(text for table in tables for text in ("", table))]


def _head(slo: str | None, times: Priced, policy: Policy) -> str:
    """Return the sentence on what is simulated."""
    size = sizes(times)
    return (
        f"{times.block.shape.name} on {times.device.name}, policy {policy.organisation.name}, {PREDICTED}: prefill on "
        f"{size['prefill_regions']} x {size['prefill_mesh']} cores, decode on {size['decode_regions']} x "
        f"{size['decode_mesh']}, up to {times.batch} sequences, {size['cache_tokens']:,} tokens of cache"
        + (f", SLO {slo}" if slo is not None else "")
    )


LATENCIES = ("ttft", "tpot", "itl", "e2e")
