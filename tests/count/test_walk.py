"""Counts of schedules of every kind, on square and on rectangular meshes, equal a walk of every message."""

import itertools
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from pairs import in_turn
from schedules import LAYERS, MOVES, SUMS, Make, build, squares
from steps_at_random import exchanges
from wafer_triton import price
from wafer_triton.algorithms import collectives
from wafer_triton.algorithms.stream import groups, stream
from wafer_triton.algorithms.stream_rounds import gather
from wafer_triton.count.account import account, link_loads
from wafer_triton.count.routes import colours, routes
from wafer_triton.count.runs import RoundRun
from wafer_triton.count.traffic import Traffic
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Loop, Rounds, nth
from walk import Walk, check, of_routes


def transpose(mesh: Mesh, dtype: str, sums: str) -> Schedule:
    b = Builder(mesh.square(), "transpose")
    b.buffer("a", (3,), dtype, "input")
    collectives.transpose(b, "a", b.like("b", "a"))
    return b.build()


def relay(mesh: Mesh, dtype: str, sums: str) -> Schedule:
    """Build the relay's gather stream on all cores as one group of dies."""
    b, moves = Builder(mesh, "relay"), stream("relay", mesh.cores)
    b.buffer("own", (2,), dtype, "input")
    b.buffer("out", (2,), dtype, "output", moves.size)
    dies = groups(mesh, "relay", mesh.rows, mesh.cols)
    gather(b, moves, dies, "own", lambda t, block, at: [b.local("copy", Slot("out", t), block, at, size=2)])
    return b.build()


KINDS: dict[str, Make] = {**SUMS, **MOVES, **LAYERS, "transpose": transpose, "relay": relay}
MESHES = ("2", "3", "4", "5", "1x4", "3x1", "2x3", "3x2", "2x4", "4x2", "3x4", "4x6")
EACH_TWICE = in_turn([(kind, dtype) for dtype in ("fp32", "fp16") for kind in KINDS], MESHES)


@pytest.mark.slow
def test_counts_equal_a_walk_of_every_message():
    check({f"{kind}, {dtype}, mesh {mesh}": build(KINDS[kind], mesh, dtype) for (kind, dtype), mesh in EACH_TWICE})


def test_counts_of_random_exchanges_equal_a_walk_of_every_message():
    meshes = [Mesh(3, 4), Mesh(2, 3).square(), Mesh(1, 5), Mesh(4, 2).square()]
    check({f"seed {seed}": exchanges(seed, meshes[seed % 4]) for seed in range(30)})


def test_a_line_in_fewer_rounds_may_have_the_longer_path():
    schedule = relay(Mesh(3, 3), "fp32", "fp32")
    stream = RoundRun(tuple(round_ for round_ in schedule.rounds if round_.exchanges))
    assert Traffic(schedule).hops(stream) == Walk(schedule).path(stream) == 8


@pytest.mark.parametrize(
    ("mesh", "transposed", "most"),
    [(Mesh(2, 3), "", 6), (Mesh(3, 4), "", 8), (Mesh(6, 8), "", 8), (Mesh(4, 8), "", 10),
     (Mesh(3, 4), "b", 8)],
    ids=str,
)  # fmt: skip
def test_logical_cores_of_one_physical_core_have_circuits_of_their_own(mesh, transposed, most):
    schedule = squares(mesh, "mesh", transposed)
    assert colours(schedule) == routes(schedule).colours == most


