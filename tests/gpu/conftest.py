"""These tests need a GPU and compiled kernels: `TRITON_INTERPRET=0 pytest tests/gpu`.

With WAFER_REHEARSE=1 the same bodies run at small sizes on the CPU, by Triton's interpreter.
"""

import os

import pytest
import torch
import triton

REHEARSAL = os.environ.get("WAFER_REHEARSE") == "1"


def _lacking() -> str | None:
    """Return the reason why these tests cannot run here, or None."""
    if REHEARSAL:
        return None if triton.knobs.runtime.interpret else "a rehearsal needs TRITON_INTERPRET=1"
    if not torch.cuda.is_available():
        return "no GPU here (WAFER_REHEARSE=1 runs these tests at small sizes on the CPU)"
    if triton.knobs.runtime.interpret:
        return "kernels are interpreted: run TRITON_INTERPRET=0 pytest tests/gpu"
    return None


LACKING = _lacking()
# a rehearsal of test_kernels.py is tests/kernels/test_kernels.py
collect_ignore_glob = ["test_*.py"] if LACKING else ["test_kernels.py"] if REHEARSAL else []


def pytest_report_header() -> str | None:
    return f"tests/gpu is left out: {LACKING}" if LACKING else None


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu_alone: is about the GPU itself, so there is nothing to rehearse")


def pytest_collection_modifyitems(items):
    if REHEARSAL:
        items[:] = [item for item in items if item.get_closest_marker("gpu_alone") is None]


@pytest.fixture(scope="session")
def device() -> str:
    return "cpu" if REHEARSAL else "cuda"


@pytest.fixture
def size():
    """Return a function that picks the size for a GPU or for a rehearsal."""
    return lambda on_gpu, rehearsed: rehearsed if REHEARSAL else on_gpu
