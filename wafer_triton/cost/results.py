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
from wafer_triton.text.quantity import as_in, named, unit
from wafer_triton.text.table import Result


@dataclass(frozen=True, repr=False)
class Kernel(Result):
    """A predicted product. Cycles are of the critical path."""

    main = ("seconds", "cycles", "hops", "routes", "sram_peak_bytes", "error_band")

    cycles: float = field(metadata=as_in(Cost, "cycles"))
    compute_cycles: float = field(metadata=as_in(Cost, "compute_cycles"))
    communication_cycles: float = field(metadata=as_in(Prediction, "communication_cycles"))
    link_cycles: float = field(metadata=as_in(Cost, "link_cycles"))
    latency_cycles: float = field(metadata=as_in(Cost, "latency_cycles"))
    rounds: int = field(metadata=as_in(Cost, "rounds"))
    hops: int = field(metadata=as_in(Cost, "hops"))
    routes: int = field(metadata=as_in(Cost, "routes"))
    link_bytes: int = field(metadata=as_in(Cost, "link_bytes"))
    sram_peak_bytes: int = field(metadata=as_in(Cost, "sram_peak_bytes"))
    seconds: float = field(metadata=as_in(Prediction, "seconds"))
    # share of the peak multiply-adds of the mesh's cores
    mac_utilisation: float = field(metadata=unit("%", "share of peak multiply-adds"))
    # share of their SRAM bandwidth
    sram_bandwidth_utilisation: float = field(metadata=unit("%", "share of SRAM bandwidth"))
    relayed: bool = field(metadata=as_in(Cost, "relayed"))
    constants: str
    error_band: float | None = field(metadata=unit("+-%"))
    outside: str | None = field(metadata=named("beyond the measurements"))


@dataclass(frozen=True, repr=False)
class Trained(Result):
    """The predicted products of the linear layers in a step of training: y = x W, dx = dy W^T and dW = x^T dy."""

    main = ("seconds", "cycles", "hops", "sram_peak_bytes", "error_band")

    products: int = field(metadata=unit("products"))
    cycles: float = field(metadata=as_in(Cost, "cycles"))
    forward_cycles: float = field(metadata=unit("cycles", "cycles of y = x W"))
    input_gradient_cycles: float = field(metadata=unit("cycles", "cycles of dx = dy W^T"))
    weight_gradient_cycles: float = field(metadata=unit("cycles", "cycles of dW = x^T dy"))
    hops: int = field(metadata=as_in(Cost, "hops"))
    link_bytes: int = field(metadata=as_in(Cost, "link_bytes"))
    sram_peak_bytes: int = field(metadata=as_in(Cost, "sram_peak_bytes"))
    seconds: float = field(metadata=as_in(Prediction, "seconds"))
    mac_utilisation: float = field(metadata=as_in(Kernel, "mac_utilisation"))
    relayed: bool = field(metadata=as_in(Cost, "relayed"))
    constants: str
    error_band: float | None = field(metadata=as_in(Kernel, "error_band"))
    outside: str | None = field(metadata=as_in(Kernel, "outside"))


