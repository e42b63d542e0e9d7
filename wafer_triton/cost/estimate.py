"""Predicted cost on a wafer of products, layers, requests, caches and energy; what `wafer-triton estimate` prints.

    >>> from wafer_triton import estimate
    >>> estimate.gemm(device="wse3", mesh=720, m=5760, k=720, n=5760).cycles
    >>> estimate.decode(device="wse2", model="llama2-13b", mesh=540, context=4096).tokens_per_second

Nothing runs, and neither torch nor a GPU is needed. Sizes are those of whole matrices and models. `program` "true" (the
default) is the program that `generate` runs, with fp16 sums; "measured" is that of WaferLLM's measurements (see
`wafer_triton.cost.layers`). A model that the device does not hold is refused, unless it is priced `as_if` it did. All
functions raise a WaferError of one line for a user's mistake.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wafer_triton.cost import capacity, layers, padding, rivals
from wafer_triton.cost.bands import ASSUMED, Basis, basis, basis_of_all, layer_basis, product_sizes, unmeasured
from wafer_triton.cost.constants import Constants, constants
from wafer_triton.cost.price import Cost, price
from wafer_triton.cost.residence import decode_residence, fitted, prefill_residence, regions_of
from wafer_triton.cost.results import Capacity, Energy, Kernel, Layered, Request
from wafer_triton.cost.routed import Routed, cap
from wafer_triton.device import Device
from wafer_triton.device import device as find_device
from wafer_triton.dtype import dtype_name
from wafer_triton.errors import DeviceError, MeshError, ShapeError, check_counts
from wafer_triton.mesh import Mesh, as_mesh
from wafer_triton.schedule import gemm as gemm_schedules
from wafer_triton.schedule.heads import HeadGroups
from wafer_triton.schedule.product import recipe, tiles
from wafer_triton.schedule.reduce import ALGORITHMS as REDUCTIONS
from wafer_triton.shapes import DecoderShape, shape_of

__all__ = [
    "GPU_WATTS", "Capacity", "Energy", "Kernel", "Layered", "Request", "Routed", "cap",
    "decode", "decode_on", "energy", "gemm", "gemv", "kv", "prefill", "prefill_on", "request", "request_on",
]  # fmt: skip

MOST_STEPS = 1000  # of a growing cache that a request prices one by one; of a longer answer as many, evenly
SECONDS = 1e-15, 1e15  # that a task may take, far beyond any
GPU_WATTS = {"a100": 400, "v100": 300, "h100": 700, "h200": 700, "b200": 1000, "mi300x": 750}  # [data sheets] SXM/OAM


def gemm(
    *, device: str | Device = "wse2", mesh: Any, m: int, k: int, n: int, algorithm: str = "mesh", dtype: str = "fp16"
) -> Kernel:
    """C [m, n] = A [m, k] B [k, n] by "mesh", "cannon", "summa", "allgather", or the rivals "t10" and "ladder"."""
    mesh, c = _mesh(device, mesh)
    check_counts(m=m, k=k, n=n)
    name = dtype_name(dtype)
    if algorithm in rivals.ASSUMED:
        return _kernel(mesh, rivals.gemm(mesh, m, k, n, name, algorithm, c), c, name, ASSUMED, algorithm)
    if algorithm not in gemm_schedules.ALGORITHMS:
        known = ", ".join((*gemm_schedules.ALGORITHMS, *rivals.ASSUMED))
        raise MeshError(f"GEMM algorithm {algorithm!r}: choose one of {known}")
    options = (("algorithm", algorithm), ("skew", "host"), ("sums", name))
    cost = price(recipe("gemm", mesh, name, ((m, k), (k, n)), options).schedule, c)
    sizes = product_sizes(mesh, *tiles(mesh.square().shape[0], m, k, n))
    rests_on = basis(mesh.device, "gemm", sizes, unmeasured(name, algorithm, "mesh", cost.relayed))
    return _kernel(mesh, cost, c, name, rests_on)


def gemv(
    *, device: str | Device = "wse2", mesh: Any, k: int, n: int, algorithm: str = "ktree", groups: int | None = None,
    dtype: str = "fp16",
) -> Kernel:  # fmt: skip
    """y [n] = x [k] W [k, n] by MeshGEMV with "ktree", another all-reduce, or the rivals "t10" and "ladder".

    `groups` is the number of groups on the first of two levels (None: the best).
    """
    mesh, c = _mesh(device, mesh)
    check_counts(k=k, n=n)
    name = dtype_name(dtype)
    tree = _groups(groups)
    if algorithm in rivals.ASSUMED:
        if tree is not None:
            raise MeshError(f"GEMV algorithm {algorithm!r} takes no groups; use 'ktree'")
        return _kernel(mesh, rivals.gemv(mesh, k, n, name, algorithm, c), c, name, ASSUMED, algorithm)
    if algorithm not in REDUCTIONS:
        raise MeshError(f"GEMV algorithm {algorithm!r}: choose one of {', '.join((*REDUCTIONS, *rivals.ASSUMED))}")
    if algorithm == "ktree" and tree is None:
        tree = layers.best_groups(mesh.length("y"), c)
    options = (("algorithm", algorithm), ("groups", tree), ("sums", name))
    cost = price(recipe("gemv", mesh, name, ((1, k), (k, n)), options).schedule, c)
    sizes = product_sizes(mesh, *tiles(mesh.shape[0], k), *tiles(mesh.shape[1], n))
    rests_on = basis(mesh.device, "gemv", sizes, unmeasured(name, algorithm, "ktree", cost.relayed))
    return _kernel(mesh, cost, c, name, rests_on)


def decode(
    *, device: str | Device = "wse2", model: str | DecoderShape, mesh: Any, context: int, groups: int | None = None,
    program: str = "true", as_if: bool = False, head_groups: int | None = None,
) -> Layered:  # fmt: skip
    """One token of decode, after which the cache holds `context` tokens.

    `groups` is the number of groups on the first of two levels of the K-trees (None: the best on a square mesh),
    `head_groups` that of the head groups on the columns (None: the best; the measured program has one).
    """
    mesh, c = _mesh(device, mesh)
    shape, tree = shape_of(model), _groups(groups)
    check_counts(context=context)

    def place(candidate: Mesh, counted: Constants) -> None:
        decode_residence(layers.decode_block(shape, candidate, context, c, tree, program, head_groups), counted)

    mesh, c, why = fitted(place, mesh, c, as_if)
    return replace(decode_on(mesh, shape, context, c, tree, program, head_groups), as_if=why)


def decode_on(
    mesh: Mesh, shape: DecoderShape, context: int, c: Constants, groups: layers.Groups = None, program: str = "true",
    head_groups: int | None = None,
) -> Layered:  # fmt: skip
    """See `decode`; the error of a mesh that does not hold the model names none that does."""
    block = layers.decode_block(shape, mesh, context, c, groups, program, head_groups)
    decode_residence(block, c)
    steps = layers.decode_steps(block, context, c)
    whole = _layered("decode", block, steps, _ends(block, 1, c), context, c, program)
    return replace(whole, head_groups=block.head_groups, padding=padding.of_layer(block, context))


def prefill(
    *, device: str | Device = "wse2", model: str | DecoderShape, mesh: Any, tokens: int, program: str = "true",
    as_if: bool = False, head_groups: int | None = None,
) -> Layered:  # fmt: skip
    """Prefill of a prompt of `tokens` tokens, in chunks where the device does not hold it at once.

    `head_groups` is the number of head groups on the columns, on fewer columns as many as there are (None: the best;
    the measured program has one).
    """
    mesh, c = _mesh(device, mesh)
    shape = shape_of(model)
    check_counts(tokens=tokens)
    mesh, c, why = _prefill_fitted(mesh, shape, tokens, c, program, as_if, head_groups)
    return replace(prefill_on(mesh, shape, tokens, c, program, head_groups), as_if=why)


def _prefill_fitted(
    mesh: Mesh, shape: DecoderShape, tokens: int, c: Constants, program: str, as_if: bool, head_groups: int | None
) -> tuple[Mesh, Constants, str | None]:
    def place(candidate: Mesh, counted: Constants) -> None:
        _prefill_blocks(candidate, shape, tokens, counted, program, head_groups)

    return fitted(place, mesh, c, as_if)


def _prefill_blocks(
    mesh: Mesh, shape: DecoderShape, tokens: int, c: Constants, program: str, head_groups: int | None
) -> tuple[layers.Block, int, layers.Block]:
    """The block of prefill, the tokens that a row takes at once, and the block of the head, which takes the last alone.

    Raises SramError or MeshError if they do not fit.
    """
    last = layers.decode_block(shape, mesh, 1, c, None, program, 1)
    block = layers.prefill_block(shape, mesh, c, program)
    choices = layers.prefill_head_group_choices(block, -(-tokens // block.mesh.shape[0]), c, head_groups)
    return *prefill_residence(choices, last, tokens, c), last


def prefill_on(
    mesh: Mesh, shape: DecoderShape, tokens: int, c: Constants, program: str = "true", head_groups: int | None = None
) -> Layered:
    """See `prefill`; the error of a mesh that does not hold the model names none that does."""
    block, at_once, last = _prefill_blocks(mesh, shape, tokens, c, program, head_groups)
    steps = layers.prefill_steps(block, -(-tokens // block.mesh.shape[0]), c, at_once)
    whole = _layered("prefill", block, steps, _ends(last, tokens, c), tokens, c, program)
    return replace(whole, head_groups=block.head_groups, padding=padding.of_prefill(block, tokens, at_once))


def _ends(block: layers.Block, tokens: int, c: Constants) -> tuple[Cost, Cost]:
    """The embedding of so many tokens, and the head of the last."""
    if not block.shape.vocab_size:
        return Cost(), Cost()
    return layers.total(layers.embedding_steps(block, tokens, c)), layers.total(layers.head_steps(block, 1, c))


def request(
    *, device: str | Device = "wse2", model: str | DecoderShape, prefill_mesh: Any, decode_mesh: Any, input: int,
    output: int, groups: int | None = None, program: str = "true", as_if: bool = False, head_groups: int | None = None,
) -> Request:  # fmt: skip
    """A prompt of `input` tokens and an answer of `output` tokens; `groups` are as of `decode`.

    `head_groups` are those of both phases (None: the best of each).

    Assumed: between regions of layers the activation crosses a mesh's width. Between prefill and decode weights and
    cache cross the middle of the smaller mesh once, over all its rows at a time.
    """
    decode_mesh, c = _mesh(device, decode_mesh)
    prefill_mesh, shape, tree = as_mesh(prefill_mesh, decode_mesh.device), shape_of(model), _groups(groups)
    check_counts(input=input, output=output)

    def place(candidate: Mesh, counted: Constants) -> None:
        decode_residence(layers.decode_block(shape, candidate, input + output, c, tree, program, head_groups), counted)

    first, own, why = _prefill_fitted(prefill_mesh, shape, input, c, program, as_if, head_groups)
    prefilled = prefill_on(first, shape, input, own, program, head_groups)
    second, own, too = fitted(place, decode_mesh, c, as_if)
    whole = request_on(first, second, shape, prefilled, input, output, own, tree, program, head_groups)
    reasons = "; ".join(filter(None, (why, too))) or None
    return replace(whole, device_regions=regions_of(decode_mesh, c), fits=reasons is None, as_if=reasons)


def request_on(
    prefill_mesh: Mesh, decode_mesh: Mesh, shape: DecoderShape, prefilled: Layered, input: int, output: int,
    c: Constants, groups: layers.Groups = None, program: str = "true", head_groups: int | None = None,
) -> Request:  # fmt: skip
    """See `request`, after a prefill that is priced already, on `prefill_mesh`."""

    def block(context: int) -> layers.Block:
        return layers.decode_block(shape, decode_mesh, context, c, groups, program, held)

    last, held = input + output, head_groups
    held = block(last).head_groups  # a request keeps its layout
    regions = decode_residence(block(last), c).regions
    ends = sum(_ends(block(last), 1, c), Cost())
    handing_on = (regions - 1) * (c.hop_cycles * decode_mesh.shape[1] + c.stage_cycles)
    rows = decode_mesh.shape[0]
    stride = rows * -(-output // (rows * MOST_STEPS))  # a cost that grows by equal steps is that of the middle
    cycles, context, over = 0.0, input, prefilled.relayed or ends.relayed
    while context < last:  # a layer's cost changes when a row takes one more token; by then entries shift
        after = min(last, -(-context // stride) * stride + 1)
        priced = after - 1 if stride == rows else (context + after) // 2
        layer = layers.total(layers.decode_steps(block(priced), priced, c))
        cycles += (after - context) * (layer.cycles * shape.num_hidden_layers + ends.cycles + handing_on)
        context, over = after, over or layer.relayed
    placing = _placing(shape, input, min(prefill_mesh.rows, decode_mesh.rows), prefill_mesh.cols + decode_mesh.cols, c)
    replacement, decoding = placing / decode_mesh.device.clock_hz, cycles / decode_mesh.device.clock_hz
    seconds = prefilled.seconds + replacement + decoding
    joules = seconds * decode_mesh.device.power_watts
    phases = {
        phase: layer_basis(phase, mesh, shape, tokens, program)
        for phase, mesh, tokens in (("prefill", prefill_mesh, input), ("decode", decode_mesh, last))
    }
    return Request(
        program=program,
        tokens_per_second=output / seconds,
        prefill_seconds=prefilled.seconds,
        replacement_seconds=replacement,
        decode_seconds=decoding,
        seconds=seconds,
        joules=joules,
        joules_per_token=joules / output,
        decode_regions=regions,
        device_regions=regions_of(decode_mesh, c),
        fits=True,
        head_groups=held,
        relayed=over,
        **basis_of_all(phases).fields(),
    )


def kv(
    *, device: str | Device = "wse2", model: str | DecoderShape, mesh: Any, program: str = "true",
    head_groups: int | None = None,
) -> Capacity:  # fmt: skip
    """Tokens that the KV cache of a decode mesh holds beside all else that decode keeps on the device.

    With concatenation one row takes every new token. Regions are counted by cores, as in the paper, not laid out.
    "measured" counts as the paper does: layers are spread evenly over the regions, every width is cut evenly over a
    line, and nothing comes and goes. `head_groups` None takes those that are best with one token on each row.
    """
    mesh, c = _mesh(device, mesh)
    shape = shape_of(model)
    if layers.is_measured(program):
        HeadGroups(shape.measured(), mesh.shape[1], 1 if head_groups is None else head_groups)  # raises for more
        return capacity.measured(mesh, shape, c)
    return capacity.true(mesh, shape, c, program, head_groups)


def energy(
    *, device: str | Device = "wse2", seconds: float, against: str = "a100", against_seconds: float, gpus: int = 1
) -> Energy:
    """Energy of a task of `seconds` on the whole wafer and of `against_seconds` on `gpus` GPUs, by data-sheet power."""
    watts = find_device(device).power_watts
    if against not in GPU_WATTS:
        raise DeviceError(f"unknown GPU {against!r} (known: {', '.join(GPU_WATTS)})")
    check_counts(gpus=gpus)
    for name, value in (("seconds", seconds), ("against_seconds", against_seconds)):
        if not isinstance(value, int | float) or not SECONDS[0] <= value <= SECONDS[1]:
            raise ShapeError(f"{name} = {value!r} must be a number from {SECONDS[0]:g} to {SECONDS[1]:g}")
    wafer, gpu = watts * seconds, GPU_WATTS[against] * gpus * against_seconds
    return Energy(gpu / wafer, wafer, gpu)


def _mesh(device: str | Device, mesh: Any) -> tuple[Mesh, Constants]:
    mesh = as_mesh(mesh, find_device(device))
    return mesh, constants(mesh.device)


def _groups(count: int | None) -> tuple[int, ...] | None:
    if count is not None and (type(count) is not int or count < 1):
        raise MeshError(f"groups = {count!r} must be at least 1, a whole number")
    return None if count is None else (count,)


def _placing(shape: DecoderShape, tokens: int, rows: int, hops: int, c: Constants) -> float:
    words = (shape.matrices + shape.num_hidden_layers * 2 * tokens * shape.kv_width) / 2
    return words / rows * c.word_cycles + hops * c.hop_cycles


def _kernel(mesh: Mesh, cost: Cost, c: Constants, dtype: str, rests_on: Basis, rival: str | None = None) -> Kernel:
    whole = cost + Cost(cycles=c.kernel_cycles)
    peak = mesh.device.macs_per_cycle_fp32 if dtype_name(dtype) == "fp32" else mesh.device.macs_per_cycle_fp16
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
        seconds=whole.cycles / mesh.device.clock_hz,
        mac_utilisation=whole.macs / (whole.cycles * peak),
        sram_bandwidth_utilisation=whole.sram_bytes / (whole.cycles * c.sram_bytes_per_cycle),
        relayed=whole.relayed,
        assumed=rivals.ASSUMED[rival] if rival else None,
        **rests_on.fields(),
    )


def _layered(
    phase: str, block: layers.Block, steps: layers.Steps, ends: tuple[Cost, Cost], tokens: int, c: Constants,
    program: str,
) -> Layered:  # fmt: skip
    """A phase with `tokens` tokens in the cache or the prompt."""
    shape, mesh = block.shape, block.mesh
    layer, (embedding, head) = layers.total(steps), ends
    whole = embedding + layer * shape.num_hidden_layers + head
    seconds, count = whole.cycles / mesh.device.clock_hz, tokens if phase == "prefill" else 1
    return Layered(
        program=program,
        tokens_per_second=count / seconds,
        cycles_per_layer=layer.cycles,
        compute_cycles_per_layer=layer.compute_cycles,
        communication_cycles_per_layer=layer.communication_cycles,
        seconds=seconds,
        layers=shape.num_hidden_layers,
        mac_utilisation=whole.macs / (whole.cycles * mesh.device.macs_per_cycle_fp16),
        sram_bandwidth_utilisation=whole.sram_bytes / (whole.cycles * c.sram_bytes_per_cycle),
        joules_per_token=seconds * mesh.device.power_watts / count,
        embedding_cycles=embedding.cycles,
        head_cycles=head.cycles,
        steps={name: cost.cycles for name, cost in steps.items()},
        relayed=whole.relayed,
        **layer_basis(phase, mesh, shape, tokens, program).fields(),
    )
