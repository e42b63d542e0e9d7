"""The results of `make bench`. Times are emulation times of this machine, never a wafer's.

Rows of shapes are timed by the code that times them on a GPU (`gpu.py`), everything else by pytest-benchmark.
"""

import os
from functools import partial
from pathlib import Path

import pytest
import torch
from cpuinfo import get_cpu_info

from cases import free
from order import Timed
from worker import in_turns

KEEP = ("min", "median", "max", "rounds")
RECORDS = []  # of the rows of shapes

# A step on a mesh is thousands of operations of some microseconds each: a second thread only makes them wait.
torch.set_num_threads(1)


def pytest_generate_tests(metafunc):
    if "shape" in metafunc.fixturenames:
        metafunc.parametrize("shape", metafunc.module.SHAPES, ids=lambda shape: shape.slug)


@pytest.fixture
def records():
    """Return a function that times the rows of a shape in turns, and keeps their records."""

    def time_rows(time_row, shape):
        group = [Timed(row, 60, partial(time_row, shape, row)) for row in shape.rows]
        lines = in_turns(group, "cpu")
        assert not [line["error"] for line in lines if "error" in line]
        RECORDS.extend(line for line in lines if "stats" in line)

    yield time_rows
    free("cpu")


@pytest.fixture
def note(benchmark):
    """Return a function that adds facts to the record of the benchmark."""
    return benchmark.extra_info.update


def pytest_benchmark_generate_machine_info():
    """Return the machine without its name."""
    facts = {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    return {"cpu": get_cpu_info()["brand_raw"], **facts}


def pytest_benchmark_update_json(output_json):
    """Add the rows of shapes; leave out single timings and the paths of this machine."""
    output_json["benchmarks"] = [*RECORDS, *map(_shortened, output_json["benchmarks"])]
    output_json["commit_info"] = {name: output_json["commit_info"].get(name) for name in ("id", "dirty")}


def _shortened(record: dict) -> dict:
    kept = {name: value for name, value in record.items() if name not in ("options", "params", "param")}
    kept["stats"] = {name: record["stats"][name] for name in KEEP}
    kept["fullname"] = f"{Path(record['fullname'].split('::')[0]).name}::{record['name']}"
    return kept
