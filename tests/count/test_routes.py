"""Routes: counted by hand on small lines, and grown with the mesh; test_walk.py compares them with a walk."""

from dataclasses import replace

import numpy as np
import pytest

from schedules import moved, squares
from wafer_triton import price
from wafer_triton.algorithms.product import recipe
from wafer_triton.count.routes import Lines, excess, routes
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.schedule import Schedule
from walk import check, differences


def gemv(side: int, algorithm: str = "ktree", axis: str = "y", groups: tuple[int, ...] | None = None) -> Schedule:
    options = (("algorithm", algorithm), ("axis", axis)) + ((("groups", groups),) if groups is not None else ())
    return recipe("gemv", Mesh(side, side), "fp16", ((1, side), (side, side)), options).schedule


def moves(mesh: Mesh, *rounds) -> Schedule:
    """Build a schedule whose rounds are lists of (axis, send, recv[, lines])."""
    b = Builder(mesh, "moves")
    b.buffer("a", (1,), "fp32", "input")
    for steps in rounds:
        b.round(*moved(b, *steps))
    return b.build()


LINES = {
    "one-hop": ([[("x", [0], [1])]], [[1, 1, 0, 0]]),
    "pass-through": ([[("x", [0], [3])]], [[1, 1, 1, 1]]),
    "apart": ([[("x", [0, 2], [1, 3])]], [[1, 1, 1, 1]]),
    "end-to-end": ([[("x", [0, 1], [1, 2])]], [[1, 2, 1, 0]]),
    "there-and-back": ([[("x", [0, 1], [1, 0])]], [[2, 2, 0, 0]]),
    "the-same-again": ([[("x", [0], [2])], [("x", [0], [2])]], [[1, 1, 1, 0]]),
    "two-buffers": ([[("x", [0], [2]), ("x", [0], [2])]], [[1, 1, 1, 0]]),
    "multicast": ([[("x", 0, [1, 2, 3])]], [[1, 1, 1, 1]]),
    "both-ways": ([[("x", 1, [0, 2])]], [[1, 1, 1, 0]]),
    "two-multicasts": ([[("x", 0, [1, 2, 3])], [("x", 0, [1, 2])]], [[2, 2, 2, 1]]),
    "ring": ([[("x", [0, 1, 2, 3], [1, 2, 3, 0])]], [[2, 3, 3, 2]]),
}


@pytest.mark.parametrize(("rounds", "per_core"), LINES.values(), ids=LINES)
def test_routes_of_a_line_counted_by_hand(rounds, per_core):
    example = moves(Mesh(1, 4), *rounds)
    needed = routes(example)
    assert needed.per_core.tolist() == per_core
    assert needed.colours == needed.maximum == max(per_core[0])
    check({"moves": example})


def test_axes_and_lines_add_up_where_they_cross():
    example = moves(Mesh(3, 3), [("x", [0], [2], [1]), ("y", [0], [2], [1])])
    needed = routes(example)
    assert needed.per_core.tolist() == [[0, 1, 0], [1, 2, 1], [0, 1, 0]]
    assert needed.colours == 2
    check({"moves": example})


def test_moves_inside_a_folded_core_need_no_route():
    example = moves(Mesh(1, 2).square(), [("y", [0, 1], [1, 0])], [("x", [0], [1])])
    needed = routes(example)
    assert needed.per_core.tolist() == [[1, 1]], "both logical rows use one route, one after the other"
    check({"moves": example})


@pytest.mark.parametrize("algorithm", ["mesh", "cannon"])
def test_compute_shift_needs_the_same_routes_at_every_size(algorithm):
    assert {routes(squares(Mesh(side, side), algorithm)).colours for side in (4, 8, 16, 32, 64, 128)} == {12}


