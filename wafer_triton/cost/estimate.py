"""Predicted cost on a wafer of products, layers, requests, caches and energy; `wafer-triton estimate` prints it.

    >>> from wafer_triton import estimate
    >>> estimate.gemm(device="wse3", mesh=720, m=5760, k=720, n=5760).cycles
    >>> estimate.decode(device="wse2", model="llama2-13b", mesh=540, context=4096).tokens_per_second

Nothing runs, and neither torch nor a GPU is needed. Sizes are of whole matrices and models. `program` "full" (the
default) is the program that `generate` runs, with fp16 sums; "paper-benchmark" is the program of WaferLLM's
measurements (see `wafer_triton.cost.layers`). A model that the device does not hold is refused with what a core lacks.
All functions raise a WaferError of one line for a user's mistake.
"""

from __future__ import annotations

from collections import Counter

from wafer_triton.algorithms import gemm as gemm_schedules
from wafer_triton.algorithms.product import recipe, tile_sizes
from wafer_triton.algorithms.trees import ALGORITHMS as REDUCTIONS
from wafer_triton.cost import capacity, layers
from wafer_triton.cost.bands import Basis, basis, product_sizes, unmeasured
from wafer_triton.cost.cap import Routed, cap
from wafer_triton.cost.constants import Constants, constants
from wafer_triton.cost.inference import (
    decode_on,
    prefill_on,
    request_on,
    request_placed,
)
from wafer_triton.cost.placement import ExpertPlacement
from wafer_triton.cost.price import Cost, best_groups, price
from wafer_triton.cost.results import Capacity, Energy, Kernel, Layered, RequestCost, Trained
from wafer_triton.decoder.heads import HeadGroups
from wafer_triton.device import DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.device.dtype import TILES, DtypeLike, storage_name, tile_dtype
from wafer_triton.device.mesh import Mesh, MeshLike, as_mesh
from wafer_triton.errors import DeviceError, MeshError, ShapeError, check_counts, plain, shown
from wafer_triton.place.need import param_shapes
from wafer_triton.place.regions import Placement
from wafer_triton.shape.read import Model, shape_of
from wafer_triton.text.quantity import figures

__all__ = [
    "GPU_WATTS", "Capacity", "Energy", "Kernel", "Layered", "RequestCost", "Routed", "Trained", "cap",
    "decode", "energy", "gemm", "gemv", "kv", "prefill", "request", "training",
]  # fmt: skip

SECONDS = 1e-15, 1e15  # the range of a task's time, far beyond any task
GPU_WATTS = {"a100": 400, "v100": 300, "h100": 700, "h200": 700, "b200": 1000, "mi300x": 750}  # [data sheets] SXM/OAM


def gemm(
    *, device: DeviceLike = "wse2", mesh: MeshLike, m: int, k: int, n: int, algorithm: str = "mesh",
    dtype: DtypeLike = "fp16",
) -> Kernel:  # fmt: skip
    """Return the cost of C [m, n] = A [m, k] B [k, n].

    `algorithm` is "mesh", "cannon", "summa" or "allgather".
    """
    mesh, c = _mesh(device, mesh)
    m, k, n = check_counts(m=m, k=k, n=n)
    name = storage_name(dtype)
    if algorithm not in gemm_schedules.ALGORITHMS:
        raise MeshError(f"GEMM algorithm {algorithm!r}: choose one of {', '.join(gemm_schedules.ALGORITHMS)}")
    options = (("algorithm", algorithm), ("skew", "host"), ("sums", tile_dtype(name)))
    cost = price(recipe("gemm", mesh, name, ((m, k), (k, n)), options).schedule, c)
    sizes = product_sizes(mesh, *tile_sizes(mesh.square().shape[0], m, k, n))
    rests_on = basis(mesh.device, "gemm", sizes, unmeasured(name, algorithm, "mesh", cost.relayed))
    return _kernel(mesh, cost, c, name, rests_on)


