"""The commands that show: `draw` writes pictures, `show` a page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.compare import OWN, REFERENCE, RETURNS
from wafer_triton.cli.options import DEVICE, DTYPE, HEADS, MESH, Command, count, option, size, tell
from wafer_triton.errors import ConfigError

if TYPE_CHECKING:
    from wafer_triton.models.place.regions import Region
    from wafer_triton.schedule.rounds import Schedule

PICTURES = ("schedule", "mesh", "links", "sram", "timeline")  # of one schedule
BEST = {"gemm": "mesh", "gemv": "ktree"}  # the algorithm of a product, unless one is given


def draw(args: argparse.Namespace) -> int:
    """pictures and traces of a product, a schedule of your own, a placed model, or the validation"""
    from wafer_triton import draw

    if args.kind == "validation":
        draw.validation(args.out)
    elif args.kind == "model":
        draw.wafer(_regions(args), args.out, f"{args.model} on meshes of {args.mesh} of {args.device}")
    elif args.picture == "compare":
        _compare(args)
    else:
        _picture(args, _schedule(args))
    return _told(args, args.out, getattr(args, "trace", None))


def _picture(args: argparse.Namespace, schedule: Schedule) -> None:
    """One of `PICTURES`, and the trace where one is asked for."""
    from wafer_triton import draw

    if args.round is not None and args.picture != "mesh":
        raise ConfigError(f"--round {args.round}: only --picture mesh shows one round; leave it out")
    more = {} if args.round is None else {"round": args.round}
    getattr(draw, args.picture)(schedule, args.out, **more)
    if args.trace:
        draw.perfetto(schedule, args.trace)


def _compare(args: argparse.Namespace) -> None:
    from wafer_triton import compare, draw

    if args.trace or args.round is not None:
        raise ConfigError("--picture compare: several algorithms have no one trace and no one round; leave them out")
    common: dict[str, Any] = {"device": args.device, "dtype": args.dtype, "values": False}
    if args.kind == "gemm":
        rows = compare.compare_gemm(args.mesh, args.m, args.k, args.n, **common)
    else:
        rows = compare.compare_gemv(args.mesh, args.k, args.n, **common)
    draw.compare(rows, args.out, f"{args.kind} on mesh {args.mesh} of {args.device}")


def _schedule(args: argparse.Namespace) -> Schedule:
    """The schedule that a command is about: a product's, or one's own."""
    if args.kind == OWN:
        from wafer_triton.cli.own import load
        from wafer_triton.verify.faults import check

        own = load(args.schedule)
        check(own.schedule, own.intent).demand()  # a faulty one may name cores that it does not have
        return own.schedule
    return _product(args, args.algorithm or BEST[args.kind])


def _product(args: argparse.Namespace, algorithm: str) -> Schedule:
    from wafer_triton.mesh import as_mesh
    from wafer_triton.schedule.product import recipe

    m = args.m if args.kind == "gemm" else 1
    shapes = ((m, args.k), (args.k, args.n))
    return recipe(args.kind, as_mesh(args.mesh, args.device), args.dtype, shapes, (("algorithm", algorithm),)).schedule


def _regions(args: argparse.Namespace) -> tuple[Region, ...]:
    """The regions that hold a model for decode."""
    from wafer_triton.cost.constants import constants
    from wafer_triton.cost.layers import decode_block
    from wafer_triton.mesh import as_mesh
    from wafer_triton.models.place.regions import decode_regions
    from wafer_triton.shapes import shape_of

    mesh = as_mesh(args.mesh, args.device)
    c = constants(mesh.device)
    return decode_regions(decode_block(shape_of(args.model), mesh, args.context, c, head_groups=args.head_groups))


def _told(args: argparse.Namespace, *files: Path | None) -> int:
    written = [str(path) for path in files if path]
    return tell(args, {"files": written}, *(f"written: {path}" for path in written))


def _out(default: str) -> Any:
    return option("--out", type=Path, default=Path(default), metavar="FILE", help="default: %(default)s")


ALGORITHM = option(
    "--algorithm", metavar="NAME", help="one that `wafer-triton compare` lists (default: the first there)"
)
TRACE = option(
    "--trace", type=Path, metavar="FILE", help="write predicted cycles as a trace for Perfetto or chrome://tracing too"
)
ROUND = option("--round", type=int, metavar="N", help="of --picture mesh: after which round; -1 is the start (default)")
PRODUCTS = {
    kind: (*(size(f"--{name}", "size of the whole matrices") for name in sizes), MESH, DEVICE, DTYPE, ALGORITHM)
    for kind, sizes in (("gemm", "mkn"), ("gemv", "kn"))
}
PLACED = (
    option("--model", required=True, metavar="NAME|PATH", help="a known shape, a config.json or its folder"),
    MESH,
    DEVICE,
    option("--context", type=count, default=512, metavar="N", help="tokens in the cache (default: %(default)s)"),
    HEADS,
)


def _which(*more: str) -> Any:
    names = (*PICTURES, *more)
    return option("--picture", default="schedule", choices=names, help="what to draw (default: %(default)s)")


COMMANDS = (
    Command(
        "draw",
        draw,
        kinds=(
            *(
                Command(
                    kind, draw, (*options, _which("compare"), ROUND, _out("picture.png"), TRACE), f"a {kind.upper()}"
                )
                for kind, options in PRODUCTS.items()
            ),
            Command(
                OWN,
                draw,
                (option("schedule", metavar=REFERENCE, help=RETURNS), _which(), ROUND, _out("picture.png"), TRACE),
                "a schedule of your own",
            ),
            Command("model", draw, (*PLACED, _out("wafer.png")), "a model placed on a device for decode"),
            Command("validation", draw, (_out("validation.png"),), "predicted against measured"),
        ),
        otherwise=OWN,
    ),
)
