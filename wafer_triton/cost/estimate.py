"""Predicted cost on a wafer of products, layers, requests, caches and energy; what `wafer-triton estimate` prints.

    >>> from wafer_triton import estimate
    >>> estimate.gemm(device="wse3", mesh=720, m=5760, k=720, n=5760).cycles
    >>> estimate.decode(device="wse2", model="llama2-13b", mesh=540, context=4096).tokens_per_second

No torch and no GPU: nothing runs. Sizes are those of whole matrices and models. All raise WaferError for a user's
mistake, in one line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wafer_triton.cost import layers, programs, rivals
from wafer_triton.cost.constants import Constants, constants
from wafer_triton.cost.model_presets import ModelSizes, model_sizes
from wafer_triton.cost.price import Cost
from wafer_triton.cost.residency import Residency, decode_residency, layers_per_region, prefill_residency
from wafer_triton.cost.steps import best_groups
from wafer_triton.device import Device
from wafer_triton.device import device as find_device
from wafer_triton.dtype import dtype_name
from wafer_triton.errors import DeviceError, MeshError, ShapeError
from wafer_triton.mesh import Mesh, as_mesh
from wafer_triton.schedule.reduce import ALGORITHMS as REDUCTIONS

GPU_WATTS = {"a100": 400, "v100": 300, "h100": 700, "h200": 700, "b200": 1000, "mi300x": 750}  # [data sheets] SXM/OAM


@dataclass(frozen=True)
class Kernel:
    """A predicted product. Cycles are critical-path cycles; `assumed` tells what a rival's price rests on."""

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
    sram_utilisation: float  # share of their SRAM bandwidth
    assumed: str | None = None


@dataclass(frozen=True)
class Layered:
    """A predicted phase of inference; only the layers count, no embedding and no head."""

    tokens_per_second: float
    cycles_per_layer: float
    compute_cycles_per_layer: float
    communication_cycles_per_layer: float
    seconds: float  # for the one token of decode, or the whole prompt
    layers: int
    mac_utilisation: float
    sram_utilisation: float  # share of their SRAM bandwidth
    joules_per_token: float
    steps: dict[str, float]  # cycles of a layer's steps by name


@dataclass(frozen=True)
class Request:
    """A predicted request: prefill, weights and cache placed anew, decode over a growing cache."""

    tokens_per_second: float  # output tokens over the whole time
    prefill_seconds: float
    replacement_seconds: float
    decode_seconds: float
    seconds: float
    joules: float
    joules_per_token: float
    decode_regions: int  # that the layers and the cache need
    device_regions: int  # that the device has
    fits: bool


@dataclass(frozen=True)
class Capacity:
    """Tokens that a KV cache holds by policy, and what limits them."""

    concat_tokens: int
    shift_tokens: int
    layers_per_region: int
    regions: int
    weight_bytes: int  # of a core, all its layers
    entry_bytes: int  # of a core, one token in all its layers


@dataclass(frozen=True)
class Energy:
    """Energies of one task and their ratio."""

    energy_ratio: float  # GPUs over wafer
    wafer_joules: float
    gpu_joules: float


def gemm(
    *, device: str | Device = "wse2", mesh: Any, m: int, k: int, n: int, algorithm: str = "mesh", dtype: str = "fp16"
) -> Kernel:
    """C [m, n] = A [m, k] B [k, n] by "mesh", "cannon", "summa", "allgather", or the rivals "t10" and "ladder"."""
    on, c = _on(device, mesh)
    programs.tiles(1, m, k, n)
    if algorithm in rivals.ASSUMED:
        return _kernel(on, rivals.gemm(on, m, k, n, dtype_name(dtype), algorithm, c), c, dtype, algorithm)
    if algorithm not in programs.GEMM_ALGORITHMS:
        known = ", ".join((*programs.GEMM_ALGORITHMS, *rivals.ASSUMED))
        raise MeshError(f"GEMM algorithm {algorithm!r}: choose one of {known}")
    return _kernel(on, cost(programs.gemm(on, m, k, n, dtype_name(dtype), algorithm), c), c, dtype)