def gemv(
    *, device: DeviceLike = "wse2", mesh: MeshLike, k: int, n: int, m: int | None = None, algorithm: str = "ktree",
    groups: int | None = None, dtype: DtypeLike = "fp16",
) -> Kernel:  # fmt: skip
    """Return the cost of y [n] = x [k] W [k, n] by MeshGEMV.

    `algorithm` is "ktree" or another all-reduce. `groups` is the number of groups on the first of two levels (None: the
    best). With `m`, x has as many rows, which go at once.
    """
    mesh, c = _mesh(device, mesh)
    m, k, n = check_counts(m=1 if m is None else m, k=k, n=n)
    name = storage_name(dtype)
    tree = _groups(groups)
    if algorithm not in REDUCTIONS:
        raise MeshError(f"GEMV algorithm {algorithm!r}: choose one of {', '.join(REDUCTIONS)}")
    if algorithm == "ktree" and tree is None:
        tree = best_groups(mesh.length("y"), c)
    options = (("algorithm", algorithm), ("groups", tree), ("sums", tile_dtype(name)))
    cost = price(recipe("gemv", mesh, name, ((m, k), (k, n)), options).schedule, c)
    sizes = product_sizes(mesh, *tile_sizes(mesh.shape[0], k), *tile_sizes(mesh.shape[1], n))
    own = ["GEMV of several vectors was not measured"] * (m > 1)
    rests_on = basis(mesh.device, "gemv", sizes, own + unmeasured(name, algorithm, "ktree", cost.relayed))
    return _kernel(mesh, cost, c, name, rests_on)


def product(
    *, device: DeviceLike = "wse2", mesh: MeshLike, m: int | None = None, k: int, n: int, algorithm: str | None = None,
    groups: int | None = None, dtype: DtypeLike = "fp16",
) -> Kernel:  # fmt: skip
    """Return the cost of the product of matrices [m, k] and [k, n], or, without `m`, of a vector [k] and the second.

    An `algorithm` of `gemm` or of `gemv` may be given; else matrices take MeshGEMM and a vector a K-tree. ShapeError
    for an algorithm of matrices without `m`, or for groups that it does not have.
    """
    algorithm = product_algorithm(m, algorithm)
    if algorithm in REDUCTIONS:
        return gemv(device=device, mesh=mesh, k=k, n=n, m=m, algorithm=algorithm, groups=groups, dtype=dtype)
    if m is None or groups is not None:
        fault = "give m, the rows of the first matrix" if m is None else "groups are of a K-tree; leave them out"
        raise ShapeError(f"product by {shown(algorithm)}: {fault}")
    return gemm(device=device, mesh=mesh, m=m, k=k, n=n, algorithm=algorithm, dtype=dtype)


def product_algorithm(m: int | None, algorithm: str | None = None) -> str:
    """Return the algorithm of a product: the given one, MeshGEMM for matrices, or a K-tree for one vector."""
    return algorithm or ("ktree" if m is None else "mesh")


def decode(
    *, device: DeviceLike = "wse2", model: Model, mesh: MeshLike, context: int, groups: int | None = None,
    program: str = "full", head_groups: int | None = None, dtype: DtypeLike | None = None,
) -> Layered:  # fmt: skip
    """Return the predicted cost of one token of decode, after which the cache holds `context` tokens.

    Raises MeshError if the device, SramError if a core of it, does not hold the model on regions of `mesh`.
    `groups` is the number of groups on the first of two levels of the K-trees (None: the best),
    `head_groups` the number of head groups on the columns (None: the best that fits; the paper-benchmark program has
    one). Regions lie on the device in rectangles; in the paper-benchmark program they are counted by area, see
    `wafer_triton.place.layouts`. `dtype` is the storage of the weights, of `device.dtype.WEIGHTS` (None: fp16).
    """
    mesh, c = _mesh(device, mesh)
    shape, tree = shape_of(model, dtype), _groups(groups)
    (context,) = check_counts(context=context)
    return decode_on(mesh, shape, context, c, tree, program, head_groups)


