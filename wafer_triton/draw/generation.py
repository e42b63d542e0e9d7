"""One generated text: the counts of its run, and the predicted time of the same rounds on the wafer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wafer_triton.cost.cap import Cap
from wafer_triton.cost.price import Prediction
from wafer_triton.count.account import Account
from wafer_triton.device import NUMBERS, PRESETS, Device
from wafer_triton.device.mesh import Mesh
from wafer_triton.text.quantity import EMULATED, PREDICTED, Legend, digits, named, unit
from wafer_triton.text.table import Table

if TYPE_CHECKING:
    from wafer_triton.place.regions import Region


COUNTS = ("rounds", "hops", "messages", "link_bytes", "busiest_link_bytes")  # of an account


@dataclass(frozen=True)
class Generation:
    """One generated text and the counts of its run; seconds are emulation time, except in `predicted`."""

    text: str
    tokens: list[int]
    prompt_tokens: int
    steps: int = field(metadata=unit("steps"))  # decode steps; prefill made the first token
    settings: Mapping[str, str]  # dtype, accumulate, exchange, backend
    mesh: Mesh
    prefill_mesh: Mesh
    head_groups: int = field(metadata=unit("groups"))
    regions: list[Region]
    account: Account
    load_seconds: float = field(metadata=unit("s", "time to load"))
    prefill_seconds: float = field(metadata=unit("s", "prefill time"))
    decode_seconds: float = field(metadata=unit("s", "decode time"))
    interrupted: bool = False
    predicted: Mapping[str, Mapping[str, float | None]] = field(
        default_factory=dict
    )  # on the wafer, by phase and field
    cap: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)  # MoE-CAP's, by phase and field
    passes: list[Mapping[str, Any]] = field(default_factory=list)
    # of a mixture, where they live in prefill
    experts: str | None = field(default=None, metadata=named("experts in prefill"))

    @property
    def tokens_per_second(self) -> float:
        """Emulated decode steps a second; of a run that took none, its prefill's token."""
        if self.steps:
            return self.steps / self.decode_seconds
        return len(self.tokens) / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def sram_peak_bytes(self) -> int:
        """The fullest core, of all regions and of every schedule that ran."""
        return max(self.account.sram_peak_bytes, *(region.sram_peak_bytes for region in self.regions))

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        plain = (
            "text", "tokens", "prompt_tokens", "interrupted", "tokens_per_second", "load_seconds", "prefill_seconds",
            "decode_seconds", "predicted", "cap", "passes",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in plain},
            "device": self.mesh.device.name,
            **_own_numbers(self.mesh.device),
            "mesh": str(self.mesh),
            "prefill_mesh": str(self.prefill_mesh),
            "head_groups": self.head_groups,
            "experts": self.experts,
            **self.settings,
            "sram_bytes": self.mesh.device.sram_bytes,
            "sram_peak_bytes": self.sram_peak_bytes,
            **{count: getattr(self.account, count) for count in COUNTS},
            "regions": [
                {
                    "origin": list(region.mesh.origin),
                    "mesh": str(region.mesh),
                    "blocks": list(region.blocks),
                    "sram_peak_bytes": region.sram_peak_bytes,
                }
                for region in self.regions
            ],
        }


def _own_numbers(device: Device) -> dict[str, Any]:
    """Return the numbers of a device that is no preset, of which its name says none."""
    if PRESETS.get(device.name) == device:
        return {}
    return {"device_numbers": {number: getattr(device, number) for number in NUMBERS}}


LEGEND = Legend(Account, Cap, Prediction, Generation, {"sram_bytes": Legend(Device).entries["sram_bytes"]})


def generation_tables(generation: Generation) -> list[Table]:
    """Return the short tables under a generated text: counts, the emulation and, if there is one, the prediction."""
    device, account, settings = generation.mesh.device, generation.account, generation.settings
    kinds = Counter(str(region.mesh) for region in generation.regions)
    same = str(generation.prefill_mesh) == str(generation.mesh)
    sram_peak = LEGEND.shown("sram_peak_bytes", generation.sram_peak_bytes)
    columns = generation.mesh.cols // generation.head_groups
    mesh = f"{generation.mesh}{'' if same else f', prefill on {generation.prefill_mesh}'}"
    counted = {
        "device": f"{device.name}, {device.rows} x {device.cols} cores",
        "mesh": f"{mesh}, {settings['dtype']} tiles, {settings['accumulate']} sums",
        "head groups": f"{generation.head_groups} in decode, of {columns} {'column' if columns == 1 else 'columns'}",
        "experts": f"{generation.experts}, in prefill" if generation.experts else None,
        "exchange": f"{settings['exchange']}, {settings['backend']} backend",
        "regions": f"{len(generation.regions)}: " + ", ".join(f"{times} of {mesh}" for mesh, times in kinds.items()),
        "SRAM peak": f"{sram_peak} of a core's {LEGEND.shown('sram_bytes', device.sram_bytes)}",
        "rounds": digits(account.rounds),
        "hops": f"{digits(account.hops)} on the critical path",
        "bytes over links": LEGEND.shown("link_bytes", account.link_bytes),
    }
    prompt, prefill = (
        LEGEND.shown("tokens", generation.prompt_tokens),
        LEGEND.shown("seconds", generation.prefill_seconds),
    )
    decode = LEGEND.shown("tokens_per_second", generation.tokens_per_second) if generation.steps else "no step"
    emulated = {"emulated prefill": f"{prompt} in {prefill}", "emulated decode": decode}
    tables = [Table([counted], upright=True), Table([emulated], title=EMULATED, upright=True)]
    if generation.predicted:
        phases = [
            {"phase": f"predicted {SHOWN_PHASES.get(phase, phase)}"} | dict(values)
            for phase, values in generation.predicted.items()
        ]
        tables.append(Table(phases, LEGEND, title=PREDICTED))
    if generation.cap:
        shares = [
            {"phase": phase} | {name: values[name] for name in CAP if values[name] is not None}
            for phase, values in generation.cap.items()
        ]
        tables.append(Table(shares, LEGEND, title=f"shares of the device's peaks, {PREDICTED}"))
    return tables


SHOWN_PHASES = {"replacement": "re-placement"}
CAP = ("s_mbu", "mbu", "s_mfu", "mfu", "distinct_experts")


def regions_table(regions: Iterable[Region]) -> Table:
    """Return a table of the regions of all blocks."""
    rows = []
    for number, region in enumerate(regions):
        first, last = region.blocks[0], region.blocks[-1]
        blocks = first if first == last else f"{first} to {last}"
        sram_peak = LEGEND.shown("sram_peak_bytes", region.sram_peak_bytes)
        rows.append((str(number), str(region.mesh.origin), str(region.mesh), sram_peak, blocks))
    return Table.rows(("region", "origin", "cores", "SRAM peak", "blocks"), rows, title="regions", left=5)