def fewest(walk: Walk) -> int:
    """Return the fewest colours with which no two circuits of a router share one, by an integer programme for each."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    touching = [list(circuits) for circuits in walk.circuits().values()]
    numbers = {circuit: number for number, circuit in enumerate({each for circuits in touching for each in circuits})}
    for most in itertools.count(max(map(len, touching), default=0)):
        if most == colours(walk.schedule):  # one is there, and there are none with fewer
            return most
        fits = np.zeros((len(touching), len(numbers)))
        for row, circuits in zip(fits, touching, strict=True):
            row[[numbers[each] for each in circuits]] = 1
        coloured = LinearConstraint(np.kron(np.eye(len(numbers)), np.ones(most)), 1, 1)
        apart = LinearConstraint(np.kron(fits, np.eye(most)), 0, 1)
        size = len(numbers) * most
        if milp(np.zeros(size), integrality=np.ones(size), bounds=Bounds(0, 1), constraints=[coloured, apart]).success:
            return most
    raise AssertionError


@pytest.mark.slow
def test_an_exact_search_finds_no_assignment_with_fewer_colours():
    meshes = [Mesh(*sides) for sides in product(range(1, 7), repeat=2)]
    meshes = [*meshes * 5, *(mesh.square() for mesh in meshes if mesh.rows * mesh.cols <= 12)]
    walks = [Walk(exchanges(seed, mesh)) for seed, mesh in enumerate(meshes)]
    wrong = {seed: found for seed, walk in enumerate(walks) if (found := [*of_routes(walk.schedule, walk)])}
    more = {seed: least for seed, walk in enumerate(walks) if (least := fewest(walk)) < colours(walk.schedule)}
    assert len(walks) > 200 and not wrong and not more, (wrong, more)


def test_a_ring_of_five_circuits_needs_a_colour_more_than_its_routers_have():
    b = Builder(Mesh(2, 3), "a ring of circuits")
    b.buffer("a", (1,), "fp32", "input")
    for name in "bcd":
        b.like(name, "a")
    b.round(
        b.exchange("x", "a", "b", [0, 1], [1, 2], [0]), b.exchange("x", "a", "c", [0], [2], [1]),
        b.exchange("y", "a", "d", [0], [1], [0, 2]),
    )  # fmt: skip
    ring = b.build()
    assert (routes(ring).colours, routes(ring).maximum, fewest(Walk(ring))) == (3, 2, 3)
    check({"ring": ring})


def turning(mesh: Mesh, seed: int) -> tuple[Schedule, Schedule]:
    """Return a loop in a loop, each of which turns the rows or the columns, and the same rounds without a loop."""
    random, mesh, axis, other = np.random.default_rng(seed), mesh.square(), "xy"[seed % 2], "yx"[seed % 2]
    side = mesh.shape[0]
    outer, inner = random.permutation(side), random.permutation(side)
    b = Builder(mesh, f"turning {seed}")
    b.buffer("a", (2,), "fp32", "state")
    b.buffer("b", (3,), "fp32", "state")
    # products end a run; where rows share links, the words of the first time would stand for others
    work = [b.local("gemm", b.like("c", "a"), ("b", "b"), m=1, k=1, n=1)] * (seed // 2 % 2 and mesh.fold == (1, 1))
    for _ in range(3):
        lines = np.sort(random.permutation(side)[: random.integers(1, side + 1)])
        ends = random.integers(0, side, (2, len(lines), 2) if random.random() < 0.4 else (2, 2))
        spans = [b.exchange(axis, name, name, ends[0], ends[1], lines) for name in "ab"[: random.integers(1, 3)]]
        apart = b.exchange(other, "b", "a", [[0, 1], [1, -1]], [[1, side - 1], [0, -1]], [0, 1])
        b.round(*spans, b.exchange(other, "a", "b", [0, 1], [1, side - 1]), apart, *work)
    body, flat = b.rounds, []
    for times in range(4):
        for more in range(7):
            rows = np.arange(side)
            for turn in (inner,) * more + (outer,) * times:
                rows = turn[rows]
            flat += [
                replace(r, exchanges=tuple(replace(e, moves=e.moves.moved(rows, axis)) for e in r.exchanges))
                for r in body
            ]
    nested = replace(b.build(draft=True), rounds=Rounds([Loop((Loop(body, 7, inner, axis),), 4, outer, axis)]))
    return nested, replace(nested, rounds=Rounds(flat))


@pytest.mark.slow
def test_loops_in_loops_whose_rows_turn_count_as_their_rounds():
    meshes = ("6", "2x3", "3x2", "2x6", "6x4")
    pairs = {f"mesh {mesh}, seed {seed}": turning(as_mesh(mesh), seed) for mesh, seed in product(meshes, range(4))}
    nested, flat = ({name: pair[side] for name, pair in pairs.items()} for side in (0, 1))
    check(nested, flat)
    for name, one in nested.items():
        numbers = range(0, len(one.rounds), 5)
        assert [nth(one.rounds.steps, number) for number in numbers] == list(flat[name].rounds[::5]), name
    assert {name: price(one).cycles for name, one in nested.items()} == pytest.approx(
        {name: price(one).cycles for name, one in flat.items()}
    )


SPELLINGS = {  # of a tile of core 1 to cores 0, 2 and 3 of each of two lines
    "one exchange": [([1], [0, 2, 3], None)],
    "one for each way": [([1], [0], None), ([1], [2, 3], None)],
    "one for each line": [([1], [0, 2, 3], [0]), ([1], [0, 2, 3], [1])],
    "line by line": [([[1], [1]], [[0, 2, 3], [0, 2, 3]], [0, 1])],
    "some lines both ways": [([1], [0], None), ([[1], [1]], [[2, 3], [2, 3]], [0, 1])],
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_multicast_is_one_message_however_it_is_spelled(spelling):
    b = Builder(Mesh(2, 4), spelling)
    b.buffer("a", (3,), "fp32", "input")
    b.buffer("b", (3,), "fp32", "output")
    b.round(
        *(b.exchange("x", "a", "b", np.broadcast_to(s, np.shape(r)), r, lines) for s, r, lines in SPELLINGS[spelling])
    )
    found = account(b.build())
    assert (found.messages, found.link_bytes, found.flows) == (2, 2 * 3 * 12, 1)


def test_no_count_makes_the_rounds_of_loops():
    schedule = squares(Mesh(24, 36), "mesh", "b")
    total = sum(int(load.sum()) for load in link_loads(schedule).values())
    assert account(schedule).link_bytes == total and colours(schedule) > 0
    assert "flat" not in vars(schedule.rounds)
