"""Prices are worked out by hand, follow their constants, and are of the schedules that run."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wafer_triton import estimate
from wafer_triton.algorithms.collectives import reduce_scatter, ring_all_gather
from wafer_triton.algorithms.gemm import RINGS
from wafer_triton.algorithms.product import recipe
from wafer_triton.algorithms.reduce import all_reduce, reduce
from wafer_triton.algorithms.ring import ring_position
from wafer_triton.algorithms.trees import two_level_costs
from wafer_triton.cost import layers
from wafer_triton.cost.constants import Constants, constants, tuned
from wafer_triton.cost.phases import Phase, Product, phases, prefill_products
from wafer_triton.cost.price import Cost, Prediction, intervals, phase_cost, price, product_cycles, tree_for
from wafer_triton.count.routes import routes
from wafer_triton.decoder import decode, prefill
from wafer_triton.decoder.block import Block, schedule
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.local import registry
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.shape.decoder import DecoderShape

pytestmark = pytest.mark.slow

ROOMY = replace(device("wse2"), sram_bytes=2**30, routes=None)
HPDC = tuned(ROOMY)


def gemm(on: Mesh, m: int, k: int, n: int, dtype: str = "fp16", algorithm: str = "mesh") -> Schedule:
    """Return a product as it was measured: weights skewed by the host, accumulation in the tiles' dtype."""
    options = (("algorithm", algorithm), ("skew", "host"), ("sums", dtype))
    return recipe("gemm", on, dtype, ((m, k), (k, n)), options).schedule


def gemv(on: Mesh, k: int, n: int, dtype: str = "fp16", groups: tuple | None = None) -> Schedule:
    return recipe("gemv", on, dtype, ((1, k), (k, n)), (("groups", groups), ("sums", dtype))).schedule


def builder(rows: int, cols: int, words: int = 1) -> Builder:
    b = Builder(Mesh(rows, cols, ROOMY), "test")
    b.buffer("x", (words,), "fp32", "output")
    return b


HAND = Constants(
    hop_cycles=2, word_cycles=3, stage_cycles=5, collective_cycles=7, round_cycles=11, packed_cycles=13,
    k_step_cycles=17, row_cycles=19, gemm_lanes=4, gemm_group_cycles=23, gemv_lanes=4, gemv_group_cycles=29,
    mac_cycles_fp32=31, element_cycles=0.5, sram_bytes_per_cycle=2, decode_stage_cycles=37, decode_step_cycles=41,
    decode_work_cycles=43, decode_mac_cycles=47,
)  # fmt: skip


def relayed_circuits() -> Builder:
    """Build two multicasts of three words that need two routes on a device with one."""
    b = Builder(Mesh(1, 3, replace(ROOMY, routes=1)), "relayed")
    b.buffer("x", (5,), "fp16", "input")
    for sender in (0, 1):
        b.round(b.exchange("x", "x", b.like(f"y{sender}", "x"), [sender], [2]))
    return b


def folded_swap() -> Builder:
    """Build a swap of neighbours along x, with a sum of what arrives: 3 x 2 logical cores on each of 2 x 3."""
    b = Builder(Mesh(2, 3, ROOMY).square(), "folded")
    for name in ("x", "sum"):
        b.buffer(name, (3,), "fp32", "state")
    b.round(b.exchange("x", "x", b.like("y", "x"), [1, 2], [2, 1]), b.local("add", "sum", ("sum", "y"), size=3))
    return b


def beside_a_product(*between: str) -> Builder:
    """Build a sum of six words that streams beside a product, or before it if an operation between needs it."""
    b = Builder(Mesh(1, 3, ROOMY), "beside")
    b.buffer("p", (11,), "fp16", "state")
    for name, tile in (("a", (5, 2)), ("w", (2, 3)), ("c", (5, 3))):
        b.buffer(name, tile, "fp16", "input" if name != "c" else "output")
    here = Cores("x", np.array([1]))
    b.round(b.exchange("x", "p", b.like("mail", "p"), [0], [1]), b.local("add", "p", ("p", "mail"), here, size=11))
    for name in between:
        b.round(b.local("copy", "w", name, size=6))
    shift = b.exchange("x", "a", b.like("a.next", "a"), [0, 1, 2], [1, 2, 0])
    b.round(shift, b.local("gemm", "c", ("a", "w"), m=5, k=2, n=3))
    return b


