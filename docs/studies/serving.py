"""Writes docs/serving.md: how many users a WSE-2 serves, by simulations over priced schedules.

`python docs/studies/serving.py` takes some minutes. Every time on the page is predicted on the wafer.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from wafer_triton.cost.bands import FOLDER
from wafer_triton.device import device
from wafer_triton.draw import serving
from wafer_triton.errors import WaferError
from wafer_triton.serve.load import Given, Load
from wafer_triton.serve.policies import Policy, Replacing, Shared
from wafer_triton.serve.report import Report, Slo, flat, report
from wafer_triton.serve.simulate import simulate
from wafer_triton.serve.sizes import priced
from wafer_triton.serve.times import STRIDE, Priced
from wafer_triton.serve.traces import read_trace
from wafer_triton.serve.workload import Request, rate_of, rescaled
from wafer_triton.shape.read import shape_of

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "serving.md"
TRACE = HERE / "traces" / "azure_llm_2023_conversation.csv"
CHIP = device("wse2")
CONTEXT = 8192  # tokens of the longest sequence
BATCH = 64
SLO = Slo(ttft=2.0, tpot=0.025)
CHUNK = 748  # tokens: four on each of 187 rows
VISITS = Shared(quantum=16384, turns=64)
MODELS = ("llama3-8b", "olmoe-1b-7b")
MESHES = {("llama3-8b", "shared"): ("187", "187"), ("llama3-8b", "replace"): ("375", "187"),
          ("olmoe-1b-7b", "shared"): ("187", "187"), ("olmoe-1b-7b", "replace"): ("375", "187")}  # fmt: skip
RATES = (1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0)
COMPARED = 4.0  # requests a second, at which policies are compared
WAYS: tuple[tuple[str, str, Policy], ...] = (
    ("replace", "whole prompts", Policy(Replacing())),
    ("replace", "chunks", Policy(Replacing(), chunk=CHUNK)),
    ("shared", "whole prompts, visits of 4,096 tokens", Policy(Shared(4096, 64))),
    ("shared", "whole prompts", Policy(VISITS)),
    ("shared", "chunks", Policy(VISITS, chunk=CHUNK)),
    ("shared", "chunks, shortest first", Policy(VISITS, "shortest", chunk=CHUNK)),
    ("shared", "chunks, growing caches", Policy(VISITS, cache="grow", chunk=CHUNK)),
)


@cache
def trace() -> list[Request]:
    """Return the requests of the production trace, as they came."""
    return read_trace(TRACE)


@cache
def placed(model: str, organisation: str) -> Priced:
    """Return the times of a model that is placed for the trace."""
    requests = trace()
    mean = [round(sum(getattr(one, name) for one in requests) / len(requests)) for name in ("input", "output")]
    load = Load(BATCH, CONTEXT, CONTEXT, *mean)
    return priced(organisation, shape_of(model), CHIP, load, Given(*MESHES[model, organisation]))


def served(model: str, organisation: str, policy: Policy, rate: float) -> Report:
    """Return the figures of the whole trace at a rate."""
    times = placed(model, organisation)
    return report(simulate(rescaled(trace(), rate), times, policy), times.pool, CHIP, "fp16", SLO)


def place_row(model: str, organisation: str) -> str:
    """Return a row of the table of placements."""
    times = placed(model, organisation)
    prompt = times.stages(1155, 0, True)
    return line(
        model, organisation, f"{len(times.prefill_regions)} x {times.place.prefill.mesh}",
        f"{len(times.regions)} x {times.block.mesh}", f"{times.pool * times.rows:,}", ms(sum(prompt)), ms(max(prompt)),
        ms(times.switch()), ms(times.latency(1, times.attend(7))), ms(times.slowest(1, times.attend(7))),
    )  # fmt: skip


def way_row(model: str, organisation: str, what: str, policy: Policy) -> str:
    """Return a row of the table of policies."""
    found = served(model, organisation, policy, COMPARED)
    return line(model, organisation, what, *figures(found), f"{found.busy['prefill']:.0%}",
                f"{found.busy['re-placement']:.0%}", f"{found.busy['decode']:.0%}", f"{found.preempted:,}")  # fmt: skip


def rate_rows(model: str) -> tuple[list[str], float]:
    """Return the rows of the table of rates, and the knee."""
    rows, shown = [], []
    for rate in RATES:
        found = served(model, "shared", Policy(VISITS, chunk=CHUNK), rate)
        shown.append({"rate": rate} | flat(found))
        rows.append(line(model, f"{rate:g}", *figures(found), f"{found.kv_mean:.0%}", f"{found.joules_per_token:.3g} J",
                         f"{found.s_mbu:.2%}"))  # fmt: skip
    return rows, serving.knee(shown, "rate")


def figures(found: Report) -> tuple[str, ...]:
    """Return the cells of throughput and of latencies."""
    return (
        f"{found.requests_per_second:.2f}", f"{found.tokens_per_second:,.0f}", f"{found.good:.1%}",
        f"{found.ttft['p50']:.2f} s", f"{found.ttft['p99']:.2f} s", ms(found.tpot["p50"]), ms(found.tpot["p99"]),
    )  # fmt: skip


def split_reason() -> str:
    """Return the reason why the larger model has no split of the wafer into halves."""
    try:
        priced("split", shape_of("llama3-8b"), CHIP, Load(1, 2048, 2048, 1155, 211), Given("187", "187", columns=497))
    except WaferError as error:
        return str(error)
    raise AssertionError("llama3-8b has a split: rewrite the page")


def gpus() -> list[str]:
    """Return rows of one request of Llama-3-8B on A100s, as the paper measured it with SGLang (tables 3 and 4)."""
    with (FOLDER / "wse2_paper.csv").open(encoding="utf-8") as file:
        cells = [row for row in csv.DictReader(file) if row["model"] == "llama3-8b" and "SGLang" in row["system"]]
    held = {(row["what"], row["system"]): float(row["value"]) for row in cells if row["table"] in ("3", "4")}
    return [line(system.removeprefix("SGLang "), ms(1155 / held["prefill", system]), ms(1 / held["decode", system]))
            for what, system in held if what == "prefill"]  # fmt: skip


def ms(seconds: float) -> str:
    """Return milliseconds as text."""
    return f"{1e3 * seconds:.3g} ms"


def line(*cells_: str) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(cells_)} |"


def table(head: tuple[str, ...], rows: list[str], left: int) -> str:
    """Return a table with its first `left` columns to the left."""
    rule = line(*("---" if number < left else "---:" for number in range(len(head))))
    return "\n".join((line(*head), rule, *rows)) + "\n"


SUBJECTS = (
    (
        "requests: arrivals by rate, users in closed loops, traces",
        "`wafer_triton/serve/workload.py`, `traces.py`",
    ),
    ("decode as a pipeline of regions, and its clock", "`wafer_triton/serve/pipeline.py`"),
    ("times, from priced schedules", "`wafer_triton/serve/times.py`, `sizes.py` beside it"),
    ("policies, the simulation, its course", "`policies.py`, `simulate.py`, `course.py`, `cache.py`, `actions.py`"),
    ("figures, the plan", "`report.py`, `plan.py`"),
    ("serving with values", "`models/serve.py`"),
)
POLICIES = (
    ("replace", "WaferLLM's way: prompts up to the batch, weights and caches re-placed, all answers, weights back"),
    ("shared", "both phases on one mesh: decode pauses for visits of prefill, weights are transposed, caches stay"),
    ("split", "each phase has columns of the device and weights of its own: decode never pauses for prefill"),
)

INTRODUCTION = """# Serving: how many users

