"""The record of every benchmark. Times are emulation times of this machine, never a wafer's.

`pytest bench` runs the suites at small sizes on the CPU; with `--bench-device=cuda` it runs a GPU's sizes. `gpu.py`
runs them with `--bench-log`, a file that gets a line when a case begins and one when it ends. A case that the file
names is not run again. With `--bench-until`, a time of day in seconds, cases that come later are left out.
"""

import json
import math
import os
import time
from pathlib import Path

import pytest
import torch
from cpuinfo import get_cpu_info

from cases import free, product
from timing import CLOCK, broken, is_cuda

PATIENCE = {0: 50.0, 1: 50.0}  # seconds that a case of this priority may take, planning and compiling included
MOST_PATIENCE = 90.0
KEEP = ("min", "median", "max", "rounds")

# A step on a mesh is thousands of operations of some microseconds each: a second thread only makes them wait.
torch.set_num_threads(1)


def pytest_addoption(parser):
    group = parser.getgroup("wafer_triton")
    group.addoption("--bench-device", default="cpu", choices=("cpu", "cuda"), help="where the suites run")
    group.addoption("--bench-log", help="file for a line of JSON as each case begins and ends")
    group.addoption("--bench-until", type=float, default=float("inf"), help="begin no case later than this time")


def pytest_configure(config):
    config.addinivalue_line("markers", "priority(number): cases of the lowest number are timed first, 9 without a mark")
    if is_cuda(config.getoption("--bench-device")) and not torch.cuda.is_available():
        raise pytest.UsageError("--bench-device=cuda: torch finds no GPU here")


def pytest_generate_tests(metafunc):
    if "shape" in metafunc.fixturenames:
        device = metafunc.config.getoption("--bench-device")
        metafunc.parametrize(("shape", "row"), product(metafunc.module.SHAPES[device]))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Order cases by priority, time cases on a device by its clock, and leave out cases that the log has already."""
    for item in items:
        if "shape" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.benchmark(timer=CLOCK))
    items.sort(key=_priority)
    known = {line.get("begun") for line in _read(config)}
    if not known:
        _log(config, cases=[item.nodeid for item in items])
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in known])
    items[:] = [item for item in items if item.nodeid not in known]


def _priority(item) -> int:
    return next((mark.args[0] for mark in item.iter_markers("priority")), 9)


@pytest.fixture
def device(request):
    """Yield the device of the suites; after a case, free its memory there."""
    name = request.config.getoption("--bench-device")
    torch.manual_seed(0)
    yield name
    free(name)


@pytest.fixture
def note(benchmark):
    """Return a function that adds facts to the record of the benchmark."""
    return benchmark.extra_info.update


# --- the log ---


def _read(config) -> list[dict]:
    path = config.getoption("--bench-log")
    return [json.loads(line) for line in Path(path).read_text().splitlines()] if path and Path(path).exists() else []


def _log(config, **line):
    path = config.getoption("--bench-log")
    if path:
        with open(path, "a") as file:
            file.write(json.dumps(line, default=str) + "\n")


def pytest_runtest_setup(item):
    config = item.config
    if time.time() > config.getoption("--bench-until"):
        item.session.shouldstop = "out of time"
        pytest.skip("out of time")
    # a rehearsal on the CPU shows that cases run, however long they take
    limited = is_cuda(config.getoption("--bench-device"))
    _log(config, begun=item.nodeid, patience=PATIENCE.get(_priority(item), MOST_PATIENCE) if limited else math.inf)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        error = f"{type(call.excinfo.value).__name__}: {call.excinfo.value}"
        _log(item.config, ended=item.nodeid, error=" ".join(error.split())[:600])
        if broken(item.config.getoption("--bench-device")):
            item.session.shouldstop = "the GPU refuses to go on"
    elif call.when == "call" and report.passed:
        stats = getattr(item.funcargs.get("benchmark"), "stats", None)
        record = None if stats is None else _shortened(stats.as_dict(include_data=False))
        _log(item.config, ended=item.nodeid, benchmark=record)
    return report


# --- the results file ---


def pytest_benchmark_generate_machine_info():
    """Return the machine without its name."""
    facts = {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    return {"cpu": get_cpu_info()["brand_raw"], **facts}


def pytest_benchmark_update_json(output_json):
    """Leave out single timings and the paths of this machine."""
    output_json["benchmarks"] = [_shortened(record) for record in output_json["benchmarks"]]
    output_json["commit_info"] = {name: output_json["commit_info"].get(name) for name in ("id", "dirty")}


def _shortened(record: dict) -> dict:
    kept = {name: value for name, value in record.items() if name not in ("options", "params", "param")}
    kept["stats"] = {name: record["stats"][name] for name in KEEP}
    kept["fullname"] = f"{Path(record['fullname'].split('::')[0]).name}::{record['name']}"
    return kept
