"""The check by values: a schedule runs on the reference executor, and its results are compared with the intent's.

Every given tile is filled with random quarters, from 1/4 to 7/4 and of both signs: sums and products of them are exact
in fp64, no term of a sum is zero, and exponents stay small. Every other run takes eight times these values, so that a
softmax without its maximum overflows. Tiles that the intent calls copies are equal. All other memory is NaN. Results
must equal the reference's within the rounding of fp64. A weight, cache or state that the reference does not name must
end as it began. Where a result is wrong, `wafer_triton.verify.shares` follows the given tiles to where that began.

A schedule that is too much work is sampled: tiles are compared where some mesh rows and columns cross, and only their
inputs are computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from traceback import extract_tb
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wafer_triton import local
from wafer_triton.device.dtype import torch_dtype
from wafer_triton.device.layout import letters
from wafer_triton.errors import ScheduleError
from wafer_triton.schedule.access import accesses, walk
from wafer_triton.schedule.rules import Finding, title
from wafer_triton.verify.intent import Intent
from wafer_triton.verify.slices import backward_slice
from wafer_triton.verify.specs import Tiles, indices
from wafer_triton.verify.state import core_finding, given_buffers, tiles_shape

if TYPE_CHECKING:
    from torch import Tensor

    from wafer_triton.schedule.schedule import Schedule

RUNS = 4  # each on other values, side by side
MOST_RUNS = 64  # while all are `SMALL_WORK` together: a maximum that misses one of its terms is wrong in few runs
SMALL_WORK = 1e7
MOST_WORK = 1e8  # elements moved or computed, about a second
MOST_TILES = 256  # of which the shares in a wrong result are followed
MOST_ELEMENTS = 1 << 27  # elements that are held at once, of eight bytes
TOLERANCE = 1e-10  # of the largest value of a result: the rounding of fp64 in norms, and in exponents of some 10^5


def values(schedule: Schedule, intent: Intent) -> list[Finding]:
    """Return a finding for the first element that differs from the intent's reference, or nothing.

    Raises ScheduleError for a reference that does not fit the schedule, or for more memory than can be held.
    """
    _check_fits(schedule, intent)
    if intent.reference is None:
        return [_nothing_compared(schedule, "the intent has no reference; give it one")]
    from wafer_triton.emulate.reference import Reference

    work = max(1, _work(schedule))
    elements = sum(buffer.numel * buffer.slots for buffer in schedule.buffers.values()) * schedule.mesh.cores
    if elements > MOST_ELEMENTS:
        raise ScheduleError(f"{schedule.name}: {elements:,} elements are too many to compute; check smaller tiles")
    wanted_runs = max(RUNS, intent.runs, min(MOST_RUNS, SMALL_WORK // work))
    runs = int(max(1, min(wanted_runs, MOST_WORK // work, MOST_ELEMENTS // elements)))
    tiles = draw_tiles(schedule, intent, runs, seed=0)
    compared = _compared_slots(schedule, intent, share=min(1.0, MOST_WORK / work))
    wanted = expected_results(schedule, intent, tiles, runs)
    absent = [name for name in intent.result if name not in wanted]
    empty = [name for name, want in wanted.items() if _compared(want, compared[name]).isnan().all()]
    missing = absent or [name for name in intent.result if name in empty]
    if missing or len(empty) == len(wanted):
        made = ("NaN alone" if empty and not absent else "nothing") + (f" of {', '.join(missing)}" if missing else "")
        return [_nothing_compared(schedule, f"the reference makes {made}; let it make the results")]
    if work > MOST_WORK:
        schedule = backward_slice(schedule, {name: compared[name] for name in wanted})
    machine = Reference(schedule, tiles, exact=True, runs=runs)
    try:
        machine.run()
    except (RuntimeError, IndexError, ValueError, ArithmeticError) as error:
        number = machine.rounds_done
        message = f"{title(schedule, number)}: its operands stop it: {str(error).splitlines()[0]}"
        return [Finding("wrong-values", message, number)]
    for name, want in wanted.items():
        mismatch = _first_mismatch(name, machine.read(name), want, compared[name])
        if mismatch is not None:
            began = _explanation(schedule, intent, tiles, compared, work, mismatch)
            unnamed = [given for given in tiles if given not in intent.given] if intent.draw is None else []
            stays = schedule.buffers[name].given and bool((want == tiles[name]).all())
            return [mismatch.finding(schedule, began, unnamed, stays)]
    return []


def _explanation(
    schedule: Schedule, intent: Intent, tiles: dict[str, Tensor], compared: dict[str, NDArray[np.bool_]], work: float,
    wrong: _Mismatch,
) -> str:  # fmt: skip
    """Return which tiles have a wrong share in a result, and where that began; "" where it takes longer than a second.

    Tiles that an intent draws by its own rule cannot be raised one by one. `work` is that of a run.
    """
    from wafer_triton.verify.shares import at, explanation

    copies = {buffer: _copies(schedule, intent, buffer) for buffer in tiles}
    many = sum(int(numbers.max()) + 1 for numbers in copies.values())
    if intent.draw is not None or many > MOST_TILES or (2 + many) * work > SMALL_WORK:
        return ""
    raised = {buffer: of[wrong.run].expand(2 + many, *of[wrong.run].shape).clone() for buffer, of in tiles.items()}
    names: list[str] = []
    for buffer, numbers in copies.items():
        flat = raised[buffer].view(2 + many, len(numbers), -1)
        flat[1 + len(names) + numbers, np.arange(len(numbers))] += 1
        flat[-1] += 2
        names += [at(schedule, buffer, cell) for cell in np.unique(numbers, return_index=True)[1].tolist()]
    wanted = expected_results(schedule, intent, raised, 2 + many)
    place = wrong.buffer, wrong.cell, wrong.element
    return explanation(schedule, raised, wanted, compared, names, place)


def _check_fits(schedule: Schedule, intent: Intent) -> None:
    """Raise ScheduleError for an intent with buffers or cores that the schedule does not have."""
    unknown = sorted({*intent.given, *intent.result, *intent.on} - schedule.buffers.keys())
    if unknown:
        raise ScheduleError(f"{schedule.name}: the intent names undeclared buffers: {', '.join(unknown)}")
    for name, spec in (*intent.given.items(), *intent.result.items()):
        cut = schedule.buffers[name].pattern
        if cut and isinstance(spec, str) and [*letters(spec).values()] != [*letters(cut).values()]:
            raise ScheduleError(
                f"{schedule.name}: the intent cuts {name} by {spec!r}, and its buffer by {cut!r}; change one of them"
            )
        indices(name, spec, schedule.mesh, schedule.buffers[name].slots)
    for name, cores in intent.on.items():
        for places, sides in zip(cores.grid(schedule.mesh), schedule.mesh.shape, strict=True):
            if places.min(initial=0) < 0 or places.max(initial=-1) >= sides:
                raise ScheduleError(f"Intent: on[{name!r}] names a core that is off mesh {schedule.mesh}")


def _nothing_compared(schedule: Schedule, why: str) -> Finding:
    """Return the finding that an intent compares nothing, and why."""
    return Finding("nothing-compared", f"{schedule.name}: nothing was compared, as {why}")


def draw_tiles(schedule: Schedule, intent: Intent, runs: int, seed: int) -> dict[str, Tensor]:
    """Draw random tiles for every given buffer, fp64 [runs, rows, cols, *tile] (with several slots: slots, *tile)."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    tiles = {}
    for name in sorted(given_buffers(schedule, intent.given)):
        buffer, copies = schedule.buffers[name], _copies(schedule, intent, name)
        shape = (runs, int(copies.max()) + 1, buffer.numel)
        size = torch.randint(1, 8, shape, generator=generator, dtype=torch.int8)
        sign = torch.randint(0, 2, shape, generator=generator, dtype=torch.int8)
        quarters = (size * (2 * sign - 1)).double() / 4
        quarters[1::2] *= 8
        tiles[name] = quarters[:, torch.from_numpy(copies)].view(runs, *tiles_shape(schedule, name))
    return tiles if intent.draw is None else _with_draws(schedule, tiles, intent.draw, runs)


