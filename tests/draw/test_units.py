"""Numbers for people: four digits, separators, a unit; every numeric field that is shown has one."""

from dataclasses import fields, is_dataclass

import pytest

from wafer_triton import compare, device
from wafer_triton.cost import estimate, search
from wafer_triton.cost.price import Cost, Prediction
from wafer_triton.draw.units import UNITS, asked, digits, label, quantity, shown

SHOWN = (
    device.Device,
    compare.Row,
    Cost,
    Prediction,
    compare.Operation,
    estimate.Kernel,
    estimate.Layered,
    estimate.Request,
    estimate.Capacity,
    estimate.Energy,
    search.Plan,
)


def numeric(of: type) -> list[str]:
    """Return fields that hold numbers: of type int, float, either or None, or a table of them."""
    return [
        field.name for field in fields(of) if {"int", "float"} & set(str(field.type).replace(", ", " ").split())
        or str(field.type) in ("dict[str, float]", "dict[str, int]", "Mapping[str, float]")
    ]  # fmt: skip


@pytest.mark.parametrize("of", SHOWN, ids=lambda of: of.__name__)
def test_every_numeric_field_has_a_unit(of):
    assert numeric(of)
    assert [name for name in numeric(of) if not UNITS.get(name)] == []


def test_no_dataclass_of_an_estimate_is_forgotten():
    estimates = {
        kind for module in (estimate, search) for kind in vars(module).values()
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module.__name__
    }  # fmt: skip
    assert estimates <= set(SHOWN)


def test_numeric_fields_are_separated_from_others():
    assert {"seconds", "fits"} & set(numeric(estimate.Request)) == {"seconds"}
    assert {"steps", "layers"} <= set(numeric(estimate.Layered))
    assert {"routes", "name"} & set(numeric(device.Device)) == {"routes"}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (7, "7"),
        (5760, "5,760"),
        (1234567, "1,235,000"),
        (99999, "100,000"),
        (0.000123456, "0.0001235"),
        (1.5e-7, "1.5e-07"),
        (99.999, "100"),
        (-1234.5, "-1,234"),
        (2.5, "2.5"),
        (3.2e18, "3.2e+18"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_at_most_four_significant_digits(number, text):
    assert digits(number) == text


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (141947.4, "cycles", "141,900 cycles"),
        (1, "cycles", "1 cycle"),
        (0, "cycles", "0 cycles"),
        (0.0001290, "s", "129 us"),
        (0.0514, "s", "51.4 ms"),
        (93.21987, "s", "93.22 s"),
        (3e-12, "s", "0.003 ns"),
        (0.0, "s", "0 s"),
        (512, "B", "512 B"),
        (0, "B", "0 B"),
        (49152, "B", "48 KiB"),
        (3 * 2**30, "B", "3 GiB"),
        (0.5, "%", "50 %"),
        (0.018, "J", "18 mJ"),
        (0.0771, "J/token", "77.1 mJ/token"),
        (2742.26, "tokens/s", "2,742 tokens/s"),
        (540, "side", "540 x 540 cores"),
        (7.467, "x", "7.467 x"),
        (151643, "id", "151643"),
        (12.25, "", "12.25"),
        (1.1e9, "Hz", "1.1 GHz"),
    ],
)
def test_a_quantity_has_its_unit(number, unit, text):
    assert quantity(number, unit) == text


def test_a_value_that_is_no_number_is_shown_as_text():
    assert (shown("fits", True), shown("fits", False), shown("error", None)) == ("yes", "no", "-")
    assert shown("mesh", "12x24") == "12x24"
    with pytest.raises(KeyError, match="colour"):
        shown("colour", 3)


def test_given_values_are_shown_in_full():
    assert (asked("k", 16384), asked("groups", 1), asked("gpus", 1)) == ("16,384 elements", "1 group", "1 GPU")
    assert (asked("mesh", 540), asked("seconds", 1.2e-6), asked("device", "wse3")) == (
        "540 x 540 cores", "1.2 us", "wse3",
    )  # fmt: skip


def test_the_share_of_sram_is_one_of_bandwidth():
    assert label("sram_bandwidth_utilisation") == "share of SRAM bandwidth"
    assert shown("sram_bandwidth_utilisation", 0.034) == "3.4 %"
