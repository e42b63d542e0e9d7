"""The commands that predict: `estimate` and `plan`. Every time in them is wafer time."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from wafer_triton.cli.options import (
    DEVICE,
    EXPERTS,
    HEADS,
    MESH,
    SIZES,
    STORED,
    WEIGHTS_DTYPE,
    Command,
    count,
    given,
    option,
    size,
    tell,
)
from wafer_triton.device import device as find_device
from wafer_triton.device import energy_note
from wafer_triton.errors import ConfigError
from wafer_triton.text.quantity import PREDICTED, Legend
from wafer_triton.text.table import Table

BASIS = ("constants", "error_band", "outside", "layout")  # of a plan, printed of the best alone
# Seconds of a plan, and more for each side: llama3-8b and, as a mixture, olmoe-1b-7b at --step 20, both for 2,048 and
# 128 tokens, in CPU seconds of a busy Intel Xeon with 2 cores.
OF_A_DECODER, OF_A_MIXTURE = (1.0, 0.3), (2.0, 1.0)


def estimate(args: argparse.Namespace) -> int:
    """predict cycles, tokens per second or capacity"""
    from wafer_triton.compare.explain import bounds
    from wafer_triton.compare.sweep import KINDS

    options = arguments_of(args)
    estimated = KINDS[args.kind](**options)
    table = Table.of(estimated, title=_title(args.kind, options))
    found = bounds(args.kind, **options)
    answer = asdict(estimated) | {"bounds": asdict(found)}
    notes = [*notes_of(args, options), _energy(args, estimated)]
    return tell(args, answer, table, str(found), *filter(None, notes))


def arguments_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of an estimate from the options of its kind."""
    return _with_model(given(args))


def notes_of(args: argparse.Namespace, options: dict[str, Any]) -> list[str]:
    """Return the lines under an estimate: too many positions, absent parts."""
    return [note for note in (_positions(args), _layers_alone(options)) if note]


def _energy(args: argparse.Namespace, estimated: Any) -> str:
    """Return the assumption of the energy of an own device, where an estimate has one."""
    return energy_note(find_device(args.device)) if any("joules" in name for name in asdict(estimated)) else ""


def _positions(args: argparse.Namespace) -> str:
    """Return a note on more tokens than a model has positions for."""
    tokens = {name: getattr(args, name, None) for name in ("context", "tokens", "input", "output")}
    if args.kind in ("gemm", "gemv", "kv") or args.model is None:
        return ""
    from wafer_triton.shape.read import positions

    most, count = positions(args.model), sum(value for value in tokens.values() if value is not None)
    if most is None or count <= most:
        return ""
    return f"{count:,} tokens are more than the {most:,} positions of {args.model}, which `generate` refuses"


def _layers_alone(options: dict[str, Any]) -> str:
    """Return a note on the sub-layers that a decoder without a vocabulary lacks."""
    if "model" not in options:
        return ""
    from wafer_triton.shape.read import shape_of

    return "" if shape_of(options["model"]).vocab_size else "without a vocabulary, layers alone: no embedding, no head"


def plan(args: argparse.Namespace) -> int:
    """search the best meshes for a request"""
    from wafer_triton.cost import search
    from wafer_triton.draw.progress import LONG, Progress, duration
    from wafer_triton.shape.read import shape_of

    options = _with_model(given(args))
    device = find_device(args.device)
    sides = min(device.rows, device.cols) // args.step
    once, each = OF_A_DECODER if shape_of(options["model"]).experts is None else OF_A_MIXTURE
    seconds = once + sides * each
    if seconds >= LONG:
        print(
            f"searching {sides:,} meshes of {device.name} for prefill and for decode, which takes about "
            f"{duration(seconds)} here; a larger --step takes less",
            file=sys.stderr,
            flush=True,
        )
    with Progress() as progress:
        plans = [asdict(plan) for plan in search.plan(**options, progress=progress)]
    shown = [{name: value for name, value in plan.items() if name not in BASIS and value is not None} for plan in plans]
    legend = Legend(search.Plan)
    table = Table(shown, legend, title=_title("plans, the best first", options))
    basis = {name: plans[0][name] for name in BASIS}
    notes = [note for note in (_layers_alone(options),) if note]
    named = Table([basis], legend, title="the best of them", upright=True)
    notes += filter(None, [energy_note(device)])
    return tell(args, {"best": plans[0], "plans": plans}, table, named, *notes)


