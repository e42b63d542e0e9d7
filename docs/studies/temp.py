"""The script of docs/temp.md: training on wafers of dies, and the part of TEMP's gain in each model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from wafer_triton.count.account import account, per_round
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ConfigError, SramError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.stream import groups, relay, stream
from wafer_triton.train.dies import Wafer, wafer
from wafer_triton.train.linear import fit
from wafer_triton.train.mapping import (
    all_gather,
    all_to_all,
    bisection_bytes,
    dimension_ordered,
    permute,
    ring_flows,
    route,
)
from wafer_triton.train.options import ParallelSizes
from wafer_triton.train.placement import fixed, placements
from wafer_triton.train.planner import BASELINES, PLANNED, Placer, Strategy, TrainingPlan, plan
from wafer_triton.train.product import Team, product, stream_blocks
from wafer_triton.train.workload import WORKLOADS, workload

PAGE = Path(__file__).resolve().parents[1] / "temp.md"
WAFERS = {name: "wafer-48" if "175b" in name else "wafer-32" for name in WORKLOADS}
MODES = ("cut", "store")
RATES = (4, 2, 1)  # TB/s of a link
BLOCK = 4

INTRODUCTION = """# Training on wafers of dies

TEMP (arXiv 2512.14256, HPCA 2026) plans training on wafers whose cores are 32 or 48 large dies with HBM. It has no
public code, and its full text was not at hand. This page rests on its abstract and on summaries, some of them written
by machines: figures from these are marked "second-hand". A plan is schedules, as
everything in this project is. So a training step runs with values, is counted, priced and checked.

| subject | where |
| --- | --- |
| dies, presets `wafer-48` (6 x 8) and `wafer-32` (4 x 8) | `wafer_triton/train/dies.py` |
| streams: the relay, three rings, their reversal | `wafer_triton/schedule/stream.py` |
| products with X, W or Y moving, in slices that fit SRAM | `wafer_triton/train/product.py`, `linear.py` beside it |
| a training step with values | `wafer_triton/train/step.py`, `wafer-triton train --demo` |
| routes and orders of dies | `wafer_triton/train/mapping.py` |
| the planner and its baselines | `wafer_triton/train/planner.py`, `wafer-triton plan-training` |

An own wafer, a step with values on it, and a plan for it:

```python
from dataclasses import replace

import torch

from wafer_triton.train.dies import wafer
from wafer_triton.train.machine import Machine
from wafer_triton.train.model import Sizes, parameters
from wafer_triton.train.planner import plan
from wafer_triton.train.product import Team
from wafer_triton.train.shards import DieGroups
from wafer_triton.train.step import Trainer
from wafer_triton.train.workload import workload

mine = replace(wafer("wafer-32"), name="mine", link_bytes_per_second=2e12, forwarding="store")
team = Team(mine.mesh(2, 2), "cycle", 2, 2)  # one group of 2 x 2 dies, blocks go round it
trainer = Trainer(Machine(mine, team.mesh), Sizes(), DieGroups(team), parameters(Sizes()))
tokens = torch.arange(9)[None]
report = trainer.step(tokens[:, :-1], tokens[:, 1:])
print(f"loss {report.loss:.3f}, {sum(report.hbm.values()):,} B in the HBM of a die")

best = plan(workload("gpt3-6.7b", batch=16), mine)
print(f"{best.seconds:.4f} s a step, {best.parts['exposed communication']:.4f} s of them exposed communication")
```

```text
loss 3.771, 22,784 B in the HBM of a die
0.0316 s a step, 0.0000 s of them exposed communication
```

## The turning relay

N dies on an open line hold a block each, and every die computes with every block. A plain ring closes over N - 1 hops.
TEMP sends blocks both ways at once, with redundant transfers, so that each transfer is one hop (second-hand). This
schedule does so. h is N // 2, steps are 0 to N - 1, and transfers lie between steps.

- A left stream and a right stream move blocks one die a transfer. At step 0 both hold a die's own block.
- Die i < h computes in step t with block (i + t) mod N of the left stream. The other dies compute with block (i - t)
  mod N of the right stream.
