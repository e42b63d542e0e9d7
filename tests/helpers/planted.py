"""Plant faults in folders and in parts of the engine, one at a time; tests that `make test` runs must find each.

`python tests/helpers/planted.py [FOLDER ...]` copies the repository for each fault, changes one place of the code, and
runs the tests beside the fault until one fails. It prints a line a fault, and fails if a fault is not found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

os.environ |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}

import pytest
import torch  # noqa: F401
import triton  # noqa: F401

ROOT = Path(__file__).parents[2]
FAILED = 1  # pytest's exit code if a test fails; others are for errors of use


class Fault(NamedTuple):
    """A place of the code, its text without and with the fault, and the tests that must find it."""

    path: str
    before: str
    after: str
    tests: str


FAULTS = {
    "schedule": Fault(
        "wafer_triton/algorithms/align.py", 'align(b, src, "x", by=(-position) % size)',
        'align(b, src, "x", by=position)',
        "tests/algorithms/test_gemm.py::test_rings_bring_every_tile_across_the_diagonal",
    ),
    "local": Fault(
        "wafer_triton/local/softmax.py", "cut(top, heads, m, 1).clamp_min(LOWEST)", "cut(top, heads, m, 1)",
        "tests/local/test_definitions.py",
    ),
    "kernels": Fault(
        "kernels/softmax.py", 'highest = tl.where(nans > 0, float("nan"), highest)', "highest = highest + 0 * nans",
        "tests/kernels/test_kernels.py::test_nan_is_kept",
    ),
    "emulate": Fault(
        "wafer_triton/emulate/elision.py", "src.rows[senders]", "src.rows[cells]",
        "tests/emulate/test_elision.py",
    ),
    "pattern": Fault(
        "wafer_triton/algorithms/reduce.py", "b.steps.append(Tree(op,", 'b.steps.append(Tree("add",',
        "tests/algorithms/test_reduce.py",
    ),
    "plan": Fault(  # made for one dtype, and taken for all
        "wafer_triton/ops/call.py", "recipe(name, mesh, dtype, tuple(", 'recipe(name, mesh, "fp32", tuple(',
        "tests/emulate/test_pool.py",
    ),
    "pool": Fault(  # which keeps old values
        "wafer_triton/emulate/program.py", "in buffers.items() if not buffer.given)",
        'in buffers.items() if buffer.role == "output")',
        "tests/emulate/test_pool.py",
    ),
    "fold": Fault(
        "wafer_triton/emulate/fuse.py", 'np.argsort(slot, kind="stable")', 'np.argsort(-slot, kind="stable")',
        "tests/emulate/test_fold.py",
    ),
    "count": Fault(
        "wafer_triton/count/spans.py", "for farthest in (np.minimum, np.maximum))",
        "for farthest in (np.minimum, np.minimum))",
        "tests/count/test_walk.py::test_counts_of_random_exchanges_equal_a_walk_of_every_message",
    ),
    "cost": Fault(
        "wafer_triton/cost/price.py", "exposed = max(0.0, transfer - compute) if phase.overlaps else transfer",
        "exposed = transfer",
        "tests/cost/test_price.py",
    ),
    "place": Fault(
        "wafer_triton/place/regions.py", "resident + more + max(workspace, most) <= limit",
        "resident + more + most <= limit", "tests/place/test_regions.py",
    ),
    "verify": Fault(
        "wafer_triton/verify/values.py", "wrong = ~((got == want) |", "wrong = ~((got >= want) |",
        "tests/verify/test_values.py",
    ),
    "models": Fault(
        "models/generate.py", "torch.where(before < self.top_p, odds, 0.0)",
        "torch.where(before + odds < self.top_p, odds, 0.0)",
        "tests/parity/test_generate.py::test_top_k_and_top_p_keep_the_likeliest",
    ),
    "draw": Fault(
        "wafer_triton/draw/trace_events.py", "(of.start, cost.link_cycles)",
        "(of.start, cost.compute_cycles)", "tests/draw/test_trace_events.py",
    ),
    "train": Fault(
        "wafer_triton/train/dies.py", "else hops * link)", "else link)", "tests/train/test_dies.py",
    ),
}  # fmt: skip


def found(fault: Fault, copy: Path) -> bool:
    """Return whether tests of `make test` fail in a copy of the repository that has the fault."""
    for path in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
        if (ROOT / path).exists():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, copy / path, follow_symlinks=False)
    source = (copy / fault.path).read_text(encoding="utf-8")
    if source.count(fault.before) != 1:
        raise SystemExit(f"{fault.path}: {fault.before!r} stands {source.count(fault.before)} times; plant it anew")
    (copy / fault.path).write_text(source.replace(fault.before, fault.after), encoding="utf-8")
    child = os.fork()  # from a process that has torch, which takes longer to import than most of the tests to run
    if child == 0:
        os.chdir(copy)
        sys.path.insert(0, str(copy / "src"))
        with open("output", "w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        options = ["--disable-plugin-autoload", "-p", "_hypothesis_pytestplugin", "-q", "-x"]
        os._exit(pytest.main([*options, "-m", "not large", *fault.tests.split()]))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, FAILED):
        raise SystemExit((copy / "output").read_text()[-4000:])
    return code == FAILED


def main(folders: list[str]) -> int:
    """Return the number of faults that no test finds."""
    missed = 0
    for folder in folders or FAULTS:
        with tempfile.TemporaryDirectory() as copy:
            seen = found(FAULTS[folder], Path(copy))
        missed += not seen
        print(f"{folder:<9} {FAULTS[folder].path}: {'found' if seen else 'NOT FOUND'}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