@pytest.mark.parametrize("algorithm", ["summa", "allgather"])
def test_summa_and_all_gather_need_routes_in_proportion_to_the_side(algorithm):
    # on each axis a core meets a multicast of every core, of which its own goes both ways by one route
    assert [routes(squares(Mesh(side, side), algorithm)).colours for side in (4, 8, 16, 32, 64, 128)] == [
        2 * side for side in (4, 8, 16, 32, 64, 128)
    ]


@pytest.mark.parametrize(
    ("mesh", "algorithm", "transposed", "fullest"), [(Mesh(4, 6), "summa", "b", 24), (Mesh(3, 3), "mesh", "", 8)]
)
def test_a_mesh_needs_no_more_colours_than_its_fullest_router(mesh, algorithm, transposed, fullest):
    """Lines alone took 26 and 12: where colours along x were many, those along y were few."""
    schedule = squares(mesh, algorithm, transposed)
    assert routes(schedule).colours == routes(schedule).maximum == fullest
    assert not price(schedule).relayed and differences(schedule) == []


def test_circuits_are_numbered_in_the_order_of_rounds():
    """Round t of SUMMA multicasts from column t; in an order by hash the numbers differed from process to process."""
    schedule = recipe("gemm", Mesh(8, 8), "fp16", ((8, 8), (8, 8)), (("algorithm", "summa"),)).schedule
    starts = [start for start, _ in routes(schedule).x.several]
    assert starts == [*range(8)]


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_a_k_tree_needs_routes_in_proportion_to_its_levels(levels):
    needed = []
    for side in (16, 81, 128):
        groups = tuple(round(side ** ((levels - one) / levels)) for one in range(1, levels))
        needed.append(routes(gemv(side, groups=groups)).colours)
    # two chains end in the root on every level, and the broadcast leaves it both ways
    assert all(levels + 1 <= one <= 2 * levels + 2 for one in needed)


def test_star_needs_a_route_for_every_core_and_a_chain_three():
    assert [routes(gemv(side, "star")).colours for side in (4, 9, 16)] == [4, 9, 16]
    assert {routes(gemv(side, "pipeline")).colours for side in (4, 9, 16)} == {3}


@pytest.mark.slow
def test_a_wafer_sized_mesh_is_coloured():
    assert routes(squares(Mesh(720, 720))).colours == 12
    assert routes(gemv(720, groups=(24,))).colours == 5


@pytest.mark.parametrize(("axis", "mesh"), [("x", Mesh(1, 5)), ("y", Mesh(5, 1))], ids=["x", "y"])
def test_circuits_of_one_router_that_share_a_colour_differ_from_the_walk(axis, mesh, monkeypatch):
    example, colour = moves(mesh, [(axis, [0, 1, 2, 3], [1, 2, 3, 4])]), Lines.colour.fget
    monkeypatch.setattr(Lines, "colour", property(lambda lines: np.minimum(colour(lines), 0)))
    assert [line.partition(":")[0] for line in differences(example)] == [
        f"router {(0, at) if axis == 'x' else (at, 0)}" for at in (1, 2, 3)
    ]
    with pytest.raises(pytest.fail.Exception) as caught:
        check({"large": moves(Mesh(6, 6), [(axis, [0, 1], [1, 2])]), "small": example})
    names = [line.partition(":")[0] for line in str(caught.value).splitlines()]
    assert names == ["small"] * 3 + ["large"] * 6, "all differences, those of the smallest schedule first"


def on(example: Schedule, most: int | None) -> Schedule:
    return replace(example, mesh=replace(example.mesh, device=replace(device("wse2"), name="mine", routes=most)))


def test_within_the_limit_nothing_is_found():
    for most in (12, None):
        assert excess(on(squares(Mesh(4, 4)), most)) is None


def test_one_route_too_many_is_named_with_core_count_and_limit():
    found = excess(on(squares(Mesh(5, 5)), 11))
    assert found.core == (2, 2) and "core (2, 2) needs 12 routes" in found.message and "mine has 11" in found.message
