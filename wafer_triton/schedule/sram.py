"""The account of every core's SRAM: which buffers live in which round, and the hard limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import SramError
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import uses

# The end of the error of a model that does not fit.
ASK = "`wafer-triton plan` searches meshes that fit, in Python smallest_mesh(...) and what_fits(...) do"


@dataclass(frozen=True)
class SramAccount:
    """Bytes per physical core at the fullest round, by buffer."""

    peak_bytes: int
    peak_round: int
    by_buffer: dict[str, int]


@dataclass(frozen=True)
class Span:
    """A buffer's bytes on a physical core from round `start` to round `end`, which may be one after the last round."""

    start: int
    end: int
    bytes: int


def spans(schedule: Schedule) -> dict[str, Span]:
    """Return the rounds in which each buffer lives; a buffer that is neither used nor given has none.

    Every buffer lives from its first use to its last, a given one from the start, a kept one to the end. Without rounds
    an output has what it was given.
    """
    used = uses(schedule.rounds.steps)
    fold, rounds = schedule.mesh.per_core, len(schedule.rounds)
    living = {}
    for name, buffer in schedule.buffers.items():
        if name in used or buffer.given or (buffer.kept and not rounds):
            first, last = used.get(name, (0, 0))
            start = 0 if buffer.given else first
            end = rounds if buffer.kept else last
            living[name] = Span(start, end, buffer.bytes * fold)
    return living


def account(schedule: Schedule) -> SramAccount:
    """Return the SRAM peak of a schedule; all cores of a mesh hold the same buffers."""
    living = spans(schedule)
    held = {  # where a buffer begins to live
        number: {name: span.bytes for name, span in living.items() if span.start <= number <= span.end}
        for number in sorted({span.start for span in living.values()})
    }
    peak_round = max(held, key=lambda number: sum(held[number].values()), default=0)
    by_buffer = dict(sorted(held.get(peak_round, {}).items(), key=lambda item: -item[1]))
    return SramAccount(sum(by_buffer.values()), peak_round, by_buffer)


def check(schedule: Schedule) -> None:
    """Raise SramError naming the core, its buffers and the limit when the peak exceeds the device's SRAM."""
    usage, mesh = account(schedule), schedule.mesh
    limit = mesh.device.sram_bytes
    if usage.peak_bytes > limit:
        buffers = ", ".join(f"{name} {size:,} B" for name, size in usage.by_buffer.items())
        raise SramError(
            f"{schedule.name} on mesh {mesh}: core {mesh.origin} (and every other) needs {usage.peak_bytes:,} B in "
            f"round {usage.peak_round}, {usage.peak_bytes - limit:,} B over the {limit:,} B of SRAM on "
            f"{mesh.device.name}: {buffers}"
        )


def fullest(held: Iterable[dict[str, int]]) -> dict[str, int]:
    """Return the first of the largest sets of buffers, each with bytes by name; none of no set."""
    return max(held, key=lambda sizes: sum(sizes.values()), default={})


@dataclass(frozen=True)
class Need:
    """Bytes on a core, by buffer: resident ones (weights, caches), and the largest workspace."""

    resident: dict[str, int]
    workspace: dict[str, int]

    def beside(self, other: Need) -> Need:
        """Return the need of both phases in the same memory: the larger of resident buffers and of workspaces."""
        resident = Counter(self.resident) | Counter(other.resident)
        return Need(dict(resident), fullest((self.workspace, other.workspace)))


def need(schedule: Schedule) -> Need:
    """Return the need of a core for a schedule."""
    fold = schedule.mesh.per_core
    resident = {buffer.name: buffer.bytes * fold for buffer in schedule.buffers.values() if buffer.resident}
    return Need(resident, {name: size for name, size in account(schedule).by_buffer.items() if name not in resident})


def in_turn(needs: Iterable[Need]) -> Need:
    """Return the need of a core for schedules that run one after another and share resident buffers."""
    every = list(needs)
    resident = {name: size for each in every for name, size in each.resident.items()}
    return Need(
        resident,
        fullest({name: size for name, size in each.workspace.items() if name not in resident} for each in every),
    )


def total(needs: Iterable[Need]) -> dict[str, int]:
    """Return the most that a core holds, by buffer: all blocks' weights and caches, and a block's largest workspace."""
    every, resident = list(needs), Counter[str]()
    for block in every:
        resident.update(block.resident)
    return dict(resident) | fullest(block.workspace for block in every)


def demand(what: str, mesh: Mesh, held: dict[str, int]) -> None:
    """Raise SramError unless a model's buffers of `held` bytes, by name, fit a core."""
    size, limit = sum(held.values()), mesh.device.sram_bytes
    if size > limit:
        largest = max(held, key=held.__getitem__)
        raise SramError(
            f"{what} on mesh {mesh}: every core needs {size:,} B, {size - limit:,} B over the {limit:,} B of SRAM on "
            f"{mesh.device.name}; the largest buffer is {largest} with {held[largest]:,} B",
            ASK,
        )
