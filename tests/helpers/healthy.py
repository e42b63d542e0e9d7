"""Healthy schedules of every kind with their intents, on meshes of many shapes."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from schedules import MIXTURE, ROOMY, SHAPE
from wafer_triton.algorithms import all_to_all, collectives, gemm, reduce, trees
from wafer_triton.algorithms.product import recipe
from wafer_triton.algorithms.ring import alignment_sources, ring_position
from wafer_triton.decoder import block, decode, expert_places, expert_regions, experts, prefill
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.place import transfers
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.verify.decoder import sub_layer_intent
from wafer_triton.verify.faults import Intent
from wafer_triton.verify.specs import Tiles

DEVICE = replace(ROOMY, name="roomy", routes=None)
TILES = {"i": "y", "j": "x"}
PLAIN = replace(SHAPE, qkv_bias=False, qk_norm=False)
APART = DecoderShape(
    hidden_size=11, intermediate_size=14, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=5,
    vocab_size=13, rotary=False,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A schedule and its intent, reference included."""

    name: str
    schedule: Schedule
    intent: Intent


def product(name: str, mesh: Mesh, kind: str, shapes: tuple[tuple[int, ...], ...], **options: object) -> Case:
    built = recipe(kind, mesh, "fp32", shapes, tuple(options.items()))
    return Case(name, built.schedule, Intent.of(built))


def products(mesh: Mesh) -> list[Case]:
    """Return every recipe, by every algorithm that it takes."""
    rows, cols = mesh.shape
    side = mesh.square().shape[0]
    square = ((2 * side, 2 * side), (2 * side, 2 * side))  # a tile may stand for its transpose
    schedules = [
        product(f"gemm {algorithm} transposed {turned!r}", mesh, "gemm", square, algorithm=algorithm, transposed=turned)
        for algorithm in gemm.ALGORITHMS
        for turned in ("", "a", "b")
    ]
    schedules += [
        product(
            f"gemv {algorithm} {axis}", mesh, "gemv", ((2, 2 * mesh.length(axis)), (2 * mesh.length(axis), 7)),
            algorithm=algorithm, axis=axis,
        )
        for algorithm in trees.ALGORITHMS for axis in "xy"
    ]  # fmt: skip
    schedules += [
        product(
            f"all-reduce {algorithm} {axis} {op}", mesh, "all_reduce", ((rows, cols, 5),),
            algorithm=algorithm, axis=axis, op=op,
        )
        for algorithm in trees.ALGORITHMS for axis in "xy" for op in ("add", "maximum")
    ]  # fmt: skip
    sizes = (2 * rows, 3 * cols)
    schedules += [
        product(f"all-to-all in {parts}", mesh, "all_to_all", ((rows, cols, parts, rows, cols, 2),))
        for parts in (1, 2)
    ]  # fmt: skip
    return [
        *schedules,
        product("rms norm", mesh, "rms_norm", (sizes, sizes[1:]), eps=1e-5),
        product("rms norm dx", mesh, "rms_norm_dx", (sizes, sizes[1:], sizes, sizes), eps=1e-5),
        product("rms norm dw", mesh, "rms_norm_dw", (sizes, sizes), eps=1e-5),
        product("softmax", mesh, "softmax", (sizes,), scale=0.7),
        product("softmax dx", mesh, "softmax_dx", (sizes, sizes), scale=0.7),
        product("outer", mesh, "outer", ((2, 2 * cols), (2, 7)), axis="x"),
        product("gemv transposed", mesh, "gemv", ((2, 7), (2 * cols, 7)), axis="y", transposed="b"),
    ]


def moved(name: str, mesh: Mesh, add: Callable[[Builder], object], intent: Intent, slots: int = 1) -> Case:
    """Build rounds over buffers x (given, maybe a result), out (one tile) and line (all tiles of a mesh row)."""
    b = Builder(mesh, name)
    b.buffer("x", (3,), "fp32", "output" if "x" in intent.result else "input", slots)
    b.buffer("out", (3,), "fp32", "output" if "out" in intent.result else "scratch")
    b.buffer("line", (3,), "fp32", "output" if "line" in intent.result else "scratch", mesh.shape[1])
    add(b)
    return Case(name, b.build(), intent)


