"""Commands that judge models: `precision` and `perplexity`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from wafer_triton.cli import EXECUTION, JSON, PLACE, Run, _count, _executor, command, option
from wafer_triton.mesh import as_mesh

if TYPE_CHECKING:
    from wafer_triton.models.decoder import WaferForCausalLM
    from wafer_triton.report import Progress

_TEXT = (
    option("--model", required=True, metavar="PATH|NAME", help="a Hugging Face folder, or smollm2-135m (fetched)"),
    option("--text", required=True, type=Path, metavar="FILE", help="a UTF-8 text"),
    option("--tokens", type=_count, metavar="N", help="the first N tokens of it (default: all)"),
    option("--window", type=_count, default=256, metavar="N", help="tokens at once (default: %(default)s)"),
)


def _model(args: argparse.Namespace, progress: Progress, **other: Any) -> WaferForCausalLM:
    from wafer_triton.models.checkpoint import resolve
    from wafer_triton.models.decoder import WaferForCausalLM

    mesh = as_mesh(args.mesh, args.device)
    settings = {"mesh": mesh, "device": mesh.device, "dtype": args.dtype, "accumulate": args.accumulate} | other
    return WaferForCausalLM.from_pretrained(
        resolve(args.model), max_length=args.window, max_prompt=args.window, progress=progress,
        executor=_executor(args.backend, args.exchange), **settings,
    )  # fmt: skip


def _ids(args: argparse.Namespace) -> list[int]:
    from wafer_triton.models.checkpoint import resolve
    from wafer_triton.models.text import file_ids

    return file_ids(resolve(args.model), args.text, args.tokens)


def _show(args: argparse.Namespace, made: dict[str, Any], begun: float) -> int:
    from wafer_triton import report

    settings = {name: getattr(args, name) for name in ("dtype", "accumulate", "exchange", "mesh", "device", "window")}
    found = settings | made | {"emulation_seconds": perf_counter() - begun}
    people = sys.stderr if args.json else sys.stdout
    report.show(report.pairs_table(found), people)
    if args.json:
        print(json.dumps(found))
    return 0


@command(*_TEXT, *PLACE, *EXECUTION, JSON)
def perplexity(args: argparse.Namespace) -> int:
    """the perplexity of a text on a mesh of virtual cores, to compare meshes, algorithms and number formats"""
    from wafer_triton import report
    from wafer_triton.models import precision

    begun, ids = perf_counter(), _ids(args)
    with report.Progress() as progress:
        model = _model(args, progress)
        made = precision.perplexity(model, ids, args.window, progress)
    return _show(args, made.as_json() | {"sram_peak_bytes": max(one.sram_peak_bytes for one in model.regions)}, begun)


@command(*_TEXT, *PLACE, *EXECUTION, JSON)
def precision(args: argparse.Namespace) -> int:
    """logit error of a number format against fp32 on the same mesh, and the first token that differs, over a text"""
    from wafer_triton import report
    from wafer_triton.models import precision

    begun, ids = perf_counter(), _ids(args)
    with report.Progress() as progress:
        model = _model(args, progress)
        wide = precision.roomy(as_mesh(args.mesh, args.device))
        judge = _model(args, progress, mesh=wide, device=wide.device, dtype="fp32", accumulate="fp32")
        made = precision.compare(model, judge, ids, args.window, progress)
    return _show(args, made.as_json(), begun)


def register(subparsers: Any = None) -> tuple[Run, ...]:
    """The commands of this module, which importing it has entered in `cli.COMMANDS`."""
    return perplexity, precision
