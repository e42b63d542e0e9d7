import pytest
import torch

from wafer_triton.ops.testing import assert_close

REFERENCE = torch.tensor([[1.0, -2.0], [3.0, 4.0]], dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "eps"), [("fp32", 2.0**-23), (torch.bfloat16, 2.0**-7), ("fp16", 2.0**-10)])
def test_without_a_plain_result_one_rounding_of_the_largest_is_allowed(dtype, eps):
    assert_close(REFERENCE + 4 * eps, REFERENCE, dtype)
    with pytest.raises(AssertionError, match="4 of 4 elements off"):
        assert_close(REFERENCE + 4.001 * eps, REFERENCE, dtype)


def test_twice_the_error_of_plain_torch_is_allowed():
    assert_close(REFERENCE + 0.2, REFERENCE, "fp32", plain=REFERENCE - 0.1)
    with pytest.raises(AssertionError):
        assert_close(REFERENCE + 0.21, REFERENCE, "fp32", plain=REFERENCE - 0.1)


def test_the_message_names_dtype_bound_and_worst_coordinates():
    actual = REFERENCE.clone()
    actual[1, 0] = 3.5
    text = r"out: 1 of 4 elements off by up to 0.5, 4.77e-07 allowed in fp32; worst: \(1, 0\) is 3.5, not 3; \("
    with pytest.raises(AssertionError, match=text):
        assert_close(actual, REFERENCE, "fp32", name="out")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_infinity_and_nan_are_wrong_unless_the_reference_has_them(bad):
    actual = REFERENCE.clone()
    actual[0, 1] = bad
    assert_close(actual, actual, "fp32")
    with pytest.raises(AssertionError, match="off by up to inf"):
        assert_close(actual, REFERENCE, "fp32")
    with pytest.raises(AssertionError, match="off by up to inf"):
        assert_close(REFERENCE, actual, "fp32")


def test_shape_and_precision_of_the_reference_are_checked():
    with pytest.raises(AssertionError, match=r"out: shape \[4\], not \[2, 2\]"):
        assert_close(REFERENCE.flatten(), REFERENCE, "fp32", name="out")
    with pytest.raises(AssertionError, match="must be fp64, not torch.float32"):
        assert_close(REFERENCE, REFERENCE.float(), "fp32")
