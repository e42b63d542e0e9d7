"""The commands that predict: `estimate` and `plan`. Every time in them is wafer time."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.answer import tell
from wafer_triton.cli.app import made
from wafer_triton.compare.sweep import KINDS, asked
from wafer_triton.cost import search
from wafer_triton.cost.estimate import product_algorithm
from wafer_triton.device import device as find_device
from wafer_triton.device import energy_note
from wafer_triton.shape.read import positions, shape_of
from wafer_triton.text.quantity import PREDICTED, Legend, digits, quantity, unit
from wafer_triton.text.table import Table

if TYPE_CHECKING:
    from wafer_triton.compare.explain import Explanation

BASIS = ("constants", "error_band", "outside", "layout")  # of a plan, printed of the best alone
TOKENS = ("context", "tokens", "input", "output")


def _estimate(kind: str, *, explain: bool, json: bool, **options: Any) -> int:
    from wafer_triton.compare import explain as why

    if kind == "product":
        options["algorithm"] = product_algorithm(options["m"], options["algorithm"])
    if explain:
        from wafer_triton.draw.progress import Progress

        brief = kind in ("product", "decode") and options.get("batch") is None
        with Progress(brief=brief) as progress:
            said = why.explain(kind, progress=progress, **options)
        return tell(json, asdict(said), *_reasons(said), *_notes(options))
    found = KINDS[kind](**options)
    rests, notes = why.bounds(kind, **options), _notes(options)
    if any("joules" in name for name in vars(found)):
        notes += filter(None, [energy_note(find_device(options["device"]))])
    table = Table.of(found, title=_title(kind, options))
    return tell(json, asdict(found) | {"bounds": asdict(rests)}, table, str(rests), *notes)


def _reasons(found: Explanation) -> list[str | Table]:
    """Return an explanation for people: its shares, and the effects of numbers."""
    title = f"{found.title}, {PREDICTED}: {quantity(found.value, found.unit)}"
    shares = {name: share for name, share in found.shares.items() if share}
    parts = {"share": shares, "sram_share": found.sram_share, "head_groups": found.head_groups}
    shares_of = {"share": unit("%", f"share of the {found.whole}")}
    legend = Legend(shares_of, {"sram_share": unit("%", "SRAM of a core in use"), "head_groups": unit("groups")})
    effects = [(name, _times(effect.halved), _times(effect.doubled)) for name, effect in found.effects.items()]
    head = ("number of the device", "halved", "doubled")
    label = "speed" if found.figure == "seconds" else found.label
    return [Table([parts], legend, title=title, upright=True), "", Table.rows(head, effects, title=label)]


def _times(ratio: float | None) -> str:
    return "does not fit" if ratio is None else f"x {digits(ratio)}"


def _notes(options: dict[str, Any]) -> list[str]:
    """Return the lines under an estimate: too many positions, absent parts."""
    return [note for note in (_positions(options), _layers_alone(options)) if note]


def _positions(options: dict[str, Any]) -> str:
    """Return a note on more tokens than a model has positions for."""
    count = sum(options.get(name) or 0 for name in TOKENS)
    most = positions(options["model"]) if count else None
    if most is None or count <= most:
        return ""
    return f"{count:,} tokens are more than the {most:,} positions of {options['model']}, which `generate` refuses"


def _layers_alone(options: dict[str, Any]) -> str:
    """Return a note on the sub-layers that a decoder without a vocabulary lacks."""
    if "model" not in options or shape_of(options["model"]).vocab_size:
        return ""
    return "without a vocabulary, layers alone: no embedding, no head"


def _plan(*, json: bool, **options: Any) -> int:
    from wafer_triton.draw.progress import Progress

    device = find_device(options["device"])
    with Progress() as progress:
        plans = [asdict(plan) for plan in search.plan(**options, progress=progress)]
    shown = [{name: value for name, value in plan.items() if name not in BASIS and value is not None} for plan in plans]
    legend = Legend(search.Plan)
    table = Table(shown, legend, title=_title("plans, the best first", options))
    named = Table([{name: plans[0][name] for name in BASIS}], legend, title="the best of them", upright=True)
    notes = filter(None, [_layers_alone(options), energy_note(device)])
    return tell(json, {"best": plans[0], "plans": plans}, table, named, *notes)


def _title(subject: str, options: dict[str, Any]) -> str:
    """Return the title: the subject of the estimate, and every option with a value."""
    return f"{subject}, {PREDICTED}: {asked(options)}"


def _of(kind: str) -> Any:
    return made(partial(_estimate, kind), KINDS[kind], but=("program",), flags=("explain", "json"))


product, decode, prefill, request, training = map(_of, ("product", "decode", "prefill", "request", "training"))
plan = made(_plan, search.plan, but=("sides", "progress"), flags=("json",))
