"""The cost of a schedule on a wafer, in cycles that the PLMR model predicts. No time here is emulation time.

Each phase (see `wafer_triton.cost.phases`) costs its set-ups and the larger of contention and path, after Luczynski et
al., "Near-Optimal Wafer-Scale Reduce" (HPDC'24): `max(C, E / N + L)` with C words over the busiest link, E / N words
over the mean link in use, at least those of a tile, and L the hops of the longest path. If compute overlaps with the
exchange, the longer of the two counts. A schedule that needs more routes than a router holds is relayed core by core:
each of its hops then costs a routing stage as well (WaferLLM, OSDI'25, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wafer_triton.algorithms.trees import default_groups, two_level_costs
from wafer_triton.cost.constants import Constants, constants, tuned
from wafer_triton.cost.phases import Phase, Product, phases, phases_in_order
from wafer_triton.count.counts import Counts
from wafer_triton.count.routes import colours
from wafer_triton.device import Device
from wafer_triton.device.mesh import Mesh
from wafer_triton.place.transfers import ScheduleRuns
from wafer_triton.schedule import rules, sram
from wafer_triton.schedule.rounds import once
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.text.quantity import digits, named, unit
from wafer_triton.text.table import Result


@dataclass(frozen=True, repr=False)
class Cost(Result, Counts):
    """Counts and the cycles that are predicted for them; they add up as `Additive` says.

    `bounds` has the parts that add up to `cycles`: compute, words on links, hops and set-up. `link_cycles` (words over
    the busiest link) and `latency_cycles` (set-ups and hops of the longest paths) count what compute hides as well, so
    they are no parts. `hop_cycles` is 0 where words in a row take longer than routers in a row, however many `hops`.

    `tuned_cycles` are those by `constants.tuned`; 0 in prices by other constants than a device's.
    `relayed` means that a schedule, or one of several, needs more routes than a router holds and goes core by core.
    """

    main = ("cycles", "tuned_cycles", "compute_cycles", "link_cycles", "rounds", "hops", "routes", "sram_peak_bytes")

    cycles: float = field(default=0.0, metadata=unit("cycles"))
    compute_cycles: float = field(default=0.0, metadata=unit("cycles"))  # the part in local operations
    # the parts in forwarding from router to router, and in setting exchanges up; links have the rest
    hop_cycles: float = field(default=0.0, metadata=unit("cycles"))
    set_up_cycles: float = field(default=0.0, metadata=unit("cycles"))
    # the busiest link is busy, beside compute or not
    link_cycles: float = field(default=0.0, metadata=unit("cycles"))
    # read and written by a core's local operations, every operand once
    sram_bytes: int = field(default=0, metadata=unit("B", "read and written in SRAM"))
    routes: int = field(default=0, metadata=unit("routes", join=max))  # colours in all
    relayed: bool = field(default=False, metadata=named("relayed core by core", join=max))
    # set-ups and hops of the longest paths, beside compute or not
    latency_cycles: float = field(default=0.0, metadata=unit("cycles"))
    tuned_cycles: float = field(default=0.0, metadata=unit("cycles"))

    def __str__(self) -> str:
        parts = ", ".join(f"{digits(cycles)} {cause}" for cause, cycles in self.bounds.items())
        said = f"cycles: {parts}; link and latency cycles also count what compute hides"
        return f"{self.table()}\n{said}" + f"\n{self.ends}" * bool(self.tuned_cycles)

    @property
    def ends(self) -> str:
        """Return the two predictions in words; what lies between them is not predicted."""
        return (
            f"{self.cycles:,.0f} cycles as WaferLLM's kernels are written, {self.tuned_cycles:,.0f} if tuned like "
            "HPDC'24's collectives"
        )

    @property
    def communication_cycles(self) -> float:
        """Cycles in which cores wait for data or set exchanges up, not hidden by compute."""
        return self.cycles - self.compute_cycles

    @property
    def bounds(self) -> dict[str, float]:
        """Return the cycles by cause; they add up to `cycles`.

        Transfers beside compute count where they take longer: `links` for words in a row, `hops` for routers in a row.
        """
        links = self.communication_cycles - self.hop_cycles - self.set_up_cycles
        links *= links > 1e-12 * self.cycles  # else nothing, but for rounding
        return {"compute": self.compute_cycles, "links": links, "hops": self.hop_cycles, "set-up": self.set_up_cycles}


def price(schedule: Schedule, using: Constants | None = None) -> Cost:
    """Return the predicted cost of a schedule on its mesh's device, without the start of its program (`kernel_cycles`).

    `cycles` are as WaferLLM's kernels are written, `tuned_cycles` as HPDC'24's collectives are, `ends` says both.
    Another device is that of another mesh: `as_mesh("4x4", "wse3")`. `using` takes the place of the device's constants;
    either way the constants of the schedule's family count.
    """
    with rules.reading(schedule):
        device, found = schedule.mesh.device, read(schedule)
        if using is not None:
            return found.cost(device, using)
        return found.cost(device, constants(device)) + Cost(tuned_cycles=found.cost(device, tuned(device)).cycles)


def priced(runs: Iterable[ScheduleRuns], using: Constants | None = None) -> Cost:
    """Price schedules, each as often as it runs."""
    return sum((price(schedule, using) * times for schedule, times in runs), Cost())


@dataclass(frozen=True)
class Interval:
    """A run of rounds in time: rounds `first` to `last`, from cycle `start` on, at a cost.

    A stream or circuit that is `hidden` flows beside the next product and takes no cycles of its own.
    """

    first: int
    last: int
    label: str
    kind: str  # as in `wafer_triton.count.runs`
    start: float
    cost: Cost
    hidden: bool = False

    @property
    def end(self) -> float:
        """The cycle in which the last round ends."""
        return self.start + self.cost.cycles


def intervals(schedule: Schedule) -> tuple[Interval, ...]:
    """Return the intervals of a schedule's runs in predicted cycles; the last ends at the cycles of `price`."""
    chosen = constants(schedule.mesh.device).of(schedule.family)
    over = relayed(colours(schedule), schedule.mesh.device)
    placed: list[Interval] = []
    for run, phase in phases_in_order(schedule):
        first, start = (placed[-1].last + 1, placed[-1].end) if placed else (0, 0.0)
        cost = phase_cost(phase, chosen, over)
        placed.append(Interval(first, first + len(run) - 1, phase.label, phase.kind, start, cost, phase.hidden))
    return tuple(placed)


