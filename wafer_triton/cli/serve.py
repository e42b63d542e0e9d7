"""`wafer-triton serve`: many requests on one wafer, simulated over priced schedules. Every time is wafer time."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.options import DEVICE, SHAPE, WEIGHTS_DTYPE, Command, file_of, option, tell
from wafer_triton.cli.serving import (
    PLACED,
    POLICIES,
    SERVING,
    SLO,
    WORKLOAD,
    policy_of,
    slo_of,
    times_of,
    workload_of,
)
from wafer_triton.errors import ConfigError
from wafer_triton.text.progress import CHUNK_SECONDS
from wafer_triton.text.quantity import PREDICTED, Legend, unit
from wafer_triton.text.table import Table

if TYPE_CHECKING:
    from wafer_triton.serve.policies import Policy
    from wafer_triton.serve.report import Report
    from wafer_triton.serve.times import Priced
    from wafer_triton.serve.workload import Request

MANY = 10_000  # prompts and chunks of prompts of a simulation that reports its progress
MOST_CHUNKS = 10**8  # which take some hours
LONG_PROMPT = 4096  # tokens from which on prices take more than some seconds
SLACK = 0.1  # share of the arrivals' time by which the last answer may end later, before the rate is doubted


def serve(args: argparse.Namespace) -> int:
    """simulate many requests on one wafer: latencies, throughput, goodput, energy"""
    from wafer_triton.device import device as find_device
    from wafer_triton.draw.progress import Progress
    from wafer_triton.serve.report import report, write_csv
    from wafer_triton.serve.simulate import simulate

    slo = slo_of(args)
    requests = workload_of(args)
    policy = policy_of(args)
    device, chunks = find_device(args.device), prompts_and_chunks(requests, policy)
    with Progress(brief=chunks < MANY and max(one.input for one in requests) < LONG_PROMPT) as progress:
        progress.announce(chunks * CHUNK_SECONDS)
        times = times_of(args, requests, progress)
        run = simulate(requests, times, policy, progress=progress)
        found = report(run, times.pool, device, times.block.dtype, slo)
        if not args.overload:
            check_rate(requests, times, policy, found, progress)
    files, ordered = [], ""
    if args.out is not None:
        write_csv(run, args.out)
        files.append(str(args.out))
        if args.requests is not None:
            ordered = f"{args.out} numbers the requests of {args.requests} in the order of arrival, the first at 0 s"
    refused = [one.refused for one in run.served if one.refused]
    notes = [f"refused: {len(refused):,} requests; of the first: {refused[0]}"] if refused else []
    notes += [ordered] if ordered else []
    answer = asdict(found) | {"sizes": sizes(times), "policy": named(policy), "files": files, "events": run.events}
    return tell(
        args.json, answer, *texts_of(args, times, policy, found), *notes, *(f"written: {name}" for name in files)
    )


def prompts_and_chunks(requests: list[Request], policy: Policy) -> int:
    """Return the number of prompts, or of the chunks that they go in; ConfigError for more than `MOST_CHUNKS`."""
    count = sum(1 if policy.chunk is None else -(-one.input // policy.chunk) for one in requests)
    if count > MOST_CHUNKS:
        raise ConfigError(
            f"--chunk {policy.chunk}: the prompts go in {count:,} chunks, and at most {MOST_CHUNKS:,} are simulated; "
            f"give a larger --chunk, or fewer requests"
        )
    return count


def check_rate(requests: list[Request], times: Priced, policy: Policy, found: Report, progress: Any) -> None:
    """Raise ConfigError where requests come faster than they are served, with the rate that can be served."""
    from dataclasses import replace

    from wafer_triton.serve.simulate import simulate

    span = requests[-1].arrival - requests[0].arrival
    if found.seconds <= span * (1 + SLACK) or len(requests) < 2 * times.batch:
        return
    at_once = [replace(one, arrival=0.0) for one in requests]
    run = simulate(at_once, times, policy, progress=lambda _, *done: progress("requests at once", *done))
    most = found.finished / max(one.end or 0.0 for one in run.served)
    asked = (len(requests) - 1) / span if span else math.inf
    if asked > most:
        raise ConfigError(
            f"rate {asked:.3g}: requests come faster than they are served, at most {most:.3g} a second by policy "
            f"{policy.organisation.name}; lower --rate, change the policy or --batch, or give --overload"
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


def texts_of(args: argparse.Namespace, times: Priced, policy: Policy, found: Report) -> list[str | Table]:
    """Return the figures for people."""
    size, legend = sizes(times), Legend(type(found))
    head = (
        f"{times.block.shape.name} on {times.device.name}, policy {policy.organisation.name}, {PREDICTED}: prefill on "
        f"{size['prefill_regions']} x {size['prefill_mesh']} cores, decode on {size['decode_regions']} x "
        f"{size['decode_mesh']}, up to {times.batch} sequences, {size['cache_tokens']:,} tokens of cache"
        + (f", SLO {args.slo}" if args.slo is not None else "")
    )
    latencies = [{"latency": legend.label(name)} | getattr(found, name) for name in LATENCIES]
    seconds = Legend(dict.fromkeys(latencies[0], unit("s")))
    absent = (*LATENCIES, "course", *(("goodput", "good") if args.slo is None else ()))
    figures = {name: value for name, value in vars(found).items() if name not in absent}
    tables = Table(latencies, seconds), Table([figures], legend, upright=True), Table.of(found.course)
    return [head, *(text for table in tables for text in ("", table))]


LATENCIES = ("ttft", "tpot", "itl", "e2e")
COMMANDS = (
    Command(
        "serve",
        serve,
        (
            SHAPE,
            WEIGHTS_DTYPE,
            DEVICE,
            *WORKLOAD,
            option("--policy", default="shared", choices=POLICIES,
                   help="one phase after the other with re-placement, both on one mesh (default), or split columns"),
            *SERVING,
            *PLACED,
            SLO,
            option("--overload", action="store_true", help="report a rate that is too high all the same"),
            option("--out", type=file_of(".csv"), metavar="FILE.csv", help="CSV with a row for each request"),
        ),
    ),
)  # fmt: skip