def prefill(
    *, device: DeviceLike = "wse2", model: Model, mesh: MeshLike, tokens: int, program: str = "full",
    head_groups: int | None = None, experts: ExpertPlacement = None, dtype: DtypeLike | None = None,
) -> Layered:  # fmt: skip
    """Return the cost of prefill for `tokens` tokens, in chunks if the device does not hold them at once.

    `head_groups` is the number of head groups on the columns, at most one a column (None: the best; the paper-benchmark
    program has one). `experts` is the place of a mixture's experts, see `wafer_triton.cost.placement` (None: where it
    is the fastest). `dtype` is as in `decode`.
    """
    mesh, c = _mesh(device, mesh)
    shape = shape_of(model, dtype)
    (tokens,) = check_counts(tokens=tokens)
    return prefill_on(mesh, shape, tokens, c, program, head_groups, experts)


def request(
    *, device: DeviceLike = "wse2", model: Model, prefill_mesh: MeshLike, decode_mesh: MeshLike, input: int,
    output: int, groups: int | None = None, program: str = "full", head_groups: int | None = None,
    experts: ExpertPlacement = None, dtype: DtypeLike | None = None,
) -> RequestCost:  # fmt: skip
    """Return the cost of a prompt of `input` tokens and an answer of `output` tokens; `groups` is as in `decode`.

    `head_groups` is for both phases (None: the best of each), `experts` is as in `prefill`, `dtype` as in `decode`.
    The model is placed as `generate` places it. The steps from region to region, and from one phase to the other, are
    priced as the schedules that run.
    """
    place = request_place(
        device=device, model=model, prefill_mesh=prefill_mesh, decode_mesh=decode_mesh, input=input, output=output,
        groups=groups, program=program, head_groups=head_groups, experts=experts, dtype=dtype,
    )  # fmt: skip
    return request_on(place, plain(input), plain(output), constants(place.decode.mesh.device), program)


def request_place(
    *, device: DeviceLike = "wse2", model: Model, prefill_mesh: MeshLike, decode_mesh: MeshLike, input: int,
    output: int, groups: int | None = None, program: str = "full", head_groups: int | None = None,
    experts: ExpertPlacement = None, dtype: DtypeLike | None = None,
) -> Placement:  # fmt: skip
    """Return the placement of a `request`."""
    decode_mesh, c = _mesh(device, decode_mesh)
    prefill_mesh, shape, tree = as_mesh(prefill_mesh, decode_mesh.device), shape_of(model, dtype), _groups(groups)
    input, output = check_counts(input=input, output=output)
    return request_placed(prefill_mesh, decode_mesh, shape, input, output, c, tree, program, head_groups, experts)


def kv(
    *, device: DeviceLike = "wse2", model: Model, mesh: MeshLike, program: str = "full",
    head_groups: int | None = None, dtype: DtypeLike | None = None,
) -> Capacity:  # fmt: skip
    """Return the tokens that the KV cache of a decode mesh holds beside all resident buffers of decode.

    With concatenation one row takes every new token. `dtype` is as in `decode`. "paper-benchmark" counts
    as the paper does: regions by area, layers spread evenly over them, every width cut evenly over a line, and no
    workspace. `head_groups` None takes the number that `decode` takes with a full cache.
    """
    mesh, c = _mesh(device, mesh)
    shape = shape_of(model, dtype)
    if layers.is_paper_benchmark(program):
        HeadGroups(shape.paper_benchmark(), mesh.shape[1], 1 if head_groups is None else head_groups)  # raises for more
        return capacity.paper_benchmark(mesh, shape)
    return capacity.full(mesh, shape, c, program, head_groups)


