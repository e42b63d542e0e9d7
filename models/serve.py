"""Serving with values: the actions of a simulation run by a placed model, prompt by prompt and token by token.

A prompt is prefilled when its sequence joins decode, or ends without a decode step. A preempted sequence is prefilled
again, with its prompt and its tokens so far. Each prefill makes a token. So each answer equals the answer to its prompt
alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from wafer_triton.errors import ShapeError
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.generate import Prompt
from wafer_triton.serve.course import Run
from wafer_triton.serve.policies import Policy
from wafer_triton.serve.simulate import simulate
from wafer_triton.serve.times import Priced
from wafer_triton.serve.workload import Request, check_requests
from wafer_triton.text.progress import Progress, silent

FIRST_COME = Policy()


def serve(
    model: WaferForCausalLM, prompts: Sequence[Prompt], requests: Sequence[Request], policy: Policy = FIRST_COME, *,
    pool: int | None = None, progress: Progress = silent,
) -> tuple[list[list[int]], Run]:  # fmt: skip
    """Return the greedy answer of each request, and the simulation whose actions the model ran.

    Request number i has prompt i. `pool` is the number of cache entries a row that all sequences share (None: the
    size of the model's caches). Raises ShapeError for prompts of other lengths than the requests, for a request that is
    refused, and for a pool larger than the caches.
    """
    check_requests("serve: requests", requests)
    lengths = [len(prompt) for prompt in prompts]
    if lengths != [request.input for request in requests]:
        raise ShapeError(
            f"{len(prompts)} prompts of {lengths} tokens, but the requests have inputs of "
            f"{[request.input for request in requests]}; give one prompt for each request, as long as its input"
        )
    times = Priced(
        model.placement, batch=model.batch, longest=model.max_length,
        held=model.batch * model.max_length,
    )  # fmt: skip
    if pool is not None:
        if not 0 < pool <= times.pool:
            raise ShapeError(f"pool = {pool} entries a row: the caches of the model hold {times.pool}; give 1 to them")
        times.pool = pool
    run = simulate(requests, times, policy, record=True)
    for one in run.served:
        if one.refused:
            raise ShapeError(f"request {one.request.number} is refused: {one.refused}; give max_length for it")
    return answers(model, prompts, run, progress), run


def answers(
    model: WaferForCausalLM, prompts: Sequence[Prompt], run: Run, progress: Progress
) -> list[list[int]]:  # fmt: skip
    """Return the greedy answer of each request of a recorded run, by running its actions in their order."""
    model.reset()
    tokens: list[list[int]] = [[] for _ in prompts]
    slots: dict[int, int] = {}  # by request

    def prefill(number: int, slot: int) -> None:
        logits = model.prefill([*prompts[number], *tokens[number]], sequence=slot)
        tokens[number].append(int(logits.argmax()))
        slots[number] = slot

    for done, (what, about, *more) in enumerate(run.actions):
        if what == "join":
            prefill(about, *more)
        elif what == "steps":
            left = dict(about)
            while left:
                row: list[int | None] = [None] * model.batch
                for number in left:
                    row[slots[number]] = tokens[number][-1]
                logits = model.advance(row)
                for number in left:
                    tokens[number].append(int(logits[slots[number]].argmax()))
                left = {number: steps - 1 for number, steps in left.items() if steps > 1}
        elif what in ("end", "preempt"):
            if about not in slots:  # its last token is prefill's; its share of the cache leaves a slot free
                prefill(about, next(slot for slot in range(model.batch) if slot not in slots.values()))
            slot = slots.pop(about)
            model.counts[slot], model.caches[slot] = 0, model.block.cache()
        progress("actions", done + 1, len(run.actions))
    return tokens
