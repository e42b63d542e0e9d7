"""The paper's tables, cell by cell, beside the model's predictions, as `wafer-triton validate --table` prints them.

A cell is a number that WaferLLM (He et al., OSDI'25) reports of its own program on a WSE-2, in tables 2 to 6 or in its
text. The prediction is of that program, "paper-benchmark". Constants are fitted on the calibration files alone, which
have eight cells of tables 3 and 4; nothing here is fitted. Numbers that follow from other published ones are `derived`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from wafer_triton import estimate
from wafer_triton.cost.calibrate import records
from wafer_triton.cost.calibrate.cells import TABLES, Cell
from wafer_triton.cost.constants import constants
from wafer_triton.cost.inference import decode_on, prefill_on, request_on, request_placed
from wafer_triton.cost.results import Layered, RequestCost
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.place.layouts import unbounded_cores
from wafer_triton.place.regions import FullError
from wafer_triton.shape.read import shape_of
from wafer_triton.text.progress import Progress, silent

T = TypeVar("T")
FILE = "wse2_paper.csv"
WSE2, PROGRAM = "wse2", "paper-benchmark"
SIDES = (480, 600, 720)  # meshes of a product whose mesh the paper does not state: the fastest is taken
SIZES = (2048, 4096, 8192)  # of the products that the text compares
OWN = ("WaferLLM", "shift")  # systems of the cells that are predicted


Prediction = tuple[float, float | None, str]  # with its band, and a note


def cells(tables: tuple[str, ...] = TABLES, progress: Progress = silent) -> tuple[Cell, ...]:
    """Return the cells of tables, in the order of the file; cells of the text come last. Reports "cells"."""
    every = [
        partial(_cell, record) for record in records(FILE) if record["table"] in tables and record["system"] in OWN
    ]
    every += _statements() if "text" in tables else []
    made = []
    for number, cell in enumerate(every, 1):
        made.append(cell())
        progress("cells", number, len(every))
    return tuple(made)


def _cell(record: dict[str, str]) -> Cell:
    published = record["value"]
    half = 0.5 * 10.0 ** -len(published.partition(".")[2]) if "." in published else 0.5
    tokens = record["input_tokens"] + (f" in, {record['output_tokens']} out" if record["output_tokens"] else "")
    return Cell(
        record["table"], record["what"], record["model"], record["mesh"], tokens, record["unit"], published,
        float(published) - half, float(published) + half, record["role"] == "calibration",
        *_PREDICT[record["table"]](record),
    )  # fmt: skip


# --- tables 2 to 4: whole decoders ---


def _phase(record: dict[str, str]) -> Prediction:
    own = _layered(record["what"], record["model"], int(record["mesh"]), int(record["input_tokens"]))
    return own.tokens_per_second, own.error_band, ""


def _layered(phase: str, model: str, side: int, tokens: int) -> Layered:
    """Return the estimate of a phase with all layers, see `_all_layers`."""
    price, c = prefill_on if phase == "prefill" else decode_on, constants(device(WSE2))
    return _all_layers(lambda on: price(on, shape_of(model), tokens, c, program=PROGRAM), side)


def _all_layers(price: Callable[..., T], *sides: int) -> T:
    """Return the price of a model on square meshes of the wafer, of as many cores as its layers need.

    The authors time the layers that the wafer holds, and scale the time to all layers of the model.
    """
    wafer = device(WSE2)
    try:
        return price(*(Mesh(side, side, wafer) for side in sides))
    except FullError:
        return price(*(Mesh(side, side, unbounded_cores(wafer)) for side in sides))


def _request(record: dict[str, str]) -> Prediction:
    shape, c = shape_of(record["model"]), constants(device(WSE2))
    sizes = int(record["input_tokens"]), int(record["output_tokens"])

    def price(prefill: Mesh, decode: Mesh) -> RequestCost:
        return request_on(request_placed(prefill, decode, shape, *sizes, c, program=PROGRAM), *sizes, c, PROGRAM)

    own = _all_layers(price, *map(int, record["mesh"].split("/")))
    elsewhere = _layered("prefill", record["model"], SIDES[-1], sizes[0]).seconds
    error = sizes[1] / (own.seconds - own.prefill_seconds + elsewhere) / float(record["value"]) - 1
    note = f"with the prefill of {SIDES[-1]} x {SIDES[-1]} it is off by {100 * error:+.1f} %"
    return own.tokens_per_second, own.error_band, note


# --- tables 5 and 6: caches, a product ---


def _capacity(record: dict[str, str]) -> Prediction:
    capacity = estimate.kv(device=WSE2, model=record["model"], mesh=int(record["mesh"]), program=PROGRAM)
    return capacity.shift_tokens, None, f"counted with {capacity.layers_per_region} layers a region"


def _gemv(record: dict[str, str]) -> Prediction:
    size = int(record["model"].rpartition(",")[2].strip(" ]"))
    kernels = {side: estimate.gemv(device=WSE2, mesh=side, k=size, n=size) for side in SIDES}
    best = min(SIDES, key=lambda side: kernels[side].seconds)
    note = f"mesh not stated; the fastest of {', '.join(map(str, SIDES))} is {best}"
    return kernels[best].seconds * 1e3, kernels[best].error_band, note


_PREDICT: dict[str, Callable[[dict[str, str]], Prediction]] = {
    "2": _request, "3": _phase, "4": _phase, "5": _capacity, "6": _gemv,
}  # fmt: skip


# --- statements of the text ---


def _statements() -> list[partial[Cell]]:
    """Return functions that give the speeds in the text of the paper, each as a range."""
    return [
        *(partial(over_rival, size, name) for name in ("Cannon", "SUMMA") for size in SIZES),
        *(partial(_over_pipeline, side, size) for side, size in ((360, 4096), (720, 4096), (720, 16384))),
    ]


def over_rival(size: int, name: str, on: str = WSE2) -> Cell:
    """Return the speed of MeshGEMM over another algorithm, for square matrices on a device of a WSE-2's constants."""
    sizes = {"m": size, "k": size, "n": size}
    algorithms = "mesh", name.lower()
    return _statement(f"MeshGEMM faster than {name}", f"{size:,}^3", 2, 3, algorithms, on, SIDES[-1], sizes)