@dataclass(frozen=True, repr=False)
class Layered(Result):
    """A predicted phase of inference: all layers and, in the full program, the embedding and the head."""

    main = ("tokens_per_second", "seconds", "cycles_per_layer", "joules_per_token", "sram_peak_bytes", "error_band")

    program: str  # "full" or "paper-benchmark"
    cores: str = field(metadata=named("cores that compute"))  # rows x columns of the mesh
    tokens_per_second: float = field(metadata=as_in(Prediction, "tokens_per_second"))
    cycles_per_layer: float = field(metadata=unit("cycles"))
    compute_cycles_per_layer: float = field(metadata=unit("cycles"))
    communication_cycles_per_layer: float = field(metadata=unit("cycles"))
    seconds: float = field(metadata=as_in(Prediction, "seconds"))  # for the one token of decode, or the whole prompt
    layers: int = field(metadata=unit("layers"))
    mac_utilisation: float = field(metadata=as_in(Kernel, "mac_utilisation"))
    # share of their SRAM bandwidth
    sram_bandwidth_utilisation: float = field(metadata=as_in(Kernel, "sram_bandwidth_utilisation"))
    joules_per_token: float = field(metadata=as_in(Prediction, "joules_per_token"))
    embedding_cycles: float = field(metadata=unit("cycles"))  # 0 in the paper-benchmark program
    head_cycles: float = field(metadata=unit("cycles"))  # the last token's, 0 in the paper-benchmark program
    # cycles of a layer's steps by name
    steps: dict[str, float] = field(metadata=unit("cycles", "cycles of a layer by step"))
    relayed: bool = field(metadata=as_in(Prediction, "relayed"))
    constants: str
    error_band: float | None = field(metadata=as_in(Kernel, "error_band"))
    outside: str | None = field(metadata=as_in(Kernel, "outside"))
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
    latency_cycles: float = field(default=0.0, metadata=as_in(Cost, "latency_cycles"))
    link_cycles: float = field(default=0.0, metadata=as_in(Cost, "link_cycles"))
    # of decode's activation from region to region, in the time of the full program alone; None in prefill
    between_regions_cycles: float | None = field(default=None, metadata=unit("cycles", "cycles between regions"))
    # of the fullest core of the regions
    sram_peak_bytes: int = field(default=0, metadata=as_in(Cost, "sram_peak_bytes"))


@dataclass(frozen=True, repr=False)
class RequestCost(Result):
    """A predicted request: prefill, weights and cache placed anew, decode over a growing cache."""

    main = ("tokens_per_second", "seconds", "prefill_seconds", "decode_seconds", "joules_per_token", "error_band")

    program: str  # "full" or "paper-benchmark"
    # output tokens over the whole time
    tokens_per_second: float = field(metadata=as_in(Prediction, "tokens_per_second"))
    prefill_seconds: float = field(metadata=unit("s", "prefill time"))
    replacement_seconds: float = field(metadata=unit("s", "time to place weights and cache anew"))
    decode_seconds: float = field(metadata=unit("s", "decode time"))
    seconds: float = field(metadata=as_in(Prediction, "seconds"))
    joules: float = field(metadata=unit("J", "energy"))
    joules_per_token: float = field(metadata=as_in(Prediction, "joules_per_token"))
    # needed by the layers, the cache, the embedding and the head
    decode_regions: int = field(metadata=unit("regions", "regions that decode needs"))
    device_regions: int = field(metadata=unit("regions", "regions of the device"))  # that the device has
    head_groups: int = field(metadata=as_in(Layered, "head_groups"))  # of decode
    relayed: bool = field(metadata=as_in(Prediction, "relayed"))
    constants: str
    error_band: float | None = field(metadata=as_in(Kernel, "error_band"))
    outside: str | None = field(metadata=as_in(Kernel, "outside"))
    chunks: int | None = field(default=None, metadata=as_in(Layered, "chunks"))
    experts: str | None = field(default=None, metadata=as_in(Layered, "experts"))  # their placement
    layout: str | None = None  # of the regions


@dataclass(frozen=True, repr=False)
class Capacity(Result):
    """Tokens that a KV cache holds by policy, with the bytes that limit them: counted, not fitted."""

    heading = "counted"

    concat_tokens: int = field(metadata=unit("tokens", "KV cache by concatenation"))
    shift_tokens: int = field(metadata=unit("tokens", "KV cache by shift"))
    layers_per_region: float = field(metadata=unit("layers"))  # whole ones, or 0.5 where a layer takes two regions
    regions: int = field(metadata=as_in(Layered, "regions"))
    weight_bytes: int = field(metadata=unit("B", "weights on a core"))  # of a core with a cache
    entry_bytes: int = field(metadata=unit("B", "one token on a core"))  # of a core, one token in all its layers
    head_groups: int = field(metadata=as_in(Layered, "head_groups"))  # of decode with a full cache
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
    "experts": as_in(Layered, "experts"),
    "step": unit("cores"),
    "best": unit("plans"),
}