def tiles_longer_than_a_product() -> Builder:
    """Build a product of one multiply-add beside 42 words, of which two tiles are packed."""
    b = Builder(Mesh(1, 3, ROOMY), "long tiles")
    for name, tile, dtype in (("a", (1,), "fp32"), ("v", (80,), "fp16"), ("u", (3,), "fp16"), ("h", (1,), "fp16")):
        b.buffer(name, tile, dtype, "input")
    moves = [b.exchange("x", name, b.like(f"{name}.next", name), [0, 1, 2], [1, 2, 0]) for name in "vuh"]
    b.round(*moves, b.local("gemm", b.like("c", "a"), ("a", "a"), m=1, k=1, n=1))
    return b


def vector_by_matrix(family: str) -> Builder:
    """Build x W of 3 by 5 on each core, and a chain of its five sums."""
    b = Builder(Mesh(1, 3, ROOMY), "vector", family)
    for name, tile, role in (("x", (3,), "input"), ("w", (3, 5), "weight"), ("y", (5,), "output")):
        b.buffer(name, tile, "fp16", role)
    b.round(b.local("gemm", "y", ("x", "w"), m=1, k=3, n=5))
    reduce(b, "y", "x", algorithm="pipeline")
    return b


def lookup() -> Builder:
    """Build a look-up of two of seven rows of a table."""
    b = Builder(Mesh(1, 1, ROOMY), "lookup")
    for name, tile, dtype in (("ids", (2,), "fp32"), ("first", (1,), "fp32"), ("table", (7, 3), "fp16")):
        b.buffer(name, tile, dtype, "input")
    b.buffer("h", (2, 3), "fp16", "output")
    b.round(b.local("lookup", "h", ("table", "ids", "first"), m=2, d=3, v=7))
    return b


