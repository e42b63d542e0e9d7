"""Provenance: which tiles every slot holds and which parts every sum has, followed through a schedule without values.

Every tile that is given gets a name: one index per letter of its buffer's cut. Under "(y m) (x k)" the tile of core
(2, 3) is m=2, k=3. A value is then, for each letter, how many of its terms have each index: a tile has one term; a
product joins the letters of its operands, which must agree in those that both have; a sum adds the counts. A count
that is more than the other letters can tell apart is a term that entered twice. At the end every core of a result must
hold the indices that the result's cut says, and every other letter it has must be summed up whole.

The counts are kept per letter, not per combination of letters, so P cores a side cost P bytes times a few a slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from wafer_triton import local
from wafer_triton.errors import ScheduleError
from wafer_triton.schedule.rounds import Cores, Local, Slot
from wafer_triton.schedule.rules import Finding
from wafer_triton.verify.cuts import EVERY_CORE, Cut, Tiles, indices, whole_reference
from wafer_triton.verify.state import SlotView, fault, slot_view

if TYPE_CHECKING:
    from wafer_triton.schedule.product import Recipe
    from wafer_triton.schedule.rounds import Schedule

Counts = NDArray[np.int16]  # [..., indices of all letters]
PART = "#"  # the letter of a buffer that is cut into the slots of another: which slot
PRODUCTS = ("gemm", "gemm_t")
MOST = 1 << 27  # counts that are held at once, of two bytes


@dataclass(frozen=True)
class Intent:
    """What a schedule is given and what it must end with.

    A cut says which index of each letter a core's tile has: an einops pattern as of `layout` ("(y m) (x k)"), or a
    mapping from letters to "y", "x", "slot", a number, or an array [rows, cols]. Tiles of one buffer whose indices are
    all alike are copies of each other. A letter that a result lacks must be summed over whole. `on` limits a result to
    some cores (a reduction's root); else it is asked of all.

    `reference` computes the results plainly, from the tiles that are given to those that must come out: both go by
    buffer name, [rows, cols, *tile], or [rows, cols, slots, *tile] of several slots, in fp64. What it makes NaN is not
    judged.
    """

    given: Mapping[str, Cut]
    result: Mapping[str, Cut]
    on: Mapping[str, Cores] = field(default_factory=dict)
    reference: Callable[[Tiles], Tiles] | None = None

    @classmethod
    def of(cls, recipe: Recipe) -> Intent:
        """The intent of a recipe, its reference included."""
        constants = {name: cut for name, (_, cut) in recipe.constants.items()}
        patterns = dict(recipe.inputs) | constants
        given: dict[str, Cut] = {name: cut or EVERY_CORE for name, cut in patterns.items()}
        name, pattern, _ = recipe.output
        kept = {letter: axis for letter, axis in EVERY_CORE.items() if axis != recipe.combined}
        reference = whole_reference(recipe.schedule.mesh, patterns, {name: pattern}, recipe.reference)
        return cls(given, {name: pattern or kept}, reference=reference)


def provenance(schedule: Schedule, intent: Intent) -> list[Finding]:
    """The first fault on the way to the intended results, if there are any; counts after it would mean nothing.

    Raises ScheduleError for an intent that does not fit the schedule, or a mesh too large to follow every tile.
    """
    if not intent.result:
        return []
    try:
        _Run(schedule, intent).run()
    except _Broken as broken:
        return [broken.finding]
    return []


class _Broken(Exception):
    def __init__(self, finding: Finding) -> None:
        self.finding = finding


class _Run:
    """The state of all cores: counts [rows, cols, slots, indices] of every buffer, and the round that wrote a slot."""

    def __init__(self, schedule: Schedule, intent: Intent) -> None:
        self.schedule, self.mesh, self.on = schedule, schedule.mesh, intent.on
        self.number = 0
        unknown = sorted({*intent.given, *intent.result} - schedule.buffers.keys())
        if unknown:
            raise ScheduleError(f"{schedule.name}: the intent names undeclared buffers: {', '.join(unknown)}")
        given, self.results = (
            {name: indices(cut, self.mesh, schedule.buffers[name].slots) for name, cut in cuts.items()}
            for cuts in (intent.given, intent.result)
        )
        sizes = {PART: max((buffer.slots for buffer in schedule.buffers.values()), default=1)}
        for cut in given.values():
            for letter, at in cut.items():
                sizes[letter] = max(sizes.get(letter, 0), int(at.max()) + 1)
        ends = np.cumsum([0, *sizes.values()]).tolist()
        self.letters = {letter: slice(*ends[i : i + 2]) for i, letter in enumerate(sizes)}
        self.sizes = np.array(list(sizes.values()))
        self.starts = np.array(ends[:-1])
        self.kept = {letter for cut in self.results.values() for letter in cut}
        if not self.kept <= sizes.keys():
            raise ScheduleError(
                f"{schedule.name}: no buffer is given with {', '.join(sorted(self.kept - sizes.keys()))}"
            )
        shapes = {name: (*self.mesh.shape, buffer.slots) for name, buffer in schedule.buffers.items()}
        if sum(math.prod(shape) for shape in shapes.values()) * ends[-1] > MOST:
            raise ScheduleError(f"{schedule.name}: {self.mesh} is too large to follow every tile; check a smaller mesh")
        self.counts = {name: np.zeros((*shape, ends[-1]), np.int16) for name, shape in shapes.items()}
        self.when = {name: np.full(shape, -1, np.int32) for name, shape in shapes.items()}
        for name, cut in given.items():
            for letter, at in cut.items():
                np.put_along_axis(self.counts[name][..., self.letters[letter]], at[..., None], 1, -1)

    def run(self) -> None:
        for number, round_ in enumerate(self.schedule.rounds):
            self.number = number
            for exchange in round_.exchanges:  # in any order: what a core sends is not overwritten in its round
                values = self.at(exchange.src, exchange.senders).get(self.counts[exchange.src.buffer])
                self.write(exchange.dst, self.at(exchange.dst, exchange.receivers), values)
            for op in round_.locals:
                self.local(op)
        for name, cut in self.results.items():
            self.judge(name, cut)

    def at(self, slot: Slot, cores: Cores | None) -> SlotView:
        return slot_view(slot, cores, self.mesh)

    def write(self, slot: Slot, here: SlotView, values: Counts) -> None:
        here.put(self.counts[slot.buffer], values)
        here.put(self.when[slot.buffer], self.number)

    def fail(self, verdict: str, core: tuple[int, int], message: str, number: int | None = None) -> NoReturn:
        number = self.number if number is None else number
        raise _Broken(fault(self.schedule, verdict, number, core, message))

    def local(self, op: Local) -> None:
        here = self.at(op.ins[0], op.where)
        ins = [self.read(op, slot) for slot in op.ins]
        if op.op in PRODUCTS:
            result = self.product(op, here, *ins)
        elif op.op == "add":
            result = self.sum(op, here, *ins)
        elif op.op == "copy":
            (result,) = ins
        elif local.find(op.op).elementwise and op.outs[0].buffer in {slot.buffer for slot in op.ins}:
            result = self.union(ins)
        else:
            for slot, value in zip(op.ins, ins, strict=True):
                self.whole(op, here, slot, value)
            result = ins[0]
        for slot in op.outs:
            target = self.at(slot, op.where)
            value = result
            if local.find(op.op).updates(op.params):
                value = self.sum(op, target, self.read(op, slot), result)
            if slot.index is None:  # the value is cut into the buffer's slots
                slots = self.schedule.buffers[slot.buffer].slots
                value = np.repeat(value[..., None, :], slots, -2)
                value[..., self.letters[PART]] = self.eye[:slots]
            self.write(slot, target, value)

    @property
    def eye(self) -> Counts:
        return np.eye(self.sizes[0], dtype=np.int16)

    def read(self, op: Local, slot: Slot) -> Counts:
        """One value for each core; of a whole buffer, what the parts in its slots have in common."""
        here = self.at(slot, op.where)
        values = here.get(self.counts[slot.buffer])
        if slot.index is not None:
            return values
        part = values[..., self.letters[PART]]
        wrong = part.any(axis=(-1, -2)) & ((part > 0) != self.eye[: values.shape[-2]]).any(axis=(-1, -2))
        if wrong.any():
            self.fail("misplaced", here.core(wrong), f"reads {slot.buffer} (by {op.op}), whose parts are out of order")
        common = values.min(axis=-2)
        common[..., self.letters[PART]] = 0
        return common

    def product(self, op: Local, here: SlotView, a: Counts, b: Counts) -> Counts:
        """Tiles that agree in the letters that both have."""
        left, right = (self.whole(op, here, slot, value) for slot, value in zip(op.ins, (a, b), strict=True))
        for letter, place in self.letters.items():
            in_left, in_right = left[..., place] > 0, right[..., place] > 0
            wrong = in_left.any(-1) & in_right.any(-1) & (in_left != in_right).any(-1)
            if wrong.any():
                pair = f"{op.ins[0]} ({self.text(left, wrong)}) by {op.ins[1]} ({self.text(right, wrong)})"
                self.fail("misaligned", here.core(wrong), f"multiplies {pair}: {letter} differs")
        return ((left > 0) | (right > 0)).astype(np.int16)

    def whole(self, op: Local, here: SlotView, slot: Slot, value: Counts) -> Counts:
        """The value as a tile: sums must be whole, and then their letters are gone."""
        support = self.support(value)
        partial = (support > 1) & (support < self.sizes)
        if partial.any():
            wrong = np.asarray(partial.any(-1))
            self.fail(
                "incomplete", here.core(wrong), f"reads {slot} (by {op.op}), which has only {self.text(value, wrong)}"
            )
        return np.where(np.repeat((support > 1), self.sizes, -1), 0, value).astype(np.int16)

    def sum(self, op: Local, here: SlotView, a: Counts, b: Counts) -> Counts:
        """Counts added up; products of one sum share the result's letters, and no term may enter twice."""
        total: Counts = a + b
        support = self.support(total)
        for number, letter in enumerate(self.letters):
            wrong = support[..., number] > 1
            if wrong.any() and (letter == PART or (letter in self.kept and op.op in PRODUCTS)):
                pair = f"{self.text(a, wrong)} and {self.text(b, wrong)}"
                self.fail("misaligned", here.core(wrong), f"adds up (by {op.op}) {pair}: {letter} differs")
        wrong = np.asarray((np.maximum.reduceat(total, self.starts, -1) > self.terms(support)).any(-1))
        if wrong.any():
            pair = f"{self.text(b, wrong)} to {self.text(a, wrong)}"
            self.fail("double-count", here.core(wrong), f"adds (by {op.op}) {pair}, which has it already")
        return total

    def union(self, values: list[Counts]) -> Counts:
        """The parts of all operands, each once: for an operation to which a part that comes twice is as one."""
        present = np.maximum.reduce(values) > 0
        return (present * np.repeat(self.terms(self.support(present)), self.sizes, -1)).astype(np.int16)

    def support(self, value: NDArray[Any]) -> NDArray[np.int64]:
        """How many indices of each letter a value has, [..., letters]."""
        return np.add.reduceat((value > 0).astype(np.int64), self.starts, -1)

    def terms(self, support: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many different terms with one index of a letter the other letters can tell apart, [..., letters]."""
        present = np.maximum(support, 1)
        return present.prod(-1, keepdims=True) // present

    def judge(self, name: str, cut: dict[str, NDArray[np.int64]]) -> None:
        """Every core of a result holds what its cut says."""
        here = self.at(Slot(name, None), self.on.get(name))
        value, when = here.get(self.counts[name]), here.get(self.when[name])
        support = self.support(value)
        full = (support == self.sizes) & (np.minimum.reduceat(value, self.starts, -1) == self.terms(support))
        for number, (letter, place) in enumerate(self.letters.items()):
            if letter in cut:
                want = here.get(cut[letter])[..., None] == np.arange(self.sizes[number])
                wrong, verdict = ((value[..., place] > 0) != want).any(-1), "misplaced"
            else:
                wrong, verdict = (support[..., number] > 0) & ~full[..., number] & (letter != PART), "incomplete"
            if wrong.any():
                content = self.text(value, wrong) or "nothing"
                wanted = f"{letter}={here.get(cut[letter])[wrong][0]}" if letter in cut else f"all of {letter}"
                last = int(when[wrong][0])
                message = f"ends with {content} in {name}, not with {wanted}"
                self.fail(verdict, here.core(wrong), message, last if last >= 0 else len(self.schedule.rounds) - 1)

    def text(self, value: Counts, wrong: NDArray[np.bool_]) -> str:
        """The first value for which `wrong` holds, such as "m=1, k=0 2 3"."""
        first = value[wrong][0]
        shown = {letter: np.flatnonzero(first[place]) for letter, place in self.letters.items() if letter != PART}
        return ", ".join(f"{letter}={' '.join(map(str, at))}" for letter, at in shown.items() if at.size)
