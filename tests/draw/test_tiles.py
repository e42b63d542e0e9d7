"""Tiles on a page lie on the cores where the reference executor has their values."""

import numpy as np
import pytest
import torch

from schedules import MOVES, SUMS, build, squares
from wafer_triton import draw
from wafer_triton.device.mesh import Mesh
from wafer_triton.draw.tiles import after, moving, rounds
from wafer_triton.emulate.reference import Reference
from wafer_triton.errors import DrawError

KINDS = {"gemm-mesh": SUMS["gemm-mesh"], "gemm-cannon": SUMS["gemm-cannon"], "gemm-summa": SUMS["gemm-summa"]}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_tiles_lie_where_their_values_do(make):
    """Run on tiles that hold the number of their first core, and compare every core's values with `rounds`."""
    schedule = build(make, "3x3", "fp32")
    numbers = torch.arange(9.0).view(3, 3, 1)
    reference = Reference(
        schedule, {name: numbers.expand(3, 3, schedule.buffers[name].numel) for name in ("a", "b")}, poison=False
    )
    for number, where in enumerate(rounds(schedule)):
        reference.run(until=number + 1)
        for name in ("a", "b"):
            holding = [key for key in schedule.buffers if key.split(".")[0] == name]
            held = np.stack([reference.read(key).reshape(9, -1)[:, 0].numpy() for key in holding])
            assert (held == where[name].ravel()).any(0).all(), (number, name)


def test_meshgemm_moves_a_along_x_and_b_along_y():
    schedule = squares(Mesh(4, 4))
    assert moving(schedule) == {"a": "x", "b": "y"}
    start, end = after(schedule, -1), after(schedule, len(schedule.rounds) - 1)
    assert start["a"].ravel().tolist() == list(range(16)) and (start["c"] == -1).all()
    assert end["c"].ravel().tolist() == list(range(16)), "sums stay where they are"


def test_a_copied_tile_is_followed_from_its_source():
    schedule = build(MOVES["collectives"], "2x3", "fp32")
    assert set(moving(schedule)["x"]) <= {"x", "y"}
    assert after(schedule, len(schedule.rounds) - 1)["x"].shape == (2, 3)


def test_a_mesh_as_text():
    head, *lines = draw.inspect(squares(Mesh(3, 3)), round=0, buffer="b").splitlines()
    assert "tiles that began in b, after round 0 (align a and b)" in head
    assert lines == [
        "0.0 1.1 2.2",
        "1.0 2.1 0.2",
        "2.0 0.1 1.2",
    ]
    assert draw.inspect(squares(Mesh(3, 3)), buffer="c").splitlines()[1].split() == ["-", "-", "-"]


@pytest.mark.parametrize(
    ("more", "message"),
    [({"round": 99}, "round 99 is not one of its"), ({"buffer": "x"}, "there is no buffer 'x'; it has a, b")],
)
def test_a_missing_round_or_core_is_refused(more, message):
    with pytest.raises(DrawError, match=message):
        draw.inspect(squares(Mesh(3, 3)), **more)


def test_a_large_mesh_is_not_printed():
    with pytest.raises(DrawError, match="33 x 33 cores are too many to print; at most 32 a side"):
        draw.inspect(squares(Mesh(33, 33)))