def moves(mesh: Mesh) -> list[Case]:
    """Return collectives, and reductions to one core of every mesh row or column."""
    rows, cols = mesh.shape
    middle = cols // 2
    behind = np.tile((np.arange(cols) - 1) % cols, (rows, 1))
    whole = (ring_position(cols) + 1) % cols  # the slot that ends whole on each core
    ends = np.arange(rows) % cols  # a root for each row
    summed = lambda tiles: {"x": tiles["x"].sum(1, True).expand_as(tiles["x"])}  # noqa: E731

    def lines(tiles: Tiles) -> Tiles:
        return {"line": tiles["x"][:, None].expand(-1, cols, -1, -1)}

    def scattered(tiles: Tiles) -> Tiles:
        return {"out": tiles["x"].sum(1)[:, whole]}

    def scatter(b: Builder) -> None:
        collectives.reduce_scatter(b, "x", "x")
        b.round(b.local("copy", "out", Slot("x", whole, "x"), size=3))

    schedules = [
        moved("broadcast", mesh, lambda b: collectives.broadcast(b, "x", "x", middle),
              Intent({"x": TILES}, {"x": {"i": "y", "j": middle}},
                     reference=lambda tiles: {"x": tiles["x"][:, middle : middle + 1].expand_as(tiles["x"])})),
        moved("shift", mesh, lambda b: collectives.shift(b, "x", "out", "x", wrap=True),
              Intent({"x": TILES}, {"out": {"i": "y", "j": behind}},
                     reference=lambda tiles: {"out": tiles["x"].roll(1, 1)})),
        moved("reduce", mesh, lambda b: reduce.reduce(b, "x", "x", root=middle),
              Intent({"x": TILES}, {"x": {"i": "y"}}, {"x": Cores("x", np.array([middle]))}, summed)),
        moved("reduce by lines", mesh, lambda b: reduce.reduce(b, "x", "x", root=ends),
              Intent({"x": TILES}, {"x": {"i": "y"}}, {"x": Cores("x", ends[:, None], np.arange(rows))}, summed)),
    ]  # fmt: skip
    if cols > 1:
        schedules[1:1] = [
            moved("all-gather", mesh, lambda b: collectives.all_gather(b, "x", "line", "x"),
                  Intent({"x": TILES}, {"line": {"i": "y", "j": "slot"}}, reference=lines)),
            moved("reduce-scatter", mesh, scatter,
                  Intent({"x": TILES | {"s": "slot"}}, {"out": {"i": "y", "s": np.tile(whole, (rows, 1))}},
                         reference=scattered), slots=cols),
        ]  # fmt: skip
    if rows == cols:
        turned = Intent({"x": TILES}, {"out": {"i": "x", "j": "y"}},
                        reference=lambda tiles: {"out": tiles["x"].transpose(0, 1)})  # fmt: skip
        schedules.append(moved("transpose", mesh, lambda b: collectives.transpose(b, "x", "out"), turned))
    return schedules


def regions_of(square: Mesh) -> expert_places.ExpertRegions:
    """Return the fewest regions of experts that a mesh can be cut into."""
    side = square.shape[0]
    return expert_places.ExpertRegions(next((count for count in range(2, side + 1) if side % count == 0), 1), 2)