The first question about a model on a wafer is if it runs, the second how fast one request is. The third is how many
users it serves. `wafer-triton serve` simulates it ([cli.md](cli.md)), and `plan --slo` finds the policy with the most
goodput: requests a second that keep bounds on their latency. All times on this page are predicted on the wafer; none is
measured. [glossary.md](glossary.md) defines organisation, visit, turn, TTFT and TPOT.

{subjects}
## How it is simulated

A model lies in regions, one after the other. In decode each group of sequences passes all regions for one token, then
begins anew; a turn is one token of each sequence. A turn takes as long as the slowest group needs for all regions, or
as the busiest region needs for all groups. Its time changes when a sequence joins, ends, or takes one more cache entry
in every row. So a simulation goes from such event to event, some seven a request, and has no step for a token. For
equal groups this is exact, for others an upper bound. A test compares it with regions that are simulated one by one.

Prompts follow one another through the regions of prefill, whole or in chunks. Keys and values then move to the cores of
decode, which waits in the meantime. A region sends them before the next prompt comes. So it holds at most one prompt.
An answer of n tokens takes n steps of decode, and the first ends TTFT, as in `estimate request`. For a single request
both predict the same time, to 0.1 %, if they have the same placement: `serve --batch 1 --caches 1` with `--context` the
tokens of its prompt and answer. By default decode has caches for many sequences, and so more regions to pass.

{policies}
Prices are exact and kept. Keys and values alone are priced every {stride} tokens and interpolated, with an error of at
most {error} for these models. All sequences share a pool of cache entries. The programs that run a model have
a fixed part of the cache for each sequence.

## The production trace

