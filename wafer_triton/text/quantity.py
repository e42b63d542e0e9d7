"""Numbers with units, as people read them: at most four significant digits, thousands separated, a unit beside each.

A dataclass says the unit and the label of each of its numbers in the metadata of the field, by `unit` and `named`, or
names in `units_of` the dataclasses whose fields of the same names have them. A `Legend` reads them from there, for
tables, CSV, pictures and pages. Programs read full numbers: `--json` and CSV.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import floor, isfinite, log10
from typing import Any

PREDICTED = "predicted on the wafer"
EMULATED = "emulated on this machine"
ENDS = (  # of a price: the foot of tables with both
    "predicted cycles: as WaferLLM's kernels are written; tuned cycles: as HPDC'24's collectives are, with products at "
    "the peak; nothing in between is predicted"
)

Metadata = Mapping[str, Any]

# Units that change with the size of the number, the largest first; any other unit stays.
SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "W": ((1e3, "kW"), (1, "W")),
    "J": ((1, "J"), (1e-3, "mJ"), (1e-6, "uJ"), (1e-9, "nJ")),
    "B": ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    "Hz": ((1e9, "GHz"), (1e6, "MHz"), (1, "Hz")),
}


def unit(name: str, label: str = "", **more: Any) -> Metadata:
    """Return metadata of a field that holds a number or a table of numbers: its unit, its label (default: its name).

    A share has the unit "%", an error band "+-%", a square mesh "side", a ratio "x". A number that counts nothing has
    "id", a number without dimension "".
    """
    return {"unit": name, "label": label, **more}


def named(label: str, **more: Any) -> Metadata:
    """Return metadata of a field that holds no number: its label, where its name is not enough."""
    return {"label": label, **more}


def figures(of: type, *sources: object) -> dict[str, Any]:
    """Return the fields of a dataclass that `sources` have by the same names; of one in several the last counts."""
    names = [each.name for each in fields(of)]
    return {name: getattr(source, name) for source in sources for name in names if hasattr(source, name)}


class Legend:
    """Units and labels by the name of a field.

    `sources` are dataclasses, other legends, or tables of metadata by name; of one name in several the last counts. A
    field without a label has that of the field of its name in one of the dataclasses in `units_of`, if its own has any.
    """

    def __init__(self, *sources: Any) -> None:
        self.entries: dict[str, Metadata] = {}
        for source in sources:
            if isinstance(source, Legend):
                self.entries |= source.entries
            elif is_dataclass(source):
                known = Legend(*getattr(source, "units_of", ())).entries
                named = {each.name: each.metadata or known.get(each.name) for each in fields(source)}
                self.entries |= {name: entry for name, entry in named.items() if entry}
            else:
                self.entries |= source

    def unit(self, name: str) -> str:
        """Return the unit of a field; KeyError where none is given."""
        held: str = self.entries[name]["unit"]
        return held

    def label(self, name: str) -> str:
        """Return the words for a field."""
        return self.entries.get(name, {}).get("label") or name.replace("_", " ").strip()

    def head(self, name: str) -> str:
        """Return the label of a field with its unit, where the label lacks it: for numbers that stand without one."""
        label, own = self.label(name), self.entries.get(name, {}).get("unit")
        return f"{label} ({own})" if own and own != label else label

    def shown(self, name: str, value: Any) -> str:
        """Return a field's value: a number in the unit of its field, anything else as its own text.

        Raises KeyError for a number whose field has no unit.
        """
        if value is None:
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        return quantity(value, self.unit(name)) if isinstance(value, int | float) else str(value)

    def asked(self, name: str, value: Any) -> str:
        """Return a value that the user gave: as `shown`, but whole numbers in full, as rounding changes a request."""
        own = self.entries.get(name, {}).get("unit")
        if own is None:
            return f"{value:,}" if type(value) in (int, float) else self.shown(name, value)
        if type(value) is int and own not in SCALES and own != "side":
            return numbered(value, "" if self.label(name).endswith(own) else own)  # head groups 8
        return self.shown(name, value)


def numbered(count: int, of: str) -> str:
    """Return a whole number in full beside its plural, which is a singular for 1."""
    ending = "es" if of.endswith("ches") else "s"
    return f"{count:,} {of.removesuffix(ending) if count == 1 else of}".rstrip()


def digits(number: float) -> str:
    """Return a number in at most four significant digits, its thousands separated."""
    rounded = float(f"{number:.4g}")
    if not isfinite(rounded) or rounded == 0:
        return f"{rounded:g}"
    if not 1e-4 <= abs(rounded) < 1e15:
        return f"{rounded:.4g}"
    text = f"{rounded:,.{max(0, 3 - floor(log10(abs(rounded))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def quantity(number: float, unit: str) -> str:
    """Return a number beside its unit, which is scaled to the number: 49152 "B" is 48 KiB, 0.5 "%" is 50 %."""
    if unit == "id":
        return f"{number:d}"
    if unit == "side":
        return f"{number} x {number} cores"
    if unit in ("%", "+-%"):
        return f"{unit[:-1]}{digits(100 * number)} %"
    whole, slash, per = unit.partition("/")
    scales = SCALES.get(whole, ((1, whole),))
    factor, scaled = next((scale for scale in scales if abs(number) >= scale[0]), scales[-1]) if number else (1, whole)
    text = digits(number / factor)
    if text == "1" and len(scaled) > 2:
        scaled = scaled.removesuffix("s")  # 1 token
    return f"{text} {scaled}{slash}{per}".rstrip()