- Block j < h moves right and stands at die h + j in step N / 2. There it turns left. It reaches die i in step
  N - i + j, in which a die j < i < h needs it. The mirror image serves the other half. For odd N it waits one step.

Streams never need the same link. The right stream has block j at j + t, its return at N + j - t, and both meet at
t = N / 2. In step N / 2 + s returning blocks lie on dies h + j - s, and the left stream's own on dies up to
h - 1 - s. N - 1 rounds are
the least for one-hop transfers: die 0 has one link and gets one block a round. Without the redundant transfers a
middle die would have to store up to N / 2 blocks that it needs later.

A reduce stream is the same backwards in time: copies become sums. Gradients of moving weights take it.

Blocks h - 1 and h return to no die that needs them. Leaving these returns out saves N - 2 block-hops for even N. The
products here do so ("needed").

All of this table is read from the accountant.

"""

PRODUCTS = """
## Products and SRAM

| moving | forward | backward | blocks |
| --- | --- | --- | --- |
| W | gather W | gather W for dX, reduce dW | the weights, three times |
| X | gather X | gather X for dW, reduce dX | the input, three times |
| Y | reduce Y | gather dY, for dX and dW | the output, twice |

Y, dX and dW equal autograd's to 1e-10 in fp64 and 1e-5 in fp32, on every kind of group, sliced and not
(`tests/train/test_product.py`). A die's SRAM is a hard limit. The first feed-forward product of GPT-3 175B over 8 dies,
2,048 tokens, bf16, is refused as a whole:

> {refused}

{cuts} fit, and the weights still pass once.

## A step with values

`wafer_triton.train.step.Trainer` trains a Llama-like and a GPT-like transformer: embedding, RMSNorm or LayerNorm,
attention, SwiGLU or GELU, cross entropy, all gradients, AdamW. Weights, gradients and moments lie in blocks on dies,
and moments are cut over data parallel groups as well. Rows of a group are split by samples, or by tokens: keys and
values are then gathered, and their gradients reduced, by streams. Loss, gradients and updated weights equal torch's to
1e-9 in fp64 on 1, 2 x 2, 2 x 4 and 3 x 3 dies and on strips. Over 20 steps in fp32 they do to 1e-4
(`tests/train/test_step.py`). Products and streams run on the Triton executor, too. Local operations of
training, such as
attention's gradient, have no Triton kernel: torch runs them on the same device.

## Mapping

Flows of one phase take trees over links. The objective is the busiest link's time, then bytes times hops. Phases with
few flows on up to 9 dies are solved exactly. Others are constructed and rerouted.

"""

PLANS = """
One bound is a corner die, which has two links; the other is the cut between the halves of the mesh. BALD (ISCA 2026)
reports the same bounds for its router. XY, along rows and then columns, meets the second by itself.

## Plans

The planner gives every operator of a layer a tuple (data, tensor, sequence, context, sharded, stream, moving) and a
placement. Level 1 is exact: dynamic programming over layouts with every label of seconds and bytes that no other
beats. Level 2 lists all rectangular placements of a tuple and keeps those that none is better than. Both equal brute
force on 2 x 2, 2 x 3 and 2 x 4 dies with four operators and six tuples (`tests/train/test_planner.py`). Micro-batches
and recompute are tried around both. The best plan is proved over plans whose layers are of one or two kinds.
The plan of
GPT-3 175B, 96 layers on 48 dies, takes 8 s of one core of an AMD EPYC.

Memory counts 16 bytes a parameter: weight and gradient in 16 bits, fp32 master weight and two moments. 175 B parameters
take 87 GB a die on 32 dies, which have 72 GB, and are refused. On 48 dies they fit. So models of 175 B are
planned for 48
dies, all others for 32, and all with 128 samples of 2,048 tokens (Llamas 4,096).

**Seconds are an idealised model's**: products run at a die's peak rate, collectives at the links' rate. A baseline
takes its best tuple, micro-batches and recompute, too. "fixed" numbers dies row by row and closes rings over the wrap,
"blind" takes rectangles with short steps without regard to loads. Ratios are a baseline's seconds over the plan's;
"-" does not fit, "/" has no tuple that divides.

