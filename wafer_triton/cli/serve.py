"""`wafer-triton serve`: many requests on one wafer, simulated over priced schedules. Every time is wafer time."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.options import DEVICE, SHAPE, WEIGHTS_DTYPE, Command, file_of, option, path, tell
from wafer_triton.cli.serving import (
    PLACED,
    POLICIES,
    SERVING,
    SLO,
    WORKLOAD,
    policy_of,
    slo_of,
    swept,
    times_of,
    workload_of,
)
from wafer_triton.errors import ConfigError, WaferError
from wafer_triton.text.progress import CHUNK_SECONDS

if TYPE_CHECKING:
    from wafer_triton.serve.policies import Policy
    from wafer_triton.serve.report import Report
    from wafer_triton.serve.times import Priced

MANY = 10_000  # prompts and chunks of prompts of a simulation that reports its progress
MOST_CHUNKS = 10**8  # which take some hours
LONG_PROMPT = 4096  # tokens from which on prices take more than some seconds
SLACK = 0.1  # share of the arrivals' time by which the last answer may end later, before the rate is doubted


def serve(args: argparse.Namespace) -> int:
    """simulate many requests on one wafer: latencies, throughput, goodput, energy"""
    from wafer_triton.device import device as find_device
    from wafer_triton.draw.figure import check_kind
    from wafer_triton.draw.progress import Progress
    from wafer_triton.serve.report import report, write_csv
    from wafer_triton.serve.simulate import simulate

    if args.draw is not None:
        check_kind(args.draw)
    if args.sweep is not None:
        return sweep(args)
    slo = slo_of(args)
    workload = workload_of(args)
    policy = policy_of(args)
    device, chunks = find_device(args.device), prompts_and_chunks(workload, policy)
    with Progress(brief=chunks < MANY and max(prompts_of(workload)) < LONG_PROMPT) as progress:
        progress.announce(chunks * CHUNK_SECONDS)
        times = times_of(args, workload, progress)
        run = simulate(workload, times, policy, progress=progress)
        found = report(run, times.pool, device, times.block.dtype, slo)
        if not args.overload and not args.users:
            check_rate(workload, times, policy, found, progress)
    files, ordered = [], ""
    if args.out is not None:
        write_csv(run, args.out)
        files.append(str(args.out))
        if args.requests is not None:
            ordered = f"{args.out} numbers the requests of {args.requests} in the order of arrival, the first at 0 s"
    title = f"{times.block.shape.name} on {times.device.name}, policy {args.policy}"
    if args.draw is not None:
        from wafer_triton.draw import serving

        serving.run(run, times.pool, device, args.draw, title)
        files.append(str(args.draw))
    if args.trace is not None:
        from wafer_triton.draw import serving

        serving.perfetto(run, args.trace)
        files.append(str(args.trace))
    refused = [one.refused for one in run.served if one.refused]
    notes = [f"refused: {len(refused):,} requests; of the first: {refused[0]}"] if refused else []
    notes += [ordered] if ordered else []
    answer = asdict(found) | {"sizes": sizes(times), "policy": named(policy), "files": files, "events": run.events}
    return tell(args, answer, text_of(args, times, policy, found), *notes, *(f"written: {name}" for name in files))


def sweep(args: argparse.Namespace) -> int:
    """Simulate each value of --sweep, and print one row for each, or the reason why there is none."""
    from wafer_triton.compare.grid import write_csv
    from wafer_triton.draw import serving, tables
    from wafer_triton.draw.progress import Progress
    from wafer_triton.text.quantity import PREDICTED, quantity

    if args.trace is not None:
        raise ConfigError(f"--trace {args.trace}: a trace shows one run; leave out --sweep")
    name, values = swept(args)
    rows, reasons = list[dict[str, Any]](), dict[Any, WaferError]()
    placed: dict[Any, Priced] = {}
    with Progress() as progress:
        for done, value in enumerate(values, 1):
            own = argparse.Namespace(**vars(args) | {name: value})
            try:
                rows.append({name: value} | _swept_row(own, max(values) if name == "batch" else None, placed))
            except WaferError as error:
                reasons[value] = error
            progress("simulations", done, len(values))
    if not rows:
        raise reasons[values[0]]
    shown = ("requests_per_second", "goodput", "tokens_per_second", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")
    units = ("requests/s", "requests/s", "tokens/s", "s", "s", "s", "s")
    found = {row[name]: [quantity(row[each], unit) for each, unit in zip(shown, units, strict=True)] for row in rows}
    lines = [(str(value), *found.get(value, ["-"] * len(shown))) for value in values]
    times = next(iter(placed.values()))
    title = f"{times.block.shape.name} on {times.device.name}, {PREDICTED}"
    texts = [tables.table((name, *(each.replace("_", " ") for each in shown)), lines, title=title)]
    texts += [f"{name} {value}: {error}" for value, error in reasons.items()]
    files, ordered = [], name in ("rate", "users")
    if ordered:
        at = serving.knee(rows, name)
        texts.append(f"knee: the median end to end is at most twice the first up to {name} {at:g}")
    if args.draw is not None:
        (serving.latency if ordered else serving.pareto)(rows, name, args.draw, title)
        files.append(args.draw)
    masked = [{name: value, "reason": str(error)} for value, error in reasons.items()]
    if args.out is not None:
        write_csv([dict.fromkeys(rows[0], "") | {"reason": ""} | row for row in (*rows, *masked)], args.out)
        files.append(args.out)
    texts += [f"written: {each}" for each in files]
    return tell(args, {"rows": rows, "failed": masked, "files": [str(each) for each in files]}, *texts)


def _swept_row(args: argparse.Namespace, batch: int | None, placed: dict[Any, Priced]) -> dict[str, Any]:
    """Return the figures of one value; a place is kept for all values that share it, with slots for `batch`."""
    from wafer_triton.serve.report import flat, report
    from wafer_triton.serve.simulate import simulate

    workload, policy = workload_of(args), policy_of(args)
    prompts_and_chunks(workload, policy)  # raises for too many
    key = (args.policy, args.columns, args.at_once, args.cache)
    if key not in placed:
        most = argparse.Namespace(**vars(args) | ({} if batch is None else {"batch": batch}))
        placed[key] = times_of(most, workload)
    times = placed[key]
    times.batch = args.batch
    run = simulate(workload, times, policy)
    return flat(report(run, times.pool, times.device, times.block.dtype, slo_of(args)))


def plan(args: argparse.Namespace) -> int:
    """Print the ways to serve a rate with the most goodput, for `plan --slo`."""
    from wafer_triton.device import device
    from wafer_triton.draw import tables
    from wafer_triton.draw.progress import Progress
    from wafer_triton.serve.plan import plan
    from wafer_triton.shape.read import shape_of
    from wafer_triton.text.quantity import PREDICTED, quantity

    if args.slo is None or args.rate is None:
        raise ConfigError("--slo and --rate go together: give the bounds of a request, and the requests a second")
    if args.model is None:
        raise ConfigError("--slo plans for a model: give --model")
    others = ("dim", "ffn", "heads", "kv_heads", "layers", "head_groups", "experts")
    more = [name for name in others if getattr(args, name) is not None]
    more += ["step"] if args.step != 20 else []
    if more:
        raise ConfigError(f"--{more[0].replace('_', '-')}: a plan with --slo chooses by itself; leave it out")
    with Progress() as progress:
        found = plan(
            shape_of(args.model, args.dtype), device(args.device), input=args.input, output=args.output, rate=args.rate,
            slo=slo_of(args), best=args.best, progress=progress,
        )  # fmt: skip
    plans = [asdict(one) for one in found]
    units = {"goodput": "requests/s", "good": "%", "ttft_p99": "s", "tpot_p99": "s"}
    names = [name for name in plans[0] if any(one[name] is not None for one in plans)]
    rows = [["-" if one[name] is None else quantity(one[name], units[name]) if name in units else str(one[name])
             for name in names] for one in plans]  # fmt: skip
    title = f"{args.model} on {args.device}, {args.rate:g} requests a second, {args.slo}, {PREDICTED}"
    text = tables.table([name.replace("_", " ") for name in names], rows, title=title)
    return tell(args, {"best": plans[0], "plans": plans}, text)


def prompts_of(workload: Any) -> list[int]:
    """Return the tokens of each prompt."""
    return [one.input for one in (workload.requests() if hasattr(workload, "requests") else workload)]


def prompts_and_chunks(workload: Any, policy: Policy) -> int:
    """Return the prompts of a workload, or the chunks that they go in; ConfigError for more than `MOST_CHUNKS`."""
    count = sum(1 if policy.chunk is None else -(-tokens // policy.chunk) for tokens in prompts_of(workload))
    if count > MOST_CHUNKS:
        raise ConfigError(
            f"--chunk {policy.chunk}: the prompts go in {count:,} chunks, and at most {MOST_CHUNKS:,} are simulated; "
            f"give a larger --chunk, or fewer requests"
        )
    return count


def check_rate(workload: Any, times: Priced, policy: Policy, found: Report, progress: Any) -> None:
    """Raise ConfigError where requests come faster than they are served, with the rate that can be served."""
    from dataclasses import replace

    from wafer_triton.serve.simulate import simulate

    span = workload[-1].arrival - workload[0].arrival
    if found.seconds <= span * (1 + SLACK) or len(workload) < 2 * times.batch:
        return
    at_once = [replace(one, arrival=0.0) for one in workload]
    run = simulate(at_once, times, policy, progress=lambda _, *done: progress("requests at once", *done))
    most = found.finished / max(one.end or 0.0 for one in run.served)
    asked = (len(workload) - 1) / span if span else math.inf
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
    own = {
        "organisation": policy.organisation.name,
        "order": policy.order,
        "cache": policy.cache,
        "chunk": policy.chunk,
    }
    return own | asdict(policy.organisation)


def text_of(args: argparse.Namespace, times: Priced, policy: Policy, found: Report) -> str:
    """Return the figures for people."""
    from wafer_triton.draw.tables import table
    from wafer_triton.text.quantity import PREDICTED, quantity

    size = sizes(times)
    head = (
        f"{times.block.shape.name} on {times.device.name}, policy {policy.organisation.name}, {PREDICTED}: prefill on "
        f"{size['prefill_regions']} x {size['prefill_mesh']} cores, decode on {size['decode_regions']} x "
        f"{size['decode_mesh']}, up to {times.batch} sequences, {size['cache_tokens']:,} tokens of cache"
    )
    names = ("mean", "p50", "p90", "p99")
    latencies = {"TTFT": found.ttft, "TPOT": found.tpot, "ITL": found.itl, "end to end": found.e2e}
    first = table(("", *names), [(name, *(quantity(each[key], "s") for key in names))
                                 for name, each in latencies.items()])  # fmt: skip
    rows = [
        ("requests", f"{found.finished:,} served, {found.refused:,} refused, {found.preempted:,} times preempted"),
        ("throughput", f"{found.requests_per_second:.4g} requests/s, {found.tokens_per_second:,.0f} tokens/s"),
        ("most that wait", f"{found.most_waiting:,}"),
        ("cache in use", f"{100 * found.kv_mean:.1f} % on average, {100 * found.kv_peak:.1f} % at most"),
        ("busy", ", ".join(f"{name} {100 * share:.1f} %" for name, share in found.busy.items())),
        ("energy", f"{found.joules_per_token:.4g} J a token"),
        ("S-MBU", f"{100 * found.s_mbu:.3g} %"),
    ]
    if args.slo is not None:
        rows.insert(2, ("goodput", f"{found.goodput:.4g} requests/s keep {args.slo}, {100 * found.good:.1f} % of all"))
    over = [("from", "waiting", "running", "cache in use", "tokens/s", "J a token", "S-MBU")]
    for one in found.course:
        joules = "-" if math.isinf(one.joules_per_token) else f"{one.joules_per_token:.4g}"
        over.append((quantity(one.start, "s"), f"{one.waiting:.1f}", f"{one.running:.1f}", f"{100 * one.kv:.1f} %",
                     f"{one.tokens_per_second:,.0f}", joules, f"{100 * one.s_mbu:.3g} %"))  # fmt: skip
    return "\n\n".join((head, first, table(("", ""), rows, left=2), table(over[0], over[1:])))


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
            option("--sweep",
                   metavar="NAME=A,B,...", help="a row for each value of an option, such as rate=1,2,4"),
            option(
                "--out", type=file_of(".csv"), metavar="FILE.csv", help="CSV with a row for each request, or each value"
            ),
            option("--draw", type=path, metavar="FILE", help="a picture, .png, .svg or .pdf: the run, or the sweep"),
            option("--trace", type=file_of(".json"), metavar="FILE.json", help="the run as a trace for Perfetto"),
        ),
    ),
)  # fmt: skip
