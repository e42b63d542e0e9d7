"""The graph serving of docs/examples equals plain torch, its formulas the public ones and simulations."""

import runpy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import pad

import walk
from examples import FOLDER, with_names_of_operations
from wafer_triton import WaferError, check
from wafer_triton.errors import SramError

pytestmark = pytest.mark.slow
NODES, SIZES, FANOUTS = 60, (10, 8, 3), (3, 2)


@pytest.fixture(scope="module")
def graph():
    with with_names_of_operations():
        yield SimpleNamespace(**runpy.run_path(str(FOLDER / "graph.py")))


@pytest.fixture(scope="module")
def data(graph):
    """Return starts and edges of a graph, of which two nodes have no neighbours, features and weights."""
    starts, edges = graph.power_law(NODES - 2, 200)
    starts = np.append(starts, [len(edges)] * 2)
    generator = torch.Generator().manual_seed(0)
    width, hidden, classes = SIZES
    shapes = ((NODES, width), (2, width, hidden), (2 * hidden, classes))
    return starts, edges, *(torch.randn(shape, generator=generator) for shape in shapes)


def requests(rows, seed=0):
    """Return targets, the last of them without a neighbour, and numbers for their neighbours."""
    random = np.random.default_rng(seed)
    targets = np.append(random.integers(0, NODES, rows - 1), NODES - 1)
    return targets, random.integers(0, 1024, rows) / 1024, random.integers(0, 1024, (rows, 1 + FANOUTS[0])) / 1024


def plain(nodes, features, w1, w2):
    """Return GraphSAGE's classes [rows, classes] from sampled nodes [rows, 1 + near, 1 + far], -1 for none."""

    def joined(x, nodes):
        real = torch.from_numpy(nodes[..., 1:] >= 0)[..., None]
        mean = (x[..., 1:, :] * real).sum(-2) / real.sum(-2).clamp(min=1)
        return torch.cat([x[..., 0, :], mean], -1)

    x = pad(features, (0, 0, 0, 1))[nodes]  # the row after the last is of no node
    h = (joined(x, nodes) @ w1.flatten(0, 1)).relu()
    return joined(h, nodes[..., 0]) @ w2


@pytest.mark.parametrize("mesh", ["4x3", "1x4", "6x2", "3x5"])
def test_classes_equal_plain_torch_on_the_same_samples(graph, data, mesh):
    sage = graph.Sage(mesh, NODES, len(data[1]), SIZES, FANOUTS, hot=7).load(*data)
    for seed in range(3):
        given = requests(sage.rows, seed)
        out, nodes, _ = sage.serve(*given)
        assert np.array_equal(nodes, graph.samples(*data[:2], *given, FANOUTS))
        assert (nodes[-1].ravel()[1:] == -1).all(), "the last target has no neighbours"
        torch.testing.assert_close(out, plain(nodes, *data[2:]), rtol=0, atol=1e-5 * float(out.abs().max()))


def test_seven_placements_give_the_same_bits(graph, data):
    starts, edges, *_ = data
    by_degree = np.argsort(-np.diff(starts), kind="stable")
    by_access = np.argsort(-graph.access(starts, edges, np.full(NODES, 1 / NODES), FANOUTS), kind="stable")
    answers = []
    for order, how in (
        (None, {}),
        (by_degree, {"hot": 9}),
        (by_access, {"hot": 9, "ids_a_pass": 5}),
        (by_access, {"group": 3, "graph_rows": 2}),
        (by_access, {"group": 1, "ids_a_pass": 1}),
        (by_degree, {"hot": 20, "group": 2, "ids_a_pass": 4, "graph_rows": 6}),
        (None, {"hot": NODES - 1, "graph_rows": 3}),
    ):
        sage = graph.Sage("6x3", NODES, len(edges), SIZES, FANOUTS, **how).load(*data, order=order)
        answers.append(sage.serve(*requests(6)))
    assert all(torch.equal(out, answers[0][0]) and np.array_equal(nodes, answers[0][1]) for out, nodes, _ in answers)
    assert len({passes for *_, passes in answers}) > 2


def test_samples_are_different_neighbours_each_as_often_as_others(graph, data):
    starts, edges, *_ = data
    target, numbers = int(np.diff(starts).argmax()), np.arange(1024) / 1024
    degree = int(np.diff(starts)[target])
    u_far = np.zeros((1024, 1 + FANOUTS[0]))
    near = graph.samples(starts, edges, np.full(1024, target), numbers, u_far, FANOUTS)[:, 1:, 0]
    assert (np.diff(np.sort(near), axis=1) > 0).all()
    counts = np.unique(near, return_counts=True)[1]
    assert len(counts) == degree and np.abs(counts - 1024 * FANOUTS[0] / degree).max() <= 2


