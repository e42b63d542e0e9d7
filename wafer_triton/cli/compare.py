"""The commands that judge by PLMR: `compare` and `check`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.options import (
    DEVICE,
    HEADS,
    MESH,
    NAMED,
    OF_WEIGHTS,
    SIZES,
    STORED,
    Command,
    count,
    option,
    size,
    tell,
)
from wafer_triton.count.verdict import PLMR
from wafer_triton.device import dtype as dtypes
from wafer_triton.errors import ConfigError
from wafer_triton.text.table import Table

if TYPE_CHECKING:
    from wafer_triton.compare.algorithms import AlgorithmRow
    from wafer_triton.verify.faults import Finding

OWN = "schedule"  # the kind of `compare` that a FILE.py:FUNCTION stands for
REFERENCE = "FILE.py:FUNCTION"
RETURNS = "a function that returns a Schedule, a Recipe or a pair (Schedule, Intent)"
MANY_CORES = 200 * 200  # of a mesh, from which on `check` of a model reports how far it is
UNCOUNTABLE = frozenset(("malformed", "off-mesh", "two-writers", "deadlock"))


def compare(args: argparse.Namespace) -> int:
    """compare all algorithms for one product: rounds, hops, routes, links, SRAM, error, PLMR verdict"""
    from wafer_triton.compare import algorithms
    from wafer_triton.draw.progress import Progress

    with Progress(brief=True) as progress:
        common = {
            "device": args.device,
            "dtype": args.dtype,
            "values": args.values,
            "progress": progress,
            "announce": progress.announce,
        }
        if args.kind == "gemm":
            rows = algorithms.compare_gemm(args.mesh, args.m, args.k, args.n, **common)
        else:
            rows = algorithms.compare_gemv(args.mesh, args.k, args.n, **common)
    return _tell_rows(args, {"mesh": args.mesh, "device": args.device}, rows)


def compare_own(args: argparse.Namespace) -> int:
    """compare a schedule of your own with the built-in algorithms of the operation that its intent states"""
    from wafer_triton.cli.own import load
    from wafer_triton.compare import algorithms
    from wafer_triton.draw.progress import Progress

    own = load(args.schedule)
    own.demand()
    with Progress(brief=True) as progress:
        common = {"values": args.values, "progress": progress, "announce": progress.announce}
        rows = algorithms.compare_own(own.function, own.schedule, own.intent, **common)
    mesh = own.schedule.mesh
    return _tell_rows(args, {"schedule": own.schedule.name, "mesh": str(mesh), "device": mesh.device.name}, rows)


def _tell_rows(args: argparse.Namespace, about: dict[str, Any], rows: list[AlgorithmRow]) -> int:
    table, notes = Table.of(rows), [PLMR]
    if any(row.error is None for row in rows):
        notes.append("largest error -: values were not computed; --values does, for products")
    return tell(args.json, about | {"rows": table}, table, *notes)


def check(args: argparse.Namespace) -> int:
    """judge every operation of a decoder layer on a device, or a schedule of your own"""
    model = {"mesh": "16", "device": "wse2", "dtype": "fp16", "context": 512, "prompt": None, "head_groups": None}
    given = [name for name in model if getattr(args, name) is not None]
    if (args.model is None) == (args.schedule is None):
        raise ConfigError("give one of them: --model NAME|PATH for a decoder, or FILE.py:FUNCTION for your schedule")
    if args.schedule is None:
        return _check_model(args, argparse.Namespace(**model | {name: getattr(args, name) for name in given}))
    if given:
        flags = ", ".join(f"--{name}" for name in given)
        raise ConfigError(f"{flags}: of --model alone; a schedule has a mesh, a device and dtypes of its own")
    return _check_own(args)


def _check_model(args: argparse.Namespace, asked: argparse.Namespace) -> int:
    from wafer_triton.compare.operations import decoder_layer
    from wafer_triton.cost.constants import constants
    from wafer_triton.cost.layers import decode_block
    from wafer_triton.device.mesh import as_mesh
    from wafer_triton.draw.progress import Progress
    from wafer_triton.shape.read import shape_of

    mesh = as_mesh(asked.mesh, asked.device)
    shape = shape_of(args.model, asked.dtype if asked.dtype in dtypes.STORED else None)
    block = decode_block(shape, mesh, asked.context, constants(mesh.device), head_groups=asked.head_groups)
    if (tile := dtypes.tile_dtype(asked.dtype)) != block.dtype:
        block = replace(block, dtype=tile, accumulate="fp32")
    tokens = -(-asked.prompt // mesh.square().shape[0]) if asked.prompt else 0
    with Progress(brief=mesh.cores < MANY_CORES) as progress:
        operations = decoder_layer(block, tokens, asked.head_groups, progress)
    table = Table.of(operations)
    answer = {"model": args.model, "mesh": str(mesh), "head_groups": block.head_groups, "operations": table}
    return tell(args.json, answer, table, PLMR)


def _check_own(args: argparse.Namespace) -> int:
    from wafer_triton.cli.own import load
    from wafer_triton.compare.operations import operations
    from wafer_triton.verify.faults import check

    own = load(args.schedule, drafts=True)
    judged, mesh = check(own.schedule, own.intent), own.schedule.mesh
    subject = f"{own.schedule.name} on mesh {mesh} of {mesh.device.name}"
    faults = len(judged.findings)
    said = "nothing found" if judged.ok else f"{faults:,} finding{'s' * (faults > 1)}"
    texts: list[Table | str] = [f"{subject}: {said}", *map(str, judged.findings)]
    if not judged.intended:
        texts.append("no intent: the results were not judged; return (Schedule, Intent) for that")
    counted: Table | list[Any] = []
    if judged.names & UNCOUNTABLE:
        texts.append("not counted and not priced, as its rounds cannot be run")
    else:
        counted = Table.of(operations(own.schedule))
        texts += [counted, PLMR]
    answer = {
        "schedule": own.schedule.name,
        "mesh": str(mesh),
        "device": mesh.device.name,
        "ok": judged.ok,
        "intended": judged.intended,
        "findings": [_plain(finding) for finding in judged.findings],
        "operations": counted,
    }
    return tell(args.json, answer, *texts) or int(not judged.ok)


def _plain(finding: Finding) -> dict[str, Any]:
    core = (
        finding.core
        if finding.core is None
        else [int(number) for number in (finding.core if isinstance(finding.core, tuple) else (finding.core,))]
    )
    round_ = finding.round if finding.round is None else int(finding.round)
    return {"verdict": finding.verdict, "message": finding.message, "round": round_, "core": core}


class _Either(argparse.BooleanOptionalAction):
    """An option and its opposite, which contradict each other."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Take the option, or raise ArgumentError where its opposite is given already."""
        before = getattr(namespace, self.dest)
        super().__call__(parser, namespace, values, option_string)
        if before not in (None, getattr(namespace, self.dest)):
            raise argparse.ArgumentError(None, f"{' and '.join(self.option_strings)} contradict each other; give one")


