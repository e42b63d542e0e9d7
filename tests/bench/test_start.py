"""What a machine with a GPU starts, started without one: every module of bench, and the collection of tests/gpu."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRETEND = "import sys, pytest, torch; torch.cuda.is_available = lambda: True; sys.exit(pytest.main(sys.argv[1:]))"
MODULES = sorted((ROOT / "bench").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_of_bench_can_be_imported(path):
    runpy.run_path(str(path))


def test_tests_of_a_gpu_are_collected_where_there_is_one():
    command = [sys.executable, "-P", "-c", PRETEND, "--collect-only", "-q", "-p", "no:cacheprovider", "tests/gpu"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "WAFER_"))}
    child = subprocess.run(command, cwd=ROOT, env=env | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert child.returncode == 0, child.stdout
    (number,) = re.findall(r"^(\d+) tests collected", child.stdout, re.MULTILINE)
    assert int(number) >= 420
    modules = {path.name for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert modules == set(re.findall(r"^tests/gpu/(test_\w+\.py)::", child.stdout, re.MULTILINE))
