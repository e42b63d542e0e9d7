"""Wafers whose cores are dies: large chips with HBM of their own and fast links to their neighbours.

A `Wafer` has the numbers of TEMP (arXiv 2512.14256, HPCA 2026) in units of its own. `Wafer.device` is the same wafer
as a `Device`, on which schedules are built, counted, checked and run. A wafer of one's own takes three lines:

    >>> from dataclasses import replace
    >>> from wafer_triton.train.dies import wafer
    >>> mine = replace(wafer("wafer-32"), name="mine", link_bytes_per_second=2e12, forwarding="store")
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from wafer_triton.device import Device
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import DeviceError, nearest, shown

if TYPE_CHECKING:
    import networkx as nx

FORWARDING = ("cut", "store")
Die = tuple[int, int]
Link = tuple[Die, Die]  # directed, from a die to its neighbour
MOST_DIES = 10_000  # some hundred times a wafer's
CLOCK_HZ = 2e9  # of the table of evaluation; only ratios to it matter


@dataclass(frozen=True)
class Wafer:
    """A mesh of dies; every number names its unit, and a link's numbers are for one direction.

    `forwarding` is the rule for a transfer of several hops. With "cut" (cut-through) a die passes bytes on as they
    arrive: h hops take h latencies, and the time of the bytes once. With "store" (store and forward) a die receives the
    whole transfer first: h hops take both h times. `failed` names pairs of neighbouring dies whose link is broken in
    both directions. Raises DeviceError for numbers out of range, for links that do not exist, and for failed links that
    isolate dies.
    """

    name: str
    rows: int
    cols: int
    flops: float  # of a die, a second, in 16 bits
    sram_bytes: int  # of a die
    hbm_bytes: int  # of a die
    hbm_bytes_per_second: float
    link_bytes_per_second: float
    link_seconds: float  # of one hop
    flops_per_joule: float
    link_joules_per_byte: float
    hbm_joules_per_byte: float
    forwarding: str = "cut"
    failed: frozenset[Link] = frozenset()

    def __post_init__(self) -> None:
        for name in ("rows", "cols", "sram_bytes", "hbm_bytes"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise DeviceError(f"wafer {self.name!r}: {name} = {shown(value)} must be a whole number of at least 1")
        for name in (
            "flops", "hbm_bytes_per_second", "link_bytes_per_second", "link_seconds", "flops_per_joule",
            "link_joules_per_byte", "hbm_joules_per_byte",
        ):  # fmt: skip
            value = getattr(self, name)
            least = 0 if name in ("link_seconds", "link_joules_per_byte", "hbm_joules_per_byte") else 1e-30
            if not least <= value <= 1e300:
                raise DeviceError(f"wafer {self.name!r}: {name} = {shown(value)} must be a finite positive number")
        if self.forwarding not in FORWARDING:
            raise DeviceError(
                f"wafer {self.name!r}: forwarding {self.forwarding!r}; choose 'cut' (bytes pass through a die as they "
                "arrive) or 'store' (a die receives the whole transfer first)"
            )
        if self.rows * self.cols > MOST_DIES:
            raise DeviceError(
                f"wafer {self.name!r}: {self.rows} x {self.cols} dies are more than the {MOST_DIES:,} that are taken "
                "here; give fewer"
            )
        whole = _links(self.rows, self.cols)
        for link in self.failed:
            if not isinstance(link, tuple) or len(link) != 2 or not whole.has_edge(*link):
                raise DeviceError(f"wafer {self.name!r}: failed link {shown(link)} is not between neighbouring dies")
        import networkx as nx

        parts: list[set[Die]] = sorted(nx.connected_components(self.links.to_undirected()), key=len)
        if len(parts) > 1:
            raise DeviceError(
                f"wafer {self.name!r}: failed links isolate {len(parts[0])} of {self.dies} dies, such as "
                f"die {min(parts[0])}; repair one of its links, or plan on a wafer without it"
            )

    @property
    def dies(self) -> int:
        """Return the number of dies of the wafer."""
        return self.rows * self.cols

    @cached_property
    def links(self) -> nx.DiGraph:
        """Return the directed links that work, as a graph over dies (row, column)."""
        graph = _links(self.rows, self.cols)
        graph.remove_edges_from([pair for link in self.failed for pair in (link, link[::-1])])
        return graph

    @cached_property
    def edges(self) -> tuple[Link, ...]:
        """Return the directed links that work, each followed by its reverse."""
        return tuple(pair for link in sorted(self.links.edges) if link < link[::-1] for pair in (link, link[::-1]))

    @property
    def watts(self) -> float:
        """Return the power of all dies at their full rate."""
        return self.dies * self.flops / self.flops_per_joule

    def joules(self, flops: Any, link_bytes: Any, hbm_bytes: Any) -> Any:
        """Return joules of products, of bytes times links, and of bytes of HBM; all may be arrays."""
        return (
            flops / self.flops_per_joule + link_bytes * self.link_joules_per_byte + hbm_bytes * self.hbm_joules_per_byte
        )

    def device(self) -> Device:
        """Return the wafer as a `Device`: one core is one die."""
        macs = self.flops / 2 / CLOCK_HZ
        return Device(
            name=self.name,
            rows=self.rows,
            cols=self.cols,
            hop_cycles=self.link_seconds * CLOCK_HZ,
            stage_cycles=0,  # a die's network is packet-switched: no circuit is set up
            sram_bytes=self.sram_bytes,
            routes=None,  # packets carry their route
            clock_hz=CLOCK_HZ,
            link_bytes_per_cycle=self.link_bytes_per_second / CLOCK_HZ,
            macs_per_cycle_fp16=macs,
            macs_per_cycle_fp32=macs / 2,  # half the rate of 16 bits, derived
            power_watts=self.watts,
        )

    def mesh(self, rows: int | None = None, cols: int | None = None) -> Mesh:
        """Return a mesh of dies of the wafer, by default of all; MeshError if the wafer is smaller."""
        return Mesh(self.rows if rows is None else rows, self.cols if cols is None else cols, self.device())

    def transfer_seconds(self, hops: Any, size: Any) -> Any:
        """Return seconds of a transfer over `hops` links, `size` bytes over the busiest; both may be arrays.

        The time of the bytes on the busiest link counts once with forwarding "cut", and once for each hop with "store".
        """
        link = size / self.link_bytes_per_second
        return hops * self.link_seconds + (link if self.forwarding == "cut" else hops * link)


def _links(rows: int, cols: int) -> nx.DiGraph:
    import networkx as nx  # takes a second to load

    return nx.grid_2d_graph(rows, cols).to_directed()


# Sources: [T] machine-read summaries of TEMP's text (its tables were not at hand), [D] derived here.
_DIE = {
    "flops": 1800e12,  # [T] half precision.
    "sram_bytes": 80_000_000,  # [T] 80 MB.
    "hbm_bytes": 72_000_000_000,  # [T] about 72 GB
    "hbm_bytes_per_second": 1e12,  # [T] 0.8 to 1 TB/s
    "link_bytes_per_second": 4e12,  # [T] 4 TB/s a link; taken as one direction's rate, which the summaries leave open.
    "link_seconds": 200e-9,  # [T] 200 ns
    "flops_per_joule": 2e12,  # [T] 2 TFLOP/s per watt
    "link_joules_per_byte": 5.0e-12 * 8,  # [T] 5.0 pJ a bit
    "hbm_joules_per_byte": 6.0e-12 * 8,  # [T] 6.0 pJ a bit
}
WAFERS = {
    "wafer-48": Wafer("wafer-48", 6, 8, **_DIE),  # type: ignore[arg-type] # [T] the figure of the wafer has 6 x 8 dies
    "wafer-32": Wafer("wafer-32", 4, 8, **_DIE),  # type: ignore[arg-type] # [T] the table of evaluation has 4 x 8
}


def wafer(name: str | Wafer) -> Wafer:
    """Return the preset `name` (a Wafer passes through); DeviceError with the nearest name if there is none."""
    if isinstance(name, Wafer):
        return name
    if name not in WAFERS:
        raise DeviceError(f"unknown wafer {shown(name)}{nearest(name, WAFERS)} (presets: {', '.join(WAFERS)})")
    return WAFERS[name]
