"""Routes of blocks that move at once are as good as brute force, and avoid failed links."""

from dataclasses import replace
from itertools import pairwise, permutations, product
from random import Random

import networkx as nx
import pytest

from wafer_triton.train.dies import wafer as wafer_named
from wafer_triton.train.mapping import construct, dimension_ordered, link_blocks, objective, route


def wafer_of(rows, cols, **change):
    return replace(wafer_named("wafer-48"), name=f"{rows}x{cols}", rows=rows, cols=cols, **change)


def check_paths(wafer, paths):
    """Assert that each pair has one path from its source to its target, over working links alone."""
    for (source, target), links in paths.items():
        assert all(wafer.links.has_edge(*link) for link in links)
        assert set(pairwise(nx.shortest_path(nx.DiGraph(links), source, target))) == links


def brute_force(wafer, pairs):
    choices = [list(map(pairwise, nx.all_simple_paths(wafer.links, *pair))) for pair in pairs]
    choices = [[frozenset(path) for path in paths] for paths in choices]
    return min(objective(link_blocks(dict(zip(pairs, chosen, strict=True)))) for chosen in product(*choices))


@pytest.mark.parametrize(("rows", "cols", "count"), [(2, 2, 5), (2, 3, 4), (3, 3, 3), (1, 4, 5)])
@pytest.mark.parametrize("seed", range(4))
def test_routes_of_few_pairs_equal_brute_force(rows, cols, count, seed):
    random = Random(seed)
    failed = frozenset({((0, 0), (0, 1))}) if rows > 1 and seed % 2 else frozenset()
    wafer = wafer_of(rows, cols, failed=failed)
    pairs = random.sample(list(permutations(wafer.links, 2)), count)
    paths = route(wafer, pairs)
    check_paths(wafer, paths)
    assert objective(link_blocks(paths)) == brute_force(wafer, pairs)


def test_the_objective_is_no_worse_than_before_and_a_failed_link_carries_nothing():
    broken = wafer_of(4, 4, failed=frozenset({((1, 1), (1, 2))}))
    pairs = Random(7).sample(list(permutations(broken.links, 2)), 40)
    mapped, *before = (way(broken, pairs) for way in (route, dimension_ordered, construct))
    check_paths(broken, mapped)
    assert objective(link_blocks(mapped)) < min(objective(link_blocks(paths)) for paths in before)
