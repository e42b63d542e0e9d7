"""Results of `wafer_triton.estimate`: predictions for a wafer, with the unit of each number in its name.

Every prediction of time has its basis (see `wafer_triton.cost.bands`): `constants`, fitted or derived;
`error_band`, the share by which a measurement may differ, None without a calibration or beside it; `outside`, sizes and
properties beyond the measurements, for which the band is wider, or there is none. `relayed` says that a schedule needs
more routes than a router holds, so that it is priced core by core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wafer_triton.cost.price import Cost, Prediction
from wafer_triton.text.quantity import Legend, named, unit
from wafer_triton.text.table import Result


@dataclass(frozen=True, repr=False)
class Kernel(Result):
    """A predicted product. Cycles are of the critical path."""

    main = ("seconds", "cycles", "hops", "routes", "sram_peak_bytes", "error_band")
    units_of = (Cost, Prediction)

    cycles: float
    compute_cycles: float
    communication_cycles: float
    link_cycles: float
    latency_cycles: float
    rounds: int
    hops: int
    routes: int
    link_bytes: int
    sram_peak_bytes: int
    seconds: float
    # share of the peak multiply-adds of the mesh's cores
    mac_utilisation: float = field(metadata=unit("%", "share of peak multiply-adds"))
    # share of their SRAM bandwidth
    sram_bandwidth_utilisation: float = field(metadata=unit("%", "share of SRAM bandwidth"))
    relayed: bool
    constants: str
    error_band: float | None = field(metadata=unit("+-%"))
    outside: str | None = field(metadata=named("beyond the measurements"))


@dataclass(frozen=True, repr=False)
class Trained(Result):
    """The predicted products of the linear layers in a step of training: y = x W, dx = dy W^T and dW = x^T dy."""

    main = ("seconds", "cycles", "hops", "sram_peak_bytes", "error_band")
    units_of = (Kernel,)

    products: int = field(metadata=unit("products"))
    cycles: float
    forward_cycles: float = field(metadata=unit("cycles", "cycles of y = x W"))
    input_gradient_cycles: float = field(metadata=unit("cycles", "cycles of dx = dy W^T"))
    weight_gradient_cycles: float = field(metadata=unit("cycles", "cycles of dW = x^T dy"))
    hops: int
    link_bytes: int
    sram_peak_bytes: int
    seconds: float
    mac_utilisation: float
    relayed: bool
    constants: str
    error_band: float | None
    outside: str | None


@dataclass(frozen=True, repr=False)
class Layered(Result):
    """A predicted phase of inference: all layers and, in the full program, the embedding and the head.

    Utilisations and `error_band` are shares of 1; `error_band` is None where no fit holds for the device.
    """

    main = ("tokens_per_second", "seconds", "cycles_per_layer", "joules_per_token", "sram_peak_bytes", "error_band")
    units_of = (Prediction, Kernel)

    program: str  # "full" or "paper-benchmark"
    cores: str = field(metadata=named("cores that compute"))  # rows x columns of the mesh
    tokens_per_second: float
    cycles_per_layer: float = field(metadata=unit("cycles"))
    compute_cycles_per_layer: float = field(metadata=unit("cycles"))
    communication_cycles_per_layer: float = field(metadata=unit("cycles"))
    seconds: float  # for the one token of decode, or the whole prompt
    layers: int = field(metadata=unit("layers"))
    mac_utilisation: float
    # share of their SRAM bandwidth
    sram_bandwidth_utilisation: float
    joules_per_token: float
    embedding_cycles: float = field(metadata=unit("cycles"))  # 0 in the paper-benchmark program
    head_cycles: float = field(metadata=unit("cycles"))  # the last token's, 0 in the paper-benchmark program
    # cycles of a layer's steps by name
    steps: dict[str, float] = field(metadata=unit("cycles", "cycles of a layer by step"))
    relayed: bool
    constants: str
    error_band: float | None
    outside: str | None
    head_groups: int | None = field(default=None, metadata=unit("groups"))
    # multiply-adds of a layer on the mesh over the model's
    padding: float | None = field(default=None, metadata=unit("x", "multiply-adds over the model's"))
    # in which prefill takes the prompt, as many tokens as fit beside the weights at a time; None in decode
    chunks: int | None = field(default=None, metadata=unit("chunks", "chunks of the prompt"))
    experts: str | None = field(default=None, metadata=named("experts in prefill"))  # their placement
    # taken by the layers, the embedding and the head
    regions: int | None = field(default=None, metadata=unit("regions"))
    layout: str | None = None  # of the regions, see `wafer_triton.place.layouts`
    # of the whole phase, as in `Cost`
    latency_cycles: float = 0.0
    link_cycles: float = 0.0
    # of decode's activation from region to region, in the time of the full program alone; None in prefill
    between_regions_cycles: float | None = field(default=None, metadata=unit("cycles", "cycles between regions"))
    # of the fullest core of the regions
    sram_peak_bytes: int = 0


@dataclass(frozen=True, repr=False)
class RequestCost(Result):
    """A predicted request: prefill, weights and cache placed anew, decode over a growing cache."""

    main = ("tokens_per_second", "seconds", "prefill_seconds", "decode_seconds", "joules_per_token", "error_band")
    units_of = (Layered,)

    program: str  # "full" or "paper-benchmark"
    # output tokens over the whole time
    tokens_per_second: float
    prefill_seconds: float = field(metadata=unit("s", "prefill time"))
    replacement_seconds: float = field(metadata=unit("s", "time to place weights and cache anew"))
    decode_seconds: float = field(metadata=unit("s", "decode time"))
    seconds: float
    joules: float = field(metadata=unit("J", "energy"))
    joules_per_token: float
    # needed by the layers, the cache, the embedding and the head
    decode_regions: int = field(metadata=unit("regions", "regions that decode needs"))
    device_regions: int = field(metadata=unit("regions", "regions of the device"))  # that the device has
    head_groups: int  # of decode
    relayed: bool
    constants: str
    error_band: float | None
    outside: str | None
    chunks: int | None = None
    experts: str | None = None  # their placement
    layout: str | None = None  # of the regions


@dataclass(frozen=True, repr=False)
class Capacity(Result):
    """Tokens that a KV cache holds by policy, with the bytes that limit them: counted, not fitted."""

    heading = "counted"
    units_of = (Layered,)

    concat_tokens: int = field(metadata=unit("tokens", "KV cache by concatenation"))
    shift_tokens: int = field(metadata=unit("tokens", "KV cache by shift"))
    layers_per_region: float = field(metadata=unit("layers"))  # whole ones, or 0.5 where a layer takes two regions
    regions: int
    weight_bytes: int = field(metadata=unit("B", "weights on a core"))  # of a core with a cache
    entry_bytes: int = field(metadata=unit("B", "one token on a core"))  # of a core, one token in all its layers
    head_groups: int  # of decode with a full cache
    layout: str | None = None  # of the regions


@dataclass(frozen=True, repr=False)
class Energy(Result):
    """Energies of one task and their ratio."""

    energy_ratio: float = field(metadata=unit("x", "energy of the GPUs over the wafer's"))  # GPUs over wafer
    wafer_joules: float = field(metadata=unit("J", "energy of the wafer"))
    gpu_joules: float = field(metadata=unit("J", "energy of the GPUs"))


# Units and labels of the arguments of an estimate and of a plan.
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("mesh", "prefill_mesh", "decode_mesh"), unit("side")),
    **dict.fromkeys(("m", "k", "n"), unit("elements")),
    **dict.fromkeys(("context", "tokens", "input", "output", "batch"), unit("tokens")),
    **dict.fromkeys(("groups", "head_groups"), unit("groups")),
    "seconds": unit("s", "time"),
    "against_seconds": unit("s", "its time"),
    "gpus": unit("GPUs", "on"),
    "experts": Legend(Layered).entries["experts"],
    "step": unit("cores"),
    "best": unit("plans"),
}