def gemv(
    *, device: str | Device = "wse2", mesh: Any, k: int, n: int, algorithm: str = "ktree", groups: int | None = None,
    dtype: str = "fp16",
) -> Kernel:  # fmt: skip
    """y [n] = x [k] W [k, n] by MeshGEMV with "ktree", another all-reduce, or the rivals "t10" and "ladder".

    `groups` is the number of groups on the first of two levels (None: the best).
    """
    on, c = _on(device, mesh)
    programs.tiles(1, k, n)
    if algorithm in rivals.ASSUMED:
        return _kernel(on, rivals.gemv(on, k, n, dtype_name(dtype), algorithm, c), c, dtype, algorithm)
    if algorithm not in REDUCTIONS:
        raise MeshError(f"GEMV algorithm {algorithm!r}: choose one of {', '.join((*REDUCTIONS, *rivals.ASSUMED))}")
    tree = _groups(groups)
    if algorithm == "ktree" and tree is None:
        tree = best_groups(on.length("y"), c)
    return _kernel(on, cost(programs.gemv(on, k, n, dtype_name(dtype), algorithm, tree), c), c, dtype)


def decode(
    *, device: str | Device = "wse2", model: str | ModelSizes, mesh: Any, context: int, groups: int | None = None
) -> Layered:
    """One token at a cache of `context` tokens."""
    on, c = _on(device, mesh)
    sizes = model_sizes(model)
    programs.tiles(1, context)
    decode_residency(sizes, on, context).check(on)
    steps = layers.decode_layer(sizes, on, context, c, _groups(groups))
    return _layered(on, sizes, steps, 1, c)


def prefill(*, device: str | Device = "wse2", model: str | ModelSizes, mesh: Any, tokens: int) -> Layered:
    """A prompt of `tokens` tokens."""
    on, c = _on(device, mesh)
    sizes = model_sizes(model)
    programs.tiles(1, tokens)
    prefill_residency(sizes, on, tokens).check(on)
    return _layered(on, sizes, layers.prefill_layer(sizes, on, tokens, c), tokens, c)


