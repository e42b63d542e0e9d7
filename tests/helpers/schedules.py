"""One schedule of every kind, by name, on any mesh, for comparisons of executors."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from wafer_triton.algorithms import collectives, gemm, norm, reduce, trees
from wafer_triton.algorithms.gather import gather
from wafer_triton.algorithms.kv_cache import KvCache
from wafer_triton.algorithms.product import recipe
from wafer_triton.decoder import block, decode, expert_places, expert_regions, experts, prefill
from wafer_triton.device import PRESETS
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.program import Program
from wafer_triton.emulate.reference import Reference
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Exchange
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.moe import Experts

ROOMY = replace(PRESETS["wse2"], name="roomy", sram_bytes=2**20)
SHAPE = DecoderShape(
    hidden_size=11, intermediate_size=14, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
    vocab_size=13, qkv_bias=True, qk_norm=True,
)  # fmt: skip

MIXTURE = replace(  # with a shared expert of no whole number of widths
    SHAPE, qk_norm_whole=True, clip_qkv=0.7, experts=Experts(5, 2, 4, shared_width=9, normalized=False)
)

Make = Callable[[Mesh, str, str], Schedule]  # of a mesh, a dtype of tiles and one of sums


def whole(name: str, mesh: Mesh, dtype: str, *shapes: tuple[int, ...], kept: str = "", **options: object) -> Schedule:
    """Return the schedule of a recipe, in which the input `kept` stays for the next run."""
    schedule = recipe(name, mesh, dtype, shapes, tuple(options.items())).schedule
    role = "state" if name == "all_reduce" else "weight"
    return replace(schedule, buffers={
        one: replace(buffer, role=role) if one == kept else buffer for one, buffer in schedule.buffers.items()
    })  # fmt: skip


def squares(mesh: Mesh, algorithm: str = "mesh", transposed: str = "", tile: int = 1) -> Schedule:
    """Return the product of square matrices in fp16, of which each core has `tile` x `tile` elements."""
    side = tile * mesh.square().shape[0]
    options = (("algorithm", algorithm), ("transposed", transposed))
    return recipe("gemm", mesh, "fp16", ((side, side), (side, side)), options).schedule


def moved(b: Builder, *moves: tuple) -> list[Exchange]:
    """Return exchanges from "a", (axis, send, recv[, lines]) each, to "b0", "b1" and so on."""
    return [b.exchange(axis, "a", b.like(f"b{n}", "a"), *rest) for n, (axis, *rest) in enumerate(moves)]


def product(algorithm: str, transposed: str = "") -> Make:
    """C = A B, A B^T or A^T B, by a GEMM algorithm, rounded."""

    def make(mesh: Mesh, dtype: str, sums: str) -> Schedule:
        m, k, n = (size * mesh.square().shape[0] for size in (2, 3, 5))
        shapes = ((k, m) if transposed == "a" else (m, k)), ((n, k) if transposed == "b" else (k, n))
        how = {"algorithm": algorithm, "transposed": transposed, "accumulate": sums}
        return whole("gemm", mesh, dtype, *shapes, kept="b", **how)

    return make


def beside(mesh: Mesh, dtype: str, sums: str) -> Schedule:
    """Build MeshGEMM; each core also reads its neighbour's tile of an operand before the product and after it."""
    b, size = Builder(mesh.square(), "gemm beside sums"), 3
    b.buffer("a", (size, size), dtype, "input")
    for name in ("near", "c"):
        b.buffer(name, (size, size), dtype if name == "near" else sums)
    b.buffer("w", (size, size), dtype, "weight")
    for name in ("before", "out", "after"):
        b.buffer(name, (size, size), dtype, "output")
    collectives.shift(b, "a", "near", "x", wrap=True)
    b.round(b.local("add", "before", ("near", "w"), size=size**2))
    gemm.matmul(b, "a", "w", "c", m=size, k=size, n=size, accumulate=sums)
    b.round(b.local("copy", "out", "c", size=size**2))
    b.round(b.local("add", "after", ("near", "before"), size=size**2))
    return b.build()