def between_regions(mesh: Mesh) -> list[Case]:
    """Return tiles that go to one core of every region, and back: every region has one tile from each."""
    rows, cols = mesh.shape
    schedules = []
    cuts = {"rows": (rows, 1), "columns": (1, cols), "cores": (rows, cols)}
    if rows % 2 == cols % 2 == 0:
        cuts["fours"] = (rows // 2, cols // 2)
    for name, (down, along) in cuts.items():
        high, wide = rows // down, cols // along

        def there(tiles: Tiles, cut: tuple[int, ...] = (high, down, wide, along)) -> Tiles:
            # core (u, v) of region (a, b) ends with the tile of core (u * R + p, v * C + q) for it, in place (p, q)
            high, down, wide, along = cut
            sent = tiles["x"].reshape(high, down, wide, along, down, along, 2)
            return {"out": sent.permute(4, 0, 5, 2, 1, 3, 6).reshape(tiles["x"].shape)}

        b = Builder(mesh, f"all-to-all of regions of {name}")
        for buffer, role in (("x", "input"), ("out", "output"), ("home", "output")):
            b.buffer(buffer, (down, along, 2), "fp32", role)
        all_to_all.all_to_all(b, "x", "out", size=2, regions=(down, along))
        all_to_all.all_to_all(b, "out", "home", size=2, regions=(down, along), back=True)
        both = lambda tiles, there=there: there(tiles) | {"home": tiles["x"]}  # noqa: E731
        schedules.append(Case(b.name, b.build(), Intent({"x": TILES}, {}, reference=both)))
    return schedules


def re_placements(mesh: Mesh) -> list[Case]:
    """Return moves of weights from the place of one phase to the other's."""
    rows, cols = mesh.shape
    source, target = np.arange(2 * cols) // 2, np.arange(2 * cols)[::-1] % cols
    units = transfers.redistribute(mesh, "x", source, target, 3, "fp32")

    def moved_on(tiles: Tiles) -> Tiles:
        held, seen = tiles["from"].reshape(rows, 2 * cols, 3), [0] * cols
        out = held.new_full((rows, cols, 2, 3), float("nan"))
        for unit, core in enumerate(target.tolist()):
            out[:, core, seen[core]] = held[:, unit]
            seen[core] += 1
        return {"to": out}

    cases = [Case("redistribute", units, Intent({"from": TILES | {"s": "slot"}}, {}, reference=moved_on))]
    if rows == cols:
        turned, skewed = (transfers.Relayout(mesh, 3, "fp32", skew).schedule_runs[0] for skew in (None, rows))
        across = Intent(
            {"w": TILES}, {"t": {"i": "x", "j": "y"}}, reference=lambda tiles: {"t": tiles["w"].transpose(0, 1)}
        )

        def aligned_(tiles: Tiles) -> Tiles:
            return {"w": tiles["w"].flatten(0, 1)[alignment_sources(mesh.shape[0]).tolist()].view_as(tiles["w"])}

        cases.append(Case("transposed weights", turned, across))
        cases.append(Case("skewed weights", skewed, Intent({"w": TILES}, {}, reference=aligned_)))
    return [case for case in cases if case.schedule.rounds]


def parts(mesh: Mesh) -> list[Case]:
    """Return every sub-layer of a decoder, the appends to its KV cache among them."""
    square = mesh.square()
    decoding = {policy: block.Block(SHAPE, mesh, entries=3, batch=2, policy=policy) for policy in ("shift", "concat")}
    filling, mixing = block.Block(SHAPE, square), block.Block(MIXTURE, mesh, batch=2)
    apart = block.Block(MIXTURE, square, expert_regions=regions_of(square))
    held = mesh.shape[0] + 1
    steps: list[tuple[str, block.SubLayer, block.Block, tuple[int, ...]]] = [
        ("decode project", decode.project, decoding["shift"], ()),
        ("decode project plain", decode.project, block.Block(PLAIN, mesh, entries=3), ()),
        *(
            (f"decode {name} of {count} groups", sub_layer, replace(decoding["shift"], head_groups=count), args)
            for count in range(2, min(SHAPE.num_attention_heads, mesh.shape[1]) + 1)
            for name, sub_layer, args in (
                ("project", decode.project, ()),
                ("attend", decode.attend, (1,)),
                ("output", decode.output, ()),
            )
        ),
        ("decode project apart", decode.project, block.Block(APART, mesh, entries=3), ()),
        ("kv shift", decode.append, decoding["shift"], (1, held, 0)),
        ("kv concat", decode.append, decoding["concat"], (0, held, held)),
        ("decode attend", decode.attend, decoding["shift"], (1,)),
        ("decode output", decode.output, decoding["shift"], ()),
        ("decode ffn", decode.ffn, decoding["shift"], ()),
        ("decode project of a mixture", decode.project, mixing, ()),
        ("decode experts", experts.decode_experts, mixing, ()),
        ("embedding", decode.embed, decoding["shift"], (2,)),
        ("head", decode.head, decoding["shift"], (2,)),
        ("prefill attention", prefill.attention, filling, (2, 0)),
        ("prefill attention past", prefill.attention, replace(filling, overlap=False), (2, 1)),
        *(
            (
                f"prefill attention of {count} groups",
                prefill.attention,
                replace(filling, head_groups=count),
                (2, count % 2),
            )
            for count in range(2, min(SHAPE.num_attention_heads, square.shape[1]) + 1)
        ),
        ("prefill ffn", prefill.ffn, filling, (2, 0)),
        ("prefill experts", experts.prefill_experts, block.Block(MIXTURE, square), (2, 0)),
        ("prefill routing", expert_regions.prefill_routing, apart, (3, 0)),
        *((f"prefill pass {number}", expert_regions.prefill_pass, apart, (2, 0, number)) for number in range(2)),
        ("prefill experts in regions", expert_regions.prefill_experts_in_regions, apart, (2, 0, 2)),
        ("prefill attention apart", prefill.attention, block.Block(APART, square), (2, 0)),
        ("prefill ffn apart", prefill.ffn, block.Block(APART, square), (2, 0)),
    ]
    return [
        Case(name, block.schedule(sub_layer, sizes, *args), sub_layer_intent(sub_layer, sizes, *args))
        for name, sub_layer, sizes, args in steps
    ]


def on_mesh(mesh: str) -> list[Case]:
    """Return schedules of every kind on one mesh."""
    cores = as_mesh(mesh, DEVICE)
    return [*products(cores), *moves(cores), *between_regions(cores), *re_placements(cores), *parts(cores)]


def cases() -> list[Case]:
    """Return schedules of every kind on a few meshes; square grids of compute-shift stay small."""
    schedules = []
    for mesh in ("2x3", "4", "1x5", "3x2"):
        cores = as_mesh(mesh, DEVICE)
        schedules += [*moves(cores), *between_regions(cores), *re_placements(cores)]
        small = as_mesh("2x4" if mesh == "2x3" else "4" if mesh == "4" else "3", DEVICE)
        schedules += [case for case in products(cores) if not case.name.startswith("gemm")]
        schedules += [case for case in products(small) if case.name.startswith("gemm")]
        schedules += [case for case in parts(cores) if not case.name.startswith("prefill")]
        schedules += [case for case in parts(small) if case.name.startswith("prefill")]
    return [case for case in schedules if case.schedule.rounds]
