"""What `wafer_triton.estimate` returns: every prediction for a wafer, with the unit of each number in its name.

Every prediction of time tells what it rests on (see `wafer_triton.cost.bands`): `constants`, fitted or derived;
`error_band`, the share by which a measurement may differ, None where nothing is calibrated; `outside`, what lies
outside of what was measured, by which the band is wider. `relayed` says that a schedule needs more routes than a router
holds, so that it is priced core by core. `as_if` says why a model does not fit that is priced all the same.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """A predicted product. Cycles are those of the critical path; `assumed` says what a rival's price rests on."""

    cycles: float
    compute_cycles: float
    communication_cycles: float
    link_cycles: float
    rounds: int
    hops: int
    routes: int
    link_bytes: int
    sram_peak_bytes: int
    seconds: float
    mac_utilisation: float  # share of the peak multiply-adds of the mesh's cores
    sram_bandwidth_utilisation: float  # share of their SRAM bandwidth
    relayed: bool
    constants: str
    error_band: float | None
    outside: str | None
    assumed: str | None = None


@dataclass(frozen=True)
class Layered:
    """A predicted phase of inference: all layers and, in the true program, the embedding and the head."""

    program: str  # "true" or "measured"
    cores: str  # that compute: rows x columns
    tokens_per_second: float
    cycles_per_layer: float
    compute_cycles_per_layer: float
    communication_cycles_per_layer: float
    seconds: float  # for the one token of decode, or the whole prompt
    layers: int
    mac_utilisation: float
    sram_bandwidth_utilisation: float  # share of their SRAM bandwidth
    joules_per_token: float
    embedding_cycles: float  # 0 in the measured program
    head_cycles: float  # the last token's, 0 in the measured program
    steps: dict[str, float]  # cycles of a layer's steps by name
    relayed: bool
    constants: str
    error_band: float | None
    outside: str | None
    as_if: str | None = None
    head_groups: int | None = None
    padding: float | None = None  # multiply-adds of a layer on the mesh over those of the model
    experts: str | None = None  # in prefill, where they live
    regions: int | None = None  # that the layers, the embedding and the head take
    layout: str | None = None  # of the regions, see `wafer_triton.place.layouts`


@dataclass(frozen=True)
class Request:
    """A predicted request: prefill, weights and cache placed anew, decode over a growing cache."""

    program: str  # "true" or "measured"
    tokens_per_second: float  # output tokens over the whole time
    prefill_seconds: float
    replacement_seconds: float
    decode_seconds: float
    seconds: float
    joules: float
    joules_per_token: float
    decode_regions: int  # that the layers, the cache, the embedding and the head need
    device_regions: int  # that the device has
    fits: bool
    head_groups: int  # of decode
    relayed: bool
    constants: str
    error_band: float | None
    outside: str | None
    as_if: str | None = None
    experts: str | None = None  # in prefill, where they live
    layout: str | None = None  # of the regions


@dataclass(frozen=True)
class Capacity:
    """Tokens that a KV cache holds by policy, and what limits them: counted, not fitted."""

    concat_tokens: int
    shift_tokens: int
    layers_per_region: int
    regions: int
    weight_bytes: int  # of a core, all its layers
    entry_bytes: int  # of a core, one token in all its layers
    layout: str | None = None  # of the regions


@dataclass(frozen=True)
class Energy:
    """Energies of one task and their ratio."""

    energy_ratio: float  # GPUs over wafer
    wafer_joules: float
    gpu_joules: float
