"""Compiled kernels against the torch definitions of local operations: the cases of tests/ on a GPU."""

# ruff: noqa: F401
from test_any_schedule import (
    orders,
    test_any_schedule_has_the_bits_of_every_hop,
    test_programs_of_several_cores_have_the_bits_of_single_ones,
)
from test_elided import test_infinity_stays_in_its_row, test_tiles_of_any_size_wherever_they_lie
from test_fold import (
    test_a_fold_equals_hop_by_hop_sums_bit_for_bit,
    test_folds_of_a_decode_layer_have_the_bits_of_every_hop,
)
from test_kernels import (
    test_agrees_with_definition,
    test_exchange_copies_bits,
    test_integers_are_exact,
    test_operands_may_differ_in_dtype,
    test_products_of_a_window_make_a_mesh_gemm,
    test_rounds_to_nearest_even,
    test_steps_of_an_exchange_follow_each_other,
)
from test_tree import test_mesh_gemv_is_one_launch, test_tree_is_a_sequence_of_local_operations
