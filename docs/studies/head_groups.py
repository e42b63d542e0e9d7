"""The script of docs/head-groups.md and its CSV: four models on large meshes, with one head group and with the best."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from wafer_triton import estimate
from wafer_triton.cost import inference, layers, padding
from wafer_triton.cost.constants import constants
from wafer_triton.cost.layers import decode_block, decode_bytes
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.errors import WaferError
from wafer_triton.place.layouts import endless
from wafer_triton.place.need import prefill_need
from wafer_triton.shape.read import shape_of
from wafer_triton.text.quantity import digits

PAGE = Path(__file__).resolve().parents[1] / "head-groups.md"
ROWS = PAGE.with_suffix(".csv")
HEAD = (
    "phase", "model", "mesh", "paper-benchmark program", "one group", "best", "groups", "over benchmark",
    "on one WSE-2", "padding, one group", "padding, best", "SRAM, one group", "SRAM, best",
)  # fmt: skip
MODELS = ("llama3-8b", "llama2-13b", "codellama-34b", "qwen2-72b")
SIDES = (360, 420, 540, 660, 720)
CONTEXT = 4096
TOKENS = 4096
SHOWN = ("llama3-8b", 360)

INTRODUCTION = """# Head groups

With one head group every column of a mesh holds the same few rotary pairs of every head. A head of 128 dimensions has
64 pairs, so on 360 columns 296 hold padding alone. With several groups the columns are cut into groups of equally many.
A group holds some key-value heads with their query heads, and its columns share the pairs. With more groups than
key-value heads, a key-value head is repeated over some groups, which share its query heads. A score is then a sum over
the columns of a group, and all groups sum at the same time, over links of their own. Padding lies at the end: columns
without a group, groups without heads.

`head_groups=` and `--head-groups` force a number in both phases; a prefill mesh of fewer columns has as many groups as
columns. Else the cost model chooses for each phase. In decode, among the numbers whose tiles have the least padding,
the fastest number that the device holds is taken. In prefill, among the numbers that take the most of a prompt at once,
the number with the fastest products is taken. Where the phases differ, the heads go along x between them, which is
counted and priced (`predicted()["replacement"]`).

A width that is cut over P mesh rows is rounded up on each row. Of 4,096 over 660 rows each takes 7, so 586 rows hold
all, and the rest hold padding (`wafer_triton/cost/padding.py`). Where tokens and width both take 7 a mesh row, a
product has 1.13 x 1.13 = 1.27 times the model's multiply-adds.

[head-groups.csv](head-groups.csv) has all numbers: cycles of a layer, groups, padding, and bytes of SRAM. All cycles
are predicted. Silicon has run the "paper-benchmark" program alone, scaled from a part of its layers: decode of
Llama-3-8B on 420, 540 and 660 square and of Qwen2-72B on 540, prefill of Llama-3-8B on 480, 600 and 720 and of
Qwen2-72B on 600 ([validation.md](validation.md)). No model's own decoder was measured. Padding is the multiply-adds of
the mesh over the model's multiply-adds. SRAM is the bytes that a layer needs on a core, workspace included.

## Decode

A decode layer of a model has nine all-reduces, where the paper-benchmark program has ten: the sums of softmax's weights
go in one all-reduce with the weighted values, as several buffers follow one another over the same links.

Decode is one token on a WSE-2, with {context} tokens in the cache.
"""

DECODE_SUMMARY = """
The four models' own programs take {least} to {most} of the paper-benchmark program's cycles. Padding is at most
{padding}: widths that are rounded up, pairs that do not divide a group's columns, a free slot of the cache on each row.
Most cycles are the latencies of the nine all-reduces, seven of which cross all rows.

Decode of {model} on {side} x {side} cores by step:
"""

PREFILL = """
## Prefill

