"""Compiled kernels against the torch definitions of local operations: the cases of tests/test_kernels.py on a GPU."""

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("interpreted_kernels", Path(__file__).parents[1] / "test_kernels.py")
_judged = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_judged)

test_integers_are_exact = _judged.test_integers_are_exact
test_agrees_with_definition = _judged.test_agrees_with_definition
test_operands_may_differ_in_dtype = _judged.test_operands_may_differ_in_dtype
test_rounds_to_nearest_even = _judged.test_rounds_to_nearest_even
test_exchange_copies_bits = _judged.test_exchange_copies_bits
test_compute_shift_rounds_make_a_mesh_gemm = _judged.test_compute_shift_rounds_make_a_mesh_gemm
test_tree_is_a_sequence_of_local_operations = _judged.test_tree_is_a_sequence_of_local_operations
test_mesh_gemv_is_one_launch = _judged.test_mesh_gemv_is_one_launch
