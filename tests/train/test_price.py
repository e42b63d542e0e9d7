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
from wafer_triton.train.options import Case, Pairs, splits
from wafer_triton.train.placement import placements
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
    random, forwardings = Random(seed), ["cut", "store"]
    wafers = {(name, way): replace(WAFERS[name], forwarding=way) for name in WAFERS for way in forwardings}
    while count:
        on = wafers[random.choice(list(WAFERS)), random.choice(forwardings)]
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
            cuts = sliced(on, table.streams, moving, which, np.array(tile)[:, None], 2, 2, case.weights).cuts[:, 0]
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
        (seconds,) = sum(sliced(on, table.streams, moving, which, tile, 2, 2, case.weights)[1:4])
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
