"""The commands that show: `draw` writes pictures, `show` a page."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.compare import OWN, REFERENCE, RETURNS
from wafer_triton.cli.options import DEVICE, DTYPE, HEADS, MESH, SHAPE, Command, Option, count, option, path, size, tell
from wafer_triton.errors import ConfigError

if TYPE_CHECKING:
    from wafer_triton.draw.summaries import Values
    from wafer_triton.mesh import Mesh
    from wafer_triton.place.regions import Region
    from wafer_triton.schedule.block import Block
    from wafer_triton.schedule.rounds import Schedule
    from wafer_triton.verify.provenance import Intent

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
        _picture(args, _subject(args).schedule)
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
    from wafer_triton import draw
    from wafer_triton.compare import algorithms

    if args.trace or args.round is not None:
        raise ConfigError("--picture compare: several algorithms have no one trace and no one round; leave them out")
    if args.algorithm:
        raise ConfigError(f"--algorithm {args.algorithm}: --picture compare shows all algorithms; leave it out")
    common: dict[str, Any] = {"device": args.device, "dtype": args.dtype, "values": False}
    if args.kind == "gemm":
        rows = algorithms.compare_gemm(args.mesh, args.m, args.k, args.n, **common)
    else:
        rows = algorithms.compare_gemv(args.mesh, args.k, args.n, **common)
    draw.compare(rows, args.out, f"{args.kind} on mesh {args.mesh} of {args.device}")


def show(args: argparse.Namespace) -> int:
    """one page, offline, of a product, a schedule of your own, a placed model or a record of `generate --json`"""
    if args.kind == "model":
        return _show_model(args)
    if args.kind == "record":
        from wafer_triton.cli import record

        record.page_of(args.record, args.out)
        return _told(args, args.out)
    from wafer_triton import draw

    subject = _subject(args)
    subjects = [subject, *(_own(name) if args.kind == OWN else _product(args, name) for name in args.beside)]
    scenes = [draw.scene(each.schedule, each.name, _values(each) if args.values else None) for each in subjects]
    mesh = subject.schedule.mesh
    about = f"on mesh {mesh} of {mesh.device.name}, counted from its rounds; times are cycles predicted on the wafer"
    draw.page(args.out, subject.schedule.name, scenes, mesh.device, about=about, beside=1 if scenes[1:] else None)
    if args.trace:
        draw.perfetto({name: each.schedule for name, each in zip(_names(subjects), subjects, strict=True)}, args.trace)
    return _told(args, args.out, args.trace)


def _names(subjects: Sequence[Subject]) -> list[str]:
    """Return a name for each subject; a name that came before gets a number."""
    names = [each.name for each in subjects]
    return [f"{name} {names[:at].count(name) + 1}" if name in names[:at] else name for at, name in enumerate(names)]


def _show_model(args: argparse.Namespace) -> int:
    """Return the regions of a model, the parts of a decode layer, and the estimate of a token."""
    from dataclasses import asdict

    from wafer_triton import draw, estimate
    from wafer_triton.cost.layers import feed_forward
    from wafer_triton.draw.tables import plain_fields
    from wafer_triton.schedule import decode
    from wafer_triton.schedule.block import schedule
    from wafer_triton.text.quantity import PREDICTED, Legend, quantity

    block, regions = _block(args), _regions(args)
    parts = [schedule(part, block, *of) for part, of in decode.layer(block, args.context, feed_forward(block)[-1])]
    given = {name: getattr(args, name) for name in ("model", "mesh", "device", "context", "head_groups")}
    token = estimate.decode(**given)
    told = plain_fields(asdict(token), Legend(type(token)))
    rate = token.tokens_per_second
    table = {"title": f"One token of decode, {PREDICTED}", "head": ["", "estimate"], "rows": told}
    draw.page(
        args.out,
        f"{args.model} on meshes of {block.mesh}",
        [draw.scene(part) for part in parts],
        block.mesh.device,
        about=f"decode on {block.mesh.device.name}, {args.context:,} tokens of cache; schedules are those of a layer",
        regions=regions,
        tables=[table],
        headline=f"{args.model}: {len(regions)} regions of {block.mesh} cores, {quantity(rate, 'tokens/s')} predicted",
    )
    return _told(args, args.out)


@dataclass(frozen=True)
class Subject:
    """A schedule that a command is about, its name, and the tiles that it is given, made when they are wanted."""

    name: str
    schedule: Schedule
    given: Callable[[], dict[str, Any]]


def _values(subject: Subject) -> Values:
    """What every core holds of a schedule's buffers, from a run on this machine."""
    from wafer_triton.draw.summaries import demand, summaries
    from wafer_triton.ops import executor

    demand(subject.schedule)
    return summaries(executor("torch", emulate_on="cpu").bind(subject.schedule, subject.given()))


def _subject(args: argparse.Namespace) -> Subject:
    """Return the schedule that a command is about: a product's, or one's own."""
    return _own(args.schedule) if args.kind == OWN else _product(args, args.algorithm or BEST[args.kind])


