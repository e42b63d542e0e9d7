"""The paper's tables, cell by cell, beside the model's predictions, as `wafer-triton reproduce` prints them.

A cell is a number that WaferLLM (He et al., OSDI'25) reports, of tables 2 to 8 or of its text. It has two predictions:
of the program that the paper ran ("paper-benchmark") and of the model's own ("full"). Constants are fitted on the
calibration files alone, which have eight cells of tables 3 and 4; nothing here is fitted. Cells of GPUs, and of T10 and
Ladder, whose programs on a wafer are unpublished, are context and never predicted.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

from wafer_triton import estimate
from wafer_triton.cost.bands import FOLDER
from wafer_triton.cost.calibrate.cells import TABLES, Cell
from wafer_triton.cost.constants import constants
from wafer_triton.cost.inference import decode_on, prefill_on, request_on, request_placed
from wafer_triton.cost.results import Layered, RequestCost
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import WaferError
from wafer_triton.place.layouts import endless
from wafer_triton.place.regions import FullError
from wafer_triton.shape.read import shape_of
from wafer_triton.text.progress import Progress, silent

T = TypeVar("T")
FILE = FOLDER / "wse2_paper.csv"
WSE2, GPU = "wse2", "a100"
SIDES = (480, 600, 720)  # meshes of a product whose mesh the paper does not state: the fastest is taken
# Reasons for missed cells, by table and by the system of the cell.
WHY = {
    ("5", "llama2-13b"): "the same count gives 8B's; docs/validation.md has the experiments",
    ("text", "Cannon"): "a shift over the whole row hides beside the product of its tiles, unless tiles are small",
    ("text", "SUMMA"): "a tile that is relayed core by core costs a routing stage a core, which the paper's may not",
    ("2", ""): "prefill on a mesh that table 3 lacks, and re-placement; docs/validation.md has the experiments",
}


# Of both programs, the band, a note, and the chunks of prefill in the full program.
Prediction = tuple[float | None, float | None, float | None, str, int | None]


def cells(tables: tuple[str, ...] = TABLES, progress: Progress = silent) -> tuple[Cell, ...]:
    """Return the cells of tables, in the order of the file; cells of the text come last. Reports "cells"."""
    records = records_of_file()
    every = [partial(_cell, record, records) for record in records if record["table"] in tables]
    every += _statements(records) if "text" in tables else []
    made = []
    for number, cell in enumerate(every, 1):
        made.append(cell())
        progress("cells", number, len(every))
    return tuple(made)


def records_of_file() -> list[dict[str, str]]:
    """Return the rows of the paper's tables as they are published."""
    with FILE.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _cell(record: dict[str, str], records: list[dict[str, str]]) -> Cell:
    published = record["value"]
    half = 0.5 * 10.0 ** -len(published.partition(".")[2]) if "." in published else 0.5
    tokens = record["input_tokens"] + (f" in, {record['output_tokens']} out" if record["output_tokens"] else "")
    predict = _PREDICT[record["table"]]
    context = record["role"] == "context"
    predicted, full, band, note, chunks = (None, None, None, "", None) if context else predict(record, records)
    return Cell(
        record["table"], record["what"], record["model"], record["system"], record["mesh"], tokens, record["unit"],
        published, float(published) - half, float(published) + half, record["role"] == "calibration", predicted, full,
        band, note, chunks,
    )  # fmt: skip


# --- tables 2 to 4: whole decoders ---


def _phase(record: dict[str, str], records: list[dict[str, str]]) -> Prediction:
    phase, model, mesh, tokens = record["what"], record["model"], record["mesh"], int(record["input_tokens"])
    own, full = (_layered(phase, model, mesh, tokens, program) for program in ("paper-benchmark", "full"))
    return own.tokens_per_second, full.tokens_per_second, own.error_band, "", full.chunks


def _layered(phase: str, model: str, mesh: str, tokens: int, program: str) -> Layered:
    """Return the estimate of a phase with all layers, see `_all_layers`."""
    price, c = prefill_on if phase == "prefill" else decode_on, constants(device(WSE2))
    return _all_layers(lambda on: price(on, shape_of(model), tokens, c, program=program), int(mesh))


