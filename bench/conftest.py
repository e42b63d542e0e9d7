"""What every benchmark records. Times are emulation times of this machine, never a wafer's."""

import os
from pathlib import Path

import pytest
import torch
from cpuinfo import get_cpu_info

KEEP = ("min", "median", "max", "rounds")

# A step on a mesh is thousands of operations of some microseconds each: a second thread only makes them wait.
torch.set_num_threads(1)


@pytest.fixture
def note(benchmark):
    """A function that adds facts to the record of the benchmark."""
    return benchmark.extra_info.update


def pytest_benchmark_generate_machine_info():
    """The machine without its name."""
    facts = {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    return {"cpu": get_cpu_info()["brand_raw"], **facts}


def pytest_benchmark_update_json(output_json):
    """Leaves single timings and the paths of this machine out."""
    for one in output_json["benchmarks"]:
        one["stats"] = {name: one["stats"][name] for name in KEEP}
        one["fullname"] = f"{Path(one['fullname'].split('::')[0]).name}::{one['name']}"
        one.pop("options", None)
    output_json["commit_info"] = {name: output_json["commit_info"].get(name) for name in ("id", "dirty")}
