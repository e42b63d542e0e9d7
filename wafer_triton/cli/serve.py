"""`wafer-triton serve`: many requests on one wafer, simulated over priced schedules. Every time is wafer time."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.options import DEVICE, SHAPE, WEIGHTS_DTYPE, Command, count, number, option, path, tell
from wafer_triton.errors import ConfigError

if TYPE_CHECKING:
    from wafer_triton.serve.policies import Policy
    from wafer_triton.serve.report import Report, Slo
    from wafer_triton.serve.sizes import Given, Load
    from wafer_triton.serve.times import Priced
    from wafer_triton.serve.workload import Closed, Request

POLICIES = ("replace", "shared", "split")  # as `wafer_triton.serve.policies`, which --help does not wait for
ORDERS, CACHES = ("first", "shortest"), ("reserve", "grow")
DEFAULT_COUNT = 1000
MANY = 10_000  # requests of a simulation that reports its progress
SLACK = 0.1  # share of the arrivals' time by which the last answer may end later, before the rate is doubted


def serve(args: argparse.Namespace) -> int:
    """simulate many requests on one wafer: latencies, throughput, goodput, energy"""
    from wafer_triton.device import device as find_device
    from wafer_triton.draw.progress import Progress
    from wafer_triton.serve.report import report, write_csv
    from wafer_triton.serve.simulate import simulate
    from wafer_triton.serve.workload import Closed

    if args.sweep is not None:
        return sweep(args)
    slo = slo_of(args)
    workload = workload_of(args)
    policy = policy_of(args)
    times = times_of(args, workload)
    many = (workload.count if isinstance(workload, Closed) else len(workload)) >= MANY
    with Progress(brief=not many) as progress:
        run = simulate(workload, times, policy, progress=progress)
    device = find_device(args.device)
    found = report(run, times.pool, device, times.block.dtype, slo)
    if not args.overload and not args.users:
        check_rate(workload, times, policy, found)
    files = []
    if args.out is not None:
        write_csv(run, args.out)
        files.append(str(args.out))
    title = f"{times.block.shape.name} on {times.device.name}, policy {args.policy}"
    if args.draw is not None:
        from wafer_triton.draw import serving

        serving.run(run, times.pool, args.draw, title)
        files.append(str(args.draw))
    if args.trace is not None:
        from wafer_triton.draw import serving

        serving.perfetto(run, args.trace)
        files.append(str(args.trace))
    refused = [one.refused for one in run.served if one.refused]
    notes = [f"refused: {len(refused):,} requests; of the first: {refused[0]}"] if refused else []
    answer = asdict(found) | {"sizes": sizes(times), "policy": named(policy), "files": files, "events": run.events}
    return tell(args, answer, text_of(args, times, policy, found), *notes, *(f"written: {name}" for name in files))


def sweep(args: argparse.Namespace) -> int:
    """Simulate each value of --sweep, and print one row for each."""
    from wafer_triton.compare.grid import write_csv
    from wafer_triton.draw import serving, tables
    from wafer_triton.draw.progress import Progress
    from wafer_triton.serve.report import flat, report
    from wafer_triton.serve.simulate import simulate
    from wafer_triton.text.quantity import PREDICTED, quantity

    if args.trace is not None:
        raise ConfigError(f"--trace {args.trace}: a trace shows one run; leave out --sweep")
    name, values = swept(args)
    placed: dict[Any, Priced] = {}
    rows: list[dict[str, Any]] = []
    with Progress() as progress:
        for value in values:
            own = argparse.Namespace(**vars(args) | {name: value})
            workload, policy = workload_of(own), policy_of(own)
            largest = argparse.Namespace(**vars(own) | ({"batch": max(values)} if name == "batch" else {}))
            key = (own.policy, own.columns, own.at_once)
            if key not in placed:
                placed[key] = times_of(largest, workload)
            times = placed[key]
            times.batch = own.batch
            run = simulate(workload, times, policy)
            found = report(run, times.pool, times.device, times.block.dtype, slo_of(args))
            rows.append({name: value} | flat(found))
            progress("simulations", len(rows), len(values))
    shown = ("requests_per_second", "goodput", "tokens_per_second", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")
    units = ("requests/s", "requests/s", "tokens/s", "s", "s", "s", "s")
    lines = [(str(row[name]), *(quantity(row[each], unit) for each, unit in zip(shown, units, strict=True)))
             for row in rows]  # fmt: skip
    title = f"{times.block.shape.name} on {times.device.name}, {PREDICTED}"
    texts = [tables.table((name, *(each.replace("_", " ") for each in shown)), lines, title=title)]
    files = []
    if name in ("rate", "users"):
        texts.append(
            f"knee: the median end to end is at most twice the first up to {name} {serving.knee(rows, name):g}"
        )
    if args.draw is not None:
        (serving.latency if name in ("rate", "users") else serving.pareto)(rows, name, args.draw, title)
        files.append(args.draw)
    if args.out is not None:
        write_csv(rows, args.out)
        files.append(args.out)
    texts += [f"written: {each}" for each in files]
    return tell(args, {"rows": rows, "files": [str(each) for each in files]}, *texts)


SWEPT: dict[str, Callable[[str], Any]] = {
    "rate": number, "users": count, "batch": count, "at_once": count, "chunk": count, "quantum": count, "turns": count,
    "columns": count, "policy": str, "order": str, "cache": str,
}  # fmt: skip


def swept(args: argparse.Namespace) -> tuple[str, list[Any]]:
    """Return the option that --sweep names, and its values; ConfigError for an unknown option or value."""
    name, _, text = args.sweep.partition("=")
    name = name.strip("-").replace("-", "_")
    if name not in SWEPT or not text:
        raise ConfigError(f"--sweep {args.sweep!r}: write NAME=A,B,... with one of {', '.join(SWEPT)}")
    known = {"policy": POLICIES, "order": ORDERS, "cache": CACHES}.get(name)
    try:
        values = [SWEPT[name](each) for each in text.split(",")]
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"--sweep {args.sweep!r}: {error}") from None
    unknown = [each for each in values if known and each not in known]
    if unknown:
        raise ConfigError(f"--sweep {args.sweep!r}: {name} {unknown[0]!r}: choose of {', '.join(known or ())}")
    return name, values


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
    others = ("dim", "ffn", "heads", "kv_heads", "layers", "head_groups", "experts", "copies", "routing")
    more = [name for name in others if getattr(args, name) is not None]
    more += [name for name, usual in (("program", "full"), ("step", 20)) if getattr(args, name) != usual]
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


def slo_of(args: argparse.Namespace) -> Slo:
    """Return the SLO of --slo."""
    from wafer_triton.serve.report import Slo

    return Slo() if args.slo is None else Slo.of(args.slo)


def workload_of(args: argparse.Namespace) -> list[Request] | Closed:
    """Return the requests of a trace, of a rate or of users; ConfigError for options that do not go together."""
    from wafer_triton.serve import workload

    lengths = args.input is not None or args.output is not None
    if args.requests is not None and (lengths or args.cv is not None):
        raise ConfigError("--requests FILE has lengths and arrivals: leave out --input, --output and --cv")
    if args.requests is None and (args.input is None or args.output is None):
        raise ConfigError("give --requests FILE, or lengths by --input and --output")
    if args.users is not None and (args.rate is not None or args.cv is not None):
        raise ConfigError("--users send requests one after the other, at no rate: leave out --rate and --cv")
    if args.users is None and args.requests is None and args.rate is None:
        raise ConfigError("give --rate, at which requests arrive, or --users, or --requests FILE")
    if args.users is None and args.pause:
        raise ConfigError(f"--pause {args.pause:g}: users alone pause; give --users, or leave it out")
    made = None if args.requests is None else workload.read_trace(args.requests)
    number = DEFAULT_COUNT if args.count is None else args.count
    if made is None:
        drawn = workload.both(workload.length_of(args.input), workload.length_of(args.output))
    else:
        drawn = workload.drawn(made)
    if args.users is not None:
        return workload.Closed(args.users, number, drawn, args.seed, args.pause)
    if made is None:
        return workload.bursty(args.rate, number, drawn, args.seed, 1.0 if args.cv is None else args.cv)
    made = made[: args.count]
    return made if args.rate is None else workload.rescaled(made, args.rate)


def policy_of(args: argparse.Namespace) -> Policy:
    """Return the policy of the options."""
    from wafer_triton.serve.policies import Policy, organisation

    if args.policy != "shared" and (args.quantum is not None or args.turns is not None):
        raise ConfigError("--quantum and --turns say when a shared mesh changes its phase: give --policy shared")
    options = {name: value for name in ("quantum", "turns") if (value := getattr(args, name)) is not None}
    return Policy(organisation(args.policy, **options), args.order, args.cache, args.chunk)


def load_of(args: argparse.Namespace, workload: list[Request] | Closed) -> Load:
    """Return the sizes that a workload asks for, as far as they are not given."""
    from wafer_triton.serve.sizes import Load
    from wafer_triton.serve.workload import Closed

    requests = list(workload.requests()) if isinstance(workload, Closed) else workload
    longest = max(request.input + request.output for request in requests)
    context = longest if args.context is None else args.context
    prompt = min(context, max(request.input for request in requests)) if args.cache == "reserve" else context
    mean = [sum(getattr(request, name) for request in requests) / len(requests) for name in ("input", "output")]
    input = min(prompt, math.ceil(mean[0]))
    if args.at_once > args.batch:
        raise ConfigError(
            f"--at-once {args.at_once}: a group has no more sequences than --batch {args.batch}; give fewer"
        )
    return Load(args.batch, context, prompt, input, math.ceil(mean[1]), args.at_once)


def given_of(args: argparse.Namespace) -> Given:
    """Return the sizes that are given."""
    from wafer_triton.serve.sizes import Given

    return Given(args.prefill_mesh, args.decode_mesh, args.columns, args.caches, args.experts)


def times_of(args: argparse.Namespace, workload: list[Request] | Closed) -> Priced:
    """Return the priced times of a model that is placed for a workload."""
    from wafer_triton.device import device
    from wafer_triton.serve.sizes import priced
    from wafer_triton.shape.read import shape_of

    shape, chip = shape_of(args.model, args.dtype), device(args.device)
    return priced(args.policy, shape, chip, load_of(args, workload), given_of(args))


def check_rate(workload: Any, times: Priced, policy: Policy, found: Report) -> None:
    """Raise ConfigError where requests come faster than they are served, with the rate that can be served."""
    from dataclasses import replace

    from wafer_triton.serve.simulate import simulate

    span = workload[-1].arrival - workload[0].arrival
    if found.seconds <= span * (1 + SLACK) or len(workload) < 2 * times.batch:
        return
    run = simulate([replace(one, arrival=0.0) for one in workload], times, policy)
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
    return "\n\n".join((head, first, table(("", ""), rows, left=2)))


WORKLOAD = (
    option("--requests", type=path, metavar="FILE", help="a trace: CSV or JSON lines with arrival, input, output"),
    option("--rate", type=number, metavar="R", help="requests a second, at which a trace is replayed or requests come"),
    option("--input", metavar="LENGTH", help="tokens of prompts: 512, 64:1024 or lognormal:512:0.8"),
    option("--output", metavar="LENGTH", help="tokens of answers, likewise"),
    option("--count", type=count, metavar="N", help=f"requests (default: the whole trace, or {DEFAULT_COUNT})"),
    option("--cv", type=number, metavar="CV", help="burstiness of arrivals: 1 is Poisson (default), 3 comes in bursts"),
    option("--users", type=count, metavar="N", help="in place of a rate: users who wait for their answers"),
    option("--pause", type=number, default=0.0, metavar="S", help="seconds of a user between answer and next request"),
    option("--seed", type=int, default=0, metavar="N", help="of all draws (default: %(default)s)"),
)
SERVING = (
    option("--order", default="first", choices=ORDERS, help="who comes next: first come, or the shortest prompt"),
    option("--cache", default="reserve", choices=CACHES,
           help="begin when the whole answer fits the cache, or grow and preempt (default: %(default)s)"),
    option("--chunk", type=count, metavar="N", help="tokens of a chunk of a prompt (default: whole prompts)"),
    option("--quantum", type=count, metavar="N", help="shared: tokens of a visit of prefill (default: 4096)"),
    option("--turns", type=count, metavar="N", help="shared: tokens of each sequence between visits (default: 64)"),
    option("--batch", type=count, default=32, metavar="N", help="most sequences in decode (default: %(default)s)"),
    option("--at-once", type=count, default=1, metavar="N",
           help="sequences that pass a region of decode together (default: %(default)s)"),
)  # fmt: skip
PLACED = (
    option("--context", type=count, metavar="N", help="most tokens of a sequence (default: the longest request)"),
    option("--caches", type=count, metavar="N", help="sequences of that length in the cache (default: as many as fit)"),
    option("--prefill-mesh", metavar="P|RxC", help="cores of a region of prefill (default: the best by prices)"),
    option("--decode-mesh", metavar="P|RxC", help="cores of a region of decode (default: the best by prices)"),
    option("--columns", type=count, metavar="N", help="split: columns of the device for prefill (default: the best)"),
    option("--experts", choices=("spread", "regions"), help="how a mixture's experts lie in prefill"),
)
SLO = option("--slo", metavar="BOUNDS", help="ttft=200ms,tpot=1ms: requests within them are the goodput")
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
            option("--sweep", metavar="NAME=A,B,...", help="a row for each value of an option, such as rate=1,2,4"),
            option("--out", type=path, metavar="FILE", help="CSV with a row for each request, or each value"),
            option("--draw", type=path, metavar="FILE", help="a picture, .png, .svg or .pdf: the run, or the sweep"),
            option("--trace", type=path, metavar="FILE", help="the run as a trace for Perfetto"),
        ),
    ),
)  # fmt: skip
