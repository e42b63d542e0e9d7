"""Keys of a device's numbers, each with its unit, and the two forms of an own device: a file and a text.

A file is TOML or JSON, one key a number, and `like` names the preset that has all other numbers:

    name = "wide"
    like = "wse2"
    rows = 1024
    cols = 1024
    sram_kib = 128

A text is a preset or a file, and then numbers: "wse2,sram_kib=96,hop_cycles=0.5".
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from os.path import isfile
from pathlib import Path
from typing import Any

from wafer_triton.device.spec import NAMES
from wafer_triton.errors import DeviceError, nearest, shown
from wafer_triton.text.files import listed, parse_json, parse_toml, read_text

SUFFIXES = (".toml", ".json")
PACKETS = "packets"  # the routes of a device whose packets carry their route
UNBOUNDED_BYTES = 2**40  # a core of `Device.unbounded`: more than any operand takes on one core

# The most that each number of a device can be, far beyond any device: a larger one is a slip of the pen.
MOST = {
    "rows": 10_000,
    "cols": 10_000,
    "hop_cycles": 1e6,
    "stage_cycles": 1e6,
    "sram_bytes": UNBOUNDED_BYTES,
    "routes": 1_000_000,
    "clock_hz": 1e12,
    "link_bytes_per_cycle": 1e6,
    "macs_per_cycle_fp16": 1e6,
    "macs_per_cycle_fp32": 1e6,
    "power_watts": 1e9,
}
WHOLE = ("rows", "cols", "sram_bytes", "routes")  # numbers that are counts
LEAST = dict.fromkeys(MOST, 1e-9) | dict.fromkeys(WHOLE, 1) | {"hop_cycles": 0, "stage_cycles": 0}
# Keys of a number with units beside its own, and the factors of these.
UNITS: dict[str, dict[str, float]] = {
    "sram_bytes": {"sram_kib": 2**10, "sram_mib": 2**20},
    "clock_hz": {"clock_mhz": 1e6, "clock_ghz": 1e9},
    "link_bytes_per_cycle": {"link_bits_per_cycle": 1 / 8},
    "power_watts": {"power_kilowatts": 1e3},
}
# Each key of a number with its field of `Device` and the factor of its unit.
KEYS: dict[str, tuple[str, float]] = {
    key: (number, factor) for number in MOST for key, factor in {number: 1, **UNITS.get(number, {})}.items()
}


def in_file(path: str | PathLike[str]) -> tuple[str, str | None, dict[str, Any]]:
    """Return the name, the `like` and the numbers of a TOML or JSON file of a device.

    Raises DeviceError for a file that holds no device, OSError for one that cannot be read.
    """
    where = fspath(path)
    kind = Path(where).suffix.lower()
    if kind not in SUFFIXES:
        raise DeviceError(f"{where}: a device's file ends in {' or '.join(SUFFIXES)}; write it as one of them")
    text = read_text(Path(where), DeviceError)
    values = (parse_toml if kind == ".toml" else parse_json)(text, where, DeviceError)
    if not isinstance(values, dict):
        raise DeviceError(f"{where}: holds no device; give a table with some of {', '.join(KEYS)}")
    name, like = values.pop("name", Path(where).stem), values.pop("like", None)
    numbers = converted(where, values)
    missing = [number for number in MOST if number not in numbers]
    if like is None and missing:
        raise DeviceError(f"{where}: {', '.join(missing)} missing; give them, or like = one of {', '.join(NAMES)}")
    if like is not None and like not in NAMES:
        raise DeviceError(
            f"{where}: like = {like!r} is no preset{nearest(like, NAMES)}; give one of {', '.join(NAMES)}"
        )
    return name, like, numbers


def in_text(text: str) -> tuple[str, dict[str, Any]]:
    """Return the preset or file of a text such as "wse2,sram_kib=96", and its numbers as they are written.

    Raises DeviceError for a text that begins with a number, a word without a value, and a key that comes twice.
    """
    first, *settings = listed(text)
    if "=" in first and not isfile(first):
        raise DeviceError(f"device {text!r}: begins with a number; give a preset or a file first, as wse2,sram_kib=96")
    values: dict[str, Any] = {}
    for setting in settings:
        key, sign, value = (word.strip() for word in setting.partition("="))
        if not sign or not key or not value:
            raise DeviceError(f"device {text!r}: {setting!r} is no number; write KEY=VALUE, as sram_kib=96")
        if key in values:
            raise DeviceError(f"device {text!r}: {key} is given twice; give it once")
        values[key] = value if key == "name" else number_of(value)
    return first, values


def converted(where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers by field, in its unit; DeviceError for an unknown key, a wrong unit, or a number given twice."""
    found: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, value in values.items():
        number, factor = _known(where, key)
        if number in keys:
            raise DeviceError(f"{where}: {keys[number]} and {key} are the same number; give one of them")
        keys[number] = key
        found[number] = checked(where, key, value, number, factor)
    return found


def checked(where: str, key: str, value: Any, number: str, factor: float = 1) -> int | float | None:
    """Return a field's number from its value by a key, in the unit of the field.

    Raises DeviceError, in words of the key, for a value that is no number or beyond the field's range.
    """
    if getattr(value, "ndim", None) == 0:  # of numpy or torch
        value = value.item()
    if number == "routes" and (value is None or (isinstance(value, str) and value == PACKETS)):
        return None
    packets = f", or {PACKETS!r} for routed packets" * (number == "routes")
    if isinstance(value, bool) or not isinstance(value, int | float):
        units = ", ".join((number, *UNITS.get(number, {})))
        what = f"= {shown(value)} is a text" if isinstance(value, str) else f"is of type {type(value).__name__}"
        raise DeviceError(f"{where}: {key} {what}; give a number, its unit in the key ({units}){packets}")
    least, most = LEAST[number] / factor, MOST[number] / factor
    if not least <= value <= most or (number in WHOLE and value * factor % 1):
        kind = "a whole number" if number in WHOLE and factor == 1 else "a number"
        more = f", a whole number of {number}" * (number in WHOLE and factor != 1) + packets
        raise DeviceError(
            f"{where}: {key} = {shown(value)} must be {kind} from {_short(least)} to {_short(most)}{more}"
        )
    held = value * factor if factor != 1 else value
    return int(held) if number in WHOLE else held


def _short(number: float) -> str:
    """Return a bound in full, or a small one in four digits."""
    return f"{number:,.0f}" if number == round(number) else f"{number:.4g}"


def _known(where: str, key: str) -> tuple[str, float]:
    """Return the field of a key and the factor of its unit."""
    if key in KEYS:
        return KEYS[key]
    raise DeviceError(f"{where}: a device has no {key!r}{nearest(key, KEYS)}; numbers: {', '.join(KEYS)}")


def number_of(text: str) -> Any:
    """Return the whole number or the number that a word stands for, or else the word."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