"""

GAIN = """
Where bytes cut through at 4 TB/s, baselines with a free choice of data, context and sharding come within 0 to 14 % of
the plan on 32 dies: they hide their traffic or have little. 128 samples do not divide by the 3 in 48, so on 48 dies
tensor or context must, and fixed rings then run over many hops. Megatron TP holds the states of its tensor group whole
in every data parallel group. GPT-3 76B does not fit so; Llama-3 70B and models of 175 B fit only with large tensor
groups, and then run 2 to 4 times slower. Joules are nearly the joules of products, which are the same for all.

## The gain, taken apart

Here all plans but the last have groups of 8 dies, in seconds of a step. "TP 8" is Megatron's with sequence split and
sharded optimizer, "stream 8" moves weights, or inputs and sums, through a group of 8. In "row by row" rings close over
the wrap, in "best rings" they take the fastest rectangle and order: mostly a cycle, on strips and odd sides the relay.

"""

HOLDS = """
## Where 1.7 x holds

Seconds of "TP 8 + SP, row by row" over the plan's:

"""

CLOSE = """
TEMP's published figures beside these:

| claim | published | here |
| --- | --- | --- |
| throughput over baselines | 1.7 x on average (abstract) | 1.1 to 1.2 x with "cut" at 4 TB/s, up to 1.6 x at 1 TB/s; 1.5 to 2.0 x with "store" at 4 TB/s |
| bytes of baselines | 49 to 82 %, within 10 % for 175 B (second-hand) | 61 to 100 %; 91 % for 175 B |
| streams in place of tensor groups, "best rings" | relay: 1.21 x (second-hand) | 1.05 to 1.15 x at 4 TB/s, 1.2 to 1.6 x at 1 TB/s |
| mapping, "best rings" over "row by row" of TP 8 | 1.14 x (second-hand) | 1.01 to 1.05 x with "cut", 1.4 to 1.8 x with "store" at 4 TB/s |
| free split, the plan over "stream 8, best rings" | - | 1.00 to 1.07 x |
| power efficiency | 1.9 x headline, 1.2 to 1.85 x in detail (second-hand) | 1.0 to 1.4 x in joules: idle dies take no power in this model |
| Megatron TP runs out of memory | at 70 B and above (second-hand) | 76 B does on 32 dies; 70 B on 32 and 175 B on 48 fit with large tensor groups |

**The gap explained.** With "cut" a die needs 450 FLOP of a product to hide each byte over a link, and these
batches have
them. A baseline is 1.7 times slower here because of the wrap: 7 hops, each of which takes the whole block if a die
stores before it forwards. Or it is a link of a quarter of the rate. An interleaved ring with 2 hops, or a cycle through
a rectangle with an even side, has no wrap. Beside them the relay gains nothing: it has more block-hops than
a cycle. It is needed
on strips and on odd by odd groups. Streams gain over tensor groups because a block's transfer hides beside the product
of the block before. Which forwarding TEMP's simulator has is not known. Its baselines' 40 % of time in collectives
(second-hand) fits stored forwarding, or a lower rate.

## Not modelled

- Dies compute at peak. Neither tile sizes nor pipelines of a die cost anything, and other operations than products
  take the time of their HBM traffic alone.
