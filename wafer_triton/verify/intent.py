"""What a schedule is for: its given tiles, its results, and the same computation in plain torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wafer_triton.errors import ScheduleError, article, shown
from wafer_triton.schedule.rounds import Cores
from wafer_triton.verify.specs import AXES, EVERY_CORE, PartitionSpec, Tiles, cuts, cuts_slots, from_tiles, to_tiles

if TYPE_CHECKING:
    from wafer_triton.algorithms.product import Recipe
    from wafer_triton.schedule.schedule import Schedule


@dataclass(frozen=True)
class Intent:
    """The inputs of a schedule and the results that it must end with.

    A partition spec gives the index of each letter in a core's tile. It is an einops pattern of the whole tensor, such
    as "(y m) (x k)", or a mapping from letters to "y", "x", "slot", a number, or an array [rows, cols]. Tiles of one
    buffer with equal indices are copies of each other, so `check` draws them equal: a spec that calls different tiles
    equal hides faults, and the verdict says how many tiles differed. Otherwise specs are not compared with `reference`.
    Those of the results say which operation it is: a sum over the letters that they lack. `on` limits a result to some
    cores (a reduction's root); else all cores must have it.

    `reference` computes the results plainly, from the given tiles to the resulting tiles: both go by buffer
    name, [rows, cols, *tile], or [rows, cols, slots, *tile] of several slots, in fp64. Its NaN elements are not
    judged. A weight, cache or state that it does not return must end as it began.

    Tiles are random. `draw`, a function of a run's tiles and its number from 0, returns tiles to replace some of them.
    `runs` is the number of runs that reach all of a schedule.
    """

    given: Mapping[str, PartitionSpec]
    result: Mapping[str, PartitionSpec]
    on: Mapping[str, Cores] = field(default_factory=dict)
    reference: Callable[[Tiles], Tiles] | None = None
    draw: Callable[[Tiles, int], Tiles] | None = None
    runs: int = 1

    def __post_init__(self) -> None:
        if type(self.runs) is not int or self.runs < 1:
            raise ScheduleError(f"Intent: runs = {shown(self.runs)} must be a whole number of at least 1")
        named = set[str]()
        for name, spec in self.given.items():
            cut = cuts(name, spec)
            named.update(re.findall(r"\w+", spec) if isinstance(spec, str) else cut)
        for name, spec in self.result.items():
            if unknown := [letter for letter in cuts(name, spec) if letter not in named]:
                raise ScheduleError(
                    f"Intent: {shown(spec)}, the partition spec of the result {name!r}, has {unknown[0]}, which no "
                    f"spec of `given` has; letters are {', '.join(sorted(named - {*AXES})) or 'none'}"
                )

    def equal_slots(self, schedule: Schedule) -> dict[str, int]:
        """Return the slots of each given buffer of which a core holds several, all with the same tile by its spec."""
        each = {name: schedule.buffers[name].slots for name, spec in self.given.items() if not cuts_slots(name, spec)}
        return {name: slots for name, slots in each.items() if slots > 1}

    @classmethod
    def of(cls, recipe: Recipe) -> Intent:
        """Return the intent of a recipe, its reference included."""
        if not hasattr(recipe, "constants"):
            kind = article(type(recipe).__name__)
            raise ScheduleError(f"Intent.of: {kind} is no recipe; wafer_triton.algorithms.product.recipe makes one")
        constants = {name: spec for name, (_, spec) in recipe.constants.items()}
        patterns = dict(recipe.inputs) | constants
        given: dict[str, PartitionSpec] = {name: spec or EVERY_CORE for name, spec in patterns.items()}
        name, pattern, _ = recipe.output
        kept = {letter: axis for letter, axis in EVERY_CORE.items() if axis != recipe.reduce_axis}
        intent = cls(given, {name: pattern or kept} if pattern or recipe.reduce_axis else {})
        compute, mesh = recipe.reference, recipe.schedule.mesh
        if compute is None:
            return intent

        def reference(tiles: Tiles) -> Tiles:
            wholes = (from_tiles(tiles[each], cut) for each, cut in patterns.items())
            return {name: to_tiles(compute(*wholes), mesh, pattern)}

        return replace(intent, reference=reference)