def _copies(schedule: Schedule, intent: Intent, name: str) -> NDArray[np.int64]:
    """Return the number of the tile that each slot of a given buffer holds: slots of the same indices share it."""
    slots = schedule.buffers[name].slots
    every = np.arange(schedule.mesh.cores * slots)
    if name not in intent.given:
        return every
    letters = indices(name, intent.given[name], schedule.mesh, slots).values()
    return np.unique([at.ravel() for at in letters] or [0 * every], axis=1, return_inverse=True)[1].ravel()


def copied_tiles(schedule: Schedule, intent: Intent) -> dict[str, tuple[int, int]]:
    """Return the numbers of tiles and of different tiles of each given buffer whose spec makes some of them copies."""
    copies = {name: _copies(schedule, intent, name) for name in intent.given}
    counted = {name: (numbers.size, int(numbers.max()) + 1) for name, numbers in copies.items()}
    return {name: (tiles, different) for name, (tiles, different) in counted.items() if different < tiles}


def _with_draws(
    schedule: Schedule, tiles: dict[str, Tensor], draw: Callable[[Tiles, int], Tiles], runs: int
) -> dict[str, Tensor]:
    """Replace random tiles by those that the intent's `draw` returns, rounded to the buffer's dtype."""
    for run in range(runs):
        for name, new in _evaluate(schedule, "draw", draw, tiles, run, run).items():
            if name not in tiles or new.numel() != tiles[name][run].numel():
                raise ScheduleError(
                    f"{schedule.name}: the intent draws {list(new.shape)} for {name}; draw tiles that are given, of "
                    f"the shape that they have"
                )
            dtype = torch_dtype(schedule.buffers[name].dtype)
            tiles[name][run] = new.to(dtype).double().reshape(tiles[name][run].shape)
    return tiles


