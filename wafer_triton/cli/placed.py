"""The pages of placed models: a token through the regions of a model, and a request with prefill and decode."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.estimate import AS_IF, PROGRAM, REQUEST
from wafer_triton.cli.options import DEVICE, HEADS, MESH, SHAPE, Option, count, file_of, given, option, path, tell

if TYPE_CHECKING:
    from wafer_triton.device.mesh import Mesh
    from wafer_triton.place.regions import Region
    from wafer_triton.schedule.block import Block
    from wafer_triton.shape.decoder import DecoderShape

MOST_TOKENS = 60  # of an answer that a page shows block by block; a trace shows more


def model(args: argparse.Namespace) -> int:
    """Return the regions of a model, the parts of a decode layer, and the estimate of a token."""
    from wafer_triton import draw, estimate
    from wafer_triton.cost.layers import feed_forward
    from wafer_triton.draw import times
    from wafer_triton.schedule import decode
    from wafer_triton.schedule.block import schedule
    from wafer_triton.text.quantity import quantity

    block, held = _block(args), regions(args)
    parts = [schedule(part, block, *of) for part, of in decode.layer(block, args.context, feed_forward(block)[-1])]
    given = {name: getattr(args, name) for name in ("model", "mesh", "device", "context", "head_groups")}
    token = estimate.decode(**given)
    rate, line = token.tokens_per_second, times.of_token(held, block, args.context)
    draw.page(
        args.out,
        f"{args.model} on meshes of {block.mesh}",
        [draw.scene(part) for part in parts],
        block.mesh.device,
        about=f"decode on {block.mesh.device.name}, {args.context:,} tokens of cache; its schedules make a layer",
        regions=held,
        tables=[_estimated("One token of decode", token)],
        headline=f"{args.model}: {len(held)} regions of {block.mesh} cores, {quantity(rate, 'tokens/s')} predicted",
        time=times.plain(line, held),
    )
    if args.trace:
        draw.perfetto(line, args.trace)
    return written(args, args.out, args.trace)


def request(args: argparse.Namespace) -> int:
    """Show the regions of a request's answer, and its time by phase, region and block."""
    from wafer_triton import draw, estimate
    from wafer_triton.draw import times
    from wafer_triton.text.quantity import quantity

    sizes = {name: value for name, value in given(args).items() if name not in ("out", "trace")}
    priced, (place, _) = estimate.request(**sizes), estimate.request_place(**sizes)
    shares = {"prefill": priced.prefill_seconds, "re-placement": priced.replacement_seconds}
    shares["decode"] = priced.decode_seconds
    parts = ", ".join(f"{name} {seconds / priced.seconds:.0%}" for name, seconds in shares.items())
    draw.page(
        args.out,
        f"{args.model}: {args.input:,} tokens of prompt, {args.output:,} of answer",
        [],
        place.decode.mesh.device,
        about=f"prefill on mesh {args.prefill_mesh}, decode on mesh {args.decode_mesh} of {args.device}"
        + "; regions are counted by area, as in the paper, and may lie beyond the device" * (place.layout == "area"),
        regions=place.regions,
        tables=[_estimated("The request", priced)],
        headline=f"{quantity(priced.tokens_per_second, 'tokens/s')} predicted: {parts}",
        time=times.plain(times.request(**sizes, most=MOST_TOKENS), place.regions),
    )
    if args.trace:
        draw.perfetto(times.request(**sizes), args.trace)
    return written(args, args.out, args.trace)


def _estimated(title: str, result: Any) -> dict[str, Any]:
    """Return a table of an estimate for a page."""
    from dataclasses import asdict

    from wafer_triton.draw.tables import plain_fields
    from wafer_triton.text.quantity import PREDICTED, Legend

    return {
        "title": f"{title}, {PREDICTED}",
        "head": ["", "estimate"],
        "rows": plain_fields(asdict(result), Legend(type(result))),
    }


def _block(args: argparse.Namespace) -> Block:
    """Return the block of a model for decode; raises if the device does not hold it, and names a mesh that would."""
    from wafer_triton.cost.constants import constants
    from wafer_triton.cost.layers import decode_block
    from wafer_triton.device.mesh import as_mesh
    from wafer_triton.place.fitting import fitted
    from wafer_triton.place.regions import decode_regions
    from wafer_triton.shape.read import shape_of

    mesh, shape = as_mesh(args.mesh, args.device), shape_of(args.model)
    c = constants(mesh.device)

    def on(mesh: Mesh, own: DecoderShape = shape) -> Block:
        return decode_block(own, mesh, args.context, c, head_groups=args.head_groups)

    def place(mesh: Mesh, own: DecoderShape = shape) -> None:
        decode_regions(on(mesh, own))

    fitted(place, mesh, None, shape)
    return on(mesh)


def regions(args: argparse.Namespace) -> tuple[Region, ...]:
    """Return the regions that hold a model for decode."""
    from wafer_triton.place.regions import decode_regions

    return decode_regions(_block(args))


def written(args: argparse.Namespace, *files: Path | None) -> int:
    """Name the files that were written."""
    named = [str(path) for path in files if path]
    return tell(args, {"files": named}, *(f"written: {path}" for path in named))


def output(default: str) -> Option:
    """Return the option of a file that is written, called `default` unless it is given."""
    return option("--out", type=path, default=Path(default), metavar="FILE", help="default: %(default)s")


TRACE = option(
    "--trace",
    type=file_of(".json"),
    metavar="FILE.json",
    help="write predicted cycles as a trace for Perfetto or chrome://tracing too",
)
PLACED = (
    SHAPE,
    MESH,
    DEVICE,
    option("--context", type=count, default=512, metavar="N", help="tokens in the cache (default: %(default)s)"),
    HEADS,
)
REQUESTED = (
    SHAPE,
    option("--prefill-mesh", **MESH[1]),
    option("--decode-mesh", **MESH[1]),
    DEVICE,
    *REQUEST,
    HEADS,
    PROGRAM,
    AS_IF,
)
