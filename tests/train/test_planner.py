"""The planner: against brute force, its seconds against schedules, its bytes against published totals, and refusals."""

from dataclasses import replace
from itertools import pairwise
from math import inf
from random import Random

import numpy as np
import pytest

from wafer_triton.errors import ConfigError, HbmError, MeshError
from wafer_triton.train.cost import die_cost
from wafer_triton.train.dies import wafer
from wafer_triton.train.options import Case, ParallelSizes, option, splits
from wafer_triton.train.placement import fixed, groups_of, placements
from wafer_triton.train.planner import BASELINES, PLANNED, Strategy, demand, plan
from wafer_triton.train.product import Team, product
from wafer_triton.train.solve import layer, layers
from wafer_triton.train.workload import Rules, Workload, workload

SMALL = Workload("small", 4, 256, 8, 8, 1024, 512, False, sequence=64, batch=8)


def on(rows, cols, **change):
    return replace(wafer("wafer-48"), name=f"{rows}x{cols}", rows=rows, cols=cols, **change)


def brute_force(options, reshard):
    """Return seconds and bytes of every closed chain, in arrays with one axis an operator."""
    shape = [len(own) for own in options]
    seconds, sizes, changes = np.zeros(shape), np.zeros(shape), np.zeros(shape, int)
    for axis, own in enumerate(options):
        at = [-1 if each == axis else 1 for each in range(len(options))]
        seconds = seconds + np.array([one.seconds for one in own]).reshape(at)
        sizes = sizes + np.array([one.bytes for one in own]).reshape(at)
    for axis, (own, after) in enumerate(pairwise([*options, options[0]])):
        unlike = np.array([[one.gives != two.takes for two in after] for one in own])
        other = (axis + 1) % len(options)
        at = [shape[each] if each in (axis, other) else 1 for each in range(len(options))]
        changes = changes + (unlike if axis < other else unlike.T).reshape(at)
    return seconds + changes * reshard, sizes


@pytest.mark.parametrize(
    ("rows", "cols", "reshard"), [(2, 2, 0.0), (2, 2, 1e-7), (2, 3, 1e-7), (2, 3, None), (2, 4, None)]
)
def test_the_solver_equals_brute_force_for_every_limit(rows, cols, reshard):
    # links slow enough that traffic is not hidden
    device, random = on(rows, cols, link_bytes_per_second=2e11), Random(rows * cols)
    case = Case(device, SMALL, 2, 1)
    every = list(splits(case))
    options, pruned = [], []
    for op in SMALL.operators[:4]:
        tuples = random.sample(every, min(6, len(every)))
        kinds = [random.choice(["none", "selective"]) for _ in tuples]
        both = [
            [option(case, op, split, placed, kind) for split, kind in zip(tuples, kinds, strict=True)
             for placed in placements(device, split.sizes, prune)]
            for prune in (False, True)
        ]  # fmt: skip
        options.append(both[0])
        pruned.append(both[1])
    cost = case.reshard_seconds if reshard is None else reshard
    seconds, sizes = brute_force(options, cost)
    for chosen in (options, pruned):  # placements that are left out lose nothing
        labels = layer(chosen, cost)
        for share in np.linspace(0, 1, 9):
            limit = sizes.min() + share * (sizes.max() - sizes.min())
            fits = np.where(sizes <= limit * (1 + 1e-12), seconds, np.inf)
            mix = layers(labels, 1, limit * (1 + 1e-12), cost)
            assert mix is not None and mix.seconds == pytest.approx(fits.min(), rel=1e-9)
            assert mix.bytes == pytest.approx(sizes[fits <= fits.min() * (1 + 1e-9)].min(), rel=1e-9)


