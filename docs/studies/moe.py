"""The script of docs/moe.md: how mixtures of experts run, their predicted times, and their measures."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from wafer_triton import estimate
from wafer_triton.cost import inference
from wafer_triton.cost.constants import constants
from wafer_triton.count.account import account
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import WaferError
from wafer_triton.schedule.all_to_all import busiest
from wafer_triton.schedule.product import recipe
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.read import shape_of
from wafer_triton.text.quantity import digits

PAGE = Path(__file__).resolve().parents[1] / "moe.md"
CONTEXT = 4096
SIDES = (180, 240, 300)
TOKENS = 2048
WIDE = (360, 412, 520, 600, 720)  # of prefill
MODELS = (("olmoe-1b-7b", None), ("qwen1.5-moe-a2.7b", 12), ("mixtral-8x7b", 4))  # and layers, of those that fit
MESHES = ((4, 8), (6, 8), (8, 8))
PARTS = (1, 2)

INTRODUCTION = """# Mixtures of experts

Mixtral, Qwen2-MoE with its gated shared expert, Qwen3-MoE and OLMoE run, dense and sparse layers mixed. Other
families are refused with the reason: DeepSeek's latent attention, for one, is not computed here.

## Every expert on every core

Each expert is cut over the whole mesh, as a dense feed-forward block is, so a core has a tile of every expert
(`wafer_triton/schedule/experts.py`).

| step | computation |
| --- | --- |
| norm | as in a dense layer |
| router | a product, then one all-reduce of the logits of all experts, in fp32 |
| top-k | every core takes the k largest logits by itself, of equal ones the lower expert's |
| shares | a softmax over all experts; the k shares add up to 1 if the model says so |
| gate and up | a product with the core's own tiles of the chosen experts, one all-reduce for all of them |
| down | likewise; products are added by their shares before the all-reduce, which a dense layer has as well |

All cores of a mesh column hold the same logits, so they choose alike. No message depends on expert ids: rounds, hops
and bytes are the same for any routing, and a decode block has one all-reduce more than a dense one. A shared expert is
split into experts of the common width, the last one padded. Every token takes them, with the share of its sigmoid.

Prefill does the same with MeshGEMM: the tiles of all experts circle along y, and a core multiplies by the
experts that the tokens of its row take. So it has no more multiply-adds than the tokens ask for. Its extra is bytes
moved and held: the tiles of all experts, twice, where a dense block of the same multiply-adds moves the tiles of k.

## Predicted tokens per second

Decode of one sequence with {context} tokens in its cache, fp16, on the fastest of the square meshes {sides}. S-MBU is
at uniform routing. Of Mixtral, whose {whole} B in fp16 no wafer holds, {part} of its 32 layers are priced, with
embedding and head. Of Qwen1.5-MoE, whose whole blocks leave too much of each region free, {some} of its 24 layers are.
Qwen3-30B-A3B takes 61,064,245,248 B in fp16 and is refused on both, whose 750 x 994 cores hold 36,642,816,000 B.
"""

REGIONS = """
Here all cores read tiles of an expert. S-MBU is bounded by the all-reduces, whose time is the time of a step. With
experts in regions of their own only k of E regions would read: 12.5 % at most for OLMoE, 6.25 % for Qwen3-30B-A3B and
25 % for Mixtral, before any other loss. So decode has every expert on every core, whatever prefill has.

## Experts in regions of cores

In prefill experts can live in regions (`wafer_triton/schedule/expert_regions.py`): the mesh is cut into g x g squares
of cores, and each holds some experts, tiled over it. So the tiles of an expert circle over a g-th of the mesh alone,
and products with it have rows of many tokens.

| step | computation |
| --- | --- |
| router, top-k, shares | as above |
| queue | a mesh row numbers its rows of tokens for every region; one all-reduce gives all cores the longest queue |
| dispatch | an all-to-all takes the next rows of each queue to their region, each with its expert's number |
| gate and up, down | MeshGEMM in every region by itself |
| combine | an all-to-all takes the rows back, where they are added by their shares |

The capacity is the number of rows that a mesh row sends to a region in a pass. Rows beyond it go in a further pass, so
no token is dropped. The record of a run has the passes, and the rows that went in further passes. The shared expert
stays on the whole mesh.

Rows that are not taken are multiplied all the same. So regions win where tokens are many and experts small, and
experts on every core win where tokens are few or experts large. `plan`, `estimate` and `generate` take the faster of
both by the cost model; `--experts spread` or `--experts regions` forces one.

Prefill of {tokens} tokens, fp16, each way on the fastest of the square meshes {sides} that hold the model.

"""

BOUNDS = """
Weights are taken to lie in their regions when prefill begins. Bringing them to decode's place, and back, is a part of
the phase "replacement" of a run.

## All-to-all

The all-to-all is a schedule (`wafer_triton/schedule/all_to_all.py`), which is run, counted, checked and drawn as all
others are. The table has tiles, one for every pair of cores: over the busiest link in all, and one after another over
the busiest link of each round. "2 parts" are one half x-first, the other y-first.

"""

MEASURES = """
The bound is the number of tiles that must cross the middle of the mesh. At most eight routes serve any mesh, where
direct circuits would need one for every pair of cores.

## MoE-CAP's measures

MoE-CAP (arXiv 2412.07067) says how to measure sparse models. A run has the measures by phase, `estimate cap` has them
for a routing, and `wafer-triton cap` compares runs ([reference.md](reference.md)).

| measure | definition |
| --- | --- |
| S-MBU | bytes of the weights in use and of keys and values, a second, over the peak of all cores' SRAM |
| MBU | the same with the weights of all experts |
| S-MFU | operations of the experts that tokens took, a second, over the peak of all cores |
| MFU | the same with all experts |