def _over_pipeline(side: int, size: int) -> Cell:
    what, model = "MeshGEMV faster than the vendor's pipeline", f"[1, {size:,}] x [{size:,}, {size:,}]"
    return _statement(what, model, 4, 8, ("ktree", "pipeline"), WSE2, side, {"k": size, "n": size})


def _statement(
    what: str, model: str, low: float, high: float, algorithms: tuple[str, str], on: str, side: int,
    sizes: dict[str, Any],
) -> Cell:  # fmt: skip
    """Return how much faster the first algorithm is than the second, beside the range from `low` to `high`."""
    ours, other = (estimate.product(device=on, mesh=side, algorithm=each, **sizes) for each in algorithms)
    ratio, band = other.cycles / ours.cycles, other.error_band
    return Cell(
        "text", what, model, str(side), "", "times", f"{low:g} to {high:g}", low, high, False, ratio, band
    )  # fmt: skip


# --- numbers that follow from others ---


@dataclass(frozen=True)
class Derived:
    """A published number and the `value` that other published numbers give for it, so that it is no evidence."""

    table: str
    what: str
    model: str
    system: str
    published: float
    value: float


def derived(tables: tuple[str, ...] = TABLES) -> list[Derived]:
    """Return the numbers of tables that follow from others: caches by concatenation, energies, GEMVs over a GPU.

    The power of a wafer is read from the ratios of energies, which then follow from times and the number of GPUs.
    """
    every = records(FILE)

    def published(what: str, model: str, system: str) -> float:
        """Return the largest published number, which is the speed on the fastest mesh."""
        rows = (row for row in every if (row["what"], row["model"], row["system"]) == (what, model, system))
        return max(float(row["value"]) for row in rows)

    def energy(seconds: float, gpu: float, gpus: int) -> float:
        return float(estimate.energy(device=WSE2, seconds=seconds, against_seconds=gpu, gpus=gpus).energy_ratio)

    found = []
    for record in every:
        table, what, model, system = (record[name] for name in ("table", "what", "model", "system"))
        if record["role"] == "context" or system in OWN:
            continue
        if table == "5":
            value = float(published(what, model, "shift") // int(record["mesh"]))
        elif table == "6":
            count = int(system.split()[1][1:])
            value = energy(published("gemv", model, OWN[0]), published("gemv", model, f"cuBLAS {count} A100"), count)
        else:
            phase, gpus = what.split()[1], system.removesuffix(" over WSE-2")
            count = 16 if gpus.startswith("2x8") else int(gpus.split()[0])
            speeds = published(phase, model, OWN[0]), published(phase, model, f"SGLang {gpus}")
            value = energy(1 / speeds[0], 1 / speeds[1], count)
        found.append(Derived(table, what, model, system, float(record["value"]), value))
    for model, speed in (("[1,16384] x [16384,16384]", 280.0), ("[1,32768] x [32768,32768]", 606.0)):
        value = published("gemv", model, "cuBLAS 1 A100") / published("gemv", model, OWN[0])
        found.append(Derived("text", "GEMV faster than one A100", model, OWN[0], speed, value))
    return [one for one in found if one.table in tables]
