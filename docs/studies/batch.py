"""The script of docs/batch.md: the paper's table of decode with batches of 1 to 64 sequences, all predicted."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from wafer_triton import estimate
from wafer_triton.cost.calibrate.paper import records_of_file
from wafer_triton.serve.batch import Batched, batch
from wafer_triton.text.quantity import digits, quantity

PAGE = Path(__file__).resolve().parents[1] / "batch.md"
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 4096  # of table 4
MIXTURE = {"model": "olmoe-1b-7b", "mesh": 360, "context": 1024}

INTRODUCTION = """# Batches of sequences

WaferLLM's tables are of one sequence. This page extends its table 4, decode with 4,096 tokens of cache on a WSE-2, to
batches of 2 to 64 sequences. **All speeds but the published ones are predictions**: no batch was measured on a wafer,
and the error bands say so. Published speeds are of the paper's program, predicted ones of the model's own.

A batch decodes in one of two ways. In *one group* all sequences pass the regions of the model together. Projections and
feed-forward take all at once; attention takes one sequence after the other. Only one region works at a time. In
*several groups* the groups follow one another through the regions, so that regions work at the same time. A group gets
a token each turn, and a turn takes

    max(latency of the largest group through all regions, sum over groups of the slowest region's time for the group)

(`wafer_triton/serve/pipeline.py`, which serving uses too). With R equal regions of s seconds and G groups that is
max(R, G) s. With unequal regions it is max(s1 + ... + sR, G max(s1, ..., sR)). Below is the size of groups with the
most tokens a second, of the powers of two and the batch. Energy is of whole wafers for a turn.

A model that one wafer does not hold is priced as if the wafer had more cores, as the paper does. The column "wafers"
has the wafers that these cores make; moves between wafers are priced as moves on one. Where a core does not hold
the buffers of the batch, it is priced as if it had more SRAM: "SRAM" is then above 48 KiB, and one region holds all.
Every core has buffers for the whole batch, whatever the size of groups.

## Table 4, extended

"User" is the tokens a second of each sequence, "all" the sum over all sequences.

"""

FALLS = """
## Where throughput falls

OLMoE on 360 x 360 cores with 1,024 tokens of cache decodes fewer tokens a second with 16 sequences in one group than
with 8. A token takes 8 of 64 experts. Up to 8 sequences the 64 choices are of 64 experts at most, one row of tokens
each, if tokens take experts evenly. Beyond that some experts have two rows. A local product with one row is one vector
instruction over the tile. With several rows it is a loop over k, which costs more until many rows share it. Groups of
at most 8 sequences avoid it.

"""


def table(head: tuple[str, ...], rows: list[list[str]], left: int) -> str:
    """Return a Markdown table whose first `left` columns are texts."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows)) + "\n"


def published() -> list[tuple[str, int, str]]:
    """Return the model, the mesh and the speed of each cell of WaferLLM in table 4."""
    own = [row for row in records_of_file() if row["table"] == "4" and row["system"] == "WaferLLM"]
    return [(row["model"], int(row["mesh"]), row["value"]) for row in own]


@cache
def batched(model: str, mesh: int, size: int) -> Batched:
    """Return a turn of decode of a batch."""
    return batch(model=model, mesh=mesh, context=CONTEXT, batch=size, as_if=True)


def row_of(model: str, mesh: int, speed: str, size: int) -> list[str]:
    """Return a row of the extended table."""
    found = batched(model, mesh, size)
    one = found.one_group_user_tokens_per_second, found.one_group_tokens_per_second
    many = found.user_tokens_per_second, found.tokens_per_second
    held = [str(found.regions), str(found.wafers), quantity(found.sram_peak_bytes, "B"), "no" if found.as_if else "yes"]
    row = [model, f"{mesh} x {mesh}", str(size), speed if size == 1 else "-", *map(digits, one)]
    row += [str(found.at_once), *map(digits, many), quantity(found.joules_per_token, "J"), found.bound, *held]
    return [*row, quantity(found.error_band or 0.0, "+-%")]


def fall_row(size: int) -> list[str]:
    """Return a row of the table of the mixture."""
    together = estimate.cap(**MIXTURE, batch=size, as_if=True).tokens_per_second
    found = batch(**MIXTURE, batch=size, as_if=True)
    return [str(size), digits(together), str(found.at_once), digits(found.tokens_per_second), found.falls or "-"]


def page() -> str:
    """Return the whole page."""
    head = (
        "model", "mesh", "batch", "published", "one group: user", "all", "groups of", "user", "all", "energy a token",
        "bound by", "regions", "wafers", "SRAM", "fits", "band",
    )  # fmt: skip
    rows = [row_of(*cell, size) for cell in published() for size in BATCHES]
    falls = table(
        ("batch", "one group: all", "groups of", "all", "why one group is slower than a smaller one"),
        [fall_row(size) for size in BATCHES], 1,
    )  # fmt: skip
    return (
        INTRODUCTION
        + table(head, rows, 2)
        + FALLS
        + falls
        + "\n`python docs/studies/batch.py` writes this page anew.\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
