"""What people read: progress bars and tables. Every time in them is emulation time, never wafer time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from rich import box, progress
from rich.console import Console
from rich.table import Table

from wafer_triton.count.account import Account
from wafer_triton.device import Device
from wafer_triton.mesh import Mesh

if TYPE_CHECKING:
    from wafer_triton.models.place.regions import Region


class Progress:
    """Bars on stderr, one for each thing that is reported as `(what, done, total)`; the terminal is clean on exit."""

    def __init__(self) -> None:
        self._bars = progress.Progress(
            progress.TextColumn("{task.description:16}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, progress.TaskID] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bars.live.is_started:
            self._bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._bars.start()  # here, as bars without a task would leave an empty line
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done)


@dataclass(frozen=True)
class Generation:
    """One generated text and what its run did; seconds are emulation time."""

    text: str
    tokens: list[int]
    prompt_tokens: int
    steps: int  # decode steps; prefill made the first token
    settings: Mapping[str, str]  # dtype, accumulate, exchange, backend
    mesh: Mesh
    prefill_mesh: Mesh
    regions: list[Region]
    account: Account
    load_seconds: float
    prefill_seconds: float
    decode_seconds: float
    interrupted: bool = False

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
        """Everything as plain values."""
        account = self.account
        return {
            "text": self.text,
            "tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "interrupted": self.interrupted,
            "tokens_per_second": self.tokens_per_second,
            "load_seconds": self.load_seconds,
            "prefill_seconds": self.prefill_seconds,
            "decode_seconds": self.decode_seconds,
            "device": self.mesh.device.name,
            "mesh": str(self.mesh),
            "prefill_mesh": str(self.prefill_mesh),
            **self.settings,
            "sram_bytes": self.mesh.device.sram_bytes,
            "sram_peak_bytes": self.sram_peak_bytes,
            "rounds": account.rounds,
            "hops": account.hops,
            "messages": account.messages,
            "link_bytes": account.link_bytes,
            "busiest_link_bytes": account.busiest_link_bytes,
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


def generation_table(made: Generation) -> Table:
    """The short table under a generated text."""
    device, account, settings = made.mesh.device, made.account, made.settings
    kinds = Counter(str(region.mesh) for region in made.regions)
    apart = "" if str(made.prefill_mesh) == str(made.mesh) else f", prefill on {made.prefill_mesh}"
    prefill = f"{made.prompt_tokens} tokens in {made.prefill_seconds:.2f} s"
    decode = f"{made.tokens_per_second:.2f} tokens/s" if made.steps else "no step"
    rows = table("", "")
    for name, value in (
        ("device", f"{device.name}, {device.rows} x {device.cols} cores"),
        ("mesh", f"{made.mesh}{apart}, {settings['dtype']} tiles, {settings['accumulate']} sums"),
        ("exchange", f"{settings['exchange']}, {settings['backend']} backend"),
        ("regions", f"{len(made.regions)}: " + ", ".join(f"{times} of {mesh}" for mesh, times in kinds.items())),
        ("SRAM peak", f"{made.sram_peak_bytes:,} B of a core's {device.sram_bytes:,} B"),
        ("rounds", f"{account.rounds:,}"),
        ("hops", f"{account.hops:,} on the critical path"),
        ("bytes over links", f"{account.link_bytes:,}"),
        ("emulated prefill", prefill),
        ("emulated decode", decode),
    ):
        rows.add_row(name, value)
    return rows


def regions_table(regions: Iterable[Region]) -> Table:
    """Where every block lies on the device."""
    rows = table("region", "origin", "cores", "SRAM peak (B)", "blocks", title="regions")
    for number, region in enumerate(regions):
        first, last = region.blocks[0], region.blocks[-1]
        rows.add_row(
            str(number),
            str(region.mesh.origin),
            str(region.mesh),
            f"{region.sram_peak_bytes:,}",
            first if first == last else f"{first} to {last}",
        )
    return rows


def devices_table(devices: Iterable[Device]) -> Table:
    """The numbers of devices side by side, one device a column."""
    devices = list(devices)
    rows = table("", *(device.name for device in devices))
    for name, show in {
        "cores": lambda one: f"{one.rows} x {one.cols}",
        "hop (cycles)": lambda one: f"{one.hop_cycles:g}",
        "routing stage (cycles)": lambda one: f"{one.stage_cycles:g}",
        "SRAM per core (KiB)": lambda one: f"{one.sram_bytes / 1024:g}",
        "routes per core": lambda one: "packets" if one.routes is None else f"{one.routes}",
        "clock (GHz)": lambda one: f"{one.clock_hz / 1e9:g}",
        "link (B/cycle)": lambda one: f"{one.link_bytes_per_cycle:.3g}",
        "fp16 MACs/cycle": lambda one: f"{one.macs_per_cycle_fp16:g}",
        "fp32 MACs/cycle": lambda one: f"{one.macs_per_cycle_fp32:g}",
        "power (W)": lambda one: f"{one.power_watts:g}",
    }.items():
        rows.add_row(name, *map(show, devices))
    return rows


def show(table: Table, stream: TextIO) -> None:
    """Print a table, whole lines even where the output is no terminal."""
    console = Console(file=stream)
    with console.capture() as text:  # written by us, since rich answers a broken pipe with SystemExit
        console.print(table, width=None if console.is_terminal else 200, crop=False)
    stream.write(text.get())


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table of the house style."""
    rows = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", show_header=any(columns), pad_edge=False)
    for column in columns:
        rows.add_column(column)
    return rows
