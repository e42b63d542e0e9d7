"""The basis of an estimate: its constants, its distance from the measured range, and an error band.

A family of measurements is fitted again with some of its rows left out, and each row keeps its largest error. The
family's band is the root mean square of these errors times Student's t of two-sided probability `SHARE`; the degrees of
freedom are the rows less the constants. Outside of the measured range the band widens: each doubling beyond the range
adds the band once more, and so does each property that was never measured. A device whose numbers scale a constant,
such as `hop_cycles`, has no band: constants were measured at one value of these numbers alone. A clock scales none.
`wafer-triton validate --fit` writes the bands.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log2, sqrt
from pathlib import Path
from typing import Any

from wafer_triton.cost.constants import scaled
from wafer_triton.device import PRESETS, Device
from wafer_triton.device.dtype import STORED
from wafer_triton.device.mesh import Mesh
from wafer_triton.shape.decoder import DecoderShape

FOLDER = Path(__file__).parent / "calibrate"
SHARE = 0.9  # share of the measurements that lie inside a band
# Student's t of two-sided probability SHARE for 1, 2, ... degrees of freedom, by scipy.stats.t.ppf(0.95, degrees)
STUDENT = (
    6.31375, 2.91999, 2.35336, 2.13185, 2.01505, 1.94318, 1.89458, 1.85955, 1.83311, 1.81246, 1.79588, 1.78229,
    1.77093, 1.76131, 1.75305, 1.74588, 1.73961, 1.73406, 1.72913, 1.72472, 1.72074, 1.71714, 1.71387, 1.71088,
    1.70814, 1.70562, 1.70329, 1.70113, 1.69913, 1.69726, 1.69552, 1.69389, 1.69236, 1.69092, 1.68957, 1.68830,
    1.68709, 1.68595, 1.68488, 1.68385, 1.68288, 1.68195, 1.68107, 1.68023, 1.67943, 1.67866, 1.67793, 1.67722,
    1.67655, 1.67591, 1.67528, 1.67469, 1.67412, 1.67356, 1.67303, 1.67252, 1.67203, 1.67155, 1.67109, 1.67065,
    1.67022, 1.66980, 1.66940, 1.66901, 1.66864, 1.66827, 1.66792, 1.66757, 1.66724, 1.66691, 1.66660, 1.66629,
    1.66600, 1.66571, 1.66543, 1.66515, 1.66488, 1.66462, 1.66437, 1.66412, 1.66388, 1.66365, 1.66342, 1.66320,
    1.66298, 1.66277, 1.66256, 1.66235, 1.66216, 1.66196, 1.66177, 1.66159, 1.66140, 1.66123, 1.66105, 1.66088,
    1.66071, 1.66055, 1.66039, 1.66023,
)  # fmt: skip
Sizes = Mapping[str, tuple[int, ...]]  # sizes of a measurement or an estimate, by name, such as "mesh"

# By device and kind of estimate: the families of measurements for it, and a text on the lack of a measurement.
_NO_PRODUCT = "no product alone was measured on wse2"
FAMILIES: dict[tuple[str, str], tuple[tuple[str, ...], str]] = {
    ("wse2", "gemm"): (("WSE-2 prefill", "MeshGEMM"), _NO_PRODUCT),
    ("wse2", "gemv"): (("MeshGEMV",), _NO_PRODUCT),
    ("wse2", "decode"): (("WSE-2 decode",), ""),
    ("wse2", "prefill"): (("WSE-2 prefill",), ""),
    ("wse3", "gemm"): (("MeshGEMM",), ""),
    ("wse3", "gemv"): (("MeshGEMV",), ""),
    ("wse3", "decode"): (("WSE-3 decode layer",), ""),
    ("wse3", "prefill"): (("WSE-2 prefill",), "no prefill was measured on wse3"),
}


@dataclass(frozen=True)
class Basis:
    """The basis of an estimate.

    `constants` says whether the constants are fitted, and on which device, or derived. `error_band` is the share of the
    estimate by which a measurement may differ; None without a calibration, or beside it. `outside` lists sizes and
    properties of the estimate that were not measured.
    """

    constants: str
    error_band: float | None = None
    outside: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Return the fields of an estimate: the texts in `outside` are one, None if there are none."""
        return {
            "constants": self.constants,
            "error_band": self.error_band,
            "outside": "; ".join(self.outside) or None,
        }


def basis_of_all(phases: Mapping[str, Basis]) -> Basis:
    """Return the basis of added phases: the largest band, and texts of sizes outside, each with its phase's name."""
    first, *_ = phases.values()
    bands = [phase.error_band for phase in phases.values() if phase.error_band is not None]
    shared = [text for text in first.outside if all(text in phase.outside for phase in phases.values())]
    own = [f"{name}: {text}" for name, phase in phases.items() for text in phase.outside if text not in shared]
    return Basis(first.constants, max(bands, default=None), (*shared, *own))


