"""The options of `wafer-triton serve`, and the workload, the policy and the times that they stand for."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from wafer_triton.cli.options import count, number, option, path
from wafer_triton.errors import ConfigError
from wafer_triton.text.progress import Progress, silent

if TYPE_CHECKING:
    from wafer_triton.serve.load import Given, Load
    from wafer_triton.serve.policies import Policy
    from wafer_triton.serve.report import Slo
    from wafer_triton.serve.times import Priced
    from wafer_triton.serve.workload import Request

POLICIES = ("replace", "shared", "split")  # as `wafer_triton.serve.policies`, which --help does not wait for
DEFAULT_COUNT = 1000
WORKLOAD = (
    option("--requests", type=path, metavar="FILE", help="a trace: CSV or JSON lines with arrival, input, output"),
    option("--rate", type=number, metavar="R", help="requests a second, at which a trace is replayed or requests come"),
    option("--input", metavar="LENGTH", help="tokens of prompts: 512, or 64:1024 at random"),
    option("--output", metavar="LENGTH", help="tokens of answers, likewise"),
    option("--count", type=count, metavar="N", help=f"requests (default: the whole trace, or {DEFAULT_COUNT})"),
    option("--seed", type=int, default=0, metavar="N", help="of all draws (default: %(default)s)"),
)
SERVING = (
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


def slo_of(args: argparse.Namespace) -> Slo:
    """Return the SLO of --slo."""
    from wafer_triton.serve.report import Slo

    return Slo() if args.slo is None else Slo.of(args.slo)


def workload_of(args: argparse.Namespace) -> list[Request]:
    """Return the requests of a trace or of a rate; ConfigError for options that do not go together."""
    from wafer_triton.serve import workload
    from wafer_triton.serve.traces import read_trace

    if args.requests is not None and (args.input is not None or args.output is not None):
        raise ConfigError("--requests FILE has lengths and arrivals: leave out --input and --output")
    if args.requests is None and (args.input is None or args.output is None):
        raise ConfigError("give --requests FILE, or lengths by --input and --output")
    if args.requests is None:
        if args.rate is None:
            raise ConfigError("give --rate, at which requests arrive, or --requests FILE")
        lengths = workload.both(workload.length_of(args.input), workload.length_of(args.output))
        return workload.poisson(args.rate, args.count or DEFAULT_COUNT, lengths, args.seed)
    made = read_trace(args.requests)
    number = args.count or len(made)
    if number > len(made):
        raise ConfigError(f"--count {number:,}: the trace has {len(made):,} requests; give no more")
    made = made[:number]
    return made if args.rate is None else workload.rescaled(made, args.rate)


def policy_of(args: argparse.Namespace) -> Policy:
    """Return the policy of the options."""
    from wafer_triton.serve.policies import Policy, organisation

    if args.policy != "shared" and (args.quantum is not None or args.turns is not None):
        raise ConfigError("--quantum and --turns say when a shared mesh changes its phase: give --policy shared")
    options = {name: value for name in ("quantum", "turns") if (value := getattr(args, name)) is not None}
    return Policy(organisation(args.policy, **options), args.chunk)


def load_of(args: argparse.Namespace, requests: list[Request]) -> Load:
    """Return the sizes of requests: given ones, else the sizes of the longest."""
    from wafer_triton.serve.load import Load

    longest = max(request.input + request.output for request in requests)
    context = longest if args.context is None else args.context
    mean = [sum(getattr(request, name) for request in requests) / len(requests) for name in ("input", "output")]
    input = min(context, math.ceil(mean[0]))
    if args.at_once > args.batch:
        raise ConfigError(
            f"--at-once {args.at_once}: a group has no more sequences than --batch {args.batch}; give fewer"
        )
    return Load(args.batch, context, input, math.ceil(mean[1]), args.at_once)


def given_of(args: argparse.Namespace) -> Given:
    """Return the sizes that are given."""
    from wafer_triton.serve.load import Given

    return Given(args.prefill_mesh, args.decode_mesh, args.columns, args.caches, args.experts)


def times_of(args: argparse.Namespace, requests: list[Request], progress: Progress = silent) -> Priced:
    """Return the priced times of a model that is placed for requests; reports "places" that are tried."""
    from wafer_triton.device import device
    from wafer_triton.serve.sizes import priced
    from wafer_triton.shape.read import shape_of

    shape, chip = shape_of(args.model, args.dtype), device(args.device)
    return priced(args.policy, shape, chip, load_of(args, requests), given_of(args), progress)