def vector(algorithm: str, axis: str) -> Make:
    """y = x W for two vectors, by an all-reduce algorithm."""

    def make(mesh: Mesh, dtype: str, sums: str) -> Schedule:
        k, n = 3 * mesh.length(axis), 5 * mesh.length("y" if axis == "x" else "x")
        how = {"axis": axis, "algorithm": algorithm, "accumulate": sums, "sums": sums}
        return whole("gemv", mesh, dtype, (2, k), (k, n), kept="w", **how)

    return make


def all_reduce(algorithm: str, axis: str, op: str) -> Make:
    """Return a maker of the sum or maximum of the tiles of a mesh row or column, on all of its cores."""
    how = {"algorithm": algorithm, "axis": axis, "op": op}
    return lambda mesh, dtype, sums: whole("all_reduce", mesh, dtype, (*mesh.shape, 7), kept="x", **how)


def segments(axis: str) -> Make:
    """Return a maker of sums of two buffers together over segments of two thirds of an axis; the rest is unchanged."""

    def make(mesh: Mesh, dtype: str, sums: str) -> Schedule:
        b = Builder(mesh, "segments")
        b.buffer("x", (7,), dtype, "state")
        b.buffer("y", (2,), sums, "state")
        reduce.all_reduce(b, ("x", "y"), axis, op="maximum", segment=max(1, 2 * mesh.length(axis) // 3))
        return b.build()

    return make


def moves(mesh: Mesh, dtype: str, sums: str) -> Schedule:
    """Broadcast, all-gather, reduce-scatter and its all-gather, shifts and, on a square mesh, transpose."""
    b = Builder(mesh, "collectives")
    b.buffer("x", (3,), dtype, "state")
    b.buffer("all", (3,), dtype, "output", mesh.length("y"))
    b.buffer("chunks", (3,), dtype, "state", mesh.length("x"))
    for name in ("shifted", "wrapped", "turned"):
        b.buffer(name, (3,), dtype, "state")
    collectives.broadcast(b, "x", "x", mesh.length("x") // 2)
    collectives.all_gather(b, "x", "all", "y")
    collectives.reduce_scatter(b, "chunks", "x")
    collectives.ring_all_gather(b, "chunks", "x")
    collectives.shift(b, "wrapped", "shifted", "y")
    collectives.shift(b, "shifted", "wrapped", "x", distance=-1, wrap=True)
    if mesh.rows == mesh.cols:
        collectives.transpose(b, "wrapped", "turned")
    return b.build()


def on_rows(name: str, *operands: str, **how: object) -> Make:
    """Return a function that adds RMSNorm, or one of its gradients; rows of its matrices lie along x."""

    def make(mesh: Mesh, dtype: str, sums: str) -> Schedule:
        sizes = 3 * mesh.shape[0], 5 * mesh.shape[1]
        return whole(name, mesh, dtype, *(sizes[one == "weight" :] for one in operands), **how)

    return make


def softmax(mesh: Mesh, dtype: str, sums: str) -> Schedule:
    """Softmax of rows that are cut along y."""
    b = Builder(mesh, "softmax")
    b.buffer("s", (2, 3, 5), sums, "input")
    b.buffer("bias", (3, 5), "fp32", "input")
    b.buffer("p", (2, 3, 5), dtype)
    b.buffer("out", (3, 2, 5), dtype, "output")
    z = norm.softmax_parts(b, "s", "bias", "p", "y", scale=0.3, sums=sums)
    b.round(b.local("normalize", "out", ("p", z), m=3, heads=2, n=5))
    return b.build()


def looked_up(algorithm: str, axis: str) -> Make:
    """Return a maker of a gather of two rows of a table, of which a core has three."""

    def make(mesh: Mesh, dtype: str, sums: str) -> Schedule:
        b = Builder(mesh, f"gather {algorithm}")
        b.buffer("table", (5, 3), dtype, "weight")
        for name, tile in (("ids", (2,)), ("first", (1,))):
            b.buffer(name, tile, "fp32", "input")
        b.buffer("out", (2, 5), dtype, "output")
        gather(b, "table", "ids", "first", "out", axis, algorithm=algorithm)
        return b.build()

    return make


def kv_append(policy: str) -> Make:
    """Return a maker of an append to a KV cache that holds three entries more than there are rows."""

    def make(mesh: Mesh, dtype: str, sums: str) -> Schedule:
        b, cache = Builder(mesh, f"kv {policy}"), KvCache(mesh.shape[0], 5, policy, mesh.shape[0] + 3)
        for name in ("k", "v"):
            b.buffer(f"{name}_cache", (3,), dtype, "cache", cache.slots)
            b.buffer(name, (3,), dtype, "input")
        cache.append(b, {"k_cache": "k", "v_cache": "v"}, mesh.shape[0] + 3)
        return b.build()

    return make


def decoding(sub_layer: block.SubLayer, *args: int, head_groups: int = 1, shape: DecoderShape = SHAPE) -> Make:
    """Return a maker of a sub-layer of decode: two sequences, biases, norms of heads, head groups up to the columns."""

    def make(mesh: Mesh, dtype: str, sums: str) -> Schedule:
        groups = min(head_groups, mesh.cols)
        sizes = block.Block(shape, mesh, dtype, accumulate=sums, entries=3, batch=2, head_groups=groups)
        return block.schedule(sub_layer, sizes, *args)

    return make


def prefilling(
    sub_layer: block.SubLayer, *args: int, overlap: bool = True, head_groups: int = 1, shape: DecoderShape = SHAPE,
    regions: expert_places.ExpertRegions | None = None,
) -> Make:  # fmt: skip
    """Return a maker of a sub-layer of prefill: head groups up to the columns, one region of experts on an odd side."""

    def make(mesh: Mesh, dtype: str, sums: str) -> Schedule:
        square = mesh.square()
        groups = min(head_groups, square.shape[1])
        cut = regions if regions is None or square.shape[0] % regions.side == 0 else replace(regions, side=1)
        sizes = block.Block(
            shape, square, dtype, accumulate=sums, overlap=overlap, head_groups=groups, expert_regions=cut
        )
        return block.schedule(sub_layer, sizes, *args)

    return make


SUMS: dict[str, Make] = {  # schedules that add integers alone
    **{f"gemm-{algorithm}": product(algorithm) for algorithm in gemm.ALGORITHMS},
    **{f"gemm-t-{algorithm}": product(algorithm, "b") for algorithm in gemm.ALGORITHMS},
    **{f"gemm-tn-{algorithm}": product(algorithm, "a") for algorithm in gemm.ALGORITHMS},
    **{f"gemv-{algorithm}-y": vector(algorithm, "y") for algorithm in trees.ALGORITHMS},
    "gemv-ktree-x": vector("ktree", "x"),
    "gemm-beside": beside,
}
MOVES: dict[str, Make] = {  # schedules with one order of sums
    **{f"all-reduce-{algorithm}-x": all_reduce(algorithm, "x", "add") for algorithm in trees.ALGORITHMS},
    "all-reduce-ktree-y-max": all_reduce("ktree", "y", "maximum"),
    "all-reduce-segments-x": segments("x"),
    "all-reduce-segments-y": segments("y"),
    "collectives": moves,
    "all-to-all": lambda mesh, dtype, sums: whole("all_to_all", mesh, dtype, (*mesh.shape, 2, *mesh.shape, 3)),
    "gather-sum-x": looked_up("sum", "x"),
    "gather-ring-y": looked_up("ring", "y"),
    "kv-shift": kv_append("shift"),
    "kv-concat": kv_append("concat"),
}
LAYERS: dict[str, Make] = {
    "rms-norm": on_rows("rms_norm", "x", "weight", eps=1e-5),
    "softmax": softmax,
    "rms_norm_dx": on_rows("rms_norm_dx", "x", "weight", "y", "dy", eps=1e-5),
    "rms_norm_dw": on_rows("rms_norm_dw", "x", "dy", eps=1e-5),
    "softmax_dx": on_rows("softmax_dx", "y", "dy", scale=0.3),
    "decode-project": decoding(decode.project),
    "decode-append": decoding(decode.append, 1, 2, 0),
    "decode-attend": decoding(decode.attend, 1),
    "decode-output": decoding(decode.output),
    "decode-project-head-groups": decoding(decode.project, head_groups=2),
    "decode-append-head-groups": decoding(decode.append, 1, 2, 0, head_groups=3),
    "decode-attend-head-groups": decoding(decode.attend, 1, head_groups=2),
    "decode-attend-repeated-keys": decoding(decode.attend, 1, head_groups=4),
    "decode-output-head-groups": decoding(decode.output, head_groups=4),
    "decode-ffn": decoding(decode.ffn),
    "decode-project-whole-norm": decoding(decode.project, head_groups=3, shape=MIXTURE),
    "decode-experts": decoding(experts.decode_experts, shape=MIXTURE),
    "embedding": decoding(decode.embed, 2),
    "head": decoding(decode.head, 2),
    "prefill-attention": prefilling(prefill.attention, 2, 0),
    "prefill-attention-past": prefilling(prefill.attention, 2, 3, overlap=False),
    "prefill-attention-head-groups": prefilling(prefill.attention, 2, 0, head_groups=2),
    "prefill-attention-repeated-keys": prefilling(prefill.attention, 2, 1, overlap=False, head_groups=3),
    "prefill-ffn": prefilling(prefill.ffn, 2, 0),
    "prefill-experts": prefilling(experts.prefill_experts, 2, 0, shape=MIXTURE),
    "prefill-experts-in-regions": prefilling(
        expert_regions.prefill_experts_in_regions,
        2,
        0,
        2,
        shape=MIXTURE,
        regions=expert_places.ExpertRegions(2, 2),
    ),
}


def build(make: Make, mesh: str, dtype: str, sums: str = "fp32") -> Schedule:
    """Return the schedule on a mesh of roomy cores."""
    return make(as_mesh(mesh, ROOMY), dtype, sums)


def given(schedule: Schedule, *, integers: bool = False) -> dict[str, Tensor]:
    """Draw random tiles for every given buffer of a schedule."""
    draw = (lambda *shape: torch.randint(-3, 4, shape).float()) if integers else torch.randn
    return {
        name: draw(*schedule.mesh.shape, buffer.slots * buffer.numel)
        for name, buffer in schedule.buffers.items()
        if buffer.given
    }


def results(program: Program) -> dict[str, Tensor]:
    """Run a program and return the buffers that live to the end, as bits."""
    program.run()
    kept = [name for name, buffer in program.schedule.buffers.items() if buffer.kept]
    return {name: program.read(name).cpu().contiguous().view(torch.uint8) for name in kept}


def agree(schedule: Schedule, tiles: dict[str, Tensor], *executors: Executor, runs: int = 1) -> list[Program]:
    """Compare all buffers that live to the end, after each run on the tiles, with those of the reference, as NaN is."""
    machine, programs = Reference(schedule, tiles), [executor.bind(schedule, tiles) for executor in executors]
    machine.run()
    wanted = {name: machine.read(name) for name, buffer in schedule.buffers.items() if buffer.kept}
    for program in programs * runs:
        for name in tiles if runs > 1 else ():
            program.write(name, tiles[name])
        program.run()
        for name, want in wanted.items():
            if not torch.equal(got := program.read(name).cpu(), want):
                says = f"{schedule.name}: {name}: {{}}".format
                torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True, msg=says)
    return programs