# Prices by `HAND`, worked out by hand. Each transfer is the larger of busiest words times 3, and mean words times 3
# plus hops times 2; a relayed hop takes a stage as well.
PRICES = {
    "relayed": (relayed_circuits, {
        "hop_cycles": 2 * (2 + 5) + 1 * (2 + 5), "set_up_cycles": 5 + 5, "link_cycles": 3 * 3 + 3 * 3,
        "cycles": 5 + 3 * 3 + 2 * (2 + 5) + 5 + 3 * 3 + 1 * (2 + 5), "latency_cycles": 10 + 3 * (2 + 5),
        "compute_cycles": 0, "link_bytes": 2 * 10 + 10, "hops": 3, "stages": 2, "rounds": 2, "routes": 2,
        "sram_peak_bytes": 20,
    }),
    "folded": (folded_swap, {  # three rows share a link; a core sets six exchanges up and adds six times, by its SRAM
        "hop_cycles": 2, "set_up_cycles": 6 * 11, "link_cycles": 3 * 3 * 3, "compute_cycles": 6 * (3 * 12 / 2),
        "cycles": 6 * 11 + 3 * 3 * 3 + 2 + 6 * 18, "latency_cycles": 6 * 11 + 2, "link_bytes": 2 * 6 * 12, "hops": 1,
        "sram_bytes": 6 * 3 * 12, "sram_peak_bytes": 6 * 3 * 12, "routes": 2,
    }),
    "beside": (beside_a_product, {  # the stream and the product's tile cross one link
        "hop_cycles": 0, "set_up_cycles": 11 + 13, "link_cycles": 3 * (6 + 5),
        "compute_cycles": 2 * (17 + 3 * (19 + 2 * 23)), "cycles": 24 + 424, "latency_cycles": 24 + 2 * 2,
        "link_bytes": 22 + 4 * 20, "hops": 1 + 2, "macs": 30, "stages": 2, "sram_bytes": 30 + 20 + 12,
    }),
    "before": (lambda: beside_a_product("p"), {  # an operation between makes the product's operand of the sum
        "hop_cycles": 2, "set_up_cycles": 7 + 5 + 24, "link_cycles": 3 * 6 + 3 * 5,
        "compute_cycles": (3 * 22 / 2 - (18 + 2)) + (12 + 22) / 2 + 424, "cycles": 36 + 20 + 13 + 17 + 424,
        "latency_cycles": 12 + 2 + 28, "hops": 3,
    }),
    "long tiles": (tiles_longer_than_a_product, {
        "hop_cycles": (130 + 3 - 67) * 4 / 133, "set_up_cycles": 11 + 2 * 13, "link_cycles": 3 * (40 + 2 + 1),
        "compute_cycles": 17 + 19 + 31, "cycles": 37 + 133, "latency_cycles": 37 + 4, "macs": 1,
    }),
    "vector": (lambda: vector_by_matrix("kernel"), {  # lanes of four; the chain's sums are done as the data flows
        "hop_cycles": 2 * 2, "set_up_cycles": 7 + 2 * 5, "link_cycles": 3 * 3, "compute_cycles": 3 * 2 * 29 + 2,
        "cycles": 174 + 17 + 13 + 2, "latency_cycles": 17 + 4, "macs": 15,
    }),
    "vector in decode": (lambda: vector_by_matrix("decode"), {  # one lane, and the sums' control beside the rest
        "hop_cycles": 2 * 2, "set_up_cycles": 7 + 41 + 2 * 37, "link_cycles": 3 * 3,
        "compute_cycles": 3 * 5 * 47 + 43 + 2, "cycles": 705 + 122 + 13 + 45, "latency_cycles": 122 + 4,
    }),
    "lookup": (lookup, {  # of the table two rows are read
        "cycles": (2 * 4 + 4 + 2 * 3 * 2 + 2 * 3 * 2) / 2, "sram_bytes": 8 + 4 + 12 + 12,
        "sram_peak_bytes": 8 + 4 + 42 + 12,
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", PRICES)
def test_a_price_is_worked_out_by_hand(name: str) -> None:
    make, expected = PRICES[name]
    cost = price(make().build(), HAND)
    assert {field: getattr(cost, field) for field in expected} == pytest.approx(expected)
    assert cost.relayed == (name == "relayed") and sum(cost.bounds.values()) == pytest.approx(cost.cycles)


@pytest.mark.parametrize("elements, exposed", [(0, 10), (4, 6), (100, 0)])
def test_compute_hides_the_hops_of_a_transfer_beside_it(elements: int, exposed: int) -> None:
    c = replace(HPDC, element_cycles=1)
    beside = Phase("product", hops=10, elements=elements, overlaps=True)
    assert phase_cost(beside, c).hop_cycles == exposed
    assert phase_cost(replace(beside, overlaps=False), c).hop_cycles == 10


def test_a_product_of_fp32_is_a_loop_over_k_or_for_a_resident_matrix_one_instruction() -> None:
    c = replace(HPDC, mac_cycles_fp32=3, k_step_cycles=5, row_cycles=7)
    assert product_cycles(Product(m=4, k=2, n=6, heads=10, dtype="fp32"), c, True) == 10 * 2 * (5 + 6 * (7 + 4 * 3))
    assert product_cycles(Product(m=1, k=2, n=6, heads=10, dtype="fp32"), c, False) == 10 * 2 * 6 * 3


@pytest.mark.parametrize("groups", [1, 3])
def test_the_products_by_which_head_groups_are_chosen_are_those_of_a_layer(groups: int) -> None:
    shape, side, c = DecoderShape(36, 50, 2, 6, 2, 8, 97), 6, constants(ROOMY)
    block = replace(layers.prefill_block(shape, Mesh(side, side, ROOMY), c), head_groups=groups)
    counted = sum(
        one.macs * one.times
        for kind in layers.phases_by_kind(block, layers.prefill_sub_layers(block, 3, 3)).values()
        for one in kind
    )
    assert side * sum(one.m * one.k * one.n * one.heads for one in prefill_products(block, 3)) == counted


@pytest.mark.parametrize("spelled", [lambda ends: ends, lambda ends: np.tile(ends, (3, 1))], ids=["line", "every line"])
@pytest.mark.parametrize("size, words", [(2, 8), (8, 16), (9, 5)])
def test_own_rings_cost_what_those_of_the_library_cost(size: int, words: int, spelled: Callable) -> None:
    c, position = constants(ROOMY), ring_position(size)
    ends = np.argsort(position)[(position - 1) % size], np.arange(size)

    def cycles(sums: bool, own: bool) -> float:
        b = builder(3, size)
        b.buffer("chunks", (words,), "fp32", "state", size)
        if not own:
            (reduce_scatter if sums else ring_all_gather)(b, "chunks", "x")
            return price(b.build()).cycles
        b.buffer("inbox", (words,), "fp32")
        for number in range(size - 1):
            sent, arriving = (Slot("chunks", (position - by - number) % size, "x") for by in (0, 1))
            move = b.exchange("x", sent, "inbox" if sums else arriving, *map(spelled, ends))
            add = b.local("add", arriving, (arriving, "inbox"), size=words)
            b.round(move, *[add] * sums)
        return price(b.build()).cycles

    passing, adding = cycles(False, False), cycles(True, False)
    work = max(words * c.element_cycles, 3 * 4 * words / c.sram_bytes_per_cycle)
    assert adding == pytest.approx(passing + (size - 1) * work)  # 8 cores with 16 words: 665.7, and not 248.5 with sums
    assert cycles(False, True) == pytest.approx(passing, rel=1e-12)
    assert cycles(True, True) == pytest.approx(adding, rel=1e-12)


@settings(max_examples=80)
@given(st.data())
def test_sums_of_what_arrives_never_lower_the_price(data: st.DataObject) -> None:
    """Rings and chains with two buffers or a slot for each arrival, and all-gathers by multicasts; beside a product."""
    draw, dtype = data.draw, data.draw(st.sampled_from(["fp16", "fp32"]))
    size, words, count = draw(st.integers(2, 24)), draw(st.integers(1, 40)), draw(st.integers(1, 8))
    moved = draw(st.sampled_from(["ring", "permutation", "chain", "multicast"]))
    kept, wide, product = (draw(st.booleans()) for _ in range(3))
    order = np.array(draw(st.permutations(range(size)))) if moved == "permutation" else np.argsort(ring_position(size))
    summed = draw(st.lists(st.booleans(), min_size=count, max_size=count))

    def cycles(added: list[bool]) -> float:
        b = Builder(Mesh(3, size, ROOMY), "sums")
        b.buffer("tiles", (words,), dtype, "state", count + 1)
        for name in ("sum", "c"):
            b.buffer(name, (words,), dtype, "output")
        for number, add in enumerate(added):
            src, dst = (Slot("tiles", at if kept else at % 2) for at in (number, number + 1))
            if moved == "chain":
                send, recv = np.array([number % (size - 1)]), np.array([number % (size - 1) + 1])
            elif moved == "multicast":
                send = np.full(size - 1, number % size)
                recv, src = np.delete(np.arange(size), number % size), Slot("tiles", 0)
                dst = Slot("tiles", number + 1)
            else:
                send, recv = order, np.roll(order, -1)
            ends = [np.tile(one, (3, 1)) if wide and moved in ("ring", "permutation") else one for one in (send, recv)]
            step = b.local("add", "sum", ("sum", dst), size=words)
            b.round(b.exchange("x", src, dst, *ends), *[step] * add)
        if product:
            b.buffer("w", (words, words), dtype, "input")
            b.buffer("v", (words,), dtype, "input")
            b.buffer("v.next", (words,), dtype)
            turn = b.exchange("x", "v", "v.next", order, np.roll(order, -1))
            b.round(turn, b.local("gemm", "c", ("v", "w"), m=1, k=words, n=words))
        return price(b.build()).cycles

    assert cycles(summed) >= cycles([False] * count) * (1 - 1e-12)


@pytest.mark.parametrize("algorithm", ["mesh", "cannon", "summa", "allgather"])
def test_the_priced_product_is_the_product_that_runs(algorithm: str) -> None:
    on, n = Mesh(6, 6), 12
    made = gemm(on, n, n, n, "fp32", algorithm)
    a, b = torch.randint(-4, 5, (2, n, n)).float()
    cut = {name: one.view(6, 2, 6, 2).transpose(1, 2).reshape(6, 6, 4) for name, one in (("a", a), ("b", b))}
    if algorithm in ("mesh", "cannon"):  # the host skews B along the ring
        order = RINGS[algorithm]
        position = ring_position(6, order)
        rows = np.argsort(position)[(position[:, None] + position) % 6]
        cut["b"] = cut["b"][torch.from_numpy(rows), torch.arange(6)]
    program = TorchExecutor().bind(made, cut)
    program.run()
    c = program.read("c").view(6, 6, 2, 2).transpose(1, 2).reshape(n, n)
    torch.testing.assert_close(c, a @ b, rtol=0, atol=0)
    found = estimate.gemm(mesh=on, m=n, k=n, n=n, dtype="fp32", algorithm=algorithm)
    c0 = constants(on.device)
    assert found.cycles == price(made).cycles + c0.kernel_cycles


def test_an_estimated_gemv_has_the_price_of_its_schedule() -> None:
    found, on = estimate.gemv(mesh=(8, 6), k=16, n=12, dtype="fp32", groups=3), Mesh(8, 6)
    assert found.cycles == price(gemv(on, 16, 12, "fp32", (3,))).cycles + constants(on.device).kernel_cycles


@pytest.mark.parametrize("side", [1, 2, 5, 6, 17])
@pytest.mark.parametrize("model", ["paper-benchmark", "full", "grouped"])
def test_the_price_of_a_layer_equals_its_schedules(side: int, model: str) -> None:
    """Compare with the sum of the prices of all schedules: representatives of equal rounds change nothing."""
    shape = DecoderShape(36, 50, 2, 6, 6, 8, 97, qk_norm=model == "grouped", name="tiny")
    shape = replace(shape, num_key_value_heads=2, qkv_bias=True) if model == "grouped" else shape
    program, on = "full" if model == "grouped" else model, Mesh(side, side, ROOMY)
    context = 4 * side
    c = constants(on.device)
    block = layers.decode_block(shape, on, context, c, program=program)
    whole = sum((price(schedule(sub_layer, block, *args)) for sub_layer, args in decode.layer(block, context)), Cost())
    steps = layers.decode_steps(block, context, c)
    same(layers.total(steps), whole)
    for block in layers.prefill_head_group_choices(layers.prefill_block(shape, on, c, program), 3, c):
        whole = sum((price(schedule(sub_layer, block, *args)) for sub_layer, args in prefill.layer(block, 3)), Cost())
        same(layers.total(layers.prefill_steps(block, 3, c)), whole)


@pytest.mark.parametrize(("number", "mesh"), [(2, (13, 13)), (3, (13, 13)), (5, (13, 13)), (6, (13, 13)), (1, (4, 6))])
def test_the_price_of_prefill_in_groups_equals_its_schedules(number: int, mesh: tuple[int, int]) -> None:
    """Also where partial sums have one buffer, so that no reduction hides beside a product, and of a later chunk."""
    on, c = Mesh(*mesh, ROOMY), constants(ROOMY)
    one = layers.prefill_block(DecoderShape(36, 50, 2, 6, 2, 8, 97, qk_norm=True), on, c)
    (block,) = layers.prefill_head_group_choices(one, 3, c, number)
    block = replace(block, overlap=number == 1)
    sub_layers = (*prefill.layer(block, 2), *prefill.layer(block, 1, 2))
    same(
        layers.total(layers.prefill_steps(block, 3, c, 2)),
        sum((price(schedule(sub_layer, block, *args)) for sub_layer, args in sub_layers), Cost()),
    )


FIELDS = (
    "cycles", "compute_cycles", "link_cycles", "rounds", "stages", "hops", "routes", "link_bytes", "macs", "sram_bytes",
)  # fmt: skip


def same(one: Cost, two: Cost) -> None:
    for name in FIELDS:
        assert getattr(one, name) == pytest.approx(getattr(two, name), rel=1e-12), name


def test_the_two_level_formula_equals_the_tree() -> None:
    for size in (5, 6, 17, 40):
        for count, stages, hops in zip(*two_level_costs(size), strict=True):
            b = Builder(Mesh(1, size, ROOMY), "test")
            b.buffer("x", (1,), "fp32", "output")
            all_reduce(b, "x", "x", groups=(int(count),))
            found = price(b.build())
            assert (found.stages, found.hops) == (stages + 1, hops), (size, count)  # and the multicast's


def test_work_beside_whole_tiles_counts_in_every_round() -> None:
    """Tiles shift while all cores add numbers of their own."""
    found = []
    for rounds in (1, 8):
        b, at = Builder(Mesh(1, 4, ROOMY), "shifts"), np.arange(4)
        for name, size in (("tile", 1), ("next", 1), ("sum", 10_000)):
            b.buffer(name, (size,), "fp32", "state")
        for _ in range(rounds):
            shift = b.exchange("x", "tile", "next", at, (at + 1) % 4)
            b.round(shift, b.local("add", "sum", ("sum", "sum"), size=10_000))
        (phase,) = phases(b.build())
        found.append((phase.elements, price(b.build()).cycles))
    assert found[1][0] == 8 * found[0][0] and found[1][1] > 7 * found[0][1]


@pytest.mark.parametrize("turns", [False, True])
def test_whole_tiles_that_turn_wait_for_the_other_axis(turns: bool) -> None:
    """Large tiles turn from x to y and back, or stay on x; small ones have the other axis."""
    b, ends = Builder(Mesh(4, 4, ROOMY), "turn"), (np.arange(4), np.roll(np.arange(4), -1))
    for name, size in (("large", 100), ("small", 1)):
        for side in "01":
            b.buffer(name + side, (size,), "fp32", "state")
    for number in range(4):
        src, dst = "01"[:: -1 if number % 2 else 1]
        along = "yx" if turns and number % 2 else "xy"
        b.round(*(b.exchange(a, of + src, of + dst, *ends) for a, of in zip(along, ("large", "small"), strict=True)))
    # a lower bound: each of 4 rounds takes 5 cycles of set-up and 100 for the words of the large tile, one a cycle
    assert price(b.build()).tuned_cycles >= 4 * (5 + 100)
    assert sum(phase.times for phase in phases(b.build())) == (4 if turns else 1)


def test_a_multicast_that_turns_has_the_hops_of_both_axes() -> None:
    """Two words go around a square, one of them along x first."""
    b = Builder(Mesh(30, 30, ROOMY), "around")
    for name in "abcde":
        b.buffer(name, (1,), "fp32", "state")
    for first, second, line in (("ab", "ac", 0), ("ce", "bd", 29)):
        b.round(b.exchange("x", *first, 0, 29, [line]), b.exchange("y", *second, 0, 29, [line]))
    assert price(b.build()).hops == 29 + 29


def test_products_of_different_cores_take_the_time_of_the_slowest() -> None:
    """Fewer multiply-adds in fp32 take longer than more in fp16."""

    def cost(*dtypes: str) -> float:
        b, ops = Builder(Mesh(1, 2, ROOMY), "products"), []
        for core, (dtype, k) in enumerate((("fp32", 10), ("fp16", 11))):
            a, w, c = (
                b.buffer(f"{dtype} {name}", sizes, dtype, "state")
                for name, sizes in (("a", (10, k)), ("w", (k, 10)), ("c", (10, 10)))
            )
            if dtype in dtypes:
                ops.append(b.local("gemm", c, (a, w), Cores("x", [core]), m=10, k=k, n=10))
        b.round(*ops)
        return price(b.build()).tuned_cycles

    assert cost("fp32", "fp16") == cost("fp32") == 10 * 10 * 10
    assert cost("fp16") == 10 * 11 * 10 / 4


def test_a_stream_is_hidden_beside_the_next_product_alone() -> None:
    """Check the waits: with one buffer of partial sums an iteration waits for the last; with two it does not."""
    priced = {}
    for overlap in (True, False):
        block = Block(DecoderShape(8, 8, 1, 1, 1, 8, 2, rotary=False), Mesh(6, 6, ROOMY), overlap=overlap)
        phases_ = phases(schedule(prefill.attention, block, 2, 0))
        priced[overlap] = price(schedule(prefill.attention, block, 2, 0)).cycles
        assert sum(phase.times for phase in phases_ if phase.hidden) == (5 if overlap else 0)
    assert priced[True] < priced[False]


def test_multiply_adds_of_an_operation_without_a_product_take_time(registered: None) -> None:
    """They are one vector instruction; an elementwise operation has vector elements, which tuned code has for free."""

    def cycles(elementwise: bool) -> tuple[float, float]:
        @registry.local_op(tiles=lambda: ((3,), (3,)), work=lambda: (300, 40), elementwise=elementwise)
        def weighed_torch(out: torch.Tensor, a: torch.Tensor) -> None:
            out.copy_(a)

        b = Builder(Mesh(1, 1, ROOMY), "weighed")
        b.buffer("a", (3,), "fp16", "state")
        b.round(b.local("weighed", "a" if elementwise else b.like("b", "a"), "a"))
        return price(b.build()).tuned_cycles, price(b.build(), HAND).cycles

    assert cycles(False) == (300 / 4, 17 + 19 + 300 / 4 * 23 + 40 / 2)
    assert cycles(True) == (0, 340 / 2)


def copied_beside(*products: str) -> Cost:
    """Return the price of products on 1 x 100 cores, after each of which what it computed is copied to the far end."""
    b = Builder(Mesh(1, 100, ROOMY), "copies")
    for name in ("shift", "shift.next", "mail", *"abpwx"):
        b.buffer(name, (1,), "fp32", "state")
    b.round(b.exchange("x", "x", "mail", [0], [99]))
    for name in products:
        shift = b.exchange("x", "shift", "shift.next", [0], [1])
        b.round(shift, b.local("gemm", name, ("p", "w"), m=1, k=1, n=1))
        b.round(b.exchange("x", name, "mail", [0], [99]))
    return price(b.build())


def test_a_product_takes_as_long_as_the_copy_beside_it() -> None:
    b = Builder(Mesh(1, 100, ROOMY), "beside")
    for name in ("copied", "copy", "shift", "shift.next"):
        b.buffer(name, (20,), "fp32", "state")
    for name in "pwc":
        b.buffer(name, (1,), "fp32", "state")
    b.round(b.exchange("x", "copied", "copy", [0], [99]))
    product = b.local("gemm", "c", ("p", "w"), m=1, k=1, n=1)
    b.round(b.exchange("x", "shift", "shift.next", [0], [60]), product)
    cost = price(b.build())
    # 40 words cross the first links, and the mean one of all that are used
    assert cost.tuned_cycles == 5 + max(20 + 20, (20 * 99 + 20 * 60) / 99 + 99) and cost.hops == 99 + 60


def test_of_a_pipeline_of_copies_beside_products_only_the_last_has_to_end() -> None:
    """The next copy sends what the product beside the one before computed, so it starts after that product alone."""
    one, two, three = (copied_beside(*names).tuned_cycles for names in ("a", "ab", "aba"))
    assert one >= 99 and two - one == three - two == 5 + 2, "a set-up, and a word over a link"


@pytest.mark.parametrize("length", [5, 12, 37])
def test_best_groups_are_the_best(length: int) -> None:
    c = constants(device("wse3"))
    cycles = {
        g: estimate.gemv(device="wse3", mesh=(length, 1), k=length, n=1, groups=g).cycles for g in range(1, length)
    }
    best = estimate.gemv(device="wse3", mesh=(length, 1), k=length, n=1).cycles
    assert best == pytest.approx(min(cycles.values()), abs=2 * c.word_cycles)  # it is chosen for set-ups and hops alone


@pytest.mark.parametrize("sides", [(5, 6), (8, 16), (3, 100)])
def test_a_rectangle_has_the_tree_that_is_fastest_along_both_sides(sides: tuple[int, int]) -> None:
    on, c = Mesh(*sides, ROOMY), constants(device("wse2"))

    def cycles(groups: tuple[int, ...] | None) -> float:
        of = (("groups", groups),)
        both = [price(recipe("all_reduce", on, "fp32", ((*sides, 1),), (("axis", a), *of)).schedule) for a in "xy"]
        return sum(cost.stages * c.stage_cycles + cost.hops * c.hop_cycles for cost in both)

    every = [cycles(groups) for groups in (None, *((count,) for count in range(1, min(sides) + 1)))]
    assert cycles(tree_for(on, c)) == min(every)


def test_a_price_has_the_routes_of_its_schedule() -> None:
    for made in (gemm(Mesh(20, 20), 40, 40, 40), gemv(Mesh(30, 20), 60, 60, groups=(5,))):
        assert price(made).routes == routes(made).colours


def test_a_price_on_a_device_has_a_second_end_of_tuned_code() -> None:
    b = builder(1, 16, 64)
    reduce(b, "x", "x", algorithm="pipeline")
    one = price(b.build())
    assert one.tuned_cycles == 64 + 15 + 5 * 15 < one.cycles and (one * 2).tuned_cycles == 2 * one.tuned_cycles
    assert price(b.build(), HPDC).cycles == one.tuned_cycles
    tile = gemm(Mesh(6, 6), 60, 60, 60)  # multiply-adds at the peak, and eight rounds of 5 cycles and two hops
    assert price(tile).tuned_cycles >= 6 * 10**3 / 4 > 0


def test_costs_add_up() -> None:
    one, two = Cost(cycles=3, compute_cycles=1, hops=2, routes=4), Cost(cycles=5, hops=1, routes=2)
    assert one + two == Cost(cycles=8, compute_cycles=1, hops=3, routes=4)
    assert (one * 3).hops == 6 and (one * 3).routes == 4
    assert (one + two).communication_cycles == 7


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.integers(1, 200), st.integers(1, 50))
def test_a_longer_way_never_costs_less(cores: int, words: int, further: int) -> None:
    def way(hops: int) -> float:
        b = builder(1, cores + further, words)
        b.round(b.exchange("x", "x", "x", [0], [hops]))
        return price(b.build(), HPDC).cycles

    assert way(cores - 1 + further) > way(cores - 1)


def test_a_relayed_product_is_reported_as_relayed() -> None:
    for most, over in ((24, False), (4, True)):
        mesh = Mesh(12, 12, replace(device("wse2"), routes=most))
        cost = price(gemm(mesh, 48, 48, 48))
        assert (cost.relayed, (cost + Cost()).relayed, (Cost() + cost * 2).relayed) == (over, over, over)
        prediction = Prediction.of(cost, mesh.device)
        assert prediction.relayed is over
        assert str(prediction).endswith("relayed core by core, as routers hold too few routes") is over


@pytest.mark.parametrize("algorithm", ["mesh", "cannon", "summa", "allgather"])
def test_bounds_add_up_to_the_cycles_and_follow_the_constants(algorithm: str) -> None:
    schedule, c = gemm(Mesh(8, 8, ROOMY), 64, 64, 64, algorithm=algorithm), constants(device("wse2"))
    cost = price(schedule, c)
    assert sum(cost.bounds.values()) == pytest.approx(cost.cycles)
    assert cost.bounds["compute"] == cost.compute_cycles
    parts = [each.cost.bounds["links"] for each in intervals(schedule)]
    assert all(part == 0 or part > 1e-6 for part in parts), "no rounding of a difference"
    free = price(schedule, replace(c, round_cycles=0.0, stage_cycles=0.0, packed_cycles=0.0, collective_cycles=0.0))
    assert free.bounds["set-up"] == 0 < cost.bounds["set-up"]
    assert price(schedule, replace(c, hop_cycles=0.0)).bounds["hops"] == 0
    fast = price(schedule, replace(c, word_cycles=1e-9, hop_cycles=0.0))
    assert fast.bounds["links"] == pytest.approx(0, abs=1e-3) and cost.bounds["links"] > 0
