"""The script of docs/batch.md: the paper's tables 2 to 4 and 6 to 8 with batches of 1 to 64, all predicted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path

from wafer_triton import estimate
from wafer_triton.cost.bands import Basis, basis_of_all, layer_basis
from wafer_triton.cost.calibrate.paper import records_of_file
from wafer_triton.cost.constants import constants
from wafer_triton.cost.inference import prefill_placed, request_placed
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import SramError
from wafer_triton.place.fitting import as_if_held, fitted
from wafer_triton.place.regions import FullError, Placement, Regions
from wafer_triton.serve.batch import Batched, answers, batch, prefills
from wafer_triton.serve.times import Priced
from wafer_triton.shape.read import shape_of
from wafer_triton.text.quantity import digits, quantity

PAGE = Path(__file__).resolve().parents[1] / "batch.md"
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 4096  # of tables 3 and 4
WSE2 = device("wse2")
C = constants(WSE2)
SEVERAL = ("several sequences at once were not measured",)
SIDES = (480, 600, 720)  # of a product, whose mesh table 6 does not state: the fastest is taken
MIXTURE = {"model": "olmoe-1b-7b", "mesh": 360, "context": 1024}

INTRODUCTION = """# Batches of sequences

WaferLLM's tables are of one sequence. This page extends its tables 2 to 4 and 6 to 8, all of a WSE-2, to batches of 2
to 64 sequences. **All figures but the published ones are predictions**: no batch was measured on a wafer, and the error
bands say so. Published figures are of the paper's program, predicted ones of the model's own.

In short, by these predictions:

