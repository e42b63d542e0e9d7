"""The planner: against brute force, its seconds against schedules, its bytes against published totals, and refusals."""

from dataclasses import replace
from itertools import pairwise
from math import inf, prod
from random import Random

import numpy as np
import pytest

from wafer_triton.errors import ConfigError, HbmError, MeshError
from wafer_triton.train.dies import wafer
from wafer_triton.train.options import Case, Pairs, ParallelSizes, cases, option, picked, priced, splits
from wafer_triton.train.placement import exchange, fixed, placements
from wafer_triton.train.planner import BASELINES, PLANNED, Strategy, demand, plan
from wafer_triton.train.solve import Label, layer, layers
from wafer_triton.train.workload import Rules, Workload, workload

TENSOR = Strategy("tensor", lambda split: split.tensor == 6, PLANNED.placer)
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
        sizes = sizes + np.array([one.bytes + one.work_bytes for one in own]).reshape(at)
    for axis, (own, after) in enumerate(pairwise([*options, options[0]])):
        unlike = np.array([[one.gives != two.takes for two in after] for one in own])
        other = (axis + 1) % len(options)
        at = [shape[each] if each in (axis, other) else 1 for each in range(len(options))]
        changes = changes + (unlike if axis < other else unlike.T).reshape(at)
    return seconds + changes * reshard, sizes


def chains(options, reshard=0.0):
    """Return the labels of the front of all chains."""
    numbers = {layout: number for number, layout in enumerate(
        {layout for some in options for one in some for layout in (one.takes, one.gives)}
    )}  # fmt: skip
    figures = [np.array([(one.cost, one.bytes, one.work_bytes) for one in some]).T for some in options]
    layouts = [np.array([(numbers[one.takes], numbers[one.gives]) for one in some]).T for some in options]
    labels, chosen = layer(figures, layouts, reshard)
    return [
        Label(tuple(some[at] for some, at in zip(options, path, strict=True)), *one)
        for path, one in zip(chosen, labels.T, strict=True)
    ]


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
    cost = case.reshard.seconds if reshard is None else reshard
    seconds, sizes = brute_force(options, cost)
    for chosen in (options, pruned):  # placements that are left out lose nothing
        labels = chains(chosen, cost)
        for share in np.linspace(0, 1, 9):
            limit = sizes.min() + share * (sizes.max() - sizes.min())
            fits = np.where(sizes <= limit * (1 + 1e-12), seconds, np.inf)
            mix = layers(labels, 1, limit * (1 + 1e-12), cost)
            assert mix is not None and mix.cost(cost) == pytest.approx(fits.min(), rel=1e-9)
            assert mix.bytes == pytest.approx(sizes[fits <= fits.min() * (1 + 1e-9)].min(), rel=1e-9)


def test_layers_of_two_kinds_use_the_room_that_one_leaves():
    case = Case(on(2, 2, hbm_bytes_per_second=1e18), SMALL)
    split = next(each for each in splits(case) if each.data == 4 and each.sharded == 0)
    placed = placements(case.wafer, split.sizes)[0]
    labels = [
        replace(label, work=7.0)
        for kind in ("none", "full")
        for label in chains([[option(case, op, split, placed, kind)] for op in SMALL.operators])
    ]
    fast, small = sorted(labels, key=lambda label: label.cost)
    mix = layers(labels, 4, 2.5 * fast.bytes + 1.5 * small.bytes + 7)
    assert mix.counts == (2, 2) and mix.kinds == (fast, small)
    assert layers(labels, 4, 4 * small.bytes + 6) is None


