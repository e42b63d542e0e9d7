import math
from dataclasses import replace

import pytest

from wafer_triton import estimate
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.errors import DeviceError, MeshError


@pytest.mark.parametrize(
    ("spec", "shape"),
    [(16, (16, 16)), ("16", (16, 16)), ("3x5", (3, 5)), ("3X5", (3, 5)), (" 3 x 5 ", (3, 5)), ((3, 5), (3, 5)),
     ([3, 5], (3, 5)), (1, (1, 1)), ((750, 994), (750, 994))],
    ids=str,
)  # fmt: skip
def test_as_mesh_takes_sides_pairs_and_strings(spec, shape):
    found = as_mesh(spec)
    assert found.shape == (found.rows, found.cols) == shape
    assert found.cores == math.prod(shape)
    assert found.device is device("wse2")


def test_a_mesh_passes_through_or_moves_to_a_device():
    mesh = Mesh(3, 5)
    assert as_mesh(mesh) is mesh
    assert as_mesh(mesh, "wse3") == Mesh(3, 5, device("wse3"))
    assert as_mesh("3x5", "wse3").device is device("wse3")
    with pytest.raises(DeviceError, match="unknown device 'wse9'"):
        as_mesh(3, "wse9")
    words = "mesh 3x5 is on wse3, and device is wse2; give device the same, or the sides alone, as '3x5'"
    with pytest.raises(MeshError, match=words):
        estimate.decode(model="smollm2-135m", mesh=Mesh(3, 5, device("wse3")), context=8)


@pytest.mark.parametrize("spec", ["", "x", "3x", "3x4x5", "1_0", (1,), (1, 2, 3), None, True, 1.5, {}], ids=repr)
def test_as_mesh_refuses_other_values(spec):
    with pytest.raises(MeshError, match=r"mesh .*: give a side such as 16, or rows x columns such as '16x24' or \(16"):
        as_mesh(spec)


@pytest.mark.parametrize("spec", [0, -1, "0", "-3"], ids=repr)
def test_an_empty_side(spec):
    with pytest.raises(MeshError, match="rows must be a whole number of at least 1"):
        as_mesh(spec)


@pytest.mark.parametrize("spec", [(3, 0), "3x-1", (3, 2.0), (3, "4"), (3, True)], ids=repr)
def test_an_empty_second_side(spec):
    with pytest.raises(MeshError, match="cols must be a whole number of at least 1"):
        as_mesh(spec)


@pytest.mark.parametrize(
    ("rows", "cols", "origin"),
    [(751, 1, (0, 0)), (1, 995, (0, 0)), (750, 994, (0, 1)), (3, 5, (748, 0)), (3, 5, (-1, 0)), (3, 5, (0, -1))],
)
def test_a_region_must_lie_on_its_device(rows, cols, origin):
    message = f"mesh {rows} x {cols} at {origin} leaves device wse2, which has 750 x 994 cores".replace("(", r"\(")
    with pytest.raises(MeshError, match=message.replace(")", r"\)")):
        Mesh(rows, cols, origin=origin)


@pytest.mark.parametrize("fold", [(0, 1), (1.5, 2)])
def test_a_fold_is_of_whole_cores(fold):
    with pytest.raises(MeshError, match="mesh 2 x 3: fold .* must be whole numbers of at least 1"):
        Mesh(2, 3, fold=fold)


def test_a_region_may_touch_the_edge():
    assert Mesh(3, 5, origin=(747, 989)).cores == 15


@pytest.mark.parametrize(("rows", "cols", "side"), [(1, 1, 1), (3, 3, 3), (2, 3, 6), (4, 6, 12), (5, 1, 5), (2, 8, 8)])
def test_square_is_the_lcm_grid_of_the_same_cores(rows, cols, side):
    folded = Mesh(rows, cols, origin=(1, 2)).square()
    assert folded.shape == (side, side)
    assert (folded.rows, folded.cols, folded.origin) == (rows, cols, (1, 2))
    assert folded.fold == (side // rows, side // cols)
    assert folded.square() == folded
    assert folded.cores == side * side
    assert (folded.length("x"), folded.length("y")) == (side, side)


def test_lengths_and_text():
    mesh = Mesh(3, 5)
    assert (mesh.length("x"), mesh.length("y"), str(mesh)) == (5, 3, "3x5")
    assert hash(mesh) == hash(Mesh(3, 5)) and mesh != replace(mesh, origin=(1, 0))


def test_a_text_of_a_mesh_is_read_as_the_same_mesh():
    mesh = Mesh(2, 3, "wse3,sram_kib=64", origin=(1, 4), fold=(3, 2))
    assert Mesh.from_text(mesh.text) == mesh