Projections are MeshGEMMs over the whole mesh. Attention stays within the columns of a group. On P x P cores a row has P
blocks of scores. They lie on a ring of P places over the group's columns, with some places on each column. GEMM-T sums
partial scores along x over the columns of a group. For the weighted values the ring turns by a place in every round,
and the values move along y: a block crosses to the next column, the others change their slots
(`wafer_triton/schedule/segment_gemm.py`). Both take P rounds, as with one group, and no weights of softmax are aligned.

Prefill takes a prompt of {tokens} tokens through one layer, as many tokens at once as fit a WSE-2's core beside that
layer. The column "on one WSE-2" of the CSV is for a wafer that holds the whole model, which may leave less room for
tokens. It is empty if no wafer holds the model. The paper-benchmark program takes all tokens at once.
"""

PREFILL_SUMMARY = """
The four models' own programs take {least} to {most} of the paper-benchmark program's cycles. Padding is at most
{padding}, and with the paper-benchmark program {measured}. More groups than key-value heads repeat these
heads, which is padding too, yet takes fewer cycles than several heads a core. A model has scores of every head, the
paper-benchmark program of one. Where other layers share the cores, their weights, keys and values leave less room for
these scores.

Prefill of {model} on {side} x {side} cores by step:
"""


def table(head: tuple[str, ...], rows: list[list[str]], left: int) -> str:
    """Return a Markdown table whose first `left` columns are texts."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows)) + "\n"


def rounded(cycles: float) -> str:
    """Return cycles to four digits, as a number of a CSV."""
    return digits(cycles).replace(",", "")


def sram(model: str, mesh: int, number: int | None) -> int:
    """Return the bytes that a layer needs of a core."""
    on = as_mesh(mesh, "wse2")
    return decode_bytes(decode_block(shape_of(model), on, CONTEXT, constants(on.device), head_groups=number))


@dataclass(frozen=True)
class Filled:
    """Prefill of one layer: its head groups, cycles by step, padding, bytes of a core."""

    groups: int
    steps: dict[str, float]
    padding: float
    sram: int

    @property
    def cycles(self) -> float:
        """Of all steps."""
        return sum(self.steps.values())


