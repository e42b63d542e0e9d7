"""Fixtures of all tests.

Triton reads TRITON_INTERPRET when it is first imported, which transformers may do, so it is set before any test module
loads. On a machine with CUDA, TRITON_INTERPRET=0 has the same tests judge the compiled kernels.
"""

import gc
import os
import subprocess
import sys

os.environ.setdefault("TRITON_INTERPRET", "1")

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from wafer_triton.device import PRESETS, Device

if find_spec("hypothesis"):  # which tests/gpu do without, where it may be missing
    from hypothesis import HealthCheck, settings

    # No test depends on wall time, so hypothesis has neither a deadline nor a check for slow inputs.
    settings.register_profile(
        "wafer", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=50
    )
    settings.load_profile("wafer")
# Schedules that are kept for other tests are walked by every collection, so that there are few of them.
gc.set_threshold(30_000, 20)


HERE = Path(__file__).parent
# `make test` leaves these out, `make all` runs them: other machines, whole models, searches, ranks, pages, training.
LARGE = (
    "bench/test_ranks",
    "bench/test_rehearsal",
    "bench/test_start",
    "bench/test_timing",
    "cli/test_estimate",
    "cli/test_generate",
    "cli/test_sweep",
    "compare/test_algorithms",
    "compare/test_explain",
    "count/test_definitions",
    "cost/test_committed",
    "cost/test_head_groups",
    "cost/test_paper",
    "cost/test_placement",
    "cost/test_residence",
    "cost/test_search",
    "docs/test_graph",
    "docs/test_one_file",
    "docs/test_pages",
    "docs/test_quickstart",
    "docs/test_readme",
    "docs/test_reference",
    "docs/test_replay",
    "docs/test_site",
    "draw/test_page",
    "draw/test_page_tiles",
    "draw/test_page_views",
    "draw/test_page_wafer",
    "draw/test_pictures",
    "emulate/test_any_schedule",
    "emulate/test_distributed",
    "emulate/test_processors",
    "emulate/test_warp_groups",
    "gpu/test_decoder",
    "gpu/test_executor",
    "gpu/test_kernels",
    "gpu/test_ways",
    "kernels/test_compile",
    "kernels/test_launches",
    "kernels/test_precompile",
    "kernels/test_static_gate",
    "models/test_checkpoint",
    "models/test_predicted",
    "models/test_ranks",
    "models/test_triton_decoder",
    "parity/test_families",
    "parity/test_head_groups",
    "parity/test_phases",
    "parity/test_planned",
    "parity/test_smollm2",
    "parity/test_storage",
    "parity/test_training",
    "place/test_one_answer",
    "place/test_refusals",
    "place/test_what_fits",
    "schedule/test_memory",
    "algorithms/test_gather_kernels",
    "algorithms/test_stream",
    "test_inductor",
    "test_packaging",
    "test_public_api",
    "test_wafer_scale",
    "train/test_inputs",
    "train/test_layers",
    "train/test_options",
    "train/test_planner",
    "train/test_price",
    "verify/test_model_intents",
    "verify/test_mutants",
    "verify/test_protocol",
)


def pytest_configure(config: pytest.Config) -> None:
    """Lighten Triton's interpreter where tests run, which is not in the process that hands them to workers."""
    if config.getoption("numprocesses", None) is None:
        import triton

        from interpreter import lighten

        if triton.knobs.runtime.interpret:
            lighten()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Return True for a file without a test of `make test`, `make quick` or `make all`: importing is slow."""
    expression = config.option.markexpr
    if collection_path.suffix != ".py" or not ("not large" in expression or expression == "large"):
        return None
    large = collection_path.relative_to(HERE).with_suffix("").as_posix() in LARGE
    return large != (expression == "large") or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of LARGE files."""
    names = tuple(f"tests/{name}.py::" for name in LARGE)
    for item in items:
        if item.nodeid.startswith(names):
            item.add_marker("large")


def pytest_sessionfinish() -> None:
    """Save the lines of `make coverage` at once: a worker that takes more than ten seconds to end is killed."""
    coverage = sys.modules.get("coverage")
    current = None if coverage is None else coverage.Coverage.current()
    if current is not None:
        current.save()


def pytest_collection_finish() -> None:
    """Exempt all objects that exist before the first test from garbage collection, which saves walking them."""
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed every test alike, so that it draws the same numbers alone or after others."""
    import torch

    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # which would note for later where the seed of GPUs was set
        torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def roomy() -> Device:
    """Return a WSE-2 with 64 MiB of SRAM per core, for tests that are about values."""
    return replace(PRESETS["wse2"], name="roomy", sram_bytes=64 * 2**20)


@pytest.fixture
def registered(monkeypatch) -> None:
    """Let a test define local operations; the registry is as before after it."""
    from wafer_triton.local import registry

    monkeypatch.setattr(registry, "LOCAL_OPS", dict(registry.LOCAL_OPS))


@pytest.fixture(scope="session")
def compiling() -> Callable[..., str]:
    """Run Python on some arguments and return what it prints: a process that interprets kernels cannot compile them."""

    def run(*args: object, **more: str) -> str:
        env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | more
        child = subprocess.run([sys.executable, "-P", *map(str, args)], env=env, capture_output=True, text=True)
        assert child.returncode == 0, child.stderr
        return child.stdout

    return run


@pytest.fixture
def launches(monkeypatch) -> Counter:
    """Count the launches of the Triton executor by their description."""
    from wafer_triton.emulate.parts import Launch

    counted: Counter = Counter()
    run = Launch.__call__

    def counting(launch):
        counted[launch.what] += 1
        run(launch)

    monkeypatch.setattr(Launch, "__call__", counting)
    return counted
