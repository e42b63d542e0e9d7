"""The commands that judge by PLMR: `compare` and `check`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.app import made
from wafer_triton.cli.options import (
    DEVICE,
    MESH,
    STORED,
    Command,
    option,
    size,
    tell,
)
from wafer_triton.count.verdict import PLMR
from wafer_triton.device import dtype as dtypes
from wafer_triton.errors import ConfigError, check_counts
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


def _check(
    schedule: str | None = None, /, *, model: str | None = None, mesh: str | None = None, device: str | None = None,
    dtype: str | None = None, context: int | None = None, tokens: int | None = None, head_groups: int | None = None,
    json: bool = False,
) -> int:  # fmt: skip
    if (model is None) == (schedule is None):
        raise ConfigError("give one of them: --model NAME|PATH for a decoder, or FILE.py:FUNCTION for your schedule")
    asked = {
        "mesh": mesh, "device": device, "dtype": dtype, "context": context, "tokens": tokens,
        "head_groups": head_groups,
    }  # fmt: skip
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if model is not None:
        return _check_model(model, json, **given)
    assert schedule is not None
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"{flags}: of --model alone; a schedule has a mesh, a device and dtypes of its own")
    return _check_own(schedule, json)


check = made(_check, _check)


def _check_model(
    model: str, json: bool, *, mesh: str = "16", device: str = "wse2", dtype: str = "fp16", context: int = 512,
    tokens: int | None = None, head_groups: int | None = None,
) -> int:  # fmt: skip
    from wafer_triton.compare.operations import decoder_layer
    from wafer_triton.cost.constants import constants
    from wafer_triton.cost.layers import decode_block
    from wafer_triton.device.mesh import as_mesh
    from wafer_triton.draw.progress import Progress
    from wafer_triton.shape.read import shape_of

    on = as_mesh(mesh, device)
    shape = shape_of(model, dtype if dtype in dtypes.STORED else None)
    (context,) = check_counts(context=context)
    block = decode_block(shape, on, context, constants(on.device), head_groups=head_groups)
    if (tile := dtypes.tile_dtype(dtype)) != block.dtype:
        block = replace(block, dtype=tile, accumulate="fp32")
    each = 0 if tokens is None else -(-check_counts(tokens=tokens)[0] // on.square().shape[0])
    with Progress(brief=on.cores < MANY_CORES) as progress:
        operations = decoder_layer(block, each, head_groups, progress)
    table = Table.of(operations)
    answer = {"model": model, "mesh": str(on), "head_groups": block.head_groups, "operations": table}
    return tell(json, answer, table, PLMR)


def _check_own(reference: str, json: bool) -> int:
    from wafer_triton.cli.own import load
    from wafer_triton.compare.operations import operations
    from wafer_triton.verify.faults import check

    own = load(reference, drafts=True)
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
    return tell(json, answer, *texts) or int(not judged.ok)


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
)