def filled(model: str, side: int, program: str = "full", groups: int | None = None, whole: bool = False) -> Filled:
    """Prefill as it fits cores that hold one layer, or the `whole` model; WaferError where they do not."""
    on, shape = device("wse2"), shape_of(model)
    mesh, c = Mesh(side, side, on if whole else endless(on)), constants(on)
    own, _ = inference.prefill_placed(mesh, shape, TOKENS, c, program, groups)
    block, at_once = own.block, own.at_once
    rows = -(-TOKENS // block.mesh.rows)
    steps = {name: cost.cycles for name, cost in layers.prefill_steps(block, rows, c, at_once).items()}
    needs = {kind: prefill_need(block, kind, at_once, rows - at_once) for kind in shape.layers_of}
    size = sum(sum(need.resident.values()) for need in needs.values())
    size += max(sum(need.workspace.values()) for need in needs.values())
    return Filled(block.head_groups, steps, padding.prefill_ratio(block, TOKENS, at_once), size)


def on_one_wafer(model: str, side: int, measured: float) -> str:
    """Return the cycles of prefill over `measured` ones where one device holds the whole model, else ""."""
    try:
        return f"{filled(model, side, whole=True).cycles / measured:.3f}"
    except WaferError:
        return ""


def by_step(programs: list[dict[str, float]]) -> str:
    """Return the steps of the paper-benchmark program, and of the model's own with one head group and with the best."""
    names: list[str] = []
    for program in programs:
        place = 0
        for name in program:
            if name not in names:
                names.insert(place, name)
            place = names.index(name) + 1
    steps = [[name, *(digits(program[name]) if name in program else "-" for program in programs)] for name in names]
    return table(("step", "paper-benchmark program", "one group", "best"), steps, 1)


def prefill_row(model: str, side: int) -> list[str]:
    """Return a row of the CSV on prefill."""
    measured, one, best = programs = prefills(model, side)
    row = ["prefill", model, f"{side}x{side}", *(rounded(program.cycles) for program in programs)]
    row += [str(best.groups), f"{best.cycles / measured.cycles:.3f}", on_one_wafer(model, side, measured.cycles)]
    return [*row, f"{one.padding:.2f}", f"{best.padding:.2f}", str(one.sram), str(best.sram)]


def prefill(rows: list[list[str]]) -> str:
    """Return the section on prefill."""
    steps = by_step([program.steps for program in prefills(*SHOWN)])
    return PREFILL.format(tokens=f"{TOKENS:,}") + prefill_summary(rows) + "\n" + steps


def decode_summary(rows: list[list[str]]) -> str:
    """Return the text on the rows of decode, up to the steps of one model."""
    model, side = SHOWN
    return DECODE_SUMMARY.format(**extremes(rows), model=model, side=side)


def prefill_summary(rows: list[list[str]]) -> str:
    """Return the text on the rows of prefill, up to the steps of one model."""
    model, side = SHOWN
    whole = max(filled(name, each, "paper-benchmark").padding for name in MODELS for each in SIDES)
    return PREFILL_SUMMARY.format(**extremes(rows), measured=f"{whole:.2f}", model=model, side=side)


def extremes(rows: list[list[str]]) -> dict[str, str]:
    """Return the least and the most cycles over the paper-benchmark program's, and the most padding."""
    ratios, paddings = ([float(row[HEAD.index(name)]) for row in rows] for name in ("over benchmark", "padding, best"))
    return {"least": f"{min(ratios):.3f}", "most": f"{max(ratios):.3f}", "padding": f"{max(paddings):.2f}"}


@cache
def prefills(model: str, side: int) -> tuple[Filled, Filled, Filled]:
    """Prefill by the paper-benchmark program, and by the model's own with one head group and with the best number."""
    return filled(model, side, "paper-benchmark"), filled(model, side, groups=1), filled(model, side)


def decode_row(model: str, side: int) -> list[str]:
    """Return a row of the CSV on decode."""
    measured, one, best = programs = estimates(model, side)
    row = ["decode", model, f"{side}x{side}", *(rounded(program.cycles_per_layer) for program in programs)]
    row += [str(best.head_groups), f"{best.cycles_per_layer / measured.cycles_per_layer:.3f}", ""]
    row += [f"{one.padding:.2f}", f"{best.padding:.2f}"]
    return row + [str(sram(model, side, number)) for number in (1, best.head_groups)]


def page(rows: list[list[str]]) -> str:
    """Return the whole page, for all rows of the CSV."""
    decode_rows, prefill_rows = ([row for row in rows if row[0] == phase] for phase in ("decode", "prefill"))
    steps = by_step([program.steps for program in estimates(*SHOWN)])
    return "\n".join(
        (
            INTRODUCTION.format(context=f"{CONTEXT:,}") + decode_summary(decode_rows),
            steps.rstrip("\n"),
            prefill(prefill_rows).rstrip("\n"),
            "\n`python docs/studies/head_groups.py` writes this page and the CSV anew.\n",
        )
    )


def estimates(model: str, side: int) -> tuple[estimate.Layered, estimate.Layered, estimate.Layered]:
    """Decode by the paper-benchmark program, and by the model's own with one head group and with the best number."""
    given = {"model": model, "mesh": side, "context": CONTEXT}
    return decoded(**given, program="paper-benchmark"), decoded(**given, head_groups=1), decoded(**given)


def decoded(**given: Any) -> estimate.Layered:
    """Decode of all layers; where a WSE-2 does not hold them, on more cores, on which a layer takes the same cycles."""
    try:
        return estimate.decode(**given)
    except WaferError:
        return estimate.decode(device=endless(device("wse2")), **given)


def write() -> None:
    """Write the CSV and the page."""
    rows = [row_of(model, side) for row_of in (decode_row, prefill_row) for model in MODELS for side in SIDES]
    with ROWS.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *rows])
    PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    write()
