"""The commands that show: `draw` writes pictures, `show` a page."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.compare import OWN, REFERENCE, RETURNS
from wafer_triton.cli.options import DEVICE, DTYPE, MESH, Command, Option, file_of, option, path, size, tell

if TYPE_CHECKING:
    from wafer_triton.draw.summaries import Values
    from wafer_triton.schedule.schedule import Schedule

PICTURES = ("links", "timeline")
REDUCE = "all-reduce"
BEST = {"gemm": "mesh", "gemv": "ktree", REDUCE: "ktree"}  # the algorithm of an operation, unless one is given


def draw(args: argparse.Namespace) -> int:
    """draw pictures and traces of a product or of a schedule of your own, or the validation"""
    from wafer_triton import draw

    if args.kind == "validation":
        draw.validation(args.out)
        return written(args, args.out)
    schedule = _subject(args).schedule
    getattr(draw, args.picture)(schedule, args.out)
    if args.trace:
        draw.perfetto(schedule, args.trace)
    return written(args, args.out, args.trace)


def show(args: argparse.Namespace) -> int:
    """write one page, offline, of a product or of a schedule of your own"""
    from wafer_triton import draw

    subject = _subject(args)
    subjects = [subject, *(_own(name) if args.kind == OWN else _product(args, name) for name in args.beside)]
    scenes = [draw.scene(each.schedule, each.name, _values(each) if args.values else None) for each in subjects]
    mesh = subject.schedule.mesh
    about = f"on mesh {mesh} of {mesh.device.name}, counted from its rounds; times are cycles predicted on the wafer"
    draw.page(args.out, subject.schedule.name, scenes, mesh.device, about=about, beside=1 if scenes[1:] else None)
    if args.trace:
        draw.perfetto({name: each.schedule for name, each in zip(_names(subjects), subjects, strict=True)}, args.trace)
    return written(args, args.out, args.trace)


def written(args: argparse.Namespace, *files: Path | None) -> int:
    """Name the files that were written."""
    named = [str(path) for path in files if path]
    return tell(args.json, {"files": named}, *(f"written: {path}" for path in named))


def _names(subjects: Sequence[Subject]) -> list[str]:
    """Return a name for each subject; a name that came before gets a number."""
    names = [each.name for each in subjects]
    return [f"{name} {names[:at].count(name) + 1}" if name in names[:at] else name for at, name in enumerate(names)]


@dataclass(frozen=True)
class Subject:
    """A schedule that a command is about, its name, and the tiles that it is given, made when they are wanted."""

    name: str
    schedule: Schedule
    given: Callable[[], dict[str, Any]]


def _values(subject: Subject) -> Values:
    """Return the values of a schedule's buffers on every core, from a run on this machine."""
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
    from wafer_triton.verify.intent import Intent

    own = load(reference)
    own.demand()
    intent = own.intent or Intent({}, {})
    shown = _with_given(own.schedule, intent.given)

    def tiles() -> dict[str, Any]:
        from wafer_triton.verify.values import drawn

        return {name: values[0].flatten(2) for name, values in drawn(shown, intent, 1, seed=0).items()}

    return Subject(own.function, shown, tiles)


def _with_given(schedule: Schedule, given: Collection[str]) -> Schedule:
    """Return a schedule whose buffers with values at the start say so in their role."""
    roles = {"output": "state", "scratch": "input"}
    return replace(
        schedule,
        buffers={
            name: replace(buffer, role=roles.get(buffer.role, buffer.role)) if name in given else buffer
            for name, buffer in schedule.buffers.items()
        },
    )


