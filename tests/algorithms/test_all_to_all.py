"""All-to-all: values on meshes of every shape, loads of links by the formula, checks and pictures."""

from dataclasses import replace

import pytest
import torch

from schedules import ROOMY
from wafer_triton.algorithms.product import Recipe, recipe
from wafer_triton.count.account import account, per_round
from wafer_triton.count.routes import routes
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import MeshError, ShapeError
from wafer_triton.ops import executor, run
from wafer_triton.schedule.schedule import Schedule

pytestmark = pytest.mark.slow

DEVICE = replace(ROOMY, name="roomy")
# Tiles that half of a mesh sends to the other half, for each link between them.
HALVES = {(8, 8): 128, (6, 8): 96, (4, 8): 64, (5, 5): 30, (3, 4): 12, (2, 8): 32, (7, 4): 48}


def made(rows: int, cols: int, parts: int = 1, size: int = 1) -> Recipe:
    shape = (rows, cols, parts, rows, cols, size)
    return recipe("all_to_all", Mesh(rows, cols, DEVICE), "fp32", (shape,))


def swapped(exchange: Recipe, how: str = "explicit") -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tiles of all cores and the expected ones, with another number for every pair of cores."""
    shape = exchange.output[2]
    x = torch.arange(torch.Size(shape).numel()).reshape(shape).float()
    return run(exchange, (x,), executor("torch", how)).tiles.reshape(shape), x.permute(3, 4, 2, 0, 1, 5)


@pytest.mark.parametrize("rows", range(1, 9))
def test_every_core_gets_one_tile_from_every_core(rows):
    for cols in (1, 2, 3, 5, 8):
        got, wanted = swapped(made(rows, cols, 2, 2))
        assert torch.equal(got, wanted), (rows, cols)
    assert torch.equal(*swapped(made(rows, 3, 2), "elided"))


@pytest.mark.parametrize("mesh", [(8, 8), (6, 8), (4, 8)], ids=str)
def test_the_busiest_link_carries_as_much_as_has_to_cross_the_middle(mesh):
    assert account(made(*mesh).schedule).busiest_link_bytes == 4 * HALVES[mesh]


@pytest.mark.parametrize("mesh", HALVES, ids=str)
def test_in_both_orders_of_axes_links_are_busy_nearly_as_long_as_the_bound(mesh):
    """Check the bytes that follow one another over the busiest link of every round."""
    bound = 4 * 2 * HALVES[mesh]

    def serial(schedule: Schedule) -> int:
        return sum(one.busiest_link_bytes for one in per_round(schedule))

    assert serial(made(*mesh, 2).schedule) <= 1.3 * bound
    assert serial(made(*mesh, 1, 2).schedule) <= 2 * bound


def test_two_routes_an_axis_serve_all_cores():
    assert [routes(made(*mesh).schedule).colours for mesh in ((3, 4), (6, 8))] == [8, 8]


def test_faulty_sizes_are_refused():
    with pytest.raises(MeshError, match="all-to-all in 3 parts; give 1, or 2"):
        made(2, 2, 3)
    with pytest.raises(ShapeError, match=r"all_to_all of \[2, 2, 3\] on mesh 2x2: give x as \[2, 2, parts, 2, 2, elem"):
        recipe("all_to_all", Mesh(2, 2, DEVICE), "fp32", ((2, 2, 3),), ())
