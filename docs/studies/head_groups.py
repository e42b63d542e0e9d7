"""Writes docs/head-groups.md: decode of four models on large meshes, with one head group and with the best number."""

from __future__ import annotations

from pathlib import Path

from wafer_triton import estimate
from wafer_triton.cost.constants import constants
from wafer_triton.cost.layers import decode_block, decode_bytes
from wafer_triton.device import device
from wafer_triton.draw.units import digits
from wafer_triton.mesh import Mesh
from wafer_triton.shapes import shape_of

PAGE = Path(__file__).resolve().parents[1] / "head-groups.md"
MODELS = ("llama3-8b", "llama2-13b", "codellama-34b", "qwen2-72b")
SIDES = (360, 420, 540, 660, 720)
CONTEXT = 4096
SHOWN = ("llama3-8b", 360)

INTRODUCTION = """# Head groups in decode

With one head group every column of a mesh holds the same few rotary pairs of every head. A head of 128 dimensions has
64 pairs, so on 360 columns 296 hold padding alone. With several groups the columns are cut into groups of equally many.
A group holds some key-value heads with their query heads, and its columns share the pairs. With more groups than
key-value heads, a key-value head is repeated over some groups, which share its query heads. A score is then a sum over
the columns of a group, and all groups sum at the same time, over links of their own. Padding lies at the end: columns
without a group, groups without heads.

`head_groups=` and `--head-groups` force a number. Else the cost model chooses: of the numbers whose tiles have the
least padding the fastest that fits a core. In prefill there is one group; between the phases the heads go along x to
where the other phase holds them, which is counted and priced (`predicted()["replacement"]`).

A decode layer of a model has nine all-reduces, where the measured program has ten: the sums of softmax's weights go in
one all-reduce with the weighted values, as several buffers follow one another over the same links.

## Cycles of a layer

One token of decode on a WSE-2, with {context} tokens in the cache. All cycles below are predicted.
Silicon has run the program "measured" alone: Llama-3-8B on 420, 540 and 660 square, and Qwen2-72B on 540, scaled from a
part of its layers ([validation.md](validation.md)). No model's own decoder was measured. "Over measured" are the cycles
with the best number of groups over those of the measured program on the same mesh. Padding is the multiply-adds of the
mesh over those of the model. SRAM is what a layer needs of a core, working set included.
"""

BOUND = """
The four models' own programs take {least} to {most} of the measured program's cycles. Padding is at most {padding}.
What is left of it is the width of the model over the rows (4,096 over 660 rows are 7 a row, where 6.2 would do), pairs
that do not divide a group's columns, and one free slot of the cache on each row. Most cycles are the latencies of the
nine all-reduces, seven of which cross all rows.

## Cycles by step

{model} on {side} x {side} cores.
"""


def table(head: tuple[str, ...], rows: list[list[str]], left: int) -> str:
    """A Markdown table whose first `left` columns are texts."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows)) + "\n"


def sram(model: str, side: int, number: int) -> int:
    """Bytes that a layer needs of a core."""
    on = device("wse2")
    block = decode_block(shape_of(model), Mesh(side, side, on), CONTEXT, constants(on), head_groups=number)
    return decode_bytes(block)


def page() -> str:
    """The whole page."""
    rows, ratios, paddings = [], [], []
    for model in MODELS:
        for side in SIDES:
            measured, one, best = estimates(model, side)
            ratios.append(best.cycles_per_layer / measured.cycles_per_layer)
            paddings.append(best.padding or 0.0)
            cells = [model, f"{side} x {side}", digits(measured.cycles_per_layer), digits(one.cycles_per_layer)]
            cells += [digits(best.cycles_per_layer), str(best.head_groups), f"{ratios[-1]:.3f}"]
            cells += [f"{one.padding:.2f}", f"{best.padding:.2f}"]
            cells += [f"{sram(model, side, number):,} B" for number in (1, best.head_groups or 1)]
            rows.append(cells)
    head = (
        "model", "mesh", "measured program", "one group", "best", "groups", "over measured", "padding, one group",
        "padding, best", "SRAM, one group", "SRAM, best",
    )  # fmt: skip
    model, side = SHOWN
    programs = estimates(model, side)
    steps = [
        [name, *(digits(program.steps[name]) if name in program.steps else "-" for program in programs)]
        for name in programs[1].steps
    ]
    found = {"least": f"{min(ratios):.2f}", "most": f"{max(ratios):.2f}", "padding": f"{max(paddings):.2f}"}
    return "\n".join(
        (
            INTRODUCTION.format(context=f"{CONTEXT:,}"),
            table(head, rows, 2) + BOUND.format(**found, model=model, side=side),
            table(("step", "measured program", "one group", "best"), steps, 1).rstrip("\n"),
            "\n`python docs/studies/head_groups.py` writes this page anew.\n",
        )
    )


def estimates(model: str, side: int) -> tuple[estimate.Layered, estimate.Layered, estimate.Layered]:
    """Decode by the measured program, and by the model's own with one head group and with the best number."""
    return (
        estimate.decode(model=model, mesh=side, context=CONTEXT, program="measured", as_if=True),
        estimate.decode(model=model, mesh=side, context=CONTEXT, head_groups=1, as_if=True),
        estimate.decode(model=model, mesh=side, context=CONTEXT, as_if=True),
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