def expected_results(schedule: Schedule, intent: Intent, tiles: dict[str, Tensor], runs: int) -> dict[str, Tensor]:
    """Return the expected results [runs, rows, cols, *tile]: of the reference, and resident buffers unchanged.

    Raises ScheduleError for a result of another name or shape than the schedule's buffers have.
    """
    import torch

    assert intent.reference is not None
    computed = [_evaluate(schedule, "reference", intent.reference, tiles, run) for run in range(runs)]
    unknown = sorted(computed[0].keys() - schedule.buffers.keys())
    if unknown:
        raise ScheduleError(f"{schedule.name}: the reference gives undeclared buffers: {', '.join(unknown)}")
    for name, result in computed[0].items():
        if tuple(result.shape) != tiles_shape(schedule, name):
            shapes = f"{list(result.shape)} for {name}, which is {list(tiles_shape(schedule, name))}"
            raise ScheduleError(f"{schedule.name}: the reference gives {shapes}: rows, columns, its slots, its tile")
    residents = [name for name, buffer in schedule.buffers.items() if buffer.given and buffer.kept]
    stay = {name: tiles[name] for name in residents if name not in computed[0]}
    return {name: torch.stack([run[name] for run in computed]) for name in computed[0]} | stay


def _evaluate(
    schedule: Schedule, what: str, function: Callable[..., Tiles], tiles: dict[str, Tensor], run: int, *args: int
) -> dict[str, Tensor]:
    """Return `function` of the tiles of a run, and of `args`; ScheduleError, with its line, unless it is tensors."""
    import torch

    try:
        made = function({name: given[run].clone() for name, given in tiles.items()}, *args)  # it may write its inputs
    except Exception as error:
        place, words = extract_tb(error.__traceback__)[-1], str(error).partition("\n")[0]
        raise ScheduleError(
            f"{schedule.name}: the {what} raises {type(error).__name__}: {words} ({place.filename}, line "
            f"{place.lineno}); mend it, or leave it out; an intent of another schedule or mesh does not fit"
        ) from error
    try:
        return {name: torch.as_tensor(result) for name, result in made.items()}
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ScheduleError(
            f"{schedule.name}: the {what} must give tensors by the names of buffers ({error}), as {{'x': tensor}}"
        ) from None