class Reading(NamedTuple):
    """All that a price needs of a schedule; none of it depends on the rates of a device."""

    family: str
    phases: list[Phase]
    routes: int
    sram_peak_bytes: int

    def cost(self, device: Device, using: Constants) -> Cost:
        """Return the cost on a device with the same cores, which may hold another number of routes."""
        chosen, over = using.of(self.family), relayed(self.routes, device)
        whole = Cost(routes=self.routes, sram_peak_bytes=self.sram_peak_bytes, relayed=over)
        return sum((phase_cost(phase, chosen, over) for phase in self.phases), whole)


@once  # a fit prices the same schedules with many constants
def read(schedule: Schedule) -> Reading:
    """Return the reading of a schedule."""
    return Reading(schedule.family, phases(schedule), colours(schedule), sram.account(schedule).peak_bytes)


def relayed(colours: int, device: Device) -> bool:
    """Return whether a schedule that needs `colours` routes is relayed core by core on a device."""
    return device.routes is not None and colours > device.routes


def phase_cost(phase: Phase, c: Constants, by_cores: bool = False) -> Cost:
    """Return the cost of one phase, all its repetitions."""
    if phase.hidden:
        counted = Cost(rounds=phase.rounds, stages=phase.stages, hops=phase.hops, link_bytes=phase.link_bytes)
        return counted * phase.times
    hop = c.hop_cycles + (c.stage_cycles if by_cores else 0.0)
    contention = phase.busiest_words * c.word_cycles
    paths = (phase.mean_words, phase.hops), phase.beside
    transfer, hops = max((contention, phase.hops), *((words * c.word_cycles + far * hop, far) for words, far in paths))
    compute = _compute(phase, c)
    set_up = exposed = 0.0  # cycles of a transfer that no compute hides
    if phase.kind == "local":
        cycles = compute
    elif phase.kind in ("stream", "circuit"):
        begin, control = (c.collective_cycles, c.control_cycles) if phase.kind == "stream" else (0.0, 0.0)
        compute = control + max(0.0, compute - transfer)  # the rest is done while the data flows
        set_up, exposed = begin + phase.stages * c.stage_cycles, transfer
        cycles = set_up + transfer + compute
    else:
        set_up = phase.stages * phase.fold * (c.round_cycles + phase.packed * c.packed_cycles)
        exposed = max(0.0, transfer - compute) if phase.overlaps else transfer
        cycles = set_up + (max(compute, transfer) if phase.overlaps else compute + transfer)
    cost = Cost(
        cycles=cycles,
        compute_cycles=compute,
        hop_cycles=0.0 if transfer == contention else exposed * hops * hop / transfer,
        set_up_cycles=set_up,
        link_cycles=contention,
        rounds=phase.rounds,
        stages=phase.stages,
        hops=phase.hops,
        link_bytes=phase.link_bytes,
        macs=phase.macs * phase.fold,
        sram_bytes=phase.sram_bytes * phase.fold,
        latency_cycles=set_up + hops * hop,
    )
    return cost * phase.times


