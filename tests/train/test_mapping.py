"""Routes of concurrent flows equal brute force, meet the bounds of collectives and avoid failed links.

Every change of a route lowers the objective: the time of the busiest link, then bytes times hops.
"""

from dataclasses import replace
from itertools import pairwise, product
from random import Random

import networkx as nx
import pytest

from wafer_triton.train.dies import wafer as wafer_named
from wafer_triton.train.flows import Flow, all_gather, all_to_all, bisection_bytes, merge
from wafer_triton.train.mapping import construct, dimension_ordered, route


def wafer_of(rows, cols, **change):
    return replace(wafer_named("wafer-48"), name=f"{rows}x{cols}", rows=rows, cols=cols, **change)


def check_routing(routing):
    """Assert that each flow's tree has one path to every target, over links that have not failed."""
    for flow, tree in zip(routing.flows, routing.trees, strict=True):
        graph = nx.DiGraph([link[::-1] if flow.reduce else link for link in tree])
        assert nx.is_arborescence(graph) and set(graph) >= {flow.source, *flow.targets}
        assert all(routing.wafer.links.has_edge(*link) for link in tree)
        assert {die for die in graph if graph.out_degree(die) == 0} <= flow.targets


def every_tree(graph, flow):
    """Yield every tree that is a union of simple paths to the targets."""
    paths = [list(nx.all_simple_paths(graph, flow.source, target)) for target in sorted(flow.targets)]
    for chosen in product(*paths):
        links = {link for path in chosen for link in pairwise(path)}
        # a tree enters each die at most once, and its source never
        if all(sum(end == die for _, end in links) <= 1 for die in graph) and not any(
            end == flow.source for _, end in links
        ):
            yield frozenset(links)


def brute_force(wafer, flows):
    choices = [set(every_tree(wafer.links, flow)) for flow in flows]
    best = None
    for chosen in product(*choices):
        loads = {}
        for flow, tree in zip(flows, chosen, strict=True):
            for link in tree:
                loads[link] = loads.get(link, 0) + flow.size
        key = max(loads.values()) / wafer.link_bytes_per_second, sum(loads.values())
        best = key if best is None else min(best, key)
    return best


@pytest.mark.parametrize(("rows", "cols", "count", "targets_of_a_flow"), [
    (2, 2, 3, 2), (2, 3, 3, 1), (2, 3, 2, 3), (3, 3, 3, 1), (3, 3, 1, 3), (1, 4, 3, 2),
])  # fmt: skip
@pytest.mark.parametrize("seed", [0, 1])
def test_routes_of_few_flows_equal_brute_force(rows, cols, count, targets_of_a_flow, seed):
    wafer, random = wafer_of(rows, cols), Random(seed)
    dies = sorted(wafer.links)
    flows = []
    for number in range(count):
        source, *targets = random.sample(dies, targets_of_a_flow + 1)
        flows.append(Flow(source, frozenset(targets), random.choice([1.0, 2.0, 3.0]), f"block {number}"))
    routing = route(wafer, flows)
    check_routing(routing)
    assert routing.proved and routing.objective == pytest.approx(brute_force(wafer, merge(flows)))


def test_all_gather_meets_the_corners_bound():
    wafer = wafer_of(5, 5)
    routing = route(wafer, all_gather(wafer, 25.0))
    check_routing(routing)
    corner = 25.0 * 24 / 25 / 2 / wafer.link_bytes_per_second  # a corner takes 24 blocks over two links
    assert corner <= routing.objective[0] <= 1.05 * corner


@pytest.mark.parametrize(("rows", "cols"), [(2, 3), (4, 4), (3, 5), (4, 6)])
def test_all_to_all_meets_the_bisection_bound(rows, cols):
    wafer = wafer_of(rows, cols)
    flows = all_to_all(wafer, 3.0)
    routing = dimension_ordered(wafer, flows) if rows * cols > 16 else route(wafer, flows)
    check_routing(routing)
    assert routing.objective[0] * wafer.link_bytes_per_second == pytest.approx(bisection_bytes(rows, cols, 3.0))


@pytest.mark.parametrize("flows", ["gather", "pairs", "reduce"])
def test_the_objective_is_no_worse_than_before_and_a_failed_link_carries_nothing(flows):
    broken = wafer_of(4, 4, failed=frozenset({((1, 1), (1, 2))}))
    random = Random(7)
    dies = sorted(broken.links)
    made = {
        "gather": lambda: all_gather(broken, 16.0),
        "pairs": lambda: [Flow(a, frozenset([b]), 1.0) for a, b in (random.sample(dies, 2) for _ in range(40))],
        "reduce": lambda: [replace(flow, reduce=True) for flow in all_gather(broken, 16.0)],
    }[flows]()
    routing = route(broken, made)
    check_routing(routing)
    assert routing.objective <= min(dimension_ordered(broken, made).objective, construct(broken, made).objective)
    assert all(link not in routing.loads for link in (((1, 1), (1, 2)), ((1, 2), (1, 1))))


def test_one_failed_link_is_routed_around_as_brute_force_does():
    broken = wafer_of(2, 3, failed=frozenset({((0, 0), (0, 1))}))
    flows = [Flow((0, 0), frozenset([(0, 2)]), 2.0), Flow((0, 0), frozenset([(0, 1)]), 1.0)]
    assert route(broken, flows).objective == pytest.approx(brute_force(broken, flows))


def test_flows_of_one_block_are_one_multicast_and_cross_a_link_once():
    flows = [Flow((0, 0), frozenset([(0, col)]), 5.0, "w") for col in (1, 2, 3)]
    assert len(merge(flows)) == 1 and len(merge([replace(flow, block="") for flow in flows])) == 3
    routing = route(wafer_of(1, 4), flows)
    assert set(routing.loads.values()) == {5.0} and routing.objective[1] == 15.0