- 4 TB/s is taken as a link's rate in one direction. The summaries leave open if it is of both together.
- Traffic of several axes at the same time is not added up on links in seconds. The hottest link has the sum.
- Sums that move take 2 bytes an element in plans, as in the baselines. The schedules that run carry them in fp32.
- Attention is counted without its causal half. Embedding and head are cut over all dies, and their traffic is left out.
- The planner's re-sharding is an all-to-all of a whole activation, whatever the two layouts share.
- Failed links lengthen the plan's rings and routes. The streams that run take no account of them.
- Nothing was measured on a wafer. No silicon of this kind is public.
"""  # noqa: E501


@lru_cache(maxsize=256)
def planned(name: str, mode: str, strategy: Strategy = PLANNED, tera: float = 4.0) -> TrainingPlan | None:
    """Return a plan; None where no tuple divides."""
    device = replace(wafer(WAFERS[name]), forwarding=mode, link_bytes_per_second=tera * 1e12)
    try:
        return plan(workload(name), device, strategy)
    except ConfigError:
        return None


def _rows(device: Wafer, split: ParallelSizes) -> tuple:
    return (fixed(device, split.sizes),)


def _tensor8(split: ParallelSizes) -> bool:
    return split.tensor == 8 and split.sequence and split.stream == split.context == 1 and split.sharded <= 1


def _stream8(split: ParallelSizes) -> bool:
    return split.stream == 8 and split.tensor == split.context == 1 and split.sharded <= 1


def _best(device: Wafer, split: ParallelSizes) -> tuple:
    return placements(device, split.sizes)


def _strategy(name: str, allowed: Callable[[ParallelSizes], bool], placer: Placer) -> Strategy:
    return Strategy(name, allowed, placer)


STEPS = (
    _strategy("TP 8 + SP, row by row", _tensor8, _rows),
    _strategy("TP 8 + SP, best rings", _tensor8, _best),
    _strategy("stream 8, row by row", _stream8, _rows),
    _strategy("stream 8, best rings", _stream8, _best),
    PLANNED,
)


def streams(size: int) -> list[str]:
    """Return rows of the table of streams for N dies."""
    rows = []
    cases = [("turning relay", "relay", (1, size), relay(size))]
    cases += [("relay, needed", "relay", (1, size), relay(size).needed())]
    cases += [("cycle", "cycle", (2, size // 2), stream("cycle", size))]
    cases += [(kind, kind, (1, size), stream(kind, size)) for kind in ("interleaved", "wrap")]
    for name, kind, shape, moves in cases:
        mesh = Mesh(*shape)
        schedule = stream_blocks(Builder(mesh, name), moves, groups(mesh, kind, *shape), "gather", 1, "fp32")
        counts, rounds = account(schedule), per_round(schedule)
        lanes = sum(buffer.startswith("own.") for buffer in schedule.buffers)
        numbers = (counts.stages, max(each.hops for each in rounds), counts.flows, counts.link_bytes // BLOCK, lanes)
        rows.append(f"| {size} | {name} | " + " | ".join(map(str, numbers)) + " |")
    return rows


def mapped() -> list[str]:
    """Return rows of the table of mapping: seconds of the busiest link over its bound, XY and mapped."""
    five = replace(wafer("wafer-48"), name="5 x 5", rows=5, cols=5)
    broken = replace(five, failed=frozenset({((2, 2), (2, 3))}))
    rows = []
    for name, device, flows, bound in (
        ("all-gather, 5 x 5", five, all_gather(five, 25.0), 12.0),
        ("all-gather, 5 x 5, one failed link", broken, all_gather(broken, 25.0), 12.0),
        ("all-to-all, 5 x 5", five, all_to_all(five, 1.0), bisection_bytes(5, 5, 1.0)),
    ):
        xy, best = dimension_ordered(device, flows), route(device, flows)
        loads = [max(each.loads.values()) for each in (xy, best)]
        rows.append(f"| {name} | {bound:.0f} | {loads[0]:.0f} | {loads[1]:.0f} |")
    two = replace(wafer("wafer-48"), name="2 x 4", rows=2, cols=4)
    ring = [(0, 3), (1, 2), (0, 2), (1, 3)]
    before = dimension_ordered(two, ring_flows([ring], 1.0)).objective[1]
    (order,), after = permute(two, [ring])
    assert len(order) == 4
    rows.append(f"| ring of four dies on 2 x 4, links of a step | 4 | {before:.0f} | {after.objective[1]:.0f} |")
    return rows


def report(name: str, mode: str) -> str:
    """Return a row of the report: the plan, and every baseline's seconds over it."""
    best = planned(name, mode)
    assert best is not None
    cells = [_ratio(planned(name, mode, each), best, lambda one: one.seconds) for each in BASELINES]
    return f"| {name} | {mode} | {best.seconds:.3f} | {best.bytes / 1e9:.1f} | " + " | ".join(cells) + " |"


