"""A spec is the JSON file of a preset: the device's numbers and constants, each with its source.

`numbers` are the fields of `wafer_triton.device.Device`, and `wafer_cores`. `constants` are fields of
`wafer_triton.cost.constants.Constants`; a constant that is absent follows from the numbers by a rule there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
NAMES = ("wse2", "wse3")
KINDS = {
    "data sheet": "the maker's documents",
    "published": "a paper, or a third party's measurement of silicon",
    "fitted": "least squares on the calibration files, `wafer-triton validate --fit`",
    "carried over": "a number of another device, as this one was not measured",
    "assumed": "a choice here, for the reason that is given",
    "derived": "from the device's own numbers, by a rule",
    "scaled": "a constant of the device that `like` names, in proportion to a number that differs between the two",
    "own": "given by the user",
}


@dataclass(frozen=True)
class Sourced:
    """A number and its source: `kind` is one of `KINDS`; a fitted number may have a standard error."""

    value: Any
    kind: str
    source: str
    standard_error: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return all fields but an absent standard error."""
        return {name: value for name, value in asdict(self).items() if name != "standard_error" or value is not None}


@dataclass(frozen=True)
class Spec:
    """The contents of a spec; `like` is as in `Device`."""

    like: str | None
    numbers: Mapping[str, Sourced]
    constants: Mapping[str, Sourced]

    def write(self, path: Path) -> Path:
        """Write the spec as a file; returns its path."""
        parts = {part: {name: entry.as_json() for name, entry in getattr(self, part).items()} for part in _PARTS}
        path.write_text(json.dumps({"like": self.like, **parts}, indent=2) + "\n", encoding="utf-8")
        return path


_PARTS = ("numbers", "constants")


@cache
def read(name: str) -> Spec:
    """Read the spec of a preset."""
    values = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    numbers, constants = ({key: Sourced(**entry) for key, entry in values[part].items()} for part in _PARTS)
    return Spec(values["like"], numbers, constants)