def test_a_huge_batch_takes_few_numbers_of_micro_batches_that_lie_close():
    device = on(2, 4)
    listed = list(cases(Case(device, replace(SMALL, batch=10**9)), [(ParallelSizes(data=8), None)]))
    assert len(listed) < 1000 and all(one.samples * one.micro_batches >= 10**9 for one in listed)
    samples = [one.samples for one in listed]
    assert samples == sorted(samples) and samples[-1] == 10**9
    assert all(after <= size * 33 / 32 + 8 for size, after in pairwise(samples) if after <= 10**9 // 32)


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
    bytes_needed = r"needs 9\d,\d{3},\d{3},\d{3} B on every die, .* 72,000,000,000 B of HBM: states 8"
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
    assert one.parts["compute"] == pytest.approx(
        sum(own.compute for own in one.operators.values()) * SMALL.layers + head
    )
    assert one.seconds == sum(one.parts.values()) and one.parts["bubbles"] == 0 and two.parts["bubbles"] > 0
    layer = sum(op.flops for op in SMALL.operators)
    flops = 3 * SMALL.tokens * (SMALL.layers * layer + 2 * SMALL.vocab * SMALL.width)  # forward, twice as much backward
    assert one.parts["compute"] >= flops / (8 * device.flops) * (1 - 1e-9)
    assert set(one.operators) == {"qkv", "attention", "o", "inner", "out"}
    assert one.joules >= flops / device.flops_per_joule
    assert plan(SMALL, device, objective="energy").joules <= one.joules
    assert one.tried > 0 and one.solver_seconds > 0


@pytest.mark.parametrize("objective", ["time", "energy"])
@pytest.mark.parametrize(
    ("rows", "cols", "hbm"), [(2, 2, 72_000_000_000), (2, 2, 9_300_000), (2, 2, 8_300_000), (2, 3, 6_000_000)]
)
def test_a_plan_is_the_least_of_all_chains_on_a_wafer_with_a_failed_link(rows, cols, hbm, objective):
    """Check, without bounds and multipliers, every number of micro-batches, kind of recompute and pair."""
    device = on(rows, cols, link_bytes_per_second=2e11, hbm_bytes=hbm, failed=frozenset({((0, 0), (0, 1))}))
    work = replace(SMALL, heads=6, kv_heads=6, width=192, hidden=768, batch=4)
    least = []
    for micro in range(1, 5):
        case = Case(device, work, micro, work.layers, objective=objective)
        pairs = [(split, placed) for split in splits(case) if PLANNED.allowed(split)
                 for placed in placements(device, split.sizes)]  # fmt: skip
        head = 6 * work.vocab * work.width * case.tokens * micro
        head = case.cost(head / device.flops / device.dies, head / device.flops_per_joule)
        fixed_bytes = (2 * work.vocab * work.width * 16 + 4 * case.tokens * work.vocab) / device.dies
        reshard = case.cost(case.reshard.seconds, case.reshard.joules)
        labels = []
        for kind in ("none", "selective", "full"):
            figures = [priced(case, op, Pairs(device, pairs), [kind])[0] for op in work.operators]
            options = [
                [picked(own, op, pair, kind, number) for number, pair in enumerate(pairs)]
                for own, op in zip(figures, work.operators, strict=True)
            ]
            labels += chains(options, reshard)
        mix = layers(labels, work.layers, hbm - fixed_bytes, reshard)
        if mix is not None:
            least.append(mix.cost(reshard) + head)
    planned = plan(work, device, objective=objective)
    reached = planned.seconds if objective == "time" else planned.joules
    assert planned.why if not least else reached == pytest.approx(min(least), rel=1e-9)


@pytest.mark.parametrize("objective", ["time", "energy"])
@pytest.mark.parametrize("batch", [16, 64])
def test_of_plans_with_the_same_seconds_or_joules_the_other_figure_decides(batch, objective):
    """Compare with layers whose operators all take one pair, in every number of micro-batches."""
    work, device = workload("gpt3-6.7b", batch=batch), on(2, 4, hbm_bytes=10**12)
    best, least = plan(work, device, objective=objective), inf
    figures = (best.seconds, best.joules)[:: 1 if objective == "time" else -1]
    for micro in (1, 2, 4, 8):
        case = Case(device, work, micro, work.layers, objective=objective)
        pairs = Pairs(device, [(split, placed) for split in splits(case) if PLANNED.allowed(split)
                               for placed in placements(device, split.sizes)])  # fmt: skip
        chain = [priced(case, op, pairs, ["selective"])[0] for op in work.operators]
        seconds = work.layers * sum(own.seconds for own in chain) + case.head_seconds
        joules = work.layers * sum(own.joules for own in chain) + case.head_flops / device.flops_per_joule
        one, other = (seconds, joules)[:: 1 if objective == "time" else -1]
        assert one.min() >= figures[0] * (1 - 1e-12)
        least = min(least, other[one <= figures[0] * (1 + 1e-12)].min(initial=inf))
    assert figures[1] <= least * (1 + 1e-4) < inf


@pytest.mark.parametrize("seed", range(24))
def test_less_to_do_or_a_better_wafer_never_takes_longer_and_no_link_is_full(seed):
    random = Random(seed)
    rows, cols = random.choice([(1, 4), (2, 2), (2, 3), (3, 3)])
    edges = list(on(rows, cols).edges)
    failed = frozenset(random.sample(edges, 1) if min(rows, cols) > 1 and random.random() < 0.5 else [])
    heads = random.choice([4, 6, 8])
    work = replace(
        SMALL, heads=heads, kv_heads=heads // random.choice([1, 2]), width=32 * heads, hidden=128 * heads,
        gated=random.random() < 0.5, batch=random.randint(2, 9), layers=random.choice([2, 3]),
    )  # fmt: skip
    device = on(
        rows, cols, failed=failed, link_bytes_per_second=random.choice([1e10, 1e11, 1e12]),
        forwarding=random.choice(["cut", "store"]), hbm_bytes=random.choice([72_000_000_000, 20_000_000]),
    )  # fmt: skip
    strategy = [PLANNED, *BASELINES][seed % (1 + len(BASELINES))]
    best = plan(work, device, strategy)
    if not best.why:
        assert not set(best.loads) & failed
        assert max(best.loads.values(), default=0) <= device.link_bytes_per_second * best.seconds * (1 + 1e-9)
    for slower in (
        plan(replace(work, batch=work.batch + random.randint(1, 3)), device, strategy),
        plan(work, replace(device, hbm_bytes=int(device.hbm_bytes * 0.7)), strategy),
        plan(work, replace(device, link_bytes_per_second=device.link_bytes_per_second / 2), strategy),
    ):
        assert best.seconds <= slower.seconds * (1 + 1e-9)


def test_a_plan_that_does_not_fit_is_never_the_best():
    device = on(2, 2)
    large, small = plan(SMALL, device), plan(SMALL, replace(device, hbm_bytes=10**5))
    assert small.why and min((small, large), key=lambda each: each.seconds) is large
    assert (small.seconds, small.joules, small.watts, small.tokens_per_second) == (inf, inf, inf, 0)
    assert f"needs {small.bytes:,} B on every die" in small.why


@pytest.mark.filterwarnings("error")
def test_where_no_slices_fit_sram_this_is_the_reason():
    device = on(2, 2)
    best, none = (plan(SMALL, replace(device, sram_bytes=size)) for size in (2000, 10))
    assert best.seconds > plan(SMALL, device).seconds and not best.why
    assert none.why == "no slices of its products fit the 10 B of SRAM of a die; give dies with more"


def test_a_wafer_of_one_die_has_a_plan_without_loads():
    best = plan(SMALL, on(1, 1))
    assert (best.loads, best.hottest, best.link_bytes) == ({}, None, 0) and best.seconds < inf


def test_every_micro_batch_takes_the_seconds_of_a_reshard():
    device, seconds = on(2, 4), {}
    for micro in (1, 4):
        seconds[micro] = Case(replace(device, link_seconds=0.0), SMALL, micro).reshard.seconds
    assert seconds[4] == pytest.approx(seconds[1])  # the same tokens in all
    assert Case(device, SMALL, 4).reshard.seconds > Case(device, SMALL, 1).reshard.seconds  # latency four times


@pytest.mark.parametrize(("rows", "cols", "half"), [(2, 3, 4), (4, 4, 16), (3, 5, 18), (6, 8, 96)])
def test_a_reshard_takes_its_bisection_bound_and_avoids_failed_links(rows, cols, half):
    assert exchange(on(rows, cols)).worst[1] == half
    broken = exchange(on(rows, cols, failed=frozenset({((0, 0), (0, 1))})))
    assert broken.worst[1] >= half and broken.links > exchange(on(rows, cols)).links


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


def test_traffic_of_a_failed_link_takes_a_longer_route():
    whole, broken = on(2, 4), on(2, 4, failed=frozenset({((0, 0), (0, 1))}))
    sizes = (1, 8, 1, 1)
    before, after = (placements(each, sizes)[0].steps[1] for each in (whole, broken))
    assert before.worst == (1, 1) and after.worst > (1, 1)
    assert prod(after.worst) <= prod(fixed(broken, sizes).steps[1].worst)
    assert plan(SMALL, broken).seconds >= plan(SMALL, whole).seconds


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda: placements(on(2, 4), (3, 2, 1, 1)),
            MeshError,
            "data 3 x tensor 2 x context 1 x stream 1 on .* of 8 dies",
        ),
        (lambda: plan(SMALL, on(2, 2), wafers=3), ConfigError, "4 layers do not divide by 3 wafers"),
        (lambda: plan(SMALL, on(2, 2), objective="joy"), ConfigError, "choose 'time' or 'energy'"),
        (lambda: plan(replace(SMALL, kv_heads=1), on(2, 3), TENSOR), ConfigError, "no tuple divides 1 key-value heads"),
        (lambda: workload("gpt3-175"), ConfigError, "did you mean 'gpt3-175b'"),
        (lambda: replace(SMALL, heads=3), ConfigError, "width 256 must be a multiple of 3 heads"),
    ],
)
def test_a_task_that_cannot_be_planned_is_refused(call, error, said):
    with pytest.raises(error, match=said):
        call()