def _all_layers(price: Callable[..., T], *sides: int) -> T:
    """Return the price of a model on square meshes of the wafer, of as many cores as its layers need.

    The authors time the layers that the wafer holds, and scale the time to all layers of the model.
    """
    wafer = device(WSE2)
    try:
        return price(*(Mesh(side, side, wafer) for side in sides))
    except FullError:
        return price(*(Mesh(side, side, endless(wafer)) for side in sides))


def _request(record: dict[str, str], records: list[dict[str, str]]) -> Prediction:
    own, full = (_requested(record, program) for program in ("paper-benchmark", "full"))
    return own.tokens_per_second, full.tokens_per_second, own.error_band, WHY["2", ""], full.chunks


def _requested(record: dict[str, str], program: str) -> RequestCost:
    """Return the estimate of a request with all layers, see `_all_layers`."""
    shape, c = shape_of(record["model"]), constants(device(WSE2))
    sizes = int(record["input_tokens"]), int(record["output_tokens"])

    def price(prefill: Mesh, decode: Mesh) -> RequestCost:
        return request_on(request_placed(prefill, decode, shape, *sizes, c, program=program), *sizes, c, program)

    return _all_layers(price, *map(int, record["mesh"].split("/")))


@dataclass(frozen=True)
class Parts:
    """The published and the predicted seconds of a request, part by part.

    `elsewhere_seconds` is predicted with prefill on the largest mesh of table 3 in place of the stated mesh.
    """

    model: str
    input: int
    output: int
    published_seconds: float
    predicted_seconds: float
    prefill_seconds: float
    replacement_seconds: float
    decode_seconds: float
    elsewhere_seconds: float


def parts() -> list[Parts]:
    """Return the parts of every request of table 2 by the paper's program."""
    found = []
    for record in records_of_file():
        if record["table"] == "2" and record["system"] == "WaferLLM":
            prompt, answer = int(record["input_tokens"]), int(record["output_tokens"])
            own = _requested(record, "paper-benchmark")
            elsewhere = _layered("prefill", record["model"], str(SIDES[-1]), prompt, "paper-benchmark").seconds
            found.append(
                Parts(
                    record["model"], prompt, answer, answer / float(record["value"]),
                    own.seconds, own.prefill_seconds, own.replacement_seconds, own.decode_seconds,
                    own.seconds - own.prefill_seconds + elsewhere,
                )
            )  # fmt: skip
    return found


# --- tables 5 to 8: caches, a product, energy ---


def _capacity(record: dict[str, str], records: list[dict[str, str]]) -> Prediction:
    given: dict[str, Any] = {"device": WSE2, "model": record["model"], "mesh": int(record["mesh"])}
    counted: list[float | None] = []
    for program in ("paper-benchmark", "full"):
        try:
            capacity = estimate.kv(program=program, **given)
        except WaferError:  # the full program's buffers leave no room
            counted.append(None)
            continue
        counted.append(capacity.shift_tokens if record["system"] == "shift" else capacity.concat_tokens)
    return counted[0], counted[1], None, WHY.get(("5", record["model"]), ""), None


def _gemv(record: dict[str, str], records: list[dict[str, str]]) -> Prediction:
    size = int(record["model"].rpartition(",")[2].strip(" ]"))
    best, side = _fastest(size)
    if record["unit"] == "ms":
        return best.seconds * 1e3, None, best.error_band, f"mesh not stated; the fastest of {_sides()} is {side}", None
    count = int(record["system"].split()[1][1:])
    (gpu,) = (
        float(row["value"]) * 1e-3
        for row in records
        if row["table"] == "6" and row["model"] == record["model"] and row["system"] == f"cuBLAS {count} A100"
    )
    ratio = estimate.energy(device=WSE2, seconds=best.seconds, against=GPU, against_seconds=gpu, gpus=count)
    return ratio.energy_ratio, None, best.error_band, "the GPUs' time is the paper's", None


@lru_cache(maxsize=8)
def _fastest(size: int) -> tuple[Any, int]:
    """Return the fastest MeshGEMV of a square matrix on the meshes `SIDES`, and its side."""
    kernels = {side: estimate.gemv(device=WSE2, mesh=side, k=size, n=size) for side in SIDES}
    best = min(SIDES, key=lambda side: kernels[side].seconds)
    return kernels[best], best