def _with_model(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an estimate, with sizes that stand for a model made one.

    Raises ConfigError where a model and sizes are given, or too few sizes.
    """
    if "model" not in options:
        return options
    from wafer_triton.shape.read import of_sizes

    sizes = {name: options.pop(name) for name in ("dim", "ffn", "heads", "kv_heads", "layers")}
    if options["model"] is not None:
        if any(value is not None for value in sizes.values()):
            raise ConfigError("give either --model or the sizes --dim, --ffn, --heads, --layers, not both")
        return options
    missing = [f"--{name}" for name in ("dim", "ffn", "heads", "layers") if sizes[name] is None]
    if missing:
        raise ConfigError(f"give --model, or the sizes of one: {', '.join(missing)} missing")
    sizes["kv_heads"] = sizes["heads"] if sizes["kv_heads"] is None else sizes["kv_heads"]
    return options | {"model": of_sizes(*(sizes[name] for name in ("dim", "ffn", "heads", "kv_heads", "layers")))}


def _title(subject: str, options: dict[str, Any]) -> str:
    """Return the title: the subject of the estimate, and every option with a value."""
    from wafer_triton.compare.sweep import asked

    return f"{subject}, {PREDICTED}: {asked(options)}"


MODEL = (
    option("--model", metavar="NAME|PATH|SIZES", help=SIZES),
    option("--dim", type=count, metavar="N", help="instead of --model: width"),
    option("--ffn", type=count, metavar="N", help="instead of --model: feed-forward width"),
    option("--heads", type=count, metavar="N", help="instead of --model: query heads"),
    option("--kv-heads", type=count, metavar="N", help="instead of --model: key heads (default: as many)"),
    option("--layers", type=count, metavar="N", help="instead of --model: layers"),
    WEIGHTS_DTYPE,
)
GROUPS = option("--groups", type=count, metavar="N", help="groups of the K-tree's first level (default: the best)")
REQUEST = (size("--input", "tokens of the prompt"), size("--output", "tokens of the answer"))
KINDS = (
    Command(
        "gemm",
        estimate,
        (
            MESH,
            *(size(f"--{name}", "size of the whole matrices") for name in "mkn"),
            option("--algorithm", default="mesh", help="mesh, cannon, summa or allgather"),
            DEVICE,
            STORED,
        ),
        "a matrix product",
    ),
    Command(
        "gemv",
        estimate,
        (
            MESH,
            *(size(f"--{name}", "size of the whole matrix") for name in "kn"),
            option("--m", type=count, metavar="N", help="vectors that go at once (default: one)"),
            option("--algorithm", default="ktree", help="ktree, pipeline, ring, star or two-phase"),
            GROUPS,
            DEVICE,
            STORED,
        ),
        "a vector-matrix product",
    ),
    Command(
        "decode",
        estimate,
        (*MODEL, MESH, DEVICE, size("--context", "tokens in the cache"), GROUPS, HEADS),
        "one token",
    ),
    Command(
        "prefill",
        estimate,
        (*MODEL, MESH, DEVICE, size("--tokens", "tokens of the prompt"), HEADS, EXPERTS),
        "a prompt",
    ),
    Command(
        "request",
        estimate,
        (
            *MODEL,
            option("--prefill-mesh", **MESH[1]),
            option("--decode-mesh", **MESH[1]),
            DEVICE,
            *REQUEST,
            GROUPS,
            HEADS,
            EXPERTS,
        ),
        "a prompt and its answer",
    ),
    Command(
        "cap",
        estimate,
        (
            *MODEL,
            MESH,
            DEVICE,
            size("--context", "tokens in the cache of each sequence"),
            option("--batch", type=count, default=1, metavar="N", help="sequences of a step (default: %(default)s)"),
            option(
                "--routing",
                default="uniform",
                metavar="uniform|SKEW|FILE",
                help="which experts tokens take: all alike (default), by Zipf's law with exponent SKEW, or by a trace",
            ),
            HEADS,
        ),
        "MoE-CAP's measures of decode: S-MBU, S-MFU and distinct experts",
    ),
    Command(
        "batch",
        estimate,
        (
            *MODEL,
            MESH,
            DEVICE,
            size("--context", "tokens in the cache of each sequence"),
            size("--batch", "sequences, each of which gets a token in a turn"),
            option(
                "--at-once",
                type=count,
                metavar="N",
                help="sequences of a group, which follow one another through the regions (default: the fastest)",
            ),
            HEADS,
        ),
        "decode of a batch, in groups that follow one another through the regions",
    ),
    Command("kv", estimate, (*MODEL, MESH, DEVICE, HEADS), "how many tokens the cache holds"),
)
COMMANDS = (
    Command("estimate", estimate, kinds=KINDS),
    Command(
        "plan",
        plan,
        (
            *MODEL,
            DEVICE,
            *REQUEST,
            HEADS,
            EXPERTS,
            option(
                "--step", type=count, default=20, metavar="N", help="sides are multiples of N (default: %(default)s)"
            ),
            option("--best", type=count, default=5, metavar="N", help="plans to show (default: %(default)s)"),
        ),
    ),
)