{count:,} requests of a conversation service of November 2023 (Azure Public Dataset, CC-BY 4.0; Patel et al., Splitwise,
ISCA 2024; `docs/studies/traces/README.md`). They have {input:,.0f} tokens of prompt and {output:,.0f} of answer on
average, and come at {rate:.2f} requests a second. The service ran on many GPUs. **Here the rate is scaled to the number
of each table.** Sequences have up to {context:,} tokens, which refuses one request. Good are requests with TTFT of at
most 2 s and TPOT of at most 25 ms. Up to {batch} sequences decode at a time.

Places on a WSE-2, with times of a prompt of 1,155 tokens and of a token after it:

"""

WAYS_TEXT = """
A split of the WSE-2 into halves is refused for Llama-3-8B:

```text
{split}
```

## Policies

At {rate:g} requests a second. Chunks have {chunk} tokens. A visit of prefill takes at most {quantum:,} tokens,
{turns} tokens after the last one, unless a row has another number.

"""

RATES_TEXT = """
Chunks matter most. A whole prompt keeps one region of prefill at work at a time, each of its chunks another one. In
visits of few tokens the pipeline of prefill drains each time. One phase after the other has the steadiest TPOT, as no
visit comes between two tokens.

## Rates

Policy shared with chunks. The rate of the trace itself, 5.53, lies between two rows.

"""

GPUS_TEXT = """
Up to the knee the median end to end is at most twice the one at the lowest rate. The knee is
{knees}.
Prefill bounds all policies, as decode works for a small part of the time. S-MBU is small by nature ([moe.md](moe.md)):
a token is bound by the latency of all-reduces, and few sequences share a step. At the highest rates answers end long
after the last arrival, and requests a second are the most that the wafer serves. Energy is the power of the device by
time, idle time included.

## Beside GPUs

The paper reports single requests of Llama-3-8B on A100s with SGLang (tables 3 and 4, 4,096 tokens), and no throughput
under load. So the table has one user alone. The paper's prompt has 4,096 tokens, and its time is scaled to 1,155.

"""

CLOSE = """
One user has a token {times:.0f} times as fast as on 8 A100s. For a prompt in {regions} regions the wafer takes
longer than the GPUs. A GPU serves many sequences in one step, which the wafer hardly does. How many users a GPU serves
in this trace was not measured here, so no claim is made about it.

## Not modelled

- Input from the host costs nothing, as in all estimates, and the choice of a token costs nothing.
- Sequences join at the next pass of their group; reading and freeing cache entries costs nothing.
- Prompts share no prefix, and all sequences of a trace end after the tokens that the trace says.
- Mixtures are priced with every expert on all cores in decode, and by no routing.
"""


def page() -> str:
    """Return the whole page."""
    requests = trace()
    mean = {name: sum(getattr(one, name) for one in requests) / len(requests) for name in ("input", "output")}
    error = max(placed(model, "replace").largest_error(range(STRIDE // 2, 4096, STRIDE)) for model in MODELS)
    text = INTRODUCTION.format(
        subjects=table(("subject", "where"), [line(*each) for each in SUBJECTS], 2),
        policies=table(("policy", "course"), [line(*each) for each in POLICIES], 2),
        stride=STRIDE, error=ms(error), count=len(requests), rate=rate_of(requests), context=CONTEXT, batch=BATCH,
        **mean,
    )  # fmt: skip
    head = ("model", "policy", "prefill", "decode", "tokens of cache", "prompt", "its slowest region", "re-placement",
            "token", "its slowest region")  # fmt: skip
    text += table(head, [place_row(*each) for each in MESHES], 4)
    text += WAYS_TEXT.format(split=split_reason(), rate=COMPARED, chunk=CHUNK, quantum=VISITS.quantum,
                             turns=VISITS.turns)  # fmt: skip
    shown = ("requests/s", "tokens/s", "good", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99")
    head = ("model", "policy", "how", *shown, "prefill", "re-placement", "decode", "preempted")
    text += table(head, [way_row(model, *way) for model in MODELS for way in WAYS], 3)
    text += RATES_TEXT
    rows, knees = [], []
    for model in MODELS:
        own, knee = rate_rows(model)
        rows += own
        knees.append(f"{knee:g} requests a second for {model}")
    text += table(("model", "rate", *shown, "cache in use", "a token", "S-MBU"), rows, 1)
    text += GPUS_TEXT.format(knees=" and ".join(knees))
    times = placed("llama3-8b", "shared")
    prompt, token = sum(times.stages(1155, 0, True)), times.latency(1, times.attend(7))
    own = line("WSE-2, predicted", ms(prompt), ms(token))
    text += table(("Llama-3-8B on", "prompt", "token"), [*gpus(), own], 1)
    return text + CLOSE.format(times=1 / 260.4 / token, regions=len(times.prefill_regions))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: {PAGE}")
