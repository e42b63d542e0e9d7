"""Predicted cost on a wafer of products, layers, requests, caches and energy; what `wafer-triton estimate` prints.

    >>> from wafer_triton import estimate
    >>> estimate.gemm(device="wse3", mesh=720, m=5760, k=720, n=5760).cycles
    >>> estimate.decode(device="wse2", model="llama2-13b", mesh=540, context=4096).tokens_per_second

No torch and no GPU: nothing runs. Sizes are those of whole matrices and models. Of a model, `program` "true" (the
default) is what `generate` runs, with fp16 sums; "measured" is the program of WaferLLM's measurements (see
`wafer_triton.cost.layers`). All raise WaferError for a user's mistake, in one line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wafer_triton.cost import layers, rivals
from wafer_triton.cost.constants import Constants, constants
from wafer_triton.cost.price import Cost, price
from wafer_triton.device import Device
from wafer_triton.device import device as find_device
from wafer_triton.dtype import dtype_name
from wafer_triton.errors import DeviceError, MeshError, ShapeError
from wafer_triton.mesh import Mesh, as_mesh
from wafer_triton.schedule import gemm as gemm_schedules
from wafer_triton.schedule import sram
from wafer_triton.schedule.product import recipe, tiles
from wafer_triton.schedule.reduce import ALGORITHMS as REDUCTIONS
from wafer_triton.shapes import DecoderShape, shape_of

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
    """A predicted phase of inference: all layers and, in the true program, the head; the embedding is a look-up."""

    program: str  # "true" or "measured"
    tokens_per_second: float
    cycles_per_layer: float
    compute_cycles_per_layer: float
    communication_cycles_per_layer: float
    seconds: float  # for the one token of decode, or the whole prompt
    layers: int
    mac_utilisation: float
    sram_utilisation: float  # share of their SRAM bandwidth
    joules_per_token: float
    head_cycles: float  # 0 in the measured program
    steps: dict[str, float]  # cycles of a layer's steps by name


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
    tiles(1, m, k, n)
    name = dtype_name(dtype)
    if algorithm in rivals.ASSUMED:
        return _kernel(on, rivals.gemm(on, m, k, n, name, algorithm, c), c, name, algorithm)
    if algorithm not in gemm_schedules.ALGORITHMS:
        known = ", ".join((*gemm_schedules.ALGORITHMS, *rivals.ASSUMED))
        raise MeshError(f"GEMM algorithm {algorithm!r}: choose one of {known}")
    options = (("algorithm", algorithm), ("skew", "host"), ("sums", name))
    return _kernel(on, price(recipe("gemm", on, name, ((m, k), (k, n)), options).schedule, c), c, name)


def gemv(
    *, device: str | Device = "wse2", mesh: Any, k: int, n: int, algorithm: str = "ktree", groups: int | None = None,
    dtype: str = "fp16",
) -> Kernel:  # fmt: skip
    """y [n] = x [k] W [k, n] by MeshGEMV with "ktree", another all-reduce, or the rivals "t10" and "ladder".

    `groups` is the number of groups on the first of two levels (None: the best).
    """
    on, c = _on(device, mesh)
    tiles(1, k, n)
    name = dtype_name(dtype)
    if algorithm in rivals.ASSUMED:
        return _kernel(on, rivals.gemv(on, k, n, name, algorithm, c), c, name, algorithm)
    if algorithm not in REDUCTIONS:
        raise MeshError(f"GEMV algorithm {algorithm!r}: choose one of {', '.join((*REDUCTIONS, *rivals.ASSUMED))}")
    tree = _groups(groups)
    if algorithm == "ktree" and tree is None:
        tree = layers.best_groups(on.length("y"), c)
    options = (("algorithm", algorithm), ("groups", tree), ("sums", name))
    return _kernel(on, price(recipe("gemv", on, name, ((1, k), (k, n)), options).schedule, c), c, name)


def decode(
    *, device: str | Device = "wse2", model: str | DecoderShape, mesh: Any, context: int, groups: int | None = None,
    program: str = "true",
) -> Layered:  # fmt: skip
    """One token, after which the cache holds `context` tokens."""
    on, c = _on(device, mesh)
    shape, tree = shape_of(model), _groups(groups)
    tiles(1, context)
    return sram.fitting(lambda at: decode_on(at, shape, context, c, tree, program), on)


def decode_on(
    mesh: Mesh, shape: DecoderShape, context: int, c: Constants, groups: layers.Groups = None, program: str = "true"
) -> Layered:
    """See `decode`; the SramError of a mesh that is too small does not say which one would do."""
    block = layers.decode_block(shape, mesh, context, c, groups, program)
    layers.check_decode(block)
    return _layered(mesh, shape, layers.decode_steps(block, context, c), _head(block, c), 1, c, program)


def prefill(
    *, device: str | Device = "wse2", model: str | DecoderShape, mesh: Any, tokens: int, program: str = "true"
) -> Layered:
    """A prompt of `tokens` tokens."""
    on, c = _on(device, mesh)
    shape = shape_of(model)
    tiles(1, tokens)
    return sram.fitting(lambda at: prefill_on(at, shape, tokens, c, program), on)


def prefill_on(mesh: Mesh, shape: DecoderShape, tokens: int, c: Constants, program: str = "true") -> Layered:
    """See `prefill`; the SramError of a mesh that is too small does not say which one would do."""
    block = layers.check_prefill(layers.prefill_block(shape, mesh, c, program), tokens)
    steps = layers.prefill_steps(block, -(-tokens // block.mesh.shape[0]), c)
    last = layers.decode_block(shape, mesh, 1, c, program=program)  # the head takes the last token alone
    return _layered(mesh, shape, steps, _head(last, c), tokens, c, program)


def _head(block: layers.Block, c: Constants) -> layers.Steps:
    return layers.head_steps(block, 1, c) if block.shape.vocab_size else {}


def request(
    *, device: str | Device = "wse2", model: str | DecoderShape, prefill_mesh: Any, decode_mesh: Any, input: int,
    output: int, groups: int | None = None, program: str = "true",
) -> Request:  # fmt: skip
    """A prompt of `input` tokens and `output` tokens of answer.

    Assumed: layers that do not fit one region pass the activation on over a mesh's length; weights and cache cross the
    middle of the smaller mesh once when they are placed anew, all its rows at a time.
    """
    on, c = _on(device, decode_mesh)
    before, shape, tree = as_mesh(prefill_mesh, on.device), shape_of(model), _groups(groups)
    tiles(1, input, output)
    first = sram.fitting(lambda at: prefill_on(at, shape, input, c, program), before)
    return sram.fitting(lambda at: request_on(before, at, shape, first, input, output, c, tree, program), on)


def request_on(
    before: Mesh, on: Mesh, shape: DecoderShape, first: Layered, input: int, output: int, c: Constants,
    groups: layers.Groups = None, program: str = "true",
) -> Request:  # fmt: skip
    """See `request`, behind a prefill that is priced already, on mesh `before`."""

    def block(context: int) -> layers.Block:
        return layers.decode_block(shape, on, context, c, groups, program)

    last = input + output
    held = layers.check_decode(block(last))
    available = _regions(on, c)
    needed = -(-shape.num_hidden_layers // max(1, _layers_per_region(held, on)))
    head = layers.total(_head(block(last), c)).cycles
    handing_on = (needed - 1) * (c.hop_cycles * on.shape[1] + c.stage_cycles)
    rows = on.shape[0]
    cycles, context = 0.0, input
    while context < last:  # a layer's cost changes when a row takes one more token
        after = min(last, -(-context // rows) * rows + 1)
        layer = layers.total(layers.decode_steps(block(context), context, c)).cycles
        cycles += (after - context) * (layer * shape.num_hidden_layers + head + handing_on)
        context = after
    placing = _placing(shape, input, min(before.rows, on.rows), before.cols + on.cols, c)
    replacement, decoding = placing / on.device.clock_hz, cycles / on.device.clock_hz
    seconds = first.seconds + replacement + decoding
    joules = seconds * on.device.power_watts
    return Request(
        program=program,
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


def kv(*, device: str | Device = "wse2", model: str | DecoderShape, mesh: Any, program: str = "true") -> Capacity:
    """What the KV cache of a decode mesh holds beside the weights, its layers spread evenly over the device's regions.

    Regions are counted by cores, as the paper does, not laid out. With concatenation one row takes every new token.
    "measured" counts as the paper does, too: every width is cut evenly over a line, rotary pairs or not.
    """
    on, c = _on(device, mesh)
    shape = shape_of(model)

    def held(at: Mesh) -> tuple[dict[str, int], int]:
        """Bytes of a core's weights, by buffer, and of its share of one token's keys and values, of one layer."""
        if program == "measured":
            return _evenly_cut(shape, at)
        block = layers.decode_block(shape, at, 1, c, program=program)
        stays = layers.decode_need(block).stays
        weights = {name: size for name, size in stays.items() if not name.endswith("_cache")}
        return weights, sum(size for name, size in stays.items() if name not in weights) // block.slots

    def check(at: Mesh) -> tuple[dict[str, int], int]:
        weights, entry = held(at)
        each = -(-shape.num_hidden_layers // _regions(at, c))
        what = f"{shape.name}, {each} layers on each of {_regions(at, c)} regions"
        sram.demand(what, at, {name: size * each for name, size in weights.items()})
        return weights, entry

    weights, entry = sram.fitting(check, on)
    regions = _regions(on, c)
    each = -(-shape.num_hidden_layers // regions)
    held_bytes = each * sum(weights.values())
    tokens = (on.device.sram_bytes - held_bytes) // (entry * each)
    return Capacity(tokens, tokens * on.shape[0], each, regions, held_bytes, entry * each)


def _evenly_cut(shape: DecoderShape, mesh: Mesh) -> tuple[dict[str, int], int]:
    rows, cols = mesh.shape
    (d,), (q, kv_width, f) = (
        tiles(rows, shape.hidden_size),
        tiles(cols, shape.q_width, shape.kv_width, shape.intermediate_size),
    )
    elements = {"wq": d * q, "wkv": 2 * d * kv_width, "wo": q * d, "wgu": 2 * d * f, "wdown": f * d}
    return {name: 2 * size for name, size in elements.items()}, 2 * 2 * kv_width


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


def _layers_per_region(held: sram.Need, mesh: Mesh) -> int:
    """How many layers with these buffers one region holds; they share what comes and goes."""
    return (mesh.device.sram_bytes - sum(held.passes.values())) // sum(held.stays.values())


def _placing(shape: DecoderShape, tokens: int, rows: int, hops: int, c: Constants) -> float:
    width, kv_width = shape.hidden_size, shape.kv_width
    weights = 2 * width * shape.q_width + 2 * width * kv_width + 3 * width * shape.intermediate_size
    words = shape.num_hidden_layers * (weights + 2 * tokens * kv_width) / 2
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


def _layered(
    on: Mesh, shape: DecoderShape, steps: layers.Steps, head: layers.Steps, tokens: int, c: Constants, program: str
) -> Layered:
    layer, last = layers.total(steps), layers.total(head)
    whole = layer * shape.num_hidden_layers + last
    seconds = whole.cycles / on.device.clock_hz
    return Layered(
        program=program,
        tokens_per_second=tokens / seconds,
        cycles_per_layer=layer.cycles,
        compute_cycles_per_layer=layer.compute_cycles,
        communication_cycles_per_layer=layer.communication_cycles,
        seconds=seconds,
        layers=shape.num_hidden_layers,
        mac_utilisation=whole.macs / (whole.cycles * on.device.macs_per_cycle_fp16),
        sram_utilisation=whole.sram_bytes / (whole.cycles * c.sram_bytes_per_cycle),
        joules_per_token=seconds * on.device.power_watts / tokens,
        head_cycles=last.cycles,
        steps={name: cost.cycles for name, cost in steps.items()},
    )