def _compute(phase: Phase, c: Constants) -> float:
    """Return cycles of a core's local operations in one round, at least the time of their SRAM accesses."""
    one_by_one = phase.kind != "local"
    products = (sum(product_cycles(product, c, one_by_one) for product in core) for core in phase.products)
    work = max(products, default=0.0) + phase.elements * c.element_cycles
    return phase.fold * max(work, phase.sram_bytes / c.sram_bytes_per_cycle)


def product_cycles(p: Product, c: Constants, in_rounds: bool) -> float:
    """Return cycles of a local product.

    A vector that meets a resident matrix takes one instruction over the whole tile; every other product is a loop over
    k with a vector instruction for each of the n columns.
    """
    wide = p.dtype == "fp32"
    if p.m == 1 and not in_rounds:
        groups = p.n * c.mac_cycles_fp32 if wide else ceil(p.n / c.gemv_lanes) * c.gemv_group_cycles
        return p.heads * p.k * groups
    group = p.m * c.mac_cycles_fp32 if wide else ceil(p.m / c.gemm_lanes) * c.gemm_group_cycles
    return p.heads * p.k * (c.k_step_cycles + p.n * (c.row_cycles + group))


def sum_cycles(products: Iterable[Product], c: Constants) -> float:
    """Return cycles of products in rounds, which hide the messages beside them."""
    return sum(product_cycles(product, c, True) for product in products)


@dataclass(frozen=True, repr=False)
class Prediction(Result):
    """Time and energy on the wafer that the cost model predicts; never an emulation's.

    `cycles` is the sum of `compute_cycles`, in local operations, and `communication_cycles`, waiting for data.
    `seconds` follows from the device's clock. A model's phase has tokens per second, and joules per token at the
    device's power. `relayed` means that a schedule needs more routes than a router holds.
    """

    main = ("cycles", "compute_cycles", "communication_cycles", "seconds", "tokens_per_second")
    heading = "cycles and time on the wafer"
    units_of = (Cost,)

    cycles: float
    compute_cycles: float
    communication_cycles: float = field(metadata=unit("cycles"))
    seconds: float = field(metadata=unit("s", "time"))
    tokens_per_second: float | None = field(default=None, metadata=unit("tokens/s"))
    joules_per_token: float | None = field(default=None, metadata=unit("J/token", "energy per token"))
    relayed: bool = False

    @classmethod
    def of(cls, cost: Cost, device: Device, tokens: int | None = None) -> Prediction:
        """Return the prediction of a cost on a device, for `tokens`."""
        seconds = cost.cycles / device.clock_hz
        whole = cls(cost.cycles, cost.compute_cycles, cost.communication_cycles, seconds, relayed=cost.relayed)
        if not tokens or not seconds:
            return whole
        return replace(
            whole, tokens_per_second=tokens / seconds, joules_per_token=seconds * device.power_watts / tokens
        )

    def as_json(self) -> dict[str, float | None]:
        """Return every number by its name."""
        return {name: value for name, value in asdict(self).items() if name != "relayed"}

    def __str__(self) -> str:
        shares = f"{self.compute_cycles:,.0f} compute, {self.communication_cycles:,.0f} communication"
        said = ", relayed core by core, as routers hold too few routes" * self.relayed
        return f"predicted on the wafer: {self.cycles:,.0f} cycles ({shares}), {self.seconds * 1e6:,.3f} us{said}"


Groups = tuple[int, ...] | None


def tree_for(mesh: Mesh, c: Constants) -> Groups:
    """Return the groups of the fastest K-tree on both axes of a mesh; None if a default tree on each is faster."""
    if mesh.shape[0] == mesh.shape[1]:
        return best_groups(mesh.shape[0], c)
    lines = [_tree_cycles(length, c.stage_cycles, c.hop_cycles) for length in mesh.shape]
    shared = sum(line[: min(mesh.shape)] for line in lines)
    own = sum(line[(*default_groups(len(line)), 1)[0] - 1] for line in lines)
    return (int(np.argmin(shared)) + 1,) if np.min(shared) <= own else None


def best_groups(length: int, c: Constants) -> tuple[int, ...]:
    """Return the number of groups on the first of two levels for the fastest all-reduce of one word."""
    return (int(_tree_cycles(length, c.stage_cycles, c.hop_cycles).argmin()) + 1,) if length > 4 else ()


def _tree_cycles(length: int, stage: float, hop: float) -> NDArray[np.float64]:
    """Return [length]: cycles of an all-reduce of one word in two levels, by the number of groups on the first."""
    _, stages, hops = two_level_costs(length)
    return stages * stage + hops * hop
