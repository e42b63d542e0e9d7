"""Commands that judge models: `precision` and `perplexity`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from wafer_triton.cli import ranks
from wafer_triton.cli.options import (
    CHECKPOINT,
    EXECUTION,
    PLACE,
    Command,
    checkpoint_of,
    count,
    cut_short,
    executor_of,
    experts_of,
    mesh_of,
    option,
    path,
    searching,
    tell,
    tell_where,
)
from wafer_triton.errors import ConfigError

if TYPE_CHECKING:
    from wafer_triton.draw.progress import Progress
    from wafer_triton.emulate.executor import Executor
    from wafer_triton.models.decoder import WaferForCausalLM
    from wafer_triton.place.regions import Placement

T = TypeVar("T")


def perplexity(args: argparse.Namespace) -> int:
    """measure the perplexity of a text on a mesh of virtual cores, to compare meshes and number formats"""
    from wafer_triton.draw.progress import Progress
    from wafer_triton.models import precision

    begun, executor = perf_counter(), executor_of(args)
    ids = _ids(args)
    searching(args)
    with Progress() as progress:
        model = _model(args, executor, progress, placed=_announce(args, executor, progress, len(ids)))
        judged, interrupted = _so_far(precision.perplexities(model, ids, args.window, progress))
    sram_peak_bytes = max(region.sram_peak_bytes for region in model.regions)
    answer = judged.as_json() | {"sram_peak_bytes": sram_peak_bytes}
    return _tell(args, model, answer, begun, interrupted)


def precision(args: argparse.Namespace) -> int:
    """logit error of a number format against fp32 on the same mesh, and the first token that differs, over a text"""
    from wafer_triton.draw.progress import Progress
    from wafer_triton.models import precision

    if args.dtype == "fp32":
        raise ConfigError("--dtype fp32: all formats are compared with it; give another")
    begun, executor = perf_counter(), executor_of(args)
    ids = _ids(args)
    searching(args)
    with Progress() as progress:
        model = _model(args, executor, progress, placed=_announce(args, executor, progress, 2 * len(ids)))
        # the fp32 model is the reference; its device has unbounded SRAM, as it might not fit
        meshes = model.block.mesh, model.placement.prefill.mesh
        mesh, prefill_mesh = (replace(mesh, device=mesh.device.unbounded()) for mesh in meshes)
        wide = {
            "mesh": mesh,
            "device": mesh.device,
            "prefill_mesh": prefill_mesh,
            "head_groups": model.block.head_groups,
            "prefill_head_groups": model.placement.prefill.head_groups,
            "experts": model.placement.prefill.expert_regions or (model.config.experts and "spread"),
            "dtype": "fp32",
            "accumulate": "fp32",
        }
        judge = _model(args, executor, progress, **wide)
        judged, interrupted = _so_far(precision.comparisons(model, judge, ids, args.window, progress))
    return _tell(args, model, judged.as_json(), begun, interrupted)


def _so_far(judged: Iterator[T]) -> tuple[T, bool]:
    """Return the last judgement, and whether Ctrl-C ended them; Ctrl-C before the first is raised."""
    newest = next(judged)
    try:
        for newest in judged:  # noqa: B007 (the last one is wanted)
            pass
    except KeyboardInterrupt:
        return newest, True
    return newest, False


def _ids(args: argparse.Namespace) -> list[int]:
    from wafer_triton.models.checkpoint.text import file_ids, file_text
    from wafer_triton.models.precision import windows

    mesh_of(args)
    windows([0, 0], args.window)  # raises before anything is read
    text, checkpoint = file_text(args.text), checkpoint_of(args)
    ids = ranks.of_first(lambda: file_ids(checkpoint.folder, args.text, text, args.tokens))
    checkpoint.config.check_tokens(ids)
    checkpoint.config.room(min(args.window, len(ids)) - 1)
    args.window = min(args.window, len(ids))  # a longer one would only take memory
    return ids


def _model(args: argparse.Namespace, executor: Executor, progress: Progress, **other: Any) -> WaferForCausalLM:
    from wafer_triton.models.checkpoint.fetch import resolve
    from wafer_triton.models.decoder import WaferForCausalLM

    settings: dict[str, Any] = {"mesh": mesh_of(args), "device": args.device}
    settings |= {"dtype": args.dtype, "accumulate": args.accumulate}
    folder = resolve(args.model)
    settings |= {"head_groups": args.head_groups, "experts": experts_of(args, folder)}
    return WaferForCausalLM.from_pretrained(
        folder, max_length=args.window, max_prompt=args.window, progress=progress,
        executor=executor, **settings | other,
    )  # fmt: skip


def _announce(
    args: argparse.Namespace, executor: Executor, progress: Progress, tokens: int
) -> Callable[[Placement], None]:
    """Return a function that prints the expected time of `tokens` in windows, for the placement that it is given."""
    from wafer_triton.models import effort

    window = min(args.window, tokens)
    prompts = -(-tokens // window)

    def announce(placement: Placement) -> None:
        tell_where(executor)
        progress.announce(effort.seconds(placement, executor, prompts=prompts, tokens=window, steps=0))

    return announce


def _tell(
    args: argparse.Namespace, model: WaferForCausalLM, judged: dict[str, Any], begun: float, interrupted: bool
) -> int:
    from wafer_triton.count.counts import Counts
    from wafer_triton.draw import tables
    from wafer_triton.models.precision import Perplexity, Precision
    from wafer_triton.text.quantity import EMULATED, Legend, as_in, unit

    settings = {name: getattr(args, name) for name in ("dtype", "accumulate", "exchange", "device", "window")}
    settings |= {"mesh": str(model.block.mesh), "prefill_mesh": str(model.placement.prefill.mesh)}
    answer = settings | judged | {"emulation_seconds": perf_counter() - begun}
    own = {"sram_peak_bytes": as_in(Counts, "sram_peak_bytes"), "emulation_seconds": unit("s", "emulation time")}
    text = tables.fields(answer, Legend(Perplexity, Precision, own), title=EMULATED)
    code = tell(args, answer | {"interrupted": interrupted}, text)
    return cut_short(f"after {judged['tokens']:,} tokens") if interrupted else code


OPTIONS = (
    CHECKPOINT,
    option("--text", required=True, type=path, metavar="FILE", help="a UTF-8 text"),
    option("--tokens", type=count, metavar="N", help="the first N tokens of it (default: all)"),
    option("--window", type=count, default=256, metavar="N", help="tokens at once (default: %(default)s)"),
    *PLACE,
    *EXECUTION,
)
COMMANDS = (Command("precision", precision, OPTIONS), Command("perplexity", perplexity, OPTIONS))