Weights in use are the weights of all layers without the experts that no token of a pass took. So attention with norms
and biases, routers and dense blocks are in use. Embedding and head are left out. Seconds are predicted on the wafer.
The seconds of a pass of decode include embedding and head; re-placement of weights between the phases is in neither.
Peaks are the peaks of the whole device, even if a model takes a part of it. Of a dense model both measures are one;
with one token k experts of a layer are hit; if all experts are hit, S-MBU is MBU.

On cores of SRAM decode is bound by latency, so S-MBU is small by nature. The paper's S-MFU of Mixtral-8x7B, 0.06 to
0.80 per cent at batches of 1 to 32, is of runs on GPUs: it follows from their seconds per token, so no prediction here
reproduces it. Here {flops} GFLOP a token count, without attention to the cache. So 0.06 per cent of one A100's 312
TFLOP/s is {rate} tokens a second.

`docs/examples/skewed_routing.py` shows the effect of a skewed trace.
"""


def page() -> str:
    """Return the whole page."""
    mixtral = shape_of("mixtral-8x7b")
    sides = ", ".join(map(str, SIDES))
    whole = f"{2 * mixtral.parameters:,}"
    head = ("model", "layers", "device", "mesh", "tokens/s", "time of a token", "router", "S-MBU", "MBU", "S-MFU")
    text = INTRODUCTION.format(context=f"{CONTEXT:,}", sides=sides, whole=whole, part=MODELS[-1][1], some=MODELS[1][1])
    text += "\n" + table(head, [row(model, layers, chip) for model, layers in MODELS for chip in ("wse2", "wse3")], 3)
    prompts = [prefill_row(*model, chip) for model in MODELS for chip in ("wse2", "wse3")]
    text += REGIONS.format(tokens=f"{TOKENS:,}", sides=", ".join(map(str, WIDE))) + table(PREFILL, prompts, 3)
    head = ("mesh", "bound", *(f"{'2 parts: ' * (parts - 1)}{what}" for parts in PARTS for what in ("link", "time")))
    text += BOUNDS + table(head, [loads(*mesh) for mesh in MESHES], 1)
    flops = 2 * sum(number * mixtral.layers_of[kind] for kind, number in mixtral.decode_macs(0).items())
    text += MEASURES.format(flops=f"{flops / 1e9:.1f}", rate=f"{0.0006 * 312e12 / flops:.1f}")
    return text + "\n`python docs/studies/moe.py` writes this page anew.\n"


def row(model: str, layers: int | None, chip: str) -> list[str]:
    """Return the fastest decode of a model, or of some of its layers, on a device."""
    shape = shape_of(model)
    part = shape if layers is None else replace(shape, num_hidden_layers=layers)
    side, token = fastest(part, chip)
    cap = estimate.cap(device=chip, model=part, mesh=side, context=CONTEXT)
    own = f"{part.num_hidden_layers} of {shape.num_hidden_layers}"
    router = token.steps["router"] / token.cycles_per_layer
    shares = [f"{100 * share:.3f} %" for share in (cap.s_mbu, cap.mbu, cap.s_mfu)]
    cells = [model, own, chip, f"{side} x {side}", digits(token.tokens_per_second), f"{1e6 * token.seconds:.0f} us"]
    return [*cells, f"{100 * router:.0f} %", *shares]


PREFILL = ("model", "layers", "device", "spread: mesh", "tokens/s", "regions: mesh", "tokens/s", "experts in regions")


def prefill_row(model: str, layers: int | None, chip: str) -> list[str]:
    """Return the fastest prefill of a model, or of some of its layers, with its experts in both places."""
    shape = shape_of(model)
    part = shape if layers is None else replace(shape, num_hidden_layers=layers)
    cells, on = [model, f"{part.num_hidden_layers} of {shape.num_hidden_layers}", chip], device(chip)
    for where in ("spread", "regions"):
        prompts = {}
        for side in WIDE:
            with suppress(WaferError):
                mesh = Mesh(side, side, on)  # an error then searches for no mesh that would do
                prompts[side] = inference.prefill_on(mesh, part, TOKENS, constants(on), experts=where)
        side = max(prompts, key=lambda each: prompts[each].tokens_per_second)
        cells += [f"{side} x {side}", digits(prompts[side].tokens_per_second)]
    return [*cells, str(prompts[side].experts).partition(",")[0]]


def fastest(shape: DecoderShape, chip: str) -> tuple[int, estimate.Layered]:
    """Return the side of the fastest mesh that holds the model, and its estimate."""
    tokens = {}
    for side in SIDES:
        try:
            tokens[side] = estimate.decode(device=chip, model=shape, mesh=side, context=CONTEXT)
        except WaferError:
            continue
    side = max(tokens, key=lambda each: tokens[each].tokens_per_second)
    return side, tokens[side]


def loads(rows: int, cols: int) -> list[str]:
    """Return tiles over the busiest link, in all and one after another, in one part and in two."""
    roomy = replace(device("wse2"), name="roomy", sram_bytes=2**24)
    cells = [f"{rows} x {cols}", str(busiest(rows, cols))]
    for parts in PARTS:
        shape = (rows, cols, parts, rows, cols, 2 // parts)
        counted = account(recipe("all_to_all", Mesh(rows, cols, roomy), "fp32", (shape,)).schedule)
        cells += [str(counted.busiest_link_bytes // 8), str(counted.serial_bytes // 8)]
    return cells


def table(head: tuple[str, ...], rows: list[list[str]], left: int) -> str:
    """Return a table of Markdown, whose first columns are texts."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