def test_layers_of_two_kinds_use_the_room_that_one_leaves():
    case = Case(on(2, 2, hbm_bytes_per_second=1e18), SMALL)
    split = next(each for each in splits(case) if each.data == 4 and each.sharded == 0)
    placed = placements(case.wafer, split.sizes)[0]
    labels = [
        label
        for kind in ("none", "full")
        for label in layer([[option(case, op, split, placed, kind)] for op in SMALL.operators], 0.0)
    ]
    fast, small = sorted(labels, key=lambda label: label.seconds)
    mix = layers(labels, 4, 2.5 * fast.bytes + 1.5 * small.bytes, 0.0)
    assert mix.counts == (2, 2) and mix.kinds == (fast, small)
    assert layers(labels, 4, 4 * small.bytes - 1, 0.0) is None


@pytest.mark.parametrize("flops", [1800e12, 1e12])  # traffic exposed, and hidden
@pytest.mark.parametrize(("name", "moving", "which"), [
    ("qkv", "w", "forward"), ("qkv", "xy", "forward"), ("out", "w", "forward"), ("out", "xy", "forward"),
])  # fmt: skip
def test_a_stream_s_seconds_follow_its_schedule(name, moving, which, flops):
    device = on(2, 4, hbm_bytes_per_second=1e18, flops=flops)
    work = replace(SMALL, batch=1)
    case = Case(device, work, rules=Rules(sums=4))
    op = next(each for each in work.operators if each.name == name)
    split = ParallelSizes(stream=8, moving=moving)
    (placed,) = placements(device, split.sizes)
    from wafer_triton.train.options import _Priced

    priced = _Priced(case, op, split, placed, "none")
    exposed, _ = priced._product()
    team, operand = (
        Team(device.mesh(), placed.steps[3].kind, 2, 4),
        {"w": "w", "xy": "x" if op.side == "in" else "y"}[moving],
    )
    m = work.sequence // 8
    k, n = (op.k // 8, op.n) if operand == "y" else (op.k, op.n // 8)
    cost = die_cost(product(team, operand, which, m, k, n, "bf16"), replace(device, sram_bytes=2**40))
    assert priced.forward + exposed == pytest.approx(cost.seconds, rel=1e-9)
    assert (exposed > 0) == (flops > 1e12)


def test_key_value_heads_are_not_cut_below_one():
    work = replace(SMALL, kv_heads=2)
    cuts = {split.tensor * (split.stream if split.moving == "xy" else 1) for split in splits(Case(on(2, 4), work))}
    assert cuts == {1, 2}


def test_bytes_of_optimizer_states_equal_the_published_ones():
    rules = Rules()
    assert rules.state_bytes(7.5e9, 0, 1) == 120e9
    assert rules.state_bytes(7.5e9, 1, 64) == pytest.approx(31.4e9, rel=1e-3)
    assert rules.state_bytes(7.5e9, 2, 64) == pytest.approx(16.6e9, rel=5e-3)
    assert rules.state_bytes(7.5e9, 3, 64) == pytest.approx(1.9e9, rel=2e-2)


def test_activations_equal_the_published_formulas():
    work = workload("gpt3-175b")
    h, a, s = work.width, work.heads, work.sequence
    assert sum(op.common + op.split for op in work.operators) == 34 * h
    assert sum(op.scores for op in work.operators) == 5 * a * s
    device = on(1, 8)
    case = Case(device, replace(work, batch=1))
    for sequence, each in ((False, 10 + 24 / 8), (True, 34 / 8)):
        split = ParallelSizes(tensor=8, sequence=sequence)
        placed = placements(device, split.sizes)[0]
        found = [option(case, op, split, placed, "selective") for op in work.operators]
        assert sum(own.kept_bytes for own in found) == pytest.approx(s * h * each)
    full = [option(case, op, ParallelSizes(tensor=8, sequence=True), placed, "full") for op in work.operators]
    assert sum(own.kept_bytes for own in full) == pytest.approx(2 * s * h / 8)


def test_parameter_counts_equal_the_published_ones():
    published = {"gpt3-6.7b": 6.7, "gpt3-76b": 76.1, "gpt3-175b": 175, "llama2-7b": 6.74, "llama3-70b": 70.6}
    for name, billions in published.items():
        work = workload(name)
        embeddings = (1 if name.startswith("gpt3") else 2) * work.vocab * work.width  # a GPT's embedding is its head
        parameters = work.layers * sum(op.weights for op in work.operators) + embeddings
        assert parameters / 1e9 == pytest.approx(billions, rel=0.02)


def test_gpt3_175b_fits_48_dies_and_not_32_at_16_bytes_a_parameter():
    strategy = next(each for each in BASELINES if each.name == "sharded data, fixed")
    refused = plan(workload("gpt3-175b"), wafer("wafer-32"), strategy)
    bytes_needed = r"needs 8\d,\d{3},\d{3},\d{3} B on every die, .* 72,000,000,000 B of HBM: states 8"
    with pytest.raises(HbmError, match=f"gpt3-175b does not fit wafer-32: .* {bytes_needed}"):
        demand(refused)
    placed = demand(plan(workload("gpt3-175b"), wafer("wafer-48"), strategy))
    assert placed.bytes <= 72e9 and placed.held["states"] == pytest.approx(16 * 96 * 12 * 12288**2 / 48, rel=1e-6)


def test_the_plan_of_llama2_7b_is_at_least_as_fast_as_every_baseline():
    work, device = workload("llama2-7b"), wafer("wafer-32")
    planned = plan(work, device)
    assert not planned.why and planned.bytes <= device.hbm_bytes
    for strategy in BASELINES[::2]:
        other = plan(work, device, strategy)
        assert other.why or other.seconds >= planned.seconds * (1 - 1e-9)


def test_the_parts_of_a_step_add_up_with_and_without_a_pipeline_over_wafers():
    device = on(2, 4)
    one, two = plan(SMALL, device), plan(SMALL, device, wafers=2)
    head = 6 * SMALL.vocab * SMALL.width * SMALL.tokens / device.dies / device.flops
    assert one.seconds == pytest.approx(one.layer_seconds + head)  # the solver's objective
    assert one.seconds == sum(one.parts.values()) and one.parts["bubbles"] == 0 and two.parts["bubbles"] > 0
    layer = sum(op.flops for op in SMALL.operators)
    flops = 3 * SMALL.tokens * (SMALL.layers * layer + 2 * SMALL.vocab * SMALL.width)  # forward, twice as much backward
    assert one.parts["compute"] >= flops / (8 * device.flops) * (1 - 1e-9)
    assert set(one.operators) == {"qkv", "attention", "o", "inner", "out"}
    assert one.joules >= flops / device.flops_per_joule
    assert plan(SMALL, device, objective="energy").joules <= one.joules
    assert one.tried > 0 and one.solver_seconds > 0


@pytest.mark.parametrize("hbm", [72_000_000_000, 16_000_000, 14_500_000, 4_000_000])
def test_no_placement_that_the_planner_skips_is_faster(hbm):
    """Check that more micro-batches and full recompute are tried only where they can gain."""
    device = on(2, 2, link_bytes_per_second=2e11, hbm_bytes=hbm)
    found = []
    for micro in (1, 2, 4, 8):
        case = Case(device, SMALL, micro, SMALL.layers)
        pairs = [(split, placed) for split in splits(case) for placed in placements(device, split.sizes)]
        room = hbm - (2 * SMALL.vocab * SMALL.width * 16 + 4 * case.tokens * SMALL.vocab) / device.dies
        labels = [
            label
            for kind in ("none", "selective", "full")
            for label in layer(
                [[option(case, op, *pair, kind) for pair in pairs] for op in SMALL.operators], case.reshard_seconds
            )
        ]
        mix = layers(labels, SMALL.layers, room, case.reshard_seconds)
        found += [mix.seconds] if mix else []
    planned = plan(SMALL, device)
    assert planned.why if not found else planned.layer_seconds == pytest.approx(min(found), rel=1e-9)


def test_a_plan_that_does_not_fit_is_never_the_best():
    device = on(2, 2)
    large, small = plan(SMALL, device), plan(SMALL, replace(device, hbm_bytes=10**5))
    assert small.why and min((small, large), key=lambda each: each.seconds) is large
    assert (small.seconds, small.joules, small.watts, small.tokens_per_second) == (inf, inf, inf, 0)
    assert f"needs {small.bytes:,} B on every die" in small.why


def test_every_micro_batch_takes_the_seconds_of_a_reshard():
    device, seconds = on(2, 4), {}
    for micro in (1, 4):
        seconds[micro] = Case(replace(device, link_seconds=0.0), SMALL, micro).reshard_seconds
    assert seconds[4] == pytest.approx(seconds[1])  # the same tokens in all
    assert Case(device, SMALL, 4).reshard_seconds > Case(device, SMALL, 1).reshard_seconds  # latency four times


def test_a_wrap_costs_its_hops_with_store_and_forward_alone():
    work = replace(SMALL, width=2048, hidden=8192, heads=16, kv_heads=16, sequence=512)
    seconds = {}
    for mode in ("cut", "store"):
        device = on(1, 8, forwarding=mode, link_seconds=0.0)
        tensor = Strategy(
            "tensor", lambda split: split.tensor == 8 and split.sequence, lambda w, s: (fixed(w, s.sizes),)
        )
        ours = Strategy("tensor", tensor.allowed, PLANNED.placer)
        seconds[mode] = [plan(work, device, each).parts["exposed communication"] for each in (tensor, ours)]
    assert seconds["store"][0] == pytest.approx(7 * seconds["cut"][0])  # a wrap of seven hops
    assert seconds["store"][1] == pytest.approx(2 * seconds["cut"][1])  # interleaved: two


@pytest.mark.parametrize("strategy", BASELINES, ids=lambda one: one.name)
def test_a_ring_of_odd_by_odd_dies_is_a_snake_whose_links_are_counted(strategy):
    device = on(3, 3)
    (ring,) = groups_of(device, placements(device, (9, 1, 1, 1))[0], 0)
    ways = [abs(one[0] - two[0]) + abs(one[1] - two[1]) for one, two in zip(ring, [*ring[1:], ring[0]], strict=True)]
    assert len(set(ring)) == 9 and ways == [1] * 8 + [4]
    best = plan(replace(SMALL, heads=9, kv_heads=9, width=288, hidden=1152, batch=9), device, strategy)
    assert sum(best.loads.values()) == pytest.approx(0 if "fixed" in strategy.name else best.link_bytes)


def test_traffic_of_a_failed_link_takes_a_longer_route():
    whole, broken = on(2, 4), on(2, 4, failed=frozenset({((0, 0), (0, 1))}))
    sizes = (1, 8, 1, 1)
    before, after = (placements(each, sizes)[0].steps[1] for each in (whole, broken))
    assert (before.hops, before.load) == (1, 1) and (after.hops, after.load) > (1, 1)
    blind = fixed(broken, sizes).steps[1]
    assert after.hops * after.load <= blind.hops * blind.load
    assert plan(SMALL, broken).seconds >= plan(SMALL, whole).seconds


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: placements(on(2, 4), (3, 2, 1, 1)), MeshError, "data 3 x tensor 2 x context 1 x stream 1 are 6 dies"),
        (lambda: Case(on(2, 2), SMALL, 3), ConfigError, "8 samples does not divide by 3 micro-batches"),
        (lambda: plan(SMALL, on(2, 2), wafers=3), ConfigError, "4 layers do not divide by 3 wafers"),
        (lambda: plan(SMALL, on(2, 2), objective="joy"), ConfigError, "choose 'time' or 'energy'"),
        (lambda: plan(replace(SMALL, batch=7), on(2, 3), BASELINES[0]), ConfigError, "no tuple divides 7 samples"),
        (lambda: workload("gpt3-175"), ConfigError, "did you mean 'gpt3-175b'"),
        (lambda: replace(SMALL, heads=3), ConfigError, "width 256 must be a multiple of 3 heads"),
    ],
)
def test_a_task_that_cannot_be_planned_is_refused(call, error, said):
    with pytest.raises(error, match=said):
        call()