def request(
    *, device: str | Device = "wse2", model: str | ModelSizes, prefill_mesh: Any, decode_mesh: Any, input: int,
    output: int, groups: int | None = None,
) -> Request:  # fmt: skip
    """A prompt of `input` tokens and `output` tokens of answer.

    Assumed: layers that do not fit one region pass the activation on over a mesh's length; weights and cache cross the
    middle of the smaller mesh once when they are placed anew, all its rows at a time.
    """
    first = prefill(device=device, model=model, mesh=prefill_mesh, tokens=input)
    on, c = _on(device, decode_mesh)
    before, sizes = as_mesh(prefill_mesh, on.device), model_sizes(model)
    programs.tiles(1, output)
    held = decode_residency(sizes, on, input + output)
    held.check(on)
    available = _regions(on, c)
    needed = -(-sizes.layers // max(1, layers_per_region(held, on)))
    rows = on.shape[0]
    cycles, context = 0.0, input
    while context < input + output:  # a layer's cost changes when a row takes one more token
        last = min(input + output, -(-context // rows) * rows + 1)
        one = layers.layer_cost(layers.decode_layer(sizes, on, context, c, _groups(groups))).cycles * sizes.layers
        handing_on = (needed - 1) * (c.hop_cycles * on.shape[1] + c.stage_cycles)
        cycles += (last - context) * (one + handing_on)
        context = last
    placing = _placing(sizes, input, min(before.rows, on.rows), before.cols + on.cols, c)
    replacement, decoding = placing / on.device.clock_hz, cycles / on.device.clock_hz
    seconds = first.seconds + replacement + decoding
    joules = seconds * on.device.power_watts
    return Request(
        tokens_per_second=output / seconds,
        prefill_seconds=first.seconds,
        replacement_seconds=replacement,
        decode_seconds=decoding,
        seconds=seconds,
        joules=joules,
        joules_per_token=joules / output,
        decode_regions=needed,
        device_regions=available,
        fits=needed <= available,
    )


def kv(*, device: str | Device = "wse2", model: str | ModelSizes, mesh: Any) -> Capacity:
    """What the KV cache of a decode mesh holds beside the weights, its layers spread evenly over the device's regions.

    Regions are counted by cores, as the paper does, not laid out. With concatenation one row takes every new token.
    """
    on, c = _on(device, mesh)
    sizes = model_sizes(model)

    def build(at: Mesh) -> Residency:
        each = -(-sizes.layers // _regions(at, c))
        held = {name: size * each for name, size in layers.weights(sizes, at).items()}
        return Residency(f"{sizes.name}, {each} layers on each of {_regions(at, c)} regions", held, build)

    held = build(on)
    held.check(on)
    regions = _regions(on, c)
    each = -(-sizes.layers // regions)
    entry = layers.kv_entry(sizes, on) * each
    tokens = (on.device.sram_bytes - held.bytes) // entry
    return Capacity(tokens, tokens * on.shape[0], each, regions, held.bytes, entry)


def energy(
    *, device: str | Device = "wse2", seconds: float, against: str = "a100", against_seconds: float, gpus: int = 1
) -> Energy:
    """Energy of a task that takes `seconds` on the whole wafer, against `gpus` GPUs that take `against_seconds`."""
    watts = find_device(device).power_watts
    if against not in GPU_WATTS:
        raise DeviceError(f"unknown GPU {against!r} (known: {', '.join(GPU_WATTS)})")
    for name, value in (("seconds", seconds), ("against_seconds", against_seconds), ("gpus", gpus)):
        if not value > 0:
            raise ShapeError(f"{name} = {value!r} must be positive")
    wafer, gpu = watts * seconds, GPU_WATTS[against] * gpus * against_seconds
    return Energy(gpu / wafer, wafer, gpu)


def _on(device: str | Device, mesh: Any) -> tuple[Mesh, Constants]:
    on = as_mesh(mesh, find_device(device))
    return on, constants(on.device)


def _groups(count: int | None) -> tuple[int, ...] | None:
    if count is not None and count < 1:
        raise MeshError(f"groups = {count} must be at least 1")
    return None if count is None else (count,)


def _regions(on: Mesh, c: Constants) -> int:
    return max(1, (c.cores or on.device.cores) // (on.rows * on.cols))


def _placing(model: ModelSizes, tokens: int, rows: int, hops: int, c: Constants) -> float:
    width, kv = model.width, model.kv_width
    weights = 2 * model.dim * width + 2 * model.dim * kv + 3 * model.dim * model.ffn
    words = model.layers * (weights + 2 * tokens * kv) / 2
    return words / rows * c.word_cycles + hops * c.hop_cycles


def _kernel(on: Mesh, found: Cost, c: Constants, dtype: str, rival: str | None = None) -> Kernel:
    whole = found + Cost(cycles=c.kernel_cycles)
    peak = on.device.macs_per_cycle_fp32 if dtype_name(dtype) == "fp32" else on.device.macs_per_cycle_fp16
    return Kernel(
        cycles=whole.cycles,
        compute_cycles=whole.compute_cycles,
        communication_cycles=whole.communication_cycles,
        link_cycles=whole.link_cycles,
        rounds=whole.rounds,
        hops=whole.hops,
        routes=whole.routes,
        link_bytes=whole.link_bytes,
        sram_peak_bytes=whole.sram_peak_bytes,
        seconds=whole.cycles / on.device.clock_hz,
        mac_utilisation=whole.macs / (whole.cycles * peak),
        sram_utilisation=whole.sram_bytes / (whole.cycles * c.sram_bytes_per_cycle),
        assumed=rivals.ASSUMED[rival] if rival else None,
    )


def _layered(on: Mesh, model: ModelSizes, steps: tuple[layers.Step, ...], tokens: int, c: Constants) -> Layered:
    layer = layers.layer_cost(steps)
    seconds = layer.cycles * model.layers / on.device.clock_hz
    named: dict[str, float] = {}
    for step in steps:
        named[step.name] = named.get(step.name, 0.0) + step.cost.cycles
    return Layered(
        tokens_per_second=tokens / seconds,
        cycles_per_layer=layer.cycles,
        compute_cycles_per_layer=layer.compute_cycles,
        communication_cycles_per_layer=layer.communication_cycles,
        seconds=seconds,
        layers=model.layers,
        mac_utilisation=layer.macs / (layer.cycles * on.device.macs_per_cycle_fp16),
        sram_utilisation=layer.sram_bytes / (layer.cycles * c.sram_bytes_per_cycle),
        joules_per_token=seconds * on.device.power_watts / tokens,
        steps=named,
    )