def _product(args: argparse.Namespace, algorithm: str) -> Subject:
    """Return the schedule of a product, or of an all-reduce of `size` elements of every core."""
    from wafer_triton.algorithms.product import recipe
    from wafer_triton.device.mesh import as_mesh

    mesh = as_mesh(args.mesh, args.device)
    options: tuple[tuple[str, Any], ...] = (("algorithm", algorithm),)
    shapes: tuple[tuple[int, ...], ...]
    if args.kind == REDUCE:
        name, shapes = "all_reduce", ((*mesh.shape, args.size),)
        options = (*options, ("axis", args.axis))
    else:
        name, shapes = args.kind, ((args.m if args.kind == "gemm" else 1, args.k), (args.k, args.n))
    made = recipe(name, mesh, args.dtype, shapes, options)

    def tiles() -> dict[str, Any]:
        import torch

        from wafer_triton.device.layout import scatter

        generator, own = torch.Generator().manual_seed(0), made.schedule.mesh
        operands = (torch.randn(shape, generator=generator) for shape in shapes)
        return {
            name: scatter(operand, own, cut).tiles if cut else operand
            for (name, cut), operand in zip(made.inputs, operands, strict=True)
        }

    return Subject(algorithm, _with_given(made.schedule, dict(made.inputs)), tiles)


ALGORITHM = option(
    "--algorithm", metavar="NAME", help="one that `wafer-triton compare` lists (default: the first there)"
)
BESIDE = option(
    "--beside", action="append", default=[], metavar="NAME", help="another algorithm beside it; may be repeated"
)
OWN_BESIDE = option(
    "--beside", action="append", default=[], metavar=REFERENCE, help="another schedule beside it; may be repeated"
)
VALUES = option("--values", action="store_true", help="run it on random operands, and show the values on every core")
TRACE = option(
    "--trace",
    type=file_of(".json"),
    metavar="FILE.json",
    help="write predicted cycles as a trace for Perfetto or chrome://tracing too",
)
PICTURE = option("--picture", default="links", choices=PICTURES, help="the kind of picture (default: %(default)s)")
PRODUCTS = {
    kind: (*(size(f"--{name}", "size of the whole matrices") for name in sizes), MESH, DEVICE, DTYPE, ALGORITHM)
    for kind, sizes in (("gemm", "mkn"), ("gemv", "kn"))
}
REDUCES = (
    size("--size", "elements of every core"),
    MESH,
    DEVICE,
    DTYPE,
    option("--axis", default="x", choices=("x", "y"), help="along mesh rows (x) or columns (y); default: %(default)s"),
    option("--algorithm", metavar="NAME", help="ktree (default), pipeline, ring, star or two-phase"),
)


def output(default: str) -> Option:
    """Return the option of a file that is written, called `default` unless it is given."""
    return option("--out", type=path, default=Path(default), metavar="FILE", help="default: %(default)s")


COMMANDS = (
    Command(
        "draw",
        draw,
        kinds=(
            *(
                Command(kind, draw, (*options, PICTURE, output("picture.png"), TRACE), f"a {kind.upper()}")
                for kind, options in PRODUCTS.items()
            ),
            Command(REDUCE, draw, (*REDUCES, PICTURE, output("picture.png"), TRACE), "an all-reduce"),
            Command(
                OWN,
                draw,
                (option("schedule", metavar=REFERENCE, help=RETURNS), PICTURE, output("picture.png"), TRACE),
                "a schedule of your own",
            ),
            Command("validation", draw, (output("validation.png"),), "predicted against measured"),
        ),
        otherwise=OWN,
    ),
    Command(
        "show",
        show,
        kinds=(
            *(
                Command(kind, show, (*options, BESIDE, VALUES, output("page.html"), TRACE), f"a {kind.upper()}")
                for kind, options in PRODUCTS.items()
            ),
            Command(REDUCE, show, (*REDUCES, BESIDE, VALUES, output("page.html"), TRACE), "an all-reduce"),
            Command(
                OWN,
                show,
                (option("schedule", metavar=REFERENCE, help=RETURNS), OWN_BESIDE, VALUES, output("page.html"), TRACE),
                "a schedule of your own",
            ),
        ),
        otherwise=OWN,
    ),
)