def held(name: str, mode: str) -> str:
    """Return a row of memory and energy: the plan's bytes, then its joules, over each baseline's."""
    best = planned(name, mode)
    assert best is not None
    others = [planned(name, mode, each) for each in BASELINES]
    bytes_ = [_share(best, other, lambda one: one.bytes) for other in others]
    joules = [_share(best, other, lambda one: one.joules) for other in others]
    cells = [each if each == "-" else f"{each}, {power}" for each, power in zip(bytes_, joules, strict=True)]
    return f"| {name} | {mode} | " + " | ".join(cells) + " |"


def apart(name: str, mode: str, tera: float) -> str:
    """Return a row of the gain taken apart: seconds of every step of it."""
    found = [planned(name, mode, each, tera) for each in STEPS]
    cells = ["/" if each is None else "-" if each.why else f"{each.seconds:.3f}" for each in found]
    return f"| {name} | {mode} | {tera:g} | " + " | ".join(cells) + " |"


def holds(name: str) -> str:
    """Return a row of the ratio of the first step of the gain to the last, by forwarding and rate."""
    cells = []
    for mode in MODES:
        for tera in RATES:
            best = planned(name, mode, PLANNED, tera)
            assert best is not None
            cells.append(_ratio(planned(name, mode, STEPS[0], tera), best, lambda one: one.seconds))
    return f"| {name} | " + " | ".join(cells) + " |"


def _ratio(one: TrainingPlan | None, best: TrainingPlan, number: Callable[[TrainingPlan], float]) -> str:
    return "/" if one is None else "-" if one.why else f"{number(one) / number(best):.2f}"


def _share(best: TrainingPlan, one: TrainingPlan | None, number: Callable[[TrainingPlan], float]) -> str:
    return "/" if one is None else "-" if one.why else f"{number(best) / number(one):.0%}"


def refused() -> tuple[str, str]:
    """Return the refusal of GPT-3 175B's first feed-forward product, and the slices that fit."""
    team = Team(wafer("wafer-48").mesh(1, 8), "relay", 1, 8)
    sizes = 2048 // 8, 12288, 4 * 12288 // 8
    try:
        product(team, "w", "forward", *sizes, "bf16")
    except SramError as error:
        cuts = fit(team, "w", *sizes, "bf16")
        return str(error), f"{cuts.k} x {cuts.n} slices of rows and columns of the weights"
    raise AssertionError("the whole product fits")


def _table(head: str, rows: list[str]) -> str:
    return "\n".join((head, "| " + " | ".join("---" for _ in head.split("|")[1:-1]) + " |", *rows)) + "\n"


def page() -> str:
    """Return the text of docs/temp.md."""
    said, cuts = refused()
    small = [name for name in WORKLOADS if WAFERS[name] == "wafer-32"]
    parts = [
        INTRODUCTION,
        _table(
            "| N | stream | rounds | hops of a transfer | blocks a link and round | block-hops | slots beside own |",
            [row for size in (4, 8, 16) for row in streams(size)],
        ),
        PRODUCTS.format(refused=said, cuts=cuts),
        _table("| phase | bound | XY | mapped |", mapped()),
        PLANS,
        _table(
            "| workload | forwarding | plan, s | GB a die | " + " | ".join(each.name for each in BASELINES) + " |",
            [report(name, mode) for name in WORKLOADS for mode in MODES],
        ),
        "\nThe plan's bytes of a die, then its joules of a step, over each baseline's:\n\n",
        _table(
            "| workload | forwarding | " + " | ".join(each.name for each in BASELINES) + " |",
            [held(name, mode) for name in WORKLOADS for mode in MODES],
        ),
        GAIN,
        _table(
            "| workload | forwarding | TB/s | " + " | ".join(each.name for each in STEPS) + " |",
            [apart(name, mode, tera) for name in small for mode in MODES for tera in (4, 1)],
        ),
        HOLDS,
        _table(
            "| workload | " + " | ".join(f"{mode}, {tera} TB/s" for mode in MODES for tera in RATES) + " |",
            [holds(name) for name in small],
        ),
        CLOSE,
    ]  # fmt: skip
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