def _work(schedule: Schedule) -> float:
    """Return the elements that a run moves, plus a tenth of its multiply-adds."""
    moved = computed = 0
    for round_, times in Counter(schedule.rounds).items():
        for access in accesses(round_):
            moved += times * access.cells(schedule).size * schedule.buffers[access.slot.buffer].numel
        for op in round_.locals:
            computed += times * op.cores(schedule.mesh).size * sum(local.find(op.op).work(**op.params))
    return moved + computed / 10


def _compared_slots(schedule: Schedule, intent: Intent, share: float) -> dict[str, NDArray[np.bool_]]:
    """Return for each buffer whether a core's slot is compared, [rows, cols, slots].

    Compared are the cores where a `share` of the mesh rows and of the mesh columns cross, at least one of each. A
    result that `intent.on` limits to some cores is compared on these alone.
    """
    rows, cols = (
        np.isin(np.arange(length), np.linspace(0, length - 1, max(1, int(length * share))).astype(int))
        for length in schedule.mesh.shape
    )
    compared = {}
    for name, buffer in schedule.buffers.items():
        cores = rows[:, None] & cols
        if name in intent.on:
            asked = np.isin(np.arange(schedule.mesh.cores), intent.on[name].flat(schedule.mesh)).reshape(cores.shape)
            cores = cores & asked if (cores & asked).any() else asked
        compared[name] = np.repeat(cores[..., None], buffer.slots, -1)
    return compared


@dataclass(frozen=True)
class _Mismatch:
    """The first element that is wrong."""

    run: int
    buffer: str
    cell: int  # its slot, see `Schedule.cells`
    element: int
    got: float
    want: float

    def finding(self, schedule: Schedule, began: str, unnamed: list[str], stays: bool) -> Finding:
        slot, core = schedule.place(self.buffer, self.cell)
        message = f"ends with {self.got:.7g} in element {self.element} of {slot}, not with {self.want:.7g}"
        if stays:
            role = schedule.buffers[self.buffer].role
            message += f", as it began: a {role} stays, unless the reference returns it"
        message += f"; {began}" if began else ""
        if unnamed:
            message += f"; `given` of the intent does not name {', '.join(unnamed)}, so tiles of it differ on all cores"
        return core_finding(schedule, "wrong-values", _last_write(schedule, self.buffer, self.cell), core, message)


def _compared(tiles: Tensor, compared: NDArray[np.bool_]) -> Tensor:
    """Return of tiles [runs, rows, cols, ...] those that are compared, [runs, slots, elements]."""
    import torch

    return tiles.reshape(len(tiles), *compared.shape, -1)[:, torch.from_numpy(compared)]


def _first_mismatch(name: str, got: Tensor, want: Tensor, compared: NDArray[np.bool_]) -> _Mismatch | None:
    """Return the first core, slot and element of tiles [runs, rows, cols, ...] of a buffer that is wrong in a run."""
    got, want = _compared(got, compared), _compared(want, compared)
    largest = want.where(want.isfinite(), 0).abs().amax((1, 2), keepdim=True)
    wrong = ~((got == want) | ((got - want).abs() <= TOLERANCE * largest) | want.isnan())
    if not wrong.any():
        return None
    place, element = wrong.any(0).nonzero()[0].tolist()
    run, cell = int(wrong[:, place, element].nonzero()[0]), int(np.flatnonzero(compared)[place])
    return _Mismatch(run, name, cell, element, float(got[run, place, element]), float(want[run, place, element]))


def _last_write(schedule: Schedule, name: str, cell: int) -> int:
    """Return the last round that writes a cell of a buffer; the last round of all if none does."""
    writes = ((number, access) for number, access in walk(schedule) if access.writes and access.slot.buffer == name)
    written = (number for number, access in writes if cell in access.cells(schedule))
    return max(written, default=len(schedule.rounds) - 1)
