"""Explicit and elided exchange give the same bits on other processors, too: their tests, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
GEMM, GEMV = "algorithms/test_gemm.py", "algorithms/test_gemv.py"
LLAMA = "parity/test_llama.py"
ON_BITS = (
    "emulate/test_windows.py", "emulate/test_elision.py", f"{GEMV}::test_values_are_as_good_as_plain_torch",
    f"{GEMM}::test_values_are_as_good_as_plain_torch", f"{GEMM}::test_fp16_accumulation",
    f"{LLAMA}::test_explicit_and_elided_are_the_same_bits", f"{LLAMA}::test_poison_reaches_no_logit",
    f"{LLAMA}::test_a_second_prompt_does_not_depend_on_the_first",
)  # fmt: skip
PROCESSORS = {
    "without vectors": ({"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "default"}, ()),
    "sums by address": ({"PYTHONPATH": str(TESTS / "helpers")}, ("-p", "odd_blas")),
}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_tests_on_bits_pass_on_another_processor(processor):
    settings, options = PROCESSORS[processor]
    command = [sys.executable, "-m", "pytest", "-q", *options, *(str(TESTS / name) for name in ON_BITS)]
    done = subprocess.run(command, env=os.environ | settings, cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-20:])
