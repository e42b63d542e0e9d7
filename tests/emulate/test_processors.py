"""Explicit and elided exchange give the same bits on another processor, too: their tests, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
GEMM, GEMV = "algorithms/test_gemm.py", "algorithms/test_gemv.py"
ON_BITS = (
    "emulate/test_windows.py", "emulate/test_reference.py::test_torch_is_as_good_as_the_reference",
    f"{GEMV}::test_values_are_as_good_as_plain_torch", f"{GEMM}::test_values_are_as_good_as_plain_torch",
    f"{GEMM}::test_fp16_accumulation", "parity/test_llama.py::test_poison_reaches_no_logit",
)  # fmt: skip


def test_tests_on_bits_pass_without_vectors_and_with_sums_by_address():
    settings = {"ATEN_CPU_CAPABILITY": "default", "PYTHONPATH": str(TESTS / "helpers")}
    options = "-m pytest -q --disable-plugin-autoload -p _hypothesis_pytestplugin -p odd_blas"
    command = [sys.executable, *options.split(), *(str(TESTS / name) for name in ON_BITS)]
    done = subprocess.run(command, env=os.environ | settings, cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-20:])