def test_access_equals_the_public_recurrence(graph, data):
    """1 - (1 - p(v)) times the product over u, of which v is a neighbour, of 1 - p(u) min(1, k / deg u)."""
    starts, edges, *_ = data
    p = np.random.default_rng(0).random(NODES)
    wanted = p.copy()
    for k in FANOUTS:
        before, wanted = wanted, wanted.copy()
        for v in range(NODES):
            missed = 1 - before[v]
            for u in range(NODES):
                degree = starts[u + 1] - starts[u]
                if v in edges[starts[u] : starts[u + 1]]:
                    missed *= 1 - before[u] * min(1, k / degree)
            wanted[v] = 1 - missed
    np.testing.assert_allclose(graph.access(starts, edges, p, FANOUTS), wanted, rtol=1e-13)


def test_the_expected_size_is_that_of_simulated_requests(graph):
    """On a tree a node is reached by one way, so its draws are independent, as the formula takes them."""
    random, count, children = np.random.default_rng(0), 4000, np.arange(1, 2000)
    parents = random.integers(0, children)
    ends = np.append([children, parents], [parents, children], 1)
    starts, edges = np.append(0, np.bincount(ends[0]).cumsum()), ends[1][np.argsort(ends[0], kind="stable")]
    for target in (0, 5, 77, 1234):
        u = random.random((count, 2 + FANOUTS[0]))
        nodes = graph.samples(starts, edges, np.full(count, target), u[:, 0], u[:, 1:], FANOUTS).reshape(count, -1)
        ordered = np.sort(nodes, 1)
        sizes = 1 + (np.diff(ordered, axis=1) > 0).sum(1) - (ordered[:, 0] < 0)
        expected = graph.access(starts, edges, np.eye(2000)[target], FANOUTS).sum()
        assert abs(sizes.mean() - expected) < 4 * sizes.std() / count**0.5, target


def test_a_pass_takes_the_ids_of_the_fullest_row(graph):
    cold = np.random.default_rng(0).binomial(66, 0.4, 4000)
    k = graph.ids_a_pass(cold, 64)
    assert 64 * (cold > k).mean() <= 0.05 < 64 * (cold > k - 1).mean()


def test_bad_input_is_refused_and_nothing_is_lost(graph, data):
    make = lambda **how: graph.Sage("4x3", NODES, len(data[1]), SIZES, FANOUTS, **how)  # noqa: E731
    sage, (targets, *numbers) = make(hot=7).load(*data), requests(4)
    first = sage.serve(targets, *numbers)[0]
    for call, message in (
        (lambda: sage.serve(targets[:3], *numbers), "serve: 3 nodes; give 4 nodes from 0 to 59, one a row of cores"),
        (lambda: sage.serve(targets + 1, *numbers), "serve: node 60; give 4 nodes from 0 to 59, one a row of cores"),
        (lambda: sage.serve(targets, numbers[0] + 1, numbers[1]), "serve: numbers must be at least 0 and below 1"),
        (lambda: make(group=3), "Sage: group = 3; give a divisor of the 4 rows of cores"),
        (lambda: make(hot=60), "Sage: 60 hot of 60 nodes; give from 0 to 59"),
        (lambda: make().load(*data, order=[1, 2]), "load: order has 2 numbers; give each of 60 nodes once"),
    ):
        with pytest.raises(WaferError, match=message):
            call()
    with pytest.raises(SramError, match="cold"):
        graph.Sage("4x3", 20_000, 400, SIZES, FANOUTS).serving(1)
    assert torch.equal(sage.serve(targets, *numbers)[0], first)


def test_the_two_examples_load_in_one_process(graph):
    runpy.run_path(str(FOLDER / "replay.py"))


def test_schedules_of_two_placements_are_healthy_and_counted_as_the_walk_counts_them(graph):
    made = {}
    for mesh, how in (("4x2", {"hot": 3, "group": 2, "graph_rows": 2, "ids_a_pass": 4}), ("2x3", {"ids_a_pass": 5})):
        sage = graph.Sage(mesh, 11, 30, (4, 3, 2), (2, 1), **how)
        made |= {f"{one.name} on {mesh}": one for one in (sage.sampling(), sage.serving(2))}
    assert all(check(one).ok for one in made.values())
    walk.check(made)
