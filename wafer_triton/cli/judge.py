"""Commands that judge models: `precision` and `perplexity`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.main import EXECUTION, JSON, PLACE, _count, _executor, _mesh, option

if TYPE_CHECKING:
    from wafer_triton.draw.tables import Progress
    from wafer_triton.models.decoder import WaferForCausalLM

_TEXT = (
    option("--model", required=True, metavar="PATH|NAME", help="a Hugging Face folder, or smollm2-135m (fetched)"),
    option("--text", required=True, type=Path, metavar="FILE", help="a UTF-8 text"),
    option("--tokens", type=_count, metavar="N", help="the first N tokens of it (default: all)"),
    option("--window", type=_count, default=256, metavar="N", help="tokens at once (default: %(default)s)"),
)


_LABELS = {
    "tokens": "predicted tokens",
    "largest": "largest logit error",
    "relative_rms": "RMS logit error, relative",
    "differ": "positions with another likeliest token",
    "first": "the first of them",
    "wanted": "the token that fp32 says there",
    "got": "the token said instead",
}


def register(commands: Any) -> None:
    """Add `precision` and `perplexity` to the parser's commands."""
    for name, run in (("precision", _precision), ("perplexity", _perplexity)):
        one = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        for flags, settings in (*_TEXT, *PLACE, *EXECUTION, JSON):
            one.add_argument(*flags, **settings)
        one.set_defaults(run=run)


def _model(args: argparse.Namespace, progress: Progress, **other: Any) -> WaferForCausalLM:
    from wafer_triton.models.checkpoint.fetch import resolve
    from wafer_triton.models.decoder import WaferForCausalLM

    settings = {"mesh": _mesh(args), "device": args.device, "dtype": args.dtype, "accumulate": args.accumulate} | other
    return WaferForCausalLM.from_pretrained(
        resolve(args.model), max_length=args.window, max_prompt=args.window, progress=progress,
        executor=_executor(args.backend, args.exchange), **settings,
    )  # fmt: skip


def _ids(args: argparse.Namespace) -> list[int]:
    from wafer_triton.models.checkpoint.fetch import resolve
    from wafer_triton.models.checkpoint.text import file_ids
    from wafer_triton.models.precision import windows

    ids = file_ids(resolve(args.model), args.text, args.tokens)
    windows(ids, args.window)  # raises before anything is placed
    return ids


def _show(args: argparse.Namespace, model: WaferForCausalLM, made: dict[str, Any], begun: float) -> int:
    from wafer_triton.draw import tables

    settings = {name: getattr(args, name) for name in ("dtype", "accumulate", "exchange", "device", "window")}
    settings |= {"mesh": str(model.block.mesh), "prefill_mesh": str(model.placement.prefill.mesh)}
    found = settings | made | {"emulation_seconds": perf_counter() - begun}
    table = tables.table("", "")
    for name, value in found.items():
        said = f"{value:.6g}" if isinstance(value, float) else str(value)
        table.add_row(_LABELS.get(name, name.replace("_", " ")), said)
    tables.show(table, sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(found))
    return 0


def _perplexity(args: argparse.Namespace) -> int:
    """the perplexity of a text on a mesh of virtual cores, to compare meshes, algorithms and number formats"""
    from wafer_triton.draw import tables
    from wafer_triton.models import precision

    begun, ids = perf_counter(), _ids(args)
    with tables.Progress() as progress:
        model = _model(args, progress)
        made = precision.perplexity(model, ids, args.window, progress)
    return _show(
        args, model, made.as_json() | {"sram_peak_bytes": max(one.sram_peak_bytes for one in model.regions)}, begun
    )


def _precision(args: argparse.Namespace) -> int:
    """logit error of a number format against fp32 on the same mesh, and the first token that differs, over a text"""
    from wafer_triton.draw import tables
    from wafer_triton.models import precision

    begun, ids = perf_counter(), _ids(args)
    with tables.Progress() as progress:
        model = _model(args, progress)
        on, apart = map(precision.roomy, (model.block.mesh, model.placement.prefill.mesh))
        wide = {"mesh": on, "device": on.device, "prefill_mesh": apart, "dtype": "fp32", "accumulate": "fp32"}
        judge = _model(args, progress, **wide)
        made = precision.compare(model, judge, ids, args.window, progress)
    return _show(args, model, made.as_json(), begun)
