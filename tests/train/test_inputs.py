"""Inputs of training that are refused, each in one line."""

from dataclasses import replace

import numpy as np
import pytest

from wafer_triton.errors import (
    ConfigError,
    DeviceError,
    MeshError,
    ShapeError,
)
from wafer_triton.train.dies import wafer
from wafer_triton.train.options import Case
from wafer_triton.train.placement import placements
from wafer_triton.train.planner import plan
from wafer_triton.train.workload import Rules, workload

WORK = workload("gpt3-6.7b", batch=16)
WAFER = wafer("wafer-32")


def test_recompute_takes_a_tuple_of_its_kinds_alone():
    for given in (("some",), (["full"],), ()):
        with pytest.raises(ConfigError, match="recompute = .* give a tuple of some of "):
            plan(WORK, WAFER, recompute=given)


@pytest.mark.parametrize(
    "use, error, message",
    [
        (lambda: placements(WAFER, (5, 7)), MeshError, "give sizes of data, tensor, context, stream that multiply"),
        (lambda: Rules(weight=-2), ShapeError, "weight = -2 must be a whole number of at least 1"),
        (lambda: Case(WAFER, WORK, 0), ShapeError, "micro_batches = 0 must be a whole number of at least 1"),
        (lambda: workload("gpt3-6.7b", batch=0), ShapeError, "batch = 0 must be a whole number of at least 1"),
        (lambda: replace(WAFER, failed=frozenset([1])), DeviceError, "failed link 1 is not between neighbouring dies"),
        (lambda: replace(WAFER, rows=10**6), DeviceError, "1000000 x 8 dies are more than the 10,000 that are taken"),
    ],
)
def test_an_argument_of_another_kind_or_range_is_one_line(use, error, message):
    with pytest.raises(error, match=message):
        use()


def test_numbers_of_numpy_are_taken():
    assert replace(WAFER, flops=np.float32(2.0**50)).flops == 2.0**50
