"""One price: what a plan takes for a product is what the schedules of its slices cost, on the dies as they are."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import product as every
from math import ceil
from random import Random

import numpy as np
import pytest

from wafer_triton.algorithms.stream import stream
from wafer_triton.algorithms.stream_rounds import gather
from wafer_triton.count.account import link_loads, per_round
from wafer_triton.errors import SramError
from wafer_triton.schedule.builder import Builder
from wafer_triton.train.cost import die_cost, sliced
from wafer_triton.train.dies import WAFERS, wafer
from wafer_triton.train.options import Case, Pairs, option, splits
from wafer_triton.train.placement import exchange, placements
from wafer_triton.train.planner import BASELINES, plan
from wafer_triton.train.product import PASSES, Team, product
from wafer_triton.train.workload import WORKLOADS, workload

ADDED = {"forward": {"y": 1}, "dx": {"dx": 2}, "dw": {"dw": 0}, "backward": {"dx": 2, "dw": 0}}  # by the cut of


def schedules(team, moving, which, tile, cuts):
    """Yield the schedule of each kind of slice and how often it runs."""
    sizes = [ceil(size / cut) for size, cut in zip(tile, cuts, strict=True)]
    added = {name: cuts[axis] for name, axis in ADDED[which].items() if cuts[axis] > 1}
    (parts,) = added.values() or (1,)
    runs = cuts[0] * cuts[1] * cuts[2] // parts
    for role, times in (("cache", runs * (parts - 1)), ("state", runs)):
        if times:
            taken = dict.fromkeys(added, role)
            yield product(team, moving, which, *sizes, "bf16", "bf16", taken), times


def cost(team, on, moving, which, tile, cuts):
    """Return seconds, link bytes, joules and bytes of HBM of all slices."""
    figures = np.zeros(4)
    for schedule, times in schedules(team, moving, which, tile, cuts):
        one = die_cost(schedule, on)
        figures += times * np.array([one.seconds, one.link_bytes, one.joules, one.hbm_bytes])
    return figures


def random_products(count, seed):
    """Yield a random product of a published model on a random placement: wafer, step of its stream and tile."""
    random = Random(seed)
    while count:
        on = replace(random.choice(list(WAFERS.values())), forwarding=random.choice(["cut", "store"]))
        work = workload(random.choice(list(WORKLOADS)), batch=random.choice([1, 2, 4, 6, 8]))
        case, op = Case(on, work), random.choice([op for op in work.operators if op.weights])
        split = random.choice(list(splits(case)))
        placed = random.choice(placements(on, split.sizes))
        if placed.strides[3] == (1, 1):
            count -= 1
            yield case, op, split, placed


def test_500_products_of_plans_cost_what_the_schedules_of_their_slices_do():
    worst = np.zeros(4)
    for case, op, split, placed in random_products(500, 1):
        on, table = case.wafer, Pairs(case.wafer, [(split, placed)])
        moving = {"xy": "x" if op.side == "in" else "y"}.get(split.moving, "w")
        k = ceil(op.k / (split.tensor if op.side == "out" else 1) / (split.stream if moving == "y" else 1))
        n = ceil(op.n / (split.tensor if op.side == "in" else 1) / (1 if moving == "y" else split.stream))
        tile = int(table.rows(case)[0]), k, n
        team = Team(on.mesh(), placed.steps[3].kind.replace("none", "relay"), *placed.sides[3])
        figures = np.zeros(4)
        for which in PASSES[moving]:
            cuts = sliced(on, table.streams, moving, which, np.array(tile)[:, None], 2, 2).cuts[:, 0]
            figures += cost(team, on, moving, which, tile, tuple(map(int, cuts)))
        compute, exposed, late, hbm, *sent = sum(table.passes([case], op)[0])[:, 0]
        planned = compute + exposed + late, sum(sent) * placed.steps[3].links * on.dies, 0, hbm * on.dies
        joules = on.joules(compute * on.flops * on.dies, planned[1], planned[3])
        planned = np.array([*planned[:2], joules, planned[3]])
        worst = np.maximum(worst, abs(planned / np.maximum(figures, 1e-300) - 1) * (figures > 0))
    assert (worst < 1e-9).all(), worst


def test_slices_are_the_best_of_all_that_fit():
    random = Random(3)
    for case, _, split, placed in random_products(12, 2):
        on, table = case.wafer, Pairs(case.wafer, [(split, placed)])
        moving, which = random.choice([(moving, which) for moving, passes in PASSES.items() for which in passes])
        tile = np.array([[random.choice([683, 8192])], [4096], [384]])
        (seconds,) = sum(sliced(on, table.streams, moving, which, tile, 2, 2)[1:4])
        team = Team(on.mesh(), placed.steps[3].kind.replace("none", "relay"), *placed.sides[3])
        for cuts in every([1, 2, 8], repeat=3):
            if which == "backward" and cuts[0] > 1 and cuts[2] > 1:
                continue  # sums of both gradients would stay in SRAM
            with suppress(SramError):
                assert seconds <= cost(team, on, moving, which, tile[:, 0], cuts)[0] * (1 + 1e-9)


@pytest.mark.parametrize("sizes", [(2, 3, 1, 8), (1, 8, 6, 1), (4, 1, 1, 12), (1, 2, 4, 6)])
def test_transfers_of_a_placement_are_those_that_its_streams_count(sizes):
    on = wafer("wafer-48")
    for placed in placements(on, sizes, prune=False):
        for step in placed.steps:
            if not step.rings:
                continue
            b = Builder(on.mesh(), "stream")
            block = b.buffer("block", (1,), "fp32", "input")
            gather(b, stream(step.kind, len(step.rings[0])).without_unused_sends(), step.rings, block, lambda *_: [])
            schedule = b.build()
            counts = Counter((one.hops, one.busiest_link_bytes // 4) for one in per_round(schedule) if one.hops)
            assert counts == dict(step.transfers)
            loads = dict(zip(on.edges, step.loads * (len(step.rings[0]) - 1), strict=True))
            ways = {"east": (0, 1), "west": (0, -1), "south": (1, 0), "north": (-1, 0)}
            for way, counted in link_loads(schedule).items():
                for (row, col), size in np.ndenumerate(counted):
                    there = row + ways[way][0], col + ways[way][1]
                    assert loads.get(((row, col), there), 0.0) == pytest.approx(size / 4)


def test_what_a_pipeline_keeps_and_waits_for_is_recounted():
    """Check activations in flight, bubbles and re-sharding by hand: no product's schedule has them."""
    on, work = wafer("wafer-32"), workload("gpt3-6.7b", batch=16)
    one, four = (plan(work, on, BASELINES[2], wafers=number) for number in (1, 4))
    shares = {name: seconds for name, seconds in four.parts.items() if name != "bubbles"}
    handed = 2 * ceil(work.batch / four.micro_batches) * work.sequence * work.width * 2 / 9e12
    assert four.parts["bubbles"] == pytest.approx(3 * (sum(shares.values()) / four.micro_batches + handed))
    assert one.parts["bubbles"] == 0
    case = Case(on, work, micro_batches=8, layers=8)
    split = next(split for split in splits(case) if split.tensor == 8 and split.data == 4 and split.sequence)
    (placed, *_) = placements(on, split.sizes)
    for op in work.operators:
        kept = [option(replace(case, wafers=number), op, split, placed, "none").kept_bytes for number in (1, 4, 16)]
        assert kept == pytest.approx([kept[0], 4 * kept[0], 8 * kept[0]])  # at most all eight micro-batches
    pair = case.tokens * work.width * 2 / on.dies**2
    assert case.reshard.seconds == pytest.approx(2 * 8 * exchange(on).seconds(on, pair))


def test_joules_of_bits_and_bytes_of_scores_are_those_of_their_sources():
    terabit = 1e12 / 8  # bytes; 5 pJ a bit over a link, 6 pJ a bit of HBM
    assert [wafer("wafer-32").joules(0, *sent) for sent in ((terabit, 0), (0, terabit))] == pytest.approx([5, 6])
    for name, each in (("gpt3-6.7b", 5), ("llama2-7b", 2)):  # 5 a s of Korthikanti et al., without dropout 2 a s
        work = workload(name)
        (attention,) = [op for op in work.operators if op.side == "attention"]
        assert attention.scores == each * work.heads * work.sequence
