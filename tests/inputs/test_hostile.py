"""Values that public functions refuse: each call raises a WaferError of one line."""

import re

import pytest
import torch

from wafer_triton import WaferError, as_mesh, draw, executor
from wafer_triton.compare.sweep import sweep
from wafer_triton.local import LocalOp
from wafer_triton.schedule.product import recipe

PRODUCT = recipe("gemm", as_mesh(2), "fp32", ((4, 4), (4, 4)), ())
SCHEDULE = PRODUCT.schedule


def test_no_path_is_drawn_to_before_it_is_known_to_be_there():
    for path in ("/none/x.png", "x" * 400 + ".png", "a\0.png"):
        with pytest.raises(WaferError, match="; make it, or give another path|; give another path"):
            draw.links(SCHEDULE, path)


def test_words_of_another_axis_have_no_length():
    with pytest.raises(WaferError, match="mesh 2x2: axis 'z' is neither 'x' nor 'y'; give one of them"):
        as_mesh(2).length("z")


def test_lists_and_tuples_make_one_recipe():
    given = "gemm", as_mesh(2), "fp32"
    assert recipe(*given, [[4, 4], [4, 4]], []) is recipe(*given, ((4, 4), (4, 4)), ())


def test_values_of_a_sweep_are_a_list():
    with pytest.raises(WaferError, match="sweep over mesh: values are of type str; give a list of values"):
        sweep("gemm", {"mesh": "24"}, m=8, k=8, n=8)


def test_the_end_of_a_run_is_a_whole_number():
    program = executor("torch").bind(PRODUCT.schedule, {name: torch.zeros(2, 2, 2, 2) for name in "ab"})
    with pytest.raises(WaferError, match="until = 1.5 is not one of 0 to "):
        program.run(until=1.5)


@pytest.mark.parametrize(
    "tiles, work, message",
    [
        (((3,),) * 5, (0, 3), r"`tiles` returns .*; give whole sizes for out, a"),
        (((3, "a"),) * 2, (0, 3), r"`tiles` returns .*; give whole sizes for out, a"),
        (((3,),) * 2, (0, -5), r"`work` returns \(0, -5\); give multiply-adds and other operations, at least 0"),
        (((3,),) * 2, (0, float("nan")), "`work` returns .*; give multiply-adds and other operations, at least 0"),
        (((3,),) * 2, None, "`work` returns None; give multiply-adds and other operations, at least 0"),
    ],
)
def test_sizes_and_work_of_an_own_operation_are_counts(tiles, work, message):
    operation = LocalOp("own", lambda out, a, *, size: None, lambda *, size: tiles, lambda *, size: work)
    assert re.search(message, operation.fault({"size": 3}, (None,), (None,)))