def _sides() -> str:
    return ", ".join(map(str, SIDES))


def _energy(record: dict[str, str], records: list[dict[str, str]]) -> Prediction:
    """Return the ratio of energies a token, on the mesh that the paper measured as the fastest."""
    phase, model = record["what"].split()[1], record["model"]
    gpus = record["system"].removesuffix(" over WSE-2")
    measured = [row for row in records if row["what"] == phase and row["model"] == model]
    best = max((row for row in measured if row["system"] == "WaferLLM"), key=lambda row: float(row["value"]))
    (gpu,) = (float(row["value"]) for row in measured if row["system"] == f"SGLang {gpus}")
    count = 16 if gpus.startswith("2x8") else int(gpus.split()[0])
    own, full = (_layered(phase, model, best["mesh"], 4096, program) for program in ("paper-benchmark", "full"))
    ratios = [
        estimate.energy(
            device=WSE2, seconds=1 / each.tokens_per_second, against=GPU, against_seconds=1 / gpu, gpus=count
        )
        for each in (own, full)
    ]
    note = f"on {best['mesh']}, the fastest in the paper; the GPUs' tokens per second are the paper's"
    return ratios[0].energy_ratio, ratios[1].energy_ratio, own.error_band, note, full.chunks


_PREDICT: dict[str, Callable[..., Prediction]] = {
    "2": _request, "3": _phase, "4": _phase, "5": _capacity, "6": _gemv, "7, 8": _energy,
}  # fmt: skip


# --- statements of the text ---


def _statements(records: list[dict[str, str]]) -> list[partial[Cell]]:
    """Return functions that give the speeds in the text of the paper, each as a range."""
    return [
        *(partial(_over_rival, size, name) for size in (2048, 4096, 8192) for name in ("Cannon", "SUMMA")),
        *(partial(_over_pipeline, side, size) for side, size in ((360, 4096), (720, 4096), (720, 16384))),
        *(partial(_over_gpu, size, end, records) for size, end in ((16384, 280.0), (32768, 606.0))),
    ]


def _over_rival(size: int, name: str) -> Cell:
    ours, other = (
        estimate.gemm(device=WSE2, mesh=SIDES[-1], m=size, k=size, n=size, algorithm=algorithm)
        for algorithm in ("mesh", name.lower())
    )
    return _statement(
        f"MeshGEMM faster than {name}", f"{size:,}^3", str(SIDES[-1]), 2, 3, other.cycles / ours.cycles,
        other.error_band, WHY["text", name],
    )  # fmt: skip


def _over_pipeline(side: int, size: int) -> Cell:
    ours, pipeline = (
        estimate.gemv(device=WSE2, mesh=side, k=size, n=size, algorithm=algorithm)
        for algorithm in ("ktree", "pipeline")
    )
    return _statement(
        "MeshGEMV faster than the vendor's pipeline", f"[1, {size:,}] x [{size:,}, {size:,}]", str(side), 4, 8,
        pipeline.cycles / ours.cycles, pipeline.error_band, "",
    )  # fmt: skip


def _over_gpu(size: int, end: float, records: list[dict[str, str]]) -> Cell:
    (gpu,) = (
        float(row["value"]) * 1e-3
        for row in records
        if row["system"] == "cuBLAS 1 A100" and row["model"].startswith(f"[1,{size}]")
    )
    best, side = _fastest(size)
    return Cell(
        "text", "GEMV faster than one A100", f"[1, {size:,}] x [{size:,}, {size:,}]", "WaferLLM", str(side), "",
        "ratio", f"{end:.0f}", end - 0.5, end + 0.5, False, gpu / best.seconds, None, best.error_band,
        "the GPU's time is the paper's",
    )  # fmt: skip


def _statement(
    what: str, model: str, mesh: str, low: float, high: float, predicted: float, band: float | None, note: str
) -> Cell:
    published = f"{low:g} to {high:g}"
    return Cell(
        "text", what, model, "WaferLLM", mesh, "", "ratio", published, low, high, False, predicted, None, band, note
    )
