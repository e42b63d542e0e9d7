"""Provenance: the tiles in every slot and the terms of every sum, followed through a schedule without values.

Every given tile gets a name: one index for each letter of its buffer's partition spec. Under "(y m) (x k)" the tile of
core (2, 3) is m=2, k=3. A product, or another operation on several tiles, joins the letters of its operands, which must
agree in shared letters. A sum or a maximum joins terms (`wafer_triton.verify.terms`). Any other operation may only read
a complete sum. At the end every core of a result must hold the indices of the result's partition spec. The result must
be a complete sum over all other letters.

A value also has the operation that made its terms (`maker`) and the operation that joined them (`joint`). So a maximum
of row sums differs from their sum. If a tile is cut into the slots of another buffer, all tiles are followed in
that number of parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from wafer_triton import local
from wafer_triton.device.layout import MESH_AXES, dimensions
from wafer_triton.errors import ScheduleError, article, shown
from wafer_triton.schedule.rounds import Cores, Local, Slot
from wafer_triton.schedule.rules import Finding
from wafer_triton.verify.held import JOINTS, HeldTiles, Value
from wafer_triton.verify.specs import EVERY_CORE, PartitionSpec, Tiles, indices, whole_reference
from wafer_triton.verify.state import fault, slot_view
from wafer_triton.verify.terms import PART, Counts

if TYPE_CHECKING:
    from wafer_triton.schedule.product import Recipe
    from wafer_triton.schedule.schedule import Schedule

PRODUCTS = ("gemm", "gemm_t")
# operations with a statistic of rows among their operands: its place, its maker, and the joint of its terms
STATISTICS = {
    "rms_scale": (1, "sum_squares", "add"),
    "exp_sum": (2, "row_max", "maximum"),
    "normalize": (1, "exp_sum", "add"),
}
COMBINES = JOINTS[1:]
JOINS = (*PRODUCTS, *STATISTICS, *COMBINES)


@dataclass(frozen=True)
class Intent:
    """The inputs of a schedule and the results that it must end with.

    A partition spec gives the index of each letter in a core's tile. It is an einops pattern as in `layout`, or a
    mapping from letters to "y", "x", "slot", a number, or an array [rows, cols]. Tiles of one buffer with equal indices
    are copies of each other. A result must be a complete sum over the letters that it lacks. `on` limits a result to
    some cores (a reduction's root); else all cores must have it.

    `reference` computes the results plainly, from the given tiles to the resulting tiles: both go by buffer
    name, [rows, cols, *tile], or [rows, cols, slots, *tile] of several slots, in fp64. Its NaN elements are not
    judged.

    Tiles are random. `draw`, a function of a run's tiles and its number from 0, returns tiles to replace some of them.
    `runs` is the number of runs that reach all of a schedule. `pieces` makes references of the results that lack a
    piece of the schedule, by the piece's name, so that a finding names the missing piece.
    """

    given: Mapping[str, PartitionSpec]
    result: Mapping[str, PartitionSpec]
    on: Mapping[str, Cores] = field(default_factory=dict)
    reference: Callable[[Tiles], Tiles] | None = None
    draw: Callable[[Tiles, int], Tiles] | None = None
    runs: int = 1
    pieces: Callable[[], Mapping[str, Callable[[Tiles], Tiles]]] | None = None

    def __post_init__(self) -> None:
        for field_ in ("reference", "draw", "pieces"):
            if getattr(self, field_) is not None and not callable(getattr(self, field_)):
                raise ScheduleError(
                    f"Intent: {field_} = {shown(getattr(self, field_))} must be callable; give a function, or None"
                )
        if type(self.runs) is not int or self.runs < 1:
            raise ScheduleError(f"Intent: runs = {shown(self.runs)} must be a whole number of at least 1")
        for name, spec in (*self.given.items(), *self.result.items()):
            if not isinstance(spec, str | Mapping):
                raise ScheduleError(
                    f"Intent: the partition spec of {name!r} is {shown(spec)}; give a pattern such as '(y m) (x k)', "
                    f"or a mapping from letters to 'y', 'x', 'slot', a number or an array"
                )
            if isinstance(spec, str) and not re.fullmatch(r"[^()]*(\([^()]*\)[^()]*)*", spec):
                raise ScheduleError(
                    f"Intent: the brackets of {spec!r}, the partition spec of {name!r}, do not match; "
                    f"write a pattern such as '(y m) (x k)'"
                )
            for axes in dimensions(spec) if isinstance(spec, str) else ():
                if axes and axes[-1] in MESH_AXES:
                    raise ScheduleError(
                        f"Intent: {spec!r}, the partition spec of {name!r}, has no letter after {axes[-1]}; write a "
                        f"pattern such as '(y m) (x k)', or a mapping such as {{'m': '{axes[-1]}'}}"
                    )
            words = re.findall(r"\w+", spec) if isinstance(spec, str) else []
            if len(set(words)) < len(words):
                raise ScheduleError(
                    f"Intent: {spec!r}, the partition spec of {name!r}, names an axis twice; give each its own letter"
                )

    @classmethod
    def of(cls, recipe: Recipe) -> Intent:
        """Return the intent of a recipe, its reference included."""
        if not hasattr(recipe, "constants"):
            kind = article(type(recipe).__name__)
            raise ScheduleError(f"Intent.of: {kind} is no recipe; wafer_triton.schedule.product.recipe makes one")
        constants = {name: spec for name, (_, spec) in recipe.constants.items()}
        patterns = dict(recipe.inputs) | constants
        given: dict[str, PartitionSpec] = {name: spec or EVERY_CORE for name, spec in patterns.items()}
        name, pattern, _ = recipe.output
        kept = {letter: axis for letter, axis in EVERY_CORE.items() if axis != recipe.combined}
        # tiles that cores exchange part by part are judged by values alone
        intent = cls(given, {name: pattern or kept} if pattern or recipe.combined else {})
        if recipe.reference is None:
            return intent
        reference = whole_reference(recipe.schedule.mesh, patterns, {name: pattern}, recipe.reference)
        return replace(intent, reference=reference)


def provenance(schedule: Schedule, intent: Intent) -> list[Finding]:
    """Return the first fault, or no finding; counts after a fault would mean nothing.

    Raises ScheduleError for an intent that does not fit the schedule, or a mesh too large to follow every tile.
    """
    unknown = sorted({*intent.given, *intent.result, *intent.on} - schedule.buffers.keys())
    if unknown:
        raise ScheduleError(f"{schedule.name}: the intent names undeclared buffers: {', '.join(unknown)}")
    for name, cores in intent.on.items():
        if not isinstance(cores.at, np.ndarray):
            raise ScheduleError(f"Intent: on[{name!r}]: positions {cores.at!r} must be an array of whole numbers")
        for places, sides in zip(cores.grid(schedule.mesh), schedule.mesh.shape, strict=True):
            if places.max(initial=-1) >= sides:
                raise ScheduleError(f"Intent: on[{name!r}] names a core that is off mesh {schedule.mesh}")
    if not intent.result:
        return []
    try:
        _Run(schedule, intent).run()
    except _Refuted as broken:
        return [broken.finding]
    return []


class _Refuted(Exception):
    def __init__(self, finding: Finding) -> None:
        self.finding = finding


class _Run:
    """Follows the tiles of all cores to the first fault."""

    def __init__(self, schedule: Schedule, intent: Intent) -> None:
        self.schedule, self.mesh, self.on = schedule, schedule.mesh, intent.on
        self.number = 0
        given, self.results = (
            {name: indices(spec, self.mesh, schedule.buffers[name].slots) for name, spec in specs.items()}
            for specs in (intent.given, intent.result)
        )
        self.held = HeldTiles(schedule, given)
        self.letters = self.held.letters
        self.kept = {letter for spec in self.results.values() for letter in spec}
        unnamed = sorted(self.kept - self.letters.places.keys())
        if unnamed:
            (name,) = [name for name, spec in self.results.items() if unnamed[0] in spec][:1]
            has = ", ".join(sorted({*self.letters.places} - {PART}))
            raise ScheduleError(
                f"{schedule.name}: result {name!r} has {', '.join(unnamed)}, but no given buffer has; they have {has}"
            )

    def run(self) -> None:
        for number, round_ in enumerate(self.schedule.rounds):
            self.number = number
            for exchange in round_.exchanges:  # in any order: a sent tile is not overwritten in its round
                value = self.held.get(exchange.src, exchange.senders)
                self.held.put(exchange.dst, exchange.receivers, value, number)
            for op in round_.locals:
                self.local(op)
        for name, spec in self.results.items():
            self.judge(name, spec)

    def fail(self, verdict: str, core: tuple[int, int], message: str, number: int | None = None) -> NoReturn:
        number = self.number if number is None else number
        raise _Refuted(fault(self.schedule, verdict, number, core, message))

    def demand(
        self, wrong: NDArray[np.bool_], verdict: str, op: Local, message: Callable[..., str], *values: Counts
    ) -> None:
        """Fail at the first core that has a part for which `wrong` [..., parts] is true.

        `message` gets the texts of the wrong values [..., parts, indices].
        """
        if wrong.any():
            there = [np.broadcast_to(each, (*wrong.shape, each.shape[-1]))[wrong][0] for each in values]
            here = slot_view(op.ins[0], op.where, self.mesh)
            self.fail(verdict, here.core(np.asarray(wrong.any(-1))), message(*map(self.letters.text, there)))

    def local(self, op: Local) -> None:
        ins = [self.held.get(slot, op.where) for slot in op.ins]
        fits = len({self.held.cells(slot) for slot in (*op.ins, *op.outs)}) == 1
        if op.op == "copy" and fits:
            (result,) = ins
        elif op.op in COMBINES and fits and (ins[0].maker() == ins[-1].maker()).all():
            result = self.combined(op, op.op, *ins)
        else:
            tiles = [self.tile(op, slot, value) for slot, value in zip(op.ins, ins, strict=True)]
            if op.op in STATISTICS:
                self.statistic(op, ins)
            result = self.joined(op, tiles) if op.op in JOINS else tiles[0]
            if op.op not in ("copy", *COMBINES):
                result = result._replace(origin=np.full_like(result.origin, _maker(op.op) * len(JOINTS)))
        for slot in op.outs:
            updated = local.find(op.op).updates(op.params)
            value = self.combined(op, "add", self.held.get(slot, op.where), result) if updated else result
            self.held.put(slot, op.where, value, self.number)

    def tile(self, op: Local, slot: Slot, value: Value) -> Value:
        """Return an operand as one tile [..., 1, indices], without the letters of its sums, which must be complete.

        A tile in several parts has the letters that are common to all parts.
        """
        counts, letters = value.counts, self.letters
        by = f"reads {slot} (by {op.op})"
        self.demand(
            letters.incomplete(counts), "incomplete", op, lambda text: f"{by}, which has only {text}", counts
        )  # fmt: skip
        if counts.shape[-2] > 1:
            self.demand(letters.misplaced(counts), "misplaced", op, lambda: f"{by}, whose parts are out of order")
        reduced = letters.reduced(counts).min(-2, keepdims=True)
        reduced[..., letters.places[PART]] = 0
        return Value(reduced, value.origin[..., :1])

    def joined(self, op: Local, tiles: list[Value]) -> Value:
        """Return the letters of all tiles, which must agree in the letters that they share."""
        result, *others = tiles
        verb = "multiplies" if op.op in PRODUCTS else "combines"
        for slot, other in zip(op.ins[1:], others, strict=True):
            for letter in self.letters.places:
                message = f"{verb} {op.ins[0]} ({{}}) by {slot} ({{}}): {letter} differs".format
                wrong = self.letters.misaligned(letter, result.counts, other.counts)
                self.demand(wrong, "misaligned", op, message, result.counts, other.counts)
            result = result._replace(counts=((result.counts > 0) | (other.counts > 0)).astype(np.int16))
        return result

    def statistic(self, op: Local, ins: list[Value]) -> None:
        """Demand that a statistic of rows that was not given has the maker and the joint of `STATISTICS`."""
        place, maker, joint = STATISTICS[op.op]
        value, by = ins[place], f"reads {op.ins[place]} (by {op.op})"
        other = (value.maker() > 0) & (value.maker() != _maker(maker))
        self.demand(other, "misaligned", op, lambda: f"{by}, which {maker} has not made")
        other = (value.joint() > 0) & (value.joint() != JOINTS.index(joint))
        self.demand(other, "misaligned", op, lambda: f"{by}, whose terms {joint} has not joined")

    def combined(self, op: Local, joint: str, a: Value, b: Value) -> Value:
        """Return the terms of `a` and `b` joined by "add" or "maximum"; products share the result's letters."""
        letters, code, pair = self.letters, JOINTS.index(joint), (a.counts, b.counts)
        total = a.counts + b.counts if joint == "add" else letters.union(*pair)
        support = letters.support(total)
        for number, letter in enumerate(letters.places):
            if letter == PART or (letter in self.kept and op.op in PRODUCTS):
                message = f"adds up (by {op.op}) {{}} and {{}}: {letter} differs".format
                self.demand(support[..., number] > 1, "misaligned", op, message, *pair)
        message = f"adds (by {op.op}) {{1}} to {{0}}, which has it already".format
        self.demand(letters.double_counted(total), "double-count", op, message, *pair)
        for value in (a, b):
            mixed = (value.joint() > 0) & (value.joint() != code)
            if mixed.any():
                message = f"joins {{}} and {{}} by {joint}, and terms of them by another operation".format
                self.demand(mixed & letters.incomplete(value.counts), "misaligned", op, message, *pair)
        return Value(total, a.maker() * len(JOINTS) + code)

    def judge(self, name: str, spec: dict[str, NDArray[np.int64]]) -> None:
        """Demand that each core of a result holds the indices of its partition spec, in every part with elements."""
        buffer, parts, letters = self.schedule.buffers[name], self.held.parts[name], self.letters
        here = slot_view(Slot(name, None), self.on.get(name), self.mesh)
        used = -(-buffer.numel // -(-buffer.numel // parts))
        value = here.get(self.held.counts[name])[..., :used, :]
        support, full = letters.support(value), letters.full(value)
        for number, (letter, place) in enumerate(letters.places.items()):
            if letter == PART:
                wrong, verdict = letters.misplaced(value) & (used > 1), "misplaced"
            elif letter in spec:
                want = here.get(spec[letter])[..., None, None] == np.arange(letters.sizes[number])
                wrong, verdict = np.asarray(((value[..., place] > 0) != want).any(-1)), "misplaced"
            else:
                wrong, verdict = (support[..., number] > 0) & ~full[..., number], "incomplete"
            if wrong.any():
                content = letters.text(value[wrong][0]) or "nothing"
                slots = np.asarray(wrong.any(-1))
                wanted = "its parts in order" if letter == PART else f"all of {letter}"
                wanted = f"{letter}={here.get(spec[letter])[slots][0]}" if letter in spec else wanted
                last = int(here.get(self.held.when[name])[slots][0])
                last = last if last >= 0 else len(self.schedule.rounds) - 1
                self.fail(verdict, here.core(slots), f"ends with {content} in {name}, not with {wanted}", last)


def _maker(name: str) -> int:
    """Return the number of an operation as a maker of terms; 0 stands for given ones."""
    return 1 + list(local.LOCAL_OPS).index(name)
