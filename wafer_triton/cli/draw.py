"""`wafer-triton draw`: a schedule as a picture, a page or a trace, by the ending of the file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.answer import tell
from wafer_triton.cli.app import given, is_reference, made, need, refuse
from wafer_triton.cli.compare import REFERENCE, sizes_of
from wafer_triton.draw.figure import KINDS
from wafer_triton.errors import ConfigError

if TYPE_CHECKING:
    from wafer_triton.algorithms.product import Recipe
    from wafer_triton.draw.summaries import Values
    from wafer_triton.schedule.schedule import Schedule

REDUCE = "all-reduce"
BEST = {"gemm": "mesh", "gemv": "ktree", REDUCE: "ktree"}  # the algorithm of an operation, unless one is given
PAGE, TRACE = ".html", ".json"


def _draw(
    subject: str, /, *, out: list[Path], m: int | None = None, k: int | None = None, n: int | None = None,
    size: int | None = None, axis: str | None = None, mesh: str | None = None, device: str | None = None,
    dtype: str | None = None, algorithm: str | None = None, picture: str | None = None, beside: Sequence[str] = (),
    values: bool = False, json: bool = False,
) -> int:  # fmt: skip
    from wafer_triton import draw

    endings = {file.suffix.lower() for file in out}
    if not endings & {*KINDS}:
        refuse(f"only for a picture; give an --out that ends in {' or '.join(KINDS)}", picture=picture)
    if not endings & {PAGE, TRACE}:
        refuse("only for a page or a trace; give an --out that ends in .html or .json", beside=beside)
    if PAGE not in endings:
        refuse("only for a page; give an --out that ends in .html", values=values)
    options = given(mesh=mesh, device=device, dtype=dtype)
    if is_reference(subject):
        own = {"m": m, "k": k, "n": n, "size": size, "axis": axis, "algorithm": algorithm}
        refuse("only for gemm, gemv and all-reduce; your schedule has its own", **own, **options)
        subjects = [_own(subject), *(_own(name) if is_reference(name) else _rival(subject, name) for name in beside)]
    elif subject in BEST:
        if subject == REDUCE:
            need(subject, size=size, mesh=mesh)
            refuse("only for gemm and gemv", m=m, k=k, n=n)
            sizes: tuple[int, ...] = (size or 0,)
        else:
            refuse(f"only for {REDUCE}", size=size, axis=axis)
            sizes = sizes_of(subject, mesh, m=m, k=k, n=n)
        names = (algorithm or BEST[subject], *beside)
        subjects = [_product(subject, sizes, name, axis=axis or "x", **options) for name in names]
    else:
        raise ConfigError(f"draw {subject}: give {', '.join(BEST)} or {REFERENCE}")
    for file in out:
        ending = file.suffix.lower()
        if ending == PAGE:
            _page(file, subjects, values)
        elif ending == TRACE:
            alone = subjects[0].schedule
            several = {name: each.schedule for name, each in zip(_names(subjects), subjects, strict=True)}
            draw.perfetto(several if beside else alone, file)
        else:
            getattr(draw, picture or "links")(subjects[0].schedule, file)
    return tell(json, {"files": list(map(str, out))}, *(f"written: {file}" for file in out))


draw = made(
    _draw,
    written={"out": (*KINDS, PAGE, TRACE)},
    words={
        "subject": (str | Path, "gemm, gemv, all-reduce or FILE.py:FUNCTION, which returns a schedule"),
        "m": (int, "rows of the first matrix, of gemm"),
        "values": (bool, "compute, and show the values of tiles in a page"),
    },
)


def _page(file: Path, subjects: Sequence[Subject], values: bool) -> None:
    """Write a page of schedules, of the first two beside each other."""
    from wafer_triton import draw

    scenes = [draw.scene(each.schedule, each.name, _values(each) if values else None) for each in subjects]
    first = subjects[0].schedule
    on = f"on mesh {first.mesh} of {first.mesh.device.name}"
    about = f"{on}, counted from its rounds; times are cycles predicted on the wafer"
    draw.page(file, first.name, scenes, first.mesh.device, about=about, beside=1 if scenes[1:] else None)


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


def _own(reference: str) -> Subject:
    """Return a schedule of one's own, given as FILE.py:FUNCTION."""
    from wafer_triton.cli.own import load
    from wafer_triton.verify.intent import Intent

    own = load(reference)
    own.demand()
    intent = own.intent or Intent({}, {})
    shown = _with_given(own.schedule, intent.given)

    def tiles() -> dict[str, Any]:
        from wafer_triton.verify.values import draw_tiles

        return {name: values[0].flatten(2) for name, values in draw_tiles(shown, intent, 1, seed=0).items()}

    return Subject(own.function, shown, tiles)


def _rival(reference: str, algorithm: str) -> Subject:
    """Return the schedule of a built-in algorithm for the operation of FILE.py:FUNCTION."""
    from wafer_triton.cli.own import load
    from wafer_triton.compare.product import understood

    own = load(reference)
    _, operation = understood(own.schedule, own.intent)
    return _built(algorithm, operation.by(algorithm))


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


def _product(
    name: str, sizes: tuple[int, ...], algorithm: str, *, axis: str, mesh: str, device: str = "wse2",
    dtype: str = "fp16",
) -> Subject:  # fmt: skip
    """Return the schedule of a product of m, k, n or k, n, or of an all-reduce of elements of every core."""
    from wafer_triton.algorithms.product import recipe
    from wafer_triton.device.dtype import dtype_name
    from wafer_triton.device.mesh import as_mesh

    on = as_mesh(mesh, device)
    options: tuple[tuple[str, Any], ...] = (("algorithm", algorithm),)
    shapes: tuple[tuple[int, ...], ...]
    if name == REDUCE:
        name, shapes = "all_reduce", ((*on.shape, *sizes),)
        options = (*options, ("axis", axis))
    else:
        m, k, n = (1, *sizes)[-3:]  # a gemv has one vector
        shapes = ((m, k), (k, n))
    return _built(algorithm, recipe(name, on, dtype_name(dtype), shapes, options))


def _built(algorithm: str, built: Recipe) -> Subject:
    """Return a recipe as a subject with random operands."""

    def tiles() -> dict[str, Any]:
        import torch

        from wafer_triton.device.layout import scatter

        generator, own = torch.Generator().manual_seed(0), built.schedule.mesh
        operands = (torch.randn(shape, generator=generator) for shape in built.shapes)
        return {
            name: scatter(operand, own, cut).tiles if cut else operand
            for (name, cut), operand in zip(built.inputs, operands, strict=True)
        }

    return Subject(algorithm, _with_given(built.schedule, dict(built.inputs)), tiles)