- Decode gains most: groups of sequences keep all regions busy ([table 4](#table-4-extended-decode)).
- Prompts gain at most the number of regions, and nothing where one region holds the model
  ([table 3](#table-3-extended-prefill)). So requests with short answers gain little
  ([table 2](#table-2-extended-requests)).
- Few vectors at once are slower than one after the other, as their local products are loops
  ([table 6](#table-6-extended-a-product), [below](#where-throughput-falls)).

A batch decodes in one of two ways. In *one group* all sequences pass the regions of the model together. Projections and
feed-forward take all at once; attention takes one sequence after the other. Only one region works at a time. In
*several groups* the groups follow one another through the regions, so that regions work at the same time. A group gets
a token each turn, and a turn takes

    max(latency of the largest group through all regions, sum over groups of the slowest region's time for the group)

(`wafer_triton/serve/pipeline.py`, which serving uses too). With R equal regions of s seconds and G groups that is
max(R, G) s. With unequal regions it is max(s1 + ... + sR, G max(s1, ..., sR)). Below is the size of groups with the
most tokens a second, of the powers of two and the batch. Energy is of whole wafers for all seconds.

A model takes the fewest regions that hold it and the buffers of its batch. Weights of one byte (`--dtype int8`) often
take fewer. One sequence gains by that. Several groups may lose, as fewer regions work at the same time.

Prompts of a batch pass the regions of prefill one after the other. The first takes the time of all regions, and each
other one the time of the busiest region more: s1 + ... + sR + (B - 1) max(s1, ..., sR) for B prompts.

A model that one wafer does not hold is priced as if the wafer had more cores, as the paper does. The column "wafers"
has the wafers that these cores make; moves between wafers are priced as moves on one. Where a core does not hold
the buffers of the batch, it is priced as if it had more SRAM: "SRAM" is then above 48 KiB, and one region holds all.
Every core has buffers for the whole batch, whatever the size of groups.

"User" is the tokens a second of each sequence, "all" the sum over all sequences.

"""
FALLS = """## Where throughput falls

OLMoE on 360 x 360 cores with 1,024 tokens of cache decodes fewer tokens a second with 16 sequences in one group than
with 8. A token takes 8 of 64 experts. Up to 8 sequences the 64 choices are of 64 experts at most, one row of tokens
each, if tokens take experts evenly. Beyond that some experts have two rows. A local product with one row is one vector
instruction over the tile. With several rows it is a loop over k, which costs more until many rows share it. Groups of
at most 8 sequences avoid it.

"""
CORES = ("regions", "wafers", "SRAM", "fits", "band")
Record = dict[str, str]  # a cell of the paper's tables


def table(head: tuple[str, ...], rows: list[list[str]], left: int) -> str:
    """Return a Markdown table whose first `left` columns are texts."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows)) + "\n"


def published(number: str) -> list[Record]:
    """Return the cells of WaferLLM in a table; of tables 7 and 8, which have GPUs' alone, a cell of each model."""
    own = [row for row in records_of_file() if row["table"] == number]
    if number == "7, 8":
        return list({row["model"]: row for row in own}.values())
    return [row for row in own if row["system"] == "WaferLLM"]


@dataclass(frozen=True)
class Turn:
    """Predicted seconds of a batch, and the cores that it takes; `first` are seconds of the first prompt."""

    seconds: float
    first: float
    regions: Regions
    band: float | None
    at_once: int = 1
    fits: bool = True

    @property
    def wafers(self) -> int:
        """The wafers that the cores of all regions make."""
        return ceil(sum(region.mesh.cores for region in self.regions) / WSE2.cores)

    def joules(self, tokens: int) -> str:
        """Return the energy of a token, of as many."""
        return quantity(self.seconds * WSE2.power_watts * self.wafers / tokens, "J")

    @property
    def held(self) -> list[str]:
        """The columns of the cores: regions, wafers, SRAM, fits, band."""
        peak = max(region.sram_peak_bytes for region in self.regions)
        fits = "yes" if self.fits else "no"
        return [str(len(self.regions)), str(self.wafers), quantity(peak, "B"), fits, quantity(self.band or 0.0, "+-%")]


def phase_basis(phase: str, model: str, mesh: int, tokens: int, size: int) -> Basis:
    """Return the basis of a phase of a batch."""
    return layer_basis(phase, Mesh(mesh, mesh, WSE2), shape_of(model), tokens, "full", SEVERAL * (size > 1))


@cache
def request(model: str, sides: tuple[int, int], input: int, output: int, size: int) -> Turn:
    """Return the seconds of a batch of requests that begin together."""

    def place(prefill: Mesh, decode: Mesh) -> Placement:
        return request_placed(prefill, decode, shape_of(model), input, output, C, batch=size)

    meshes, fits = [Mesh(side, side, WSE2) for side in sides], True
    try:
        placed = place(*meshes)
    except (SramError, FullError):
        placed, fits = as_if_held(place, *meshes)[1], False
    times = Priced(placed, batch=size, longest=input + output, prompt=input, at_once=size)
    moved = times.switch() + size * times.hand_over_exactly(input)
    first, before = prefills(times, 1, input), prefills(times, size, input)
    after, at_once = answers(times, size, input, output)
    rests_on = basis_of_all(
        {
            phase: phase_basis(phase, model, side, tokens, size)
            for phase, side, tokens in zip(("prefill", "decode"), sides, (input, input + output), strict=True)
        }
    )
    regions = max(placed.regions, placed.prefill_regions, key=lambda own: sum(region.mesh.cores for region in own))
    return Turn(before + moved + after, first, regions, rests_on.error_band, at_once, fits)


@cache
def prompts(model: str, side: int, size: int) -> Turn:
    """Return the seconds of a batch of prompts."""
    shape = shape_of(model)
    mesh, why = fitted(
        lambda on, own=shape: prefill_placed(on, own, CONTEXT, C, "full", None, False), Mesh(side, side, WSE2), True
    )
    own, last = prefill_placed(mesh, shape, CONTEXT, C, "full", None, False)
    placed = Placement(last, own.block, last, last, (), own.regions, own.at_once, "rectangles")
    times = Priced(placed, batch=1, longest=1, prompt=CONTEXT)
    band = phase_basis("prefill", model, side, CONTEXT, size).error_band
    first, every = prefills(times, 1, CONTEXT), prefills(times, size, CONTEXT)
    return Turn(every, first, own.regions, band, fits=why is None)


@cache
def batched(model: str, mesh: int, size: int) -> Batched:
    """Return a turn of decode of a batch."""
    return batch(model=model, mesh=mesh, context=CONTEXT, batch=size, as_if=True)


def request_row(cell: Record, size: int) -> list[str]:
    """Return a row of table 2."""
    first, second = map(int, cell["mesh"].split("/"))
    input, output = int(cell["input_tokens"]), int(cell["output_tokens"])
    found = request(cell["model"], (first, second), input, output, size)
    each, speed = output / found.seconds, cell["value"] if size == 1 else "-"
    row = [cell["model"], cell["mesh"], f"{input:,} in, {output:,} out", str(size), speed, digits(each)]
    row += [digits(size * each), quantity(found.first, "s"), str(found.at_once), found.joules(size * output)]
    return [*row, *found.held]


def prefill_row(cell: Record, size: int) -> list[str]:
    """Return a row of table 3."""
    found = prompts(cell["model"], int(cell["mesh"]), size)
    row = [cell["model"], cell["mesh"], str(size), cell["value"] if size == 1 else "-"]
    row += [digits(size * CONTEXT / found.seconds), quantity(found.first, "s"), quantity(found.seconds, "s")]
    return [*row, found.joules(size * CONTEXT), *found.held]


def decode_row(cell: Record, size: int) -> list[str]:
    """Return a row of table 4."""
    found = batched(cell["model"], int(cell["mesh"]), size)
    one = found.one_group_user_tokens_per_second, found.one_group_tokens_per_second
    many = found.user_tokens_per_second, found.tokens_per_second
    held = [str(found.regions), str(found.wafers), quantity(found.sram_peak_bytes, "B"), "no" if found.as_if else "yes"]
    row = [cell["model"], cell["mesh"], str(size), cell["value"] if size == 1 else "-", *map(digits, one)]
    row += [str(found.at_once), *map(digits, many), quantity(found.joules_per_token, "J"), found.bound, *held]
    return [*row, quantity(found.error_band or 0.0, "+-%")]


def product_row(cell: Record, size: int) -> list[str]:
    """Return a row of table 6."""
    width = int(cell["model"].rpartition(",")[2].strip(" ]"))
    given = {"device": WSE2, "m": size, "k": width, "n": width}
    gemv, gemm = ({side: product(mesh=side, **given) for side in SIDES} for product in (estimate.gemv, estimate.gemm))
    one, other = (min(SIDES, key=lambda side: found[side].seconds) for found in (gemv, gemm))
    best = min(gemv[one], gemm[other], key=lambda kernel: kernel.seconds)
    speed = quantity(float(cell["value"]) * 1e-3, "s") if size == 1 else "-"
    row = [f"{width:,} x {width:,}", str(size), speed, quantity(gemv[one].seconds, "s"), str(one)]
    row += [quantity(gemm[other].seconds, "s"), str(other), quantity(best.seconds / size, "s")]
    row += [quantity(best.seconds / size * WSE2.power_watts, "J"), quantity(best.sram_peak_bytes, "B")]
    return [*row, quantity(best.error_band or 0.0, "+-%")]


def energy_row(cell: Record, size: int) -> list[str]:
    """Return a row of tables 7 and 8."""
    model, said = cell["model"], []
    for phase in ("prefill", "decode"):
        ratios = [row for row in records_of_file() if row["model"] == model and f"energy {phase}" in row["what"]]
        said.append(", ".join(f"{row['value']} ({row['system'].removesuffix(' over WSE-2')})" for row in ratios))
    sides = [[int(row["mesh"]) for row in published(number) if row["model"] == model] for number in "34"]
    first = min((prompts(model, side, size) for side in sides[0]), key=lambda found: found.seconds)
    second = max((batched(model, side, size) for side in sides[1]), key=lambda found: found.tokens_per_second)
    row = [model, *(said if size == 1 else "--"), str(size), first.joules(size * CONTEXT), str(first.wafers)]
    return [*row, quantity(second.joules_per_token, "J"), str(second.wafers)]


# Of each table the title, the text, the columns, the number of columns of texts, and its rows.
TABLES = {
    "2": (
        "Table 2, extended: requests",
        """All requests of a batch begin together. Their prompts pass prefill, then all weights, keys and values
move once to the cores of decode, then all answers are decoded. Meshes are of prefill and of decode.
Keys and values that wait for the other prompts take no room here.""",
        ("model", "meshes", "tokens", "batch", "published", "user", "all", "first prompt", "groups of",
         "energy a token", *CORES), 3, request_row,
    ),
    "3": (
        "Table 3, extended: prefill",
        """Each prompt has 4,096 tokens. "First prompt" is the time of the first through all regions. Keys and
values of a prompt that is done leave the cores at no cost.""",
        ("model", "mesh", "batch", "published", "all", "first prompt", "all prompts", "energy a token", *CORES), 2,
        prefill_row,
    ),
    "4": (
        "Table 4, extended: decode", "Each cache holds 4,096 tokens.",
        ("model", "mesh", "batch", "published", "one group: user", "all", "groups of", "user", "all", "energy a token",
         "bound by", *CORES), 2, decode_row,
    ),
    "6": (
        "Table 6, extended: a product",
        """A batch of b vectors is a matrix of b rows, times the matrix of table 6. MeshGEMV takes them at once;
MeshGEMM cuts the rows as well, and pads them to the side of the mesh. Each has the fastest of the
meshes 480, 600 and 720, as the paper states none.""",
        ("matrix", "batch", "published", "MeshGEMV", "mesh", "MeshGEMM", "mesh", "the faster, a vector",
         "energy a vector", "SRAM", "band"), 1, product_row,
    ),
    "7, 8": (
        "Tables 7 and 8, extended: energy",
        """Energy a token on the fastest mesh of tables 3 and 4 by these predictions. The paper's ratios are
against GPUs at batch 1. It has no GPU figures at larger batches, so that ratios end there.""",
        ("model", "prefill, published: GPUs over WSE-2", "decode, published", "batch", "prefill, energy a token",
         "wafers", "decode, energy a token", "wafers"), 3, energy_row,
    ),
}  # fmt: skip


def fall_row(size: int) -> list[str]:
    """Return a row of the table of the mixture."""
    together = estimate.cap(**MIXTURE, batch=size, as_if=True).tokens_per_second
    found = batch(**MIXTURE, batch=size, as_if=True)
    return [str(size), digits(together), str(found.at_once), digits(found.tokens_per_second), found.falls or "-"]


def page() -> str:
    """Return the whole page."""
    parts = [
        f"## {title}\n\n{text}\n\n"
        + table(head, [row(cell, size) for cell in published(number) for size in BATCHES], left)
        for number, (title, text, head, left, row) in TABLES.items()
    ]
    head = ("batch", "one group: all", "groups of", "all", "why one group is slower than a smaller one")
    falls = table(head, [fall_row(size) for size in BATCHES], 1)
    end = "\n`python docs/studies/batch.py` writes this page anew.\n"
    return "\n".join([INTRODUCTION.rstrip("\n") + "\n", *parts, FALLS + falls + end])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