def _own(reference: str) -> Subject:
    """Return a schedule of one's own, given as FILE.py:FUNCTION."""
    from wafer_triton.cli.own import load
    from wafer_triton.verify.faults import check
    from wafer_triton.verify.provenance import Intent

    own = load(reference)
    check(own.schedule, own.intent).demand()  # a faulty one may name cores that it does not have
    intent = own.intent or Intent({}, {})
    shown = _with_given(own.schedule, intent)

    def tiles() -> dict[str, Any]:
        from wafer_triton.verify.values import drawn

        return {name: values[0].flatten(2) for name, values in drawn(shown, intent, 1, seed=0).items()}

    return Subject(own.function, shown, tiles)


def _with_given(schedule: Schedule, intent: Intent) -> Schedule:
    """Return a schedule whose buffers with values at the start by its intent say so in their role, too."""
    roles = {"output": "state", "scratch": "input"}
    changed = {name: buffer.role for name, buffer in schedule.buffers.items() if name in intent.given}
    return replace(
        schedule,
        buffers={
            name: replace(buffer, role=roles.get(changed[name], buffer.role)) if name in changed else buffer
            for name, buffer in schedule.buffers.items()
        },
    )


def _product(args: argparse.Namespace, algorithm: str) -> Subject:
    from wafer_triton.mesh import as_mesh
    from wafer_triton.schedule.product import recipe

    shapes = ((args.m if args.kind == "gemm" else 1, args.k), (args.k, args.n))
    made = recipe(args.kind, as_mesh(args.mesh, args.device), args.dtype, shapes, (("algorithm", algorithm),))

    def tiles() -> dict[str, Any]:
        import torch

        from wafer_triton.layout import scatter

        generator, mesh = torch.Generator().manual_seed(0), made.schedule.mesh
        operands = (torch.randn(shape, generator=generator) for shape in shapes)
        return {
            name: scatter(operand, mesh, cut).tiles for (name, cut), operand in zip(made.inputs, operands, strict=True)
        }

    return Subject(algorithm, made.schedule, tiles)


def _block(args: argparse.Namespace) -> Block:
    """Return the block of a model for decode; raises where the device does not hold it, with what would."""
    from wafer_triton.cost.constants import constants
    from wafer_triton.cost.layers import decode_block
    from wafer_triton.mesh import as_mesh
    from wafer_triton.place.fitting import fitted
    from wafer_triton.place.regions import decode_regions, held_by_all
    from wafer_triton.shape.read import shape_of

    mesh, shape = as_mesh(args.mesh, args.device), shape_of(args.model)
    c = constants(mesh.device)

    def on(mesh: Mesh) -> Block:
        return decode_block(shape, mesh, args.context, c, head_groups=args.head_groups)

    block = on(mesh)
    held_by_all(block)  # where no mesh holds the model, the mesh is not to blame
    fitted(lambda candidate: decode_regions(on(candidate)), mesh, as_if=None)
    return block


def _regions(args: argparse.Namespace) -> tuple[Region, ...]:
    """Return the regions that hold a model for decode."""
    from wafer_triton.place.regions import decode_regions

    return decode_regions(_block(args))


def _told(args: argparse.Namespace, *files: Path | None) -> int:
    """Name the files that were written."""
    written = [str(path) for path in files if path]
    return tell(args, {"files": written}, *(f"written: {path}" for path in written))


def _out(default: str) -> Option:
    return option("--out", type=path, default=Path(default), metavar="FILE", help="default: %(default)s")


ALGORITHM = option(
    "--algorithm", metavar="NAME", help="one that `wafer-triton compare` lists (default: the first there)"
)
BESIDE = option(
    "--beside", action="append", default=[], metavar="NAME", help="another algorithm beside it; may be repeated"
)
OWN_BESIDE = option(
    "--beside", action="append", default=[], metavar=REFERENCE, help="another schedule beside it; may be repeated"
)
VALUES = option("--values", action="store_true", help="run it on random operands, and show what every core holds")
TRACE = option(
    "--trace", type=path, metavar="FILE", help="write predicted cycles as a trace for Perfetto or chrome://tracing too"
)
ROUND = option("--round", type=int, metavar="N", help="of --picture mesh: after which round; -1 is the start (default)")
PRODUCTS = {
    kind: (*(size(f"--{name}", "size of the whole matrices") for name in sizes), MESH, DEVICE, DTYPE, ALGORITHM)
    for kind, sizes in (("gemm", "mkn"), ("gemv", "kn"))
}
PLACED = (
    SHAPE,
    MESH,
    DEVICE,
    option("--context", type=count, default=512, metavar="N", help="tokens in the cache (default: %(default)s)"),
    HEADS,
)


def _which(*more: str) -> Option:
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
    Command(
        "show",
        show,
        kinds=(
            *(
                Command(kind, show, (*options, BESIDE, VALUES, _out("page.html"), TRACE), f"a {kind.upper()}")
                for kind, options in PRODUCTS.items()
            ),
            Command(
                OWN,
                show,
                (option("schedule", metavar=REFERENCE, help=RETURNS), OWN_BESIDE, VALUES, _out("page.html"), TRACE),
                "a schedule of your own",
            ),
            Command("model", show, (*PLACED, _out("page.html")), "a model placed on a device for decode"),
            Command(
                "record",
                show,
                (
                    option("record", type=path, metavar="FILE", help="the JSON of `wafer-triton generate --json`"),
                    _out("page.html"),
                ),
                "the record of a generated text",
            ),
        ),
        otherwise=OWN,
    ),
)