def training(
    *, device: DeviceLike = "wse2", model: Model, mesh: MeshLike, tokens: int, dtype: DtypeLike = "fp16"
) -> Trained:
    """Return the cost of the products of a model's linear layers in a step of training on `tokens` tokens.

    Each is MeshGEMM forward, GEMM-T for the gradient of its input and GEMM-T's mirror for that of its weight, with sums
    in fp32, as `convert` runs them. Attention, norms, the embedding, the optimizer and the placement of weights and
    activations are not in it. Raises ShapeError for a mixture of experts, whose tokens are cut by a router, and for one
    token, of which products are GEMVs; SramError where a core does not hold the tiles of a product.
    """
    mesh, c = _mesh(device, mesh)
    shape, name = shape_of(model), storage_name(dtype, TILES)
    (tokens,) = check_counts(tokens=tokens)
    if tokens == 1:
        raise ShapeError(
            "training: `convert` runs the products of one token as GEMVs, which have no price here; give 2"
        )
    if shape.experts is not None:
        raise ShapeError(f"training of {shape.name}: its experts take tokens by a router; give a model without experts")
    matrices = [size for key, size in param_shapes(shape).items() if len(size) == 2 and "embed" not in key]
    matrices += [(shape.vocab_size, shape.hidden_size)] if shape.tie_word_embeddings else []
    costs, tiles = [Cost(), Cost(), Cost()], set[int]()
    for (n, k), count in Counter(matrices).items():
        x, w, y = (tokens, k), (k, n), (tokens, n)
        for number, (shapes, turned) in enumerate((((x, w), ""), ((y, w), "b"), ((x, y), "a"))):
            options = (("transposed", turned),) if turned else ()
            costs[number] += price(recipe("gemm", mesh, name, shapes, options).schedule, c) * count
        tiles |= {*tile_sizes(mesh.square().shape[0], tokens, k, n)}
    whole = sum(costs, Cost())
    absent = ["no backward pass was measured", *unmeasured(name, "mesh", "mesh", whole.relayed)]
    return Trained(
        products=3 * len(matrices),
        forward_cycles=costs[0].cycles,
        input_gradient_cycles=costs[1].cycles,
        weight_gradient_cycles=costs[2].cycles,
        seconds=whole.cycles / mesh.device.clock_hz,
        mac_utilisation=whole.macs / (whole.cycles * mesh.device.macs_per_cycle(name)),
        **figures(Trained, whole),
        **basis(mesh.device, "gemm", product_sizes(mesh, *tiles), absent).fields(),
    )


def energy(
    *, device: DeviceLike = "wse2", seconds: float, against: str = "a100", against_seconds: float, gpus: int = 1
) -> Energy:
    """Return the energy of `seconds` on a whole wafer and of `against_seconds` on `gpus` GPUs, by data-sheet power."""
    watts = find_device(device).power_watts
    if against not in GPU_WATTS:
        raise DeviceError(f"unknown GPU {against!r} (known: {', '.join(GPU_WATTS)})")
    (gpus,) = check_counts(gpus=gpus)
    for name, value in (("seconds", seconds), ("against_seconds", against_seconds)):
        if not SECONDS[0] <= value <= SECONDS[1]:
            raise ShapeError(f"{name} = {shown(value)} must be a number from {SECONDS[0]:g} to {SECONDS[1]:g}")
    wafer, gpu = watts * float(seconds), GPU_WATTS[against] * gpus * float(against_seconds)
    return Energy(gpu / wafer, wafer, gpu)


def _mesh(device: DeviceLike, mesh: MeshLike) -> tuple[Mesh, Constants]:
    mesh = as_mesh(mesh, find_device(device))
    return mesh, constants(mesh.device)


def _groups(count: int | None) -> tuple[int, ...] | None:
    return None if count is None else check_counts(groups=count)


def _kernel(mesh: Mesh, cost: Cost, c: Constants, dtype: str, rests_on: Basis) -> Kernel:
    whole = cost + Cost(cycles=c.kernel_cycles)
    return Kernel(
        seconds=whole.cycles / mesh.device.clock_hz,
        mac_utilisation=whole.macs / (whole.cycles * mesh.device.macs_per_cycle(dtype)),
        sram_bandwidth_utilisation=whole.sram_bytes / (whole.cycles * c.sram_bytes_per_cycle),
        **figures(Kernel, whole),
        **rests_on.fields(),
    )
