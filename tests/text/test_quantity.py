"""Numbers for people: four digits, separators, a unit; every numeric field that is shown has one."""

from dataclasses import dataclass, field, fields, is_dataclass

import pytest

from wafer_triton import device
from wafer_triton.compare import algorithms, operations
from wafer_triton.cost import estimate, search
from wafer_triton.cost.cap import Cap
from wafer_triton.cost.price import Cost, Prediction
from wafer_triton.count.account import Account
from wafer_triton.text.quantity import Legend, digits, named, quantity, unit

SHOWN = (
    device.Device,
    algorithms.AlgorithmRow,
    Account,
    Cap,
    Cost,
    Prediction,
    operations.Operation,
    estimate.Kernel,
    estimate.Layered,
    estimate.RequestCost,
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
    legend = Legend(of)
    assert [name for name in numeric(of) if "unit" not in legend.entries.get(name, {})] == []


def test_a_name_has_one_unit_in_all_that_is_shown():
    units: dict[str, set[str]] = {}
    for of in SHOWN:
        for name in numeric(of):
            units.setdefault(name, set()).add(Legend(of).unit(name))
    assert {name: found for name, found in units.items() if len(found) > 1} == {}


def test_no_dataclass_of_an_estimate_is_forgotten():
    estimates = {
        kind for module in (estimate, search) for kind in vars(module).values()
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module.__name__
        and not kind.__name__.startswith("_")
    }  # fmt: skip
    assert estimates <= set(SHOWN)


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


@dataclass(frozen=True)
class Shown:
    error: float | None = field(default=None, metadata=unit("%", "largest error"))
    k: int = field(default=1, metadata=unit("elements"))
    groups: int = field(default=1, metadata=unit("groups"))
    gpus: int = field(default=1, metadata=unit("GPUs", "on"))
    mesh: int = field(default=1, metadata=unit("side"))
    seconds: float = field(default=1.0, metadata=unit("s", "time"))
    fits: bool = True
    like: str = field(default="", metadata=named("fitted on"))
    colour: int = 3


LEGEND = Legend(Shown)


def test_a_value_that_is_no_number_is_shown_as_text():
    assert (LEGEND.shown("fits", True), LEGEND.shown("fits", False), LEGEND.shown("error", None)) == ("yes", "no", "-")
    assert LEGEND.shown("mesh", "12x24") == "12x24"
    with pytest.raises(KeyError, match="colour"):
        LEGEND.shown("colour", 3)


def test_a_label_is_given_by_the_field_or_its_name():
    assert [LEGEND.label(name) for name in ("error", "like", "head_groups")] == [
        "largest error", "fitted on", "head groups",
    ]  # fmt: skip


def test_a_head_has_the_unit_that_the_label_does_not_say():
    assert [LEGEND.head(name) for name in ("error", "groups", "mesh", "like", "head_groups")] == [
        "largest error (%)", "groups", "mesh (side)", "fitted on", "head groups",
    ]  # fmt: skip


def test_given_values_are_shown_in_full():
    asked = LEGEND.asked
    assert (asked("k", 16384), asked("groups", 1), asked("gpus", 1)) == ("16,384 elements", "1", "1 GPU")
    assert (asked("mesh", 540), asked("seconds", 1.2e-6), asked("device", "wse3")) == (
        "540 x 540 cores", "1.2 us", "wse3",
    )  # fmt: skip


def test_of_several_sources_the_last_counts():
    legend = Legend(Shown, {"k": unit("tokens", "keys")}, Legend({"gpus": unit("chips")}))
    assert (legend.unit("k"), legend.label("k"), legend.unit("gpus"), legend.unit("groups")) == (
        "tokens", "keys", "chips", "groups",
    )  # fmt: skip


def test_a_field_that_holds_the_same_takes_unit_and_label_over():
    @dataclass(frozen=True)
    class Other:
        units_of = (Shown,)

        seconds: float = 0.0
        k: int = field(default=1, metadata=unit("keys"))

    assert [Legend(Other).head(name) for name in ("seconds", "k", "error")] == ["time (s)", "k (keys)", "error"]