def basis(of: Device, kind: str, sizes: Sizes, unmeasured: Iterable[str] = ()) -> Basis:
    """Return the basis of an estimate of a `kind`, "gemm", "gemv", "decode" or "prefill", on a device.

    `unmeasured` has texts on further properties of the estimate that no measurement has.
    """
    if of.like is None:
        return Basis("derived from the device's numbers, not calibrated")
    numbers = scaled(of)
    constants = f"fitted: {of.like}" + f", scaled for {', '.join(numbers)}" * bool(numbers)
    names, absent = FAMILIES[of.like, kind]
    families = [bands()[name] for name in names]
    rectangular = "no rectangular mesh was measured" * (len(set(sizes.get("mesh", ()))) > 1)
    outside = [text for text in (absent, *unmeasured, rectangular) if text]
    doublings = float(len(outside))
    for name, own in sizes.items():
        measured = [family["sizes"][name] for family in families if name in family["sizes"]]
        if measured:
            least, most = min(low for low, _ in measured), max(high for _, high in measured)
            text, times = _beyond(name, own, least, most)
            outside += text
            doublings += times
    base = PRESETS[of.like]
    text, times = _beyond("clock_hz", (of.clock_hz,), base.clock_hz, base.clock_hz)
    outside += text
    own_band = max(family["error_band"] for family in families) * (1 + doublings + times)
    if numbers:
        fitted = [f"{number} {getattr(base, number):,.6g}, not {getattr(of, number):,.6g}" for number in numbers]
        outside.append(f"no error band, as the constants were fitted at {', at '.join(fitted)}")
    return Basis(constants, None if numbers else own_band, tuple(outside))


def fits(of: Device) -> dict[str, Any]:
    """Return the families of measurements used for estimates on a device, each with its range and its error band.

    The band of a kind of estimate is the band on this device, wider on another clock, and None where it has none.
    """
    found = {}
    for (like, kind), (names, _) in FAMILIES.items():
        if like == of.like:
            rests_on = basis(of, kind, {})
            ranges = {name: {"rows": bands()[name]["rows"], "sizes": bands()[name]["sizes"]} for name in names}
            found[kind] = {"families": ranges, "error_band": rests_on.error_band, "outside": list(rests_on.outside)}
    return found


SEVERAL = ("decode of several sequences was not measured",)  # for estimates of a batch


def unmeasured(dtype: str, algorithm: str, measured: str, relayed: bool) -> list[str]:
    """Return the properties of a product that no measured product of the algorithm `measured` has."""
    said = {
        f"algorithm {algorithm} was not measured": algorithm != measured,
        f"{dtype} was not measured": dtype == "fp32",  # bf16 takes as long as fp16
        f"weights in {dtype} were not measured": dtype in STORED,
        "nothing that is relayed core by core was measured": relayed,
    }
    return [text for text, holds in said.items() if holds]


def layer_basis(
    phase: str, mesh: Mesh, shape: DecoderShape, tokens: int, program: str, unmeasured: Iterable[str] = ()
) -> Basis:  # fmt: skip
    """Return the basis of a phase with a cache or a prompt of `tokens`; `program` as in `wafer_triton.cost.layers`."""
    own = ["a model's own program was not measured"] if program == "full" else []
    own += [f"weights in {shape.weights} were not measured"] if shape.weights in STORED else []
    return basis(mesh.device, phase, layer_sizes(shape, mesh, tokens), [*own, *unmeasured])


def product_sizes(mesh: Mesh, *widths: int) -> Sizes:
    """Return the sizes of a product on a mesh, whose tiles have these widths."""
    return {"mesh": (mesh.rows, mesh.cols), "tile": widths}


def layer_sizes(shape: DecoderShape, mesh: Mesh, tokens: int) -> Sizes:
    """Return the sizes of a layer with a cache or a prompt of `tokens`."""
    return {"mesh": (mesh.rows, mesh.cols), "width": (shape.hidden_size,), "tokens": (tokens,)}


def _beyond(name: str, own: Sequence[float], least: float, most: float) -> tuple[list[str], float]:
    """Return texts for sizes outside a range, and the number of doublings outside it on both sides."""
    texts, doublings = [], 0.0
    low, high = min(own), max(own)
    if high > most:
        texts.append(f"{name} {high:,.4g} is {high / most:.3g} times the largest measured, {most:,.4g}")
        doublings += log2(high / most)
    if low < least:
        texts.append(f"{name} {low:,.4g} is {low / least:.2g} of the smallest measured, {least:,.4g}")
        doublings += log2(least / low)
    return texts, doublings


@cache
def bands() -> Mapping[str, Mapping[str, Any]]:
    """Return the bands by family: rows, constants, error_band, the range of sizes, and errors of rows left out."""
    families: dict[str, Mapping[str, Any]] = json.loads((FOLDER / "bands.json").read_text(encoding="utf-8"))
    return families


def band(left_out: Mapping[str, Mapping[str, float]], rows: int, constants: int) -> float:
    """Return the error band from the errors of rows left out of a fit of `constants` constants on `rows` rows.

    Rows are left out with all that share a mesh, with all that share a tile, and so on. Of each row the largest error
    counts.
    """
    worst: dict[str, float] = {}
    for errors in left_out.values():
        for row, error in errors.items():
            worst[row] = max(worst.get(row, 0.0), abs(error))
    student = STUDENT[min(rows - constants, len(STUDENT)) - 1]
    return student * sqrt(sum(error**2 for error in worst.values()) / len(worst))