VALUES = option(
    "--values",
    action=_Either,
    help="compute the product as well, for the error (default: on meshes of up to 64 x 64 cores)",
)
COMMANDS = (
    Command(
        "compare",
        compare,
        kinds=(
            *(
                Command(
                    kind,
                    compare,
                    (
                        *(size(f"--{name}", "size of the whole matrices") for name in sizes),
                        MESH,
                        DEVICE,
                        STORED,
                        VALUES,
                    ),
                    f"compare the algorithms of {kind.upper()}",
                )
                for kind, sizes in (("gemm", "mkn"), ("gemv", "kn"))
            ),
            Command(OWN, compare_own, (option("schedule", metavar=REFERENCE, help=RETURNS), VALUES)),
        ),
        otherwise=OWN,
    ),
    Command(
        "check",
        check,
        (
            option("schedule", nargs="?", metavar=REFERENCE, help=RETURNS),
            option("--model", metavar="NAME|PATH|SIZES", help=SIZES),
            option("--mesh", metavar="P|RxC", help="virtual cores (default: 16)"),
            option("--device", metavar="NAME|FILE", help=f"{NAMED} (default: wse2)"),
            HEADS,
            option("--dtype", choices=tuple(dtypes.BYTES), help=OF_WEIGHTS),
            option("--context", type=count, metavar="N", help="tokens in the cache (default: 512)"),
            option("--prompt", type=count, metavar="N", help="judge prefill of N tokens as well"),
        ),
    ),
)
